//! The free slots, and the order of their reuse: the one that was freed last, then one that was never used, then
//! those to be reused last.

use super::slot::{Slot, Word};
use super::{NONE, Slab};
use crate::sync::Ordering;

/// The free slots of a slab. The slots themselves are chained through their words, so the lists take no memory.
///
/// A slab contains a list under its own lock. A caller that holds a lock anyway whenever it claims and releases slots
/// can keep the list under that lock instead, and avoid taking the slab's: [`Slab::claim_from`],
/// [`Retired::release_to`](super::Retired::release_to). Use only one list with a slab for its whole life; with two,
/// slots would be claimed twice.
#[derive(Debug)]
pub struct FreeList {
    /// The slot that was freed last.
    top: u32,
    /// The lowest slot that was never used.
    fresh: u32,
    /// The oldest and the newest of the slots to be reused last.
    oldest_aside: u32,
    newest_aside: u32,
    /// How many slots are not free.
    used: u32,
}

impl FreeList {
    /// The free list of a new slab.
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
    /// Takes a slot from the list, as [`Slab::claim`] describes.
    #[inline]
    pub(super) fn take(&self, free: &mut FreeList) -> Option<(&Slot<T>, u32, u32)> {
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
        // The word of a free slot has one writer: its owner was the list, and is now the claim.
        let generation = word.generation();
        slot.word
            .store(Word::new(generation, Word::CLAIMED, 0).0, Ordering::Relaxed);
        Some((slot, index, generation))
    }
}

impl<T> Slab<T> {
    /// Returns a slot to the list, to be claimed next or, if `last`, after all others. The caller owns the slot: it is
    /// claimed, or retired and drained.
    #[inline]
    pub(super) fn put_back(
        &self,
        free: &mut FreeList,
        slot: &Slot<T>,
        index: u32,
        generation: u32,
        last: bool,
    ) {
        free.used -= 1;
        let next = if last { NONE } else { free.top };
        // The caller owns the slot, so nothing else writes the word. Release: the next claim and its pins see
        // everything done before.
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
