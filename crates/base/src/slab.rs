//! Numbered slots with generations, reference counts and a two-step end of life.
//!
//! A slab allocates slots by number. Any thread can look up a slot by its number and *generation*, without a lock, and
//! the slot stays allocated as long as the [`Pin`] from the lookup lives. A slot ends in two steps: [`Slab::retire`]
//! makes every further lookup fail, and when the pins of earlier lookups have been dropped ([`Retired::is_drained`]),
//! [`Retired::release`] frees the slot for its next use, under another generation, so that the old generation finds
//! nothing.
//!
//! ```text
//!            claim           publish           retire              release
//!   free ------------> claimed -------> live -----------> retired -----------> free
//!     ^                   |             | ^                  | ^                (next generation)
//!     +------ drop -------+            pin, unpin        drop v | resume
//!                                                         left behind
//! ```
//!
//! A live slot that is idle (neither pinned nor *held*) can be claimed for its next use in one step
//! ([`Slab::retire_and_claim`]).
//!
//! The state of a slot is one 64-bit word: the generation (32 bits), the state (8, with a bit for the hold) and the
//! number of pins (24), or the number of the next free slot. Since pinning, holding and retiring change the same word,
//! they cannot miss each other.
//!
//! The contents of the slots are shared from the start, so their fields are atomics (or locks), and this module needs no
//! `unsafe`.

mod free_list;
mod handles;
#[cfg(all(test, loom))]
mod loom_models;
mod slot;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::lock::SpinLock;
use crate::sync::{AtomicU64, Ordering};
use slot::{Slot, Word};
use std::fmt;
use std::sync::OnceLock;

pub use free_list::FreeList;
pub use handles::{Claimed, Look, Pin, Retired};
pub use slot::State;

/// Slots are allocated on first use, in chunks of this size. Chunks never move.
const CHUNK: usize = if cfg!(loom) { 2 } else { 256 };

/// "No slot", in place of a slot's number. Also the largest possible capacity: the last slot is then `NONE - 1`.
const NONE: u32 = (1 << 24) - 1;

type Chunk<T> = Box<[Slot<T>; CHUNK]>;

/// A slab of slots, each with a `T`.
pub struct Slab<T> {
    chunks: Box<[OnceLock<Chunk<T>>]>,
    capacity: u32,
    free: SpinLock<FreeList>,
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

    /// Claims a free slot: the one that was freed last; otherwise one that was never used; otherwise the one that
    /// [`Retired::release_last`] freed first. `None` when all slots are in use.
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
    /// If the claim is dropped without being published, the slot is lost until [`claimed`](Self::claimed) is called.
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

    /// The slot; allocates its chunk if none of the chunk's slots was used before.
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
    /// The maximum number of slots of a slab.
    pub const MAX_CAPACITY: u32 = NONE;

