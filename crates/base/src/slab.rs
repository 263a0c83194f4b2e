//! Numbered slots with generations, reference counts and a two-step end of life.
//!
//! A slab hands out slots by number. What a slot holds can be looked up from any thread by its number and *generation*,
//! without a lock, and stays what it is for as long as the [`Pin`] from the look-up lives. A slot ends in two steps:
//! [`Slab::retire`] makes every further look-up fail, and when the pins of earlier look-ups are gone
//! ([`Retired::is_drained`]), [`Retired::release`] frees the slot for its next use, under another generation, so that
//! an old number finds nothing in it.
//!
//! ```text
//!            claim           publish           retire              release
//!   free ------------> claimed -------> live -----------> retired -----------> free
//!     ^                   |             | ^                  | ^                (next generation)
//!     +------ drop -------+            pin, unpin        drop v | resume
//!                                                         left behind
//! ```
//!
//! All of it is one 64-bit word per slot: the generation (32 bits), the state (8) and the number of pins (24), or the
//! number of the next free slot. Since pinning and retiring change the same word, they cannot miss each other.
//!
//! What the slots hold is shared from the start, so its fields are atomics (or locks) and this module needs no `unsafe`.

use crate::lock::SpinLock;
use crate::sync::{AtomicU64, Ordering};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::OnceLock;

/// Slots are allocated in chunks of this many, when one of them is needed first. Chunks never move.
const CHUNK: usize = if cfg!(loom) { 2 } else { 256 };

/// In place of the number of a slot: none. Also one more than the largest possible capacity.
const NONE: u32 = (1 << 24) - 1;

/// What can be said of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Not in use.
    Free,
    /// Being prepared by whoever claimed it; cannot be found yet.
    Claimed,
    /// Can be found and pinned.
    Live,
    /// Cannot be found any more; there may be pins left.
    Retired,
}

/// The word of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Word(u64);

impl Word {
    const FREE: u64 = 0;
    const CLAIMED: u64 = 1 << 24;
    const LIVE: u64 = 2 << 24;
    /// Retired, and a [`Retired`] exists.
    const RETIRED: u64 = 3 << 24;
    /// Retired, and the [`Retired`] was dropped.
    const LEFT: u64 = 4 << 24;
    const STATE: u64 = 0xFF << 24;
    const LOW: u64 = (1 << 24) - 1;

    #[inline(always)]
    const fn new(generation: u32, state: u64, low: u32) -> Self {
        Self((generation as u64) << 32 | state | low as u64)
    }

    #[inline(always)]
    const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The number of pins, or of the next free slot.
    #[inline(always)]
    const fn low(self) -> u32 {
        (self.0 & Self::LOW) as u32
    }

    #[inline(always)]
    const fn is(self, state: u64) -> bool {
        self.0 & Self::STATE == state
    }

    #[inline(always)]
    const fn with_state(self, state: u64) -> Self {
        Self(self.0 & !Self::STATE | state)
    }

    const fn state(self) -> State {
        match self.0 & Self::STATE {
            Self::FREE => State::Free,
            Self::CLAIMED => State::Claimed,
            Self::LIVE => State::Live,
            _ => State::Retired,
        }
    }
}

/// A slot: with 56 bytes of `T` exactly one cache line.
#[repr(C, align(64))]
struct Slot<T> {
    word: AtomicU64,
    value: T,
}

