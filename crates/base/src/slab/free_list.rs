//! Which slots are free, and which of them comes next: the one that was freed last, then one that was never used, then
//! those that are to be reused last.

use super::slot::{Slot, Word};
use super::{NONE, Slab};
use crate::sync::Ordering;

/// Which slots of a slab are free. The slots themselves are chained through their words, so the lists take no memory.
///
/// A slab has one inside, under a lock of its own. Whoever holds a lock anyway whenever slots are claimed and released
/// can keep the list under that lock instead, and spare the slab's: [`Slab::claim_from`],
/// [`Retired::release_to`](super::Retired::release_to).
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
    /// Takes a slot off the list, as [`Slab::claim`] says.
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
        // Nobody else changes the word of a free slot: its only owner was the list, and is now the claim.
        let generation = word.generation();
        slot.word
            .store(Word::new(generation, Word::CLAIMED, 0).0, Ordering::Relaxed);
        Some((slot, index, generation))
    }
}

impl<T> Slab<T> {
    /// Gives a slot back, to the end of the queue or to its front. The caller owns the slot: it is claimed, or retired
    /// and drained.
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