    /// The slot, or `None` when there is none with that number or its chunk was never used.
    #[inline(always)]
    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let chunk = self.chunks.get(index as usize / CHUNK)?.get()?;
        Some(&chunk[index as usize % CHUNK])
    }

    /// Looks up a slot and pins it: the slot is not released before the pin is dropped.
    ///
    /// `None` when the slot is not live, or lives under another generation. Takes no lock.
    #[inline]
    pub fn pin(&self, index: u32, generation: u32) -> Option<Pin<'_, T>> {
        let slot = self.slot(index)?;
        slot.update(|word| {
            let found = word.is(Word::LIVE) && word.generation() == generation;
            // A full count cannot grow. That many simultaneous pins exist only if pins are leaked; the slot then stays
            // forever and further lookups fail, which is harmless.
            (found && word.low() < NONE).then_some(Word(word.0 + 1))
        })?;
        Some(Pin {
            slot,
            index,
            generation,
        })
    }

    /// Ends a slot's life: from now on, no lookup finds the slot. `None` when the slot is not live under this generation;
    /// of several concurrent callers, exactly one gets the slot. The change is sequentially consistent with
    /// [`Look::is_live`] (see [`SpinLock::wait_for_holder`]).
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

    /// Ends the life of a slot that is neither pinned nor held, and claims it for its next use, in one step. `None` when the
    /// slot is not live under this generation, or not idle. The memory ordering is that of [`retire`](Self::retire).
    ///
    /// The claim is like one of [`claim_from`](Self::claim_from).
    #[inline]
    pub fn retire_and_claim(
        &self,
        index: u32,
        generation: u32,
        next_generation: u32,
    ) -> Option<Claimed<'_, T>> {
        let slot = self.slot(index)?;
        let idle = Word::live(generation, false);
        let claimed = Word::new(next_generation, Word::CLAIMED, 0);
        slot.word
            .compare_exchange(idle.0, claimed.0, Ordering::SeqCst, Ordering::Relaxed)
            .ok()?;
        Some(Claimed {
            slab: self,
            slot,
            index,
            generation: next_generation,
            own_list: false,
        })
    }

    /// Resumes a dropped claim from the caller's list. `None` when the slot is not claimed under this generation. No
    /// other caller may use the claim.
    #[inline]
    pub fn claimed(&self, index: u32, generation: u32) -> Option<Claimed<'_, T>> {
        let slot = self.slot(index)?;
        let claimed = Word::new(generation, Word::CLAIMED, 0);
        (slot.load() == claimed).then_some(Claimed {
            slab: self,
            slot,
            index,
            generation,
            own_list: false,
        })
    }

    /// Makes [`retire_and_claim`](Self::retire_and_claim) refuse a live slot until [`unhold`](Self::unhold). Returns `false`
    /// when the slot is not live under this generation. A slot is either held or not: holds are not counted.
    pub fn hold(&self, index: u32, generation: u32) -> bool {
        let hold = |word: Word| {
            let found = word.is(Word::LIVE) && word.generation() == generation;
            found.then_some(Word(word.0 | Word::HELD))
        };
        self.slot(index)
            .is_some_and(|slot| slot.update(hold).is_some())
    }

    /// Ends a hold. Does nothing when the slot is not live under this generation.
    pub fn unhold(&self, index: u32, generation: u32) {
        if let Some(slot) = self.slot(index) {
            slot.update(|word| {
                let found = word.is(Word::LIVE) && word.generation() == generation;
                found.then_some(Word(word.0 & !Word::HELD))
            });
        }
    }

    /// Resumes a retired slot whose [`Retired`] was dropped instead of released. `None` when there is no such slot under
    /// this generation; of several callers at once exactly one gets it.
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

    /// The contents of a slot in any state and generation; the slot may be reused at the same moment. `None` if
    /// there is no slot of that number, or its chunk was never used.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.slot(index).map(|slot| &slot.value)
    }

    /// Reads a slot in any state and generation, without pinning it. `None` as for [`get`](Self::get).
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

    /// The number of pins on a slot at this moment; 0 for a slot that cannot be pinned.
    #[must_use]
    pub fn pins(&self, index: u32) -> u32 {
        self.slot(index)
            .map(Slot::load)
            .map_or(0, |word| match word.state() {
                State::Live | State::Retired => word.low(),
                State::Free | State::Claimed => 0,
            })
    }

    /// How many slots are in use: claimed, live or retired. If the caller keeps the free list, use [`FreeList::used`].
    #[must_use]
    pub fn live(&self) -> usize {
        self.free.lock().used() as usize
    }

    /// How many slots there are.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Pins all live slots, one after the other; each is checked when its turn comes.
    pub fn iter_live(&self) -> impl Iterator<Item = Pin<'_, T>> {
        let allocated = (0..self.chunks.len()).filter(|chunk| self.chunks[*chunk].get().is_some());
        let indices = allocated.flat_map(|chunk| chunk * CHUNK..(chunk + 1) * CHUNK);
        indices.filter_map(|index| match self.peek(index as u32)? {
            (generation, State::Live) => self.pin(index as u32, generation),
            _ => None,
        })
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
