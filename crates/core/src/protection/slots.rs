//! The table's slots: claimed with a key for a region or a window, and freed when their last pin has been dropped.

use crate::Key;
use crate::keys::key::KeySequence;
use crate::objects::id::{GENERATIONS, TYPE2_GENERATIONS};
use crate::protection::entry::{Entry, flag};
use crate::protection::stock::ReadySlot;
use crate::protection::table::{Protection, Registry};
use crate::sync::{Ordering, fence};
use rkey_base::slab::{Claimed, FreeList, Retired};

/// Free slots, and the keys of slots.
pub(crate) struct SlotPool {
    /// The next keys.
    draw: KeySequence,
    /// The last remote key of each slot that was ever used, by slot.
    remote_keys: Vec<Key>,
    /// Claimed slots with keys, outside any magazine.
    pub(crate) ready: Vec<ReadySlot>,
    /// Free slots of `Protection::slots`.
    pub(crate) free: FreeList,
    /// Free slots of `Protection::type2`.
    pub(crate) free_type2: FreeList,
    /// Retired slots that were still pinned when their handle was dropped.
    orphans: Vec<Orphan>,
}

/// A retired slot that waits for its last pin to be dropped.
struct Orphan {
    type2: bool,
    index: u32,
    generation: u32,
}

impl SlotPool {
    pub(crate) fn new(draw: KeySequence) -> Self {
        Self {
            draw,
            remote_keys: Vec::new(),
            ready: Vec::new(),
            free: FreeList::default(),
            free_type2: FreeList::default(),
            orphans: Vec::new(),
        }
    }

    /// The remote key of a slot that is in use.
    #[inline]
    pub(crate) fn remote_key(&self, index: u32) -> Key {
        self.remote_keys
            .get(index as usize)
            .copied()
            .unwrap_or(Key(0))
    }

    /// Records the remote key of a slot.
    #[inline]
    fn set_remote_key(&mut self, index: u32, key: Key) {
        let index = index as usize;
        if index >= self.remote_keys.len() {
            self.remote_keys.resize(index + 1, Key(0));
        }
        self.remote_keys[index] = key;
    }
}

impl Protection {
    /// A free slot with a key, for a region or for a window whose key the device chooses. `None` if there is no room
    /// for another slot or key.
    #[inline]
    pub(crate) fn ready_slot(&self, registry: &mut Registry) -> Option<ReadySlot> {
        match registry.pool.ready.pop() {
            Some(ready) => Some(ready),
            None => self.make_ready(registry),
        }
    }

    /// Like [`Self::ready_slot`], but takes a slot from the magazines if necessary.
    #[inline]
    pub(crate) fn ready_slot_of_all(&self, registry: &mut Registry) -> Option<ReadySlot> {
        if let Some(ready) = self.ready_slot(registry) {
            return Some(ready);
        }
        self.empty_all_magazines(registry);
        self.ready_slot(registry)
    }

    #[inline]
    fn make_ready(&self, registry: &mut Registry) -> Option<ReadySlot> {
        let claimed = self.claim(registry, false)?;
        let (index, generation) = (claimed.index(), claimed.generation());
        match self.give_key(registry, index, generation) {
            Some(key) => Some(ReadySlot {
                index,
                generation,
                key,
            }),
            None => {
                claimed.release_to(&mut registry.pool.free);
                None
            }
        }
    }

    /// The claim of a ready slot that is about to be filled.
    #[inline]
    pub(crate) fn take_up(&self, ready: &ReadySlot) -> Option<Claimed<'_, Entry>> {
        let claimed = self.slots.claimed(ready.index, ready.generation);
        // As in `claim`: the slot may just have been another region's.
        fence(Ordering::Release);
        claimed
    }

    /// A free slot for a region or a window.
    #[inline]
    pub(crate) fn claim(&self, registry: &mut Registry, type2: bool) -> Option<Claimed<'_, Entry>> {
        if !registry.pool.orphans.is_empty() {
            self.sweep(registry);
        }
        let claimed = if type2 {
            self.type2.claim_from(&mut registry.pool.free_type2)
        } else {
            self.slots.claim_from(&mut registry.pool.free)
        };
        // A reader without a pin that sees anything stored into the slot from now on also sees that the slab's word for
        // it has changed.
        fence(Ordering::Release);
        claimed
    }

    /// The remote key of a claimed slot that becomes a region, or a window whose key the device chooses. `None` if
    /// there is no room for another key.
    #[inline(always)]
    pub(crate) fn give_key(
        &self,
        registry: &mut Registry,
        index: u32,
        generation: u32,
    ) -> Option<Key> {
        let key = self
            .keys
            .give_remote(&mut registry.pool.draw, index, generation)?;
        registry.pool.set_remote_key(index, key);
        Some(key)
    }

    /// The key of a claimed slot that becomes a type 2 window. `None` if there is no room for another key.
    pub(crate) fn give_type2_key(
        &self,
        registry: &mut Registry,
        claimed: &Claimed<'_, Entry>,
    ) -> Option<Key> {
        let (index, generation) = (claimed.index(), claimed.generation());
        self.keys
            .give_type2(&mut registry.pool.draw, index, generation)
    }

    /// Frees a retired slot now or, if it is pinned, when a slot is claimed after its last pin has been dropped.
    pub(crate) fn put_back(
        &self,
        registry: &mut Registry,
        type2: bool,
        retired: Retired<'_, Entry>,
    ) {
        if let Err(busy) = self.try_put_back(registry, type2, retired) {
            registry.pool.orphans.push(Orphan {
                type2,
                index: busy.index(),
                generation: busy.generation(),
            });
        }
    }

    /// Frees a retired slot, unless it is pinned.
    #[inline]
    pub(crate) fn try_put_back<'a>(
        &self,
        registry: &mut Registry,
        type2: bool,
        retired: Retired<'a, Entry>,
    ) -> Result<(), Retired<'a, Entry>> {
        if !retired.is_drained() {
            return Err(retired);
        }
        if retired.rights() & (flag::SCATTER | flag::WINDOW) == flag::SCATTER {
            self.scatter
                .remove(retired.start.load(Ordering::Relaxed) as u32);
            retired.rights.store(0, Ordering::Relaxed);
        }
        let next = retired.generation() + 1;
        let generations = if type2 {
            TYPE2_GENERATIONS
        } else {
            GENERATIONS
        };
        if next == generations {
            self.keys.wrap();
        }
        match (type2, next % generations) {
            (true, next) => retired.release_last_to(&mut registry.pool.free_type2, next),
            (false, 0) => retired.release_last_to(&mut registry.pool.free, 0),
            (false, next) => retired.release_to(&mut registry.pool.free, next),
        }
    }

    /// Frees the orphans whose last pin has been dropped.
    #[cold]
    fn sweep(&self, registry: &mut Registry) {
        for orphan in std::mem::take(&mut registry.pool.orphans) {
            let slab = if orphan.type2 {
                &self.type2
            } else {
                &self.slots
            };
            if let Some(retired) = slab.resume(orphan.index, orphan.generation) {
                self.put_back(registry, orphan.type2, retired);
            }
        }
    }
}