impl<T> Slot<T> {
    #[inline(always)]
    fn load(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// Changes the word from what it is to what `change` makes of it, unless that is nothing; returns what it was.
    #[inline(always)]
    fn update(&self, change: impl Fn(Word) -> Option<Word>) -> Option<Word> {
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

type Chunk<T> = Box<[Slot<T>; CHUNK]>;

/// A slab of slots with a `T` each.
pub struct Slab<T> {
    chunks: Box<[OnceLock<Chunk<T>>]>,
    capacity: u32,
    free: SpinLock<FreeList>,
}

/// Which slots of a slab are free. The slots themselves are chained through their words, so the lists take no memory.
///
/// A slab has one inside, under a lock of its own. Whoever holds a lock anyway whenever slots are claimed and released
/// can keep the list under that lock instead, and spare the slab's: [`Slab::claim_from`], [`Retired::release_to`].
/// A slab is used with one list all its life; with two, slots would be handed out twice.
#[derive(Debug)]
pub struct FreeList {
    /// The slot that was freed last.
    top: u32,
    /// The lowest slot that was never used.
    fresh: u32,
    /// The oldest and the newest of the slots that are to be reused last.
    oldest_aside: u32,
    newest_aside: u32,
    /// How many slots are not free.
    used: u32,
}

impl FreeList {
    /// The list of a slab of which no slot was used yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            top: NONE,
            fresh: 0,
            oldest_aside: NONE,
            newest_aside: NONE,
            used: 0,
        }
    }

    /// How many slots are in use: claimed, live or retired.
    #[must_use]
    pub const fn used(&self) -> u32 {
        self.used
    }
}

impl Default for FreeList {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Default> Slab<T> {
    /// A slab of `capacity` slots, none of which takes memory yet.
    ///
    /// # Panics
    ///
    /// When `capacity` is more than [`Slab::MAX_CAPACITY`].
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        assert!(
            capacity <= Self::MAX_CAPACITY,
            "a slab of {capacity} slots is too large"
        );
        let chunks = (capacity as usize).div_ceil(CHUNK);
        Self {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            capacity,
            free: SpinLock::new(FreeList::new()),
        }
    }

    /// Claims a free slot: the one that was freed last, else one that was never used, else the one that was freed by
    /// [`Retired::release_last`] the longest ago. `None` when all slots are in use.
    ///
    /// Allocates memory only when the first slot of a chunk is used for the first time.
    #[inline]
    pub fn claim(&self) -> Option<Claimed<'_, T>> {
        let mut free = self.free.lock();
        let (slot, index, generation) = self.take(&mut free)?;
        Some(Claimed {
            slab: self,
            slot,
            index,
            generation,
            own_list: true,
        })
    }

    /// Claims a free slot like [`claim`](Self::claim), from a list that the caller keeps.
    ///
    /// If the claim is dropped and not published, the slot is lost.
    #[inline]
    pub fn claim_from(&self, free: &mut FreeList) -> Option<Claimed<'_, T>> {
        let (slot, index, generation) = self.take(free)?;
        Some(Claimed {
            slab: self,
            slot,
            index,
            generation,
            own_list: false,
        })
    }

    #[inline]
    fn take(&self, free: &mut FreeList) -> Option<(&Slot<T>, u32, u32)> {
        let (index, slot, word);
        if free.top != NONE {
            index = free.top;
            slot = self.slot(index)?;
            word = slot.load();
            free.top = word.low();
        } else if free.fresh < self.capacity {
            index = free.fresh;
            slot = self.fresh_slot(index);
            word = slot.load();
            free.fresh += 1;
        } else if free.oldest_aside != NONE {
            index = free.oldest_aside;
            slot = self.slot(index)?;
            word = slot.load();
            free.oldest_aside = word.low();
            if free.oldest_aside == NONE {
                free.newest_aside = NONE;
            }
        } else {
            return None;
        }
        free.used += 1;
        // Nobody else changes the word of a free slot: its only owner was the list, and is now the claim.
        let generation = word.generation();
        slot.word
            .store(Word::new(generation, Word::CLAIMED, 0).0, Ordering::Relaxed);
        Some((slot, index, generation))
    }

    /// The slot, with its chunk allocated if it is the first of it that is used.
    fn fresh_slot(&self, index: u32) -> &Slot<T> {
        let chunk = self.chunks[index as usize / CHUNK].get_or_init(|| {
            let slots: Box<[Slot<T>]> = (0..CHUNK)
                .map(|_| Slot {
                    word: AtomicU64::new(Word::new(0, Word::FREE, NONE).0),
                    value: T::default(),
                })
                .collect();
            match slots.try_into() {
                Ok(chunk) => chunk,
                Err(_) => unreachable!("a chunk is made of exactly that many slots"),
            }
        });
        &chunk[index as usize % CHUNK]
    }
}

