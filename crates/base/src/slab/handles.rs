//! Handles of a slot, one for each stage of its life: [`Claimed`], [`Pin`], [`Retired`]; and [`Look`], which pins
//! nothing.

use super::slot::{Slot, Word};
use super::{FreeList, Slab};
use crate::sync::Ordering;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;

/// A slot that is being prepared. Dropping it frees the slot, unless it came from a caller's list: then the slot stays
/// claimed until [`Slab::claimed`] resumes the claim.
#[must_use = "dropping it frees the slot"]
pub struct Claimed<'a, T> {
    pub(super) slab: &'a Slab<T>,
    pub(super) slot: &'a Slot<T>,
    pub(super) index: u32,
    pub(super) generation: u32,
    /// Claimed from the slab's own list.
    pub(super) own_list: bool,
}

impl<T> Claimed<'_, T> {
    /// Makes the slot live: later pins see everything stored into it before.
    #[inline]
    pub fn publish(self) {
        let generation = self.generation;
        self.publish_as(generation);
    }

    /// Makes the slot live under another generation than [`generation`](Self::generation).
    #[inline]
    pub fn publish_as(self, generation: u32) {
        self.become_live(Word::live(generation, false));
    }

    /// Makes the slot live and held: see [`Slab::hold`].
    #[inline]
    pub fn publish_held(self) {
        let generation = self.generation;
        self.become_live(Word::live(generation, true));
    }

    #[inline]
    fn become_live(self, word: Word) {
        let this = ManuallyDrop::new(self);
        // Only the owner of the claim changes the word of a claimed slot, so no read-modify-write is needed.
        this.slot.word.store(word.0, Ordering::Release);
    }

    /// Frees the slot unused, to a list that the caller keeps. Its next use has the generation of this one.
    pub fn release_to(self, free: &mut FreeList) {
        let this = ManuallyDrop::new(self);
        this.slab
            .put_back(free, this.slot, this.index, this.generation, false);
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

/// A view of a slot that does not pin it: the slot may be retired, released and reused at the same moment.
#[derive(Clone, Copy)]
pub struct Look<'a, T> {
    pub(super) slot: &'a Slot<T>,
}

impl<'a, T> Look<'a, T> {
    /// The contents of the slot.
    #[must_use]
    #[inline(always)]
    pub fn value(&self) -> &'a T {
        &self.slot.value
    }

    /// Whether the slot is live under this generation at this moment. This may change at once: a caller that relies on it
    /// must ensure by other means, for example a lock, that a slot retired after this call is not changed in the
    /// meantime.
    #[must_use]
    #[inline(always)]
    pub fn is_live(&self, generation: u32) -> bool {
        let word = Word(self.slot.word.load(Ordering::SeqCst));
        word.is(Word::LIVE) && word.generation() == generation
    }
}

/// A slot that was found and is pinned until this is dropped.
#[must_use = "dropping it unpins the slot"]
pub struct Pin<'a, T> {
    pub(super) slot: &'a Slot<T>,
    pub(super) index: u32,
    pub(super) generation: u32,
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
        // This pin is counted, so the count is not 0, and the subtraction does not borrow from the state next to it.
        // Release: everything done under the pin happens before the drained slot is released.
        self.slot.word.fetch_sub(1, Ordering::Release);
    }
}

/// A slot that can no longer be found, and waits for its last pins to be dropped.
///
/// If this is dropped instead of released, the slot stays as it is until [`Slab::resume`].
#[must_use = "the slot is lost until it is released"]
pub struct Retired<'a, T> {
    pub(super) slab: &'a Slab<T>,
    pub(super) slot: &'a Slot<T>,
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl<T> Retired<'_, T> {
    /// Whether no pin is left. Once true, it stays true, and everything done under pins has happened before.
    #[must_use]
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.slot.load().low() == 0
    }

    /// Frees the slot; its next use will be under `next_generation`. It becomes the next slot to be claimed.
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

    /// Makes the slot live again under its old generation, held ([`Slab::hold`]) or not; its contents may have been changed in
    /// the meantime.
    ///
    /// # Errors
    ///
    /// The slot itself, when it is not drained.
    pub fn revive(self, held: bool) -> Result<(), Self> {
        if !self.is_drained() {
            return Err(self);
        }
        let this = ManuallyDrop::new(self);
        // Only its owner changes a drained slot's word. Release: later pins see the change.
        this.slot
            .word
            .store(Word::live(this.generation, held).0, Ordering::Release);
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
        // We may change the state but not the count: pins may be dropped at the same time.
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
