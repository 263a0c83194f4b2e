//! One slot: the value, and a word for the slot's state.
//!
//! The low 24 bits of the word are the number of pins while the slot is in use, and the number of the next free
//! slot while it is free.

use crate::sync::{AtomicU64, Ordering};

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Not in use.
    Free,
    /// Being prepared by its claimer; lookups do not find it yet.
    Claimed,
    /// Can be found and pinned.
    Live,
    /// Lookups no longer find it; there may be pins left.
    Retired,
}

/// The word of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

impl Word {
    pub(super) const FREE: u64 = 0;
    pub(super) const CLAIMED: u64 = 1 << 24;
    pub(super) const LIVE: u64 = 2 << 24;
    /// Retired, and a [`Retired`](super::Retired) exists.
    pub(super) const RETIRED: u64 = 3 << 24;
    /// Retired, and the [`Retired`](super::Retired) was dropped.
    pub(super) const LEFT: u64 = 4 << 24;
    /// Together with [`Self::LIVE`]: the slot is held ([`Slab::hold`](super::Slab::hold)).
    pub(super) const HELD: u64 = 0x80 << 24;
    const STATE: u64 = 0x7F << 24;
    const LOW: u64 = (1 << 24) - 1;

    #[inline(always)]
    pub(super) const fn new(generation: u32, state: u64, low: u32) -> Self {
        Self((generation as u64) << 32 | state | low as u64)
    }

    #[inline(always)]
    pub(super) const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The number of pins, or of the next free slot.
    #[inline(always)]
    pub(super) const fn low(self) -> u32 {
        (self.0 & Self::LOW) as u32
    }

    #[inline(always)]
    pub(super) const fn is(self, state: u64) -> bool {
        self.0 & Self::STATE == state
    }

    #[inline(always)]
    pub(super) const fn with_state(self, state: u64) -> Self {
        Self(self.0 & !(Self::STATE | Self::HELD) | state)
    }

    /// A live slot's word.
    #[inline(always)]
    pub(super) const fn live(generation: u32, held: bool) -> Self {
        let hold = if held { Self::HELD } else { 0 };
        Self::new(generation, Self::LIVE | hold, 0)
    }

    pub(super) const fn state(self) -> State {
        match self.0 & Self::STATE {
            Self::FREE => State::Free,
            Self::CLAIMED => State::Claimed,
            Self::LIVE => State::Live,
            _ => State::Retired,
        }
    }
}

/// A slot. With 56 bytes of `T` it is exactly one cache line.
#[repr(C, align(64))]
pub(super) struct Slot<T> {
    pub(super) word: AtomicU64,
    pub(super) value: T,
}

impl<T> Slot<T> {
    #[inline(always)]
    pub(super) fn load(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// Replaces the word with the result of `change`, unless that is `None`; returns the previous word.
    #[inline(always)]
    pub(super) fn update(&self, change: impl Fn(Word) -> Option<Word>) -> Option<Word> {
        let mut seen = self.load();
        loop {
            let wanted = change(seen)?;
            match self.word.compare_exchange_weak(
                seen.0,
                wanted.0,
                Ordering::SeqCst,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(seen),
                Err(other) => seen = Word(other),
            }
        }
    }
}