impl<T> Slab<T> {
    /// The most slots that a slab can have.
    pub const MAX_CAPACITY: u32 = NONE;

    /// The slot, or `None` when there is none of that number or its chunk was never needed.
    #[inline(always)]
    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let chunk = self.chunks.get(index as usize / CHUNK)?.get()?;
        Some(&chunk[index as usize % CHUNK])
    }

    /// Looks a slot up, and holds it: until the pin is dropped the slot is not released.
    ///
    /// `None` when the slot is not live, or lives under another generation. Takes no lock.
    #[inline]
    pub fn pin(&self, index: u32, generation: u32) -> Option<Pin<'_, T>> {
        let slot = self.slot(index)?;
        slot.update(|word| {
            let found = word.is(Word::LIVE) && word.generation() == generation;
            // A count that is full cannot be counted up. That many leases at once only exist if pins are forgotten;
            // then the slot stays forever and further look-ups fail, which harms nobody.
            (found && word.low() < NONE).then_some(Word(word.0 + 1))
        })?;
        Some(Pin {
            slot,
            index,
            generation,
        })
    }

    /// Ends a slot's life: from now on it cannot be found. `None` when the slot is not live under this generation;
    /// of several callers at once exactly one gets it. It is sequentially consistent with [`Look::is_live`]
    /// (see [`SpinLock::pass`]).
    #[inline]
    pub fn retire(&self, index: u32, generation: u32) -> Option<Retired<'_, T>> {
        let slot = self.slot(index)?;
        slot.update(|word| {
            let found = word.is(Word::LIVE) && word.generation() == generation;
            found.then_some(word.with_state(Word::RETIRED))
        })?;
        Some(Retired {
            slab: self,
            slot,
            index,
            generation,
        })
    }

    /// Takes up again a slot that was retired, but whose [`Retired`] was dropped instead of released. `None` when there
    /// is no such slot under this generation; of several callers at once exactly one gets it.
    pub fn resume(&self, index: u32, generation: u32) -> Option<Retired<'_, T>> {
        let slot = self.slot(index)?;
        slot.update(|word| {
            let found = word.is(Word::LEFT) && word.generation() == generation;
            found.then_some(word.with_state(Word::RETIRED))
        })?;
        Some(Retired {
            slab: self,
            slot,
            index,
            generation,
        })
    }

    /// What a slot holds, whatever its state and generation; nothing keeps it from being reused at the same moment.
    /// `None` when there is no slot of that number, or none near it was ever used.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.slot(index).map(|slot| &slot.value)
    }

    /// Looks at a slot without holding it, whatever its state and generation. `None` as for [`get`](Self::get).
    #[must_use]
    #[inline]
    pub fn look(&self, index: u32) -> Option<Look<'_, T>> {
        self.slot(index).map(|slot| Look { slot })
    }

    /// The generation and the state of a slot at this moment. `None` as for [`get`](Self::get).
    #[must_use]
    pub fn peek(&self, index: u32) -> Option<(u32, State)> {
        let word = self.slot(index)?.load();
        Some((word.generation(), word.state()))
    }

    /// How many pins hold a slot at this moment; 0 for a slot that cannot be pinned.
    #[must_use]
    pub fn pins(&self, index: u32) -> u32 {
        self.slot(index)
            .map(Slot::load)
            .map_or(0, |word| match word.state() {
                State::Live | State::Retired => word.low(),
                State::Free | State::Claimed => 0,
            })
    }

    /// How many slots are in use: claimed, live or retired. (Where the caller keeps the free list: [`FreeList::used`].)
    #[must_use]
    pub fn live(&self) -> usize {
        self.free.lock().used as usize
    }

    /// How many slots there are.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Pins one after the other all slots that are live when their turn comes.
    pub fn iter_live(&self) -> impl Iterator<Item = Pin<'_, T>> {
        let allocated = (0..self.chunks.len()).filter(|chunk| self.chunks[*chunk].get().is_some());
        let indices = allocated.flat_map(|chunk| chunk * CHUNK..(chunk + 1) * CHUNK);
        indices.filter_map(|index| match self.peek(index as u32)? {
            (generation, State::Live) => self.pin(index as u32, generation),
            _ => None,
        })
    }

    /// Gives a slot back, to the end of the queue or to its front. The caller owns the slot: it is claimed, or retired
    /// and drained.
    #[inline]
    fn put_back(
        &self,
        free: &mut FreeList,
        slot: &Slot<T>,
        index: u32,
        generation: u32,
        last: bool,
    ) {
        free.used -= 1;
        let next = if last { NONE } else { free.top };
        // Nobody else changes this word: see the caller. Release: whoever claims the slot next and pins it sees all.
        slot.word
            .store(Word::new(generation, Word::FREE, next).0, Ordering::Release);
        if !last {
            free.top = index;
            return;
        }
        match self.slot(free.newest_aside) {
            Some(newest) => {
                let word = newest.load();
                let linked = Word::new(word.generation(), Word::FREE, index);
                newest.word.store(linked.0, Ordering::Release);
            }
            None => free.oldest_aside = index,
        }
        free.newest_aside = index;
    }
}

impl<T> fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab")
            .field("live", &self.live())
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// A slot that is being prepared. Dropping it gives the slot back.
#[must_use = "dropping it gives the slot back"]
pub struct Claimed<'a, T> {
    slab: &'a Slab<T>,
    slot: &'a Slot<T>,
    index: u32,
    generation: u32,
    /// Claimed from the slab's own list.
    own_list: bool,
}

impl<T> Claimed<'_, T> {
    /// Makes the slot live: whoever pins it from now on sees everything that was stored into it before.
    #[inline]
    pub fn publish(self) {
        let generation = self.generation;
        self.publish_as(generation);
    }

    /// Makes the slot live under another generation than [`generation`](Self::generation).
    #[inline]
    pub fn publish_as(self, generation: u32) {
        let this = ManuallyDrop::new(self);
        // The word of a claimed slot is changed by the owner of the claim only; no read-modify-write is needed.
        this.slot
            .word
            .store(Word::new(generation, Word::LIVE, 0).0, Ordering::Release);
    }
}

impl<T> Drop for Claimed<'_, T> {
    fn drop(&mut self) {
        if self.own_list {
            let mut free = self.slab.free.lock();
            self.slab
                .put_back(&mut free, self.slot, self.index, self.generation, false);
        }
    }
}

/// A slot that is looked at and not held: it may be retired, released and reused at the same moment.
#[derive(Clone, Copy)]
pub struct Look<'a, T> {
    slot: &'a Slot<T>,
}

impl<'a, T> Look<'a, T> {
    /// What the slot holds.
    #[must_use]
    #[inline(always)]
    pub fn value(&self) -> &'a T {
        &self.slot.value
    }

    /// Whether the slot is live under this generation at this moment. Nothing keeps it so: whoever relies on it has to
    /// be sure by other means, a lock for instance, that what is retired from now on is not taken apart under his eyes.
    #[must_use]
    #[inline(always)]
    pub fn is_live(&self, generation: u32) -> bool {
        let word = Word(self.slot.word.load(Ordering::SeqCst));
        word.is(Word::LIVE) && word.generation() == generation
    }
}

/// A slot that was found and is held. Dropping it lets go.
#[must_use = "dropping it lets go of the slot"]
pub struct Pin<'a, T> {
    slot: &'a Slot<T>,
    index: u32,
    generation: u32,
}

impl<T> Pin<'_, T> {
    /// Whether the slot was retired since it was pinned.
    #[must_use]
    #[inline]
    pub fn is_retired(&self) -> bool {
        !self.slot.load().is(Word::LIVE)
    }
}

impl<T> Drop for Pin<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // This pin is counted, so the count is not 0 and nothing is borrowed from the state beside it. Release: what
        // was done under the pin happens before the drained slot is released.
        self.slot.word.fetch_sub(1, Ordering::Release);
    }
}

/// A slot that cannot be found any more, and waits for its last pins to be dropped.
///
/// If this is dropped instead of released, the slot stays as it is until [`Slab::resume`].
#[must_use = "the slot is lost until it is released"]
pub struct Retired<'a, T> {
    slab: &'a Slab<T>,
    slot: &'a Slot<T>,
    index: u32,
    generation: u32,
}

impl<T> Retired<'_, T> {
    /// Whether no pin is left. Once true it stays true, and everything that was done under pins has happened before.
    #[must_use]
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.slot.load().low() == 0
    }

    /// Frees the slot; its next use will be under `next_generation`. It is the next slot to be claimed.
    ///
    /// # Errors
    ///
    /// The slot itself, when it is not drained.
    #[inline]
    pub fn release(self, next_generation: u32) -> Result<(), Self> {
        let slab = self.slab;
        self.release_to(&mut slab.free.lock(), next_generation)
    }

    /// Frees the slot like [`release`](Self::release), but it is claimed only when every other slot is in use; of
    /// several such slots the one that was freed first is claimed first.
    ///
    /// # Errors
    ///
    /// The slot itself, when it is not drained.
    pub fn release_last(self, next_generation: u32) -> Result<(), Self> {
        let slab = self.slab;
        self.release_last_to(&mut slab.free.lock(), next_generation)
    }

    /// Frees the slot like [`release`](Self::release), to a list that the caller keeps.
    ///
    /// # Errors
    ///
    /// The slot itself, when it is not drained.
    #[inline]
    pub fn release_to(self, free: &mut FreeList, next_generation: u32) -> Result<(), Self> {
        self.finish(free, next_generation, false)
    }

    /// Frees the slot like [`release_last`](Self::release_last), to a list that the caller keeps.
    ///
    /// # Errors
    ///
    /// The slot itself, when it is not drained.
    pub fn release_last_to(self, free: &mut FreeList, next_generation: u32) -> Result<(), Self> {
        self.finish(free, next_generation, true)
    }

    /// Makes the slot live again, under the generation it had: what it holds may have been changed meanwhile.
    ///
    /// # Errors
    ///
    /// The slot itself, when it is not drained.
    pub fn revive(self) -> Result<(), Self> {
        if !self.is_drained() {
            return Err(self);
        }
        let this = ManuallyDrop::new(self);
        // A drained slot's word is changed by its owner only. Release: whoever pins it sees the change.
        this.slot.word.store(
            Word::new(this.generation, Word::LIVE, 0).0,
            Ordering::Release,
        );
        Ok(())
    }

    #[inline]
    fn finish(self, free: &mut FreeList, next_generation: u32, last: bool) -> Result<(), Self> {
        if !self.is_drained() {
            return Err(self);
        }
        let this = ManuallyDrop::new(self);
        this.slab
            .put_back(free, this.slot, this.index, next_generation, last);
        Ok(())
    }
}

impl<T> Drop for Retired<'_, T> {
    fn drop(&mut self) {
        // The state is ours to change, the count is not: pins may be dropped at the same time.
        self.slot.update(|word| Some(word.with_state(Word::LEFT)));
    }
}

macro_rules! holds_a_slot {
    ($holder:ident, $generation:literal) => {
        impl<T> $holder<'_, T> {
            /// The number of the slot.
            #[must_use]
            #[inline]
            pub fn index(&self) -> u32 {
                self.index
            }

            #[doc = $generation]
            #[must_use]
            #[inline]
            pub fn generation(&self) -> u32 {
                self.generation
            }
        }

        impl<T> Deref for $holder<'_, T> {
            type Target = T;

            #[inline(always)]
            fn deref(&self) -> &T {
                &self.slot.value
            }
        }

        impl<T> fmt::Debug for $holder<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($holder))
                    .field("index", &self.index)
                    .field("generation", &self.generation)
                    .finish_non_exhaustive()
            }
        }
    };
}

holds_a_slot!(
    Claimed,
    "The generation that the last release chose for this use; 0 if the slot was never used."
);
holds_a_slot!(Pin, "The generation under which it was found.");
holds_a_slot!(Retired, "The generation under which it lived.");

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_models;
