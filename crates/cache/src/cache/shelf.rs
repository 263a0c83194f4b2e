//! Which slots are free, and which entries to evict: the state under the cache's lock.

use crate::table::entries::Entries;
use crate::table::values::Values;
use crate::table::word::Freed;
use rkey_base::range::VaRange;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Values that left the table. They are deregistered after the lock is released.
pub(super) type Gone<V> = SmallVec<[(VaRange, V); 4]>;

/// An entry that was idle, and when it was last used.
struct Candidate {
    used: u64,
    slot: u32,
    generation: u64,
}

/// A search keeps one idle entry in so many, and at least [`CANDIDATES`]: fewer would not be worth a scan of all entries.
const SHARE: usize = 4;

const CANDIDATES: usize = 16;

/// The state under the lock.
pub(super) struct Shelf {
    capacity: usize,
    /// Slots that were used before and are free.
    free: Vec<u32>,
    /// Slots from this number on were never used.
    fresh: usize,
    /// The least recently used idle entries at the last search, oldest last.
    oldest: Vec<Candidate>,
    /// The bytes of all entries.
    pub(super) bytes: u64,
}

/// The parts of a cache that change together with the shelf.
pub(super) struct Parts<'a, V> {
    pub(super) entries: &'a Entries,
    pub(super) values: &'a Values<V>,
    /// How many values have left the table and are not deregistered yet.
    pub(super) leaving: &'a AtomicUsize,
}

impl Shelf {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            free: Vec::new(),
            fresh: 0,
            oldest: Vec::new(),
            bytes: 0,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.fresh - self.free.len()
    }

    /// Takes a free slot for an entry of `len` bytes.
    pub(super) fn take(&mut self, len: u64) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.fresh < self.capacity => {
                self.fresh += 1;
                (self.fresh - 1) as u32
            }
            None => return None,
        };
        self.bytes += len;
        Some(slot)
    }

    /// Frees the slots of unused dead entries.
    pub(super) fn reap<V>(&mut self, parts: &Parts<'_, V>, gone: &mut Gone<V>) {
        parts.entries.take_dead(|slot| {
            if let Freed::Yes(hits) = parts.entries.slot(slot).word.free() {
                self.release(parts, slot, hits, gone);
            }
        });
    }

    /// Evicts the idle entry that was least recently used. `false` if no entry is idle.
    pub(super) fn evict<V>(&mut self, parts: &Parts<'_, V>, gone: &mut Gone<V>) -> bool {
        if self.evict_candidate(parts, gone) {
            return true;
        }
        self.find_oldest(parts.entries);
        self.evict_candidate(parts, gone)
    }

    fn evict_candidate<V>(&mut self, parts: &Parts<'_, V>, gone: &mut Gone<V>) -> bool {
        while let Some(it) = self.oldest.pop() {
            let slot = parts.entries.slot(it.slot);
            let used = slot.used.load(Ordering::Relaxed);
            // An entry that was used since the search may no longer be the oldest.
            if used != it.used || slot.word.generation() != it.generation {
                continue;
            }
            if let Freed::Yes(hits) = slot.word.evict() {
                self.release(parts, it.slot, hits, gone);
                return true;
            }
        }
        false
    }

    /// Searches for the least recently used idle entries.
    fn find_oldest(&mut self, entries: &Entries) {
        let idle = (0..self.fresh as u32).filter_map(|number| {
            let slot = entries.slot(number);
            slot.word.is_idle().then(|| Candidate {
                used: slot.used.load(Ordering::Relaxed),
                slot: number,
                generation: slot.word.generation(),
            })
        });
        self.oldest = idle.collect();
        let keep = CANDIDATES.max(self.oldest.len() / SHARE);
        if self.oldest.len() > keep {
            self.oldest.select_nth_unstable_by_key(keep, |it| it.used);
            self.oldest.truncate(keep);
        }
        self.oldest
            .sort_unstable_by_key(|it| std::cmp::Reverse(it.used));
    }

    fn release<V>(&mut self, parts: &Parts<'_, V>, number: u32, hits: u64, gone: &mut Gone<V>) {
        let slot = parts.entries.slot(number);
        let range = slot.range();
        slot.add_hits(hits);
        parts.entries.remove(number);
        self.bytes -= range.len();
        if let Some(value) = take(parts, number) {
            parts.leaving.fetch_add(1, Ordering::Relaxed);
            gone.push((range, value));
        }
        self.free.push(number);
    }
}

// UNSAFETY: the value of a slot that was just freed.
#[allow(unsafe_code)]
fn take<V>(parts: &Parts<'_, V>, number: u32) -> Option<V> {
    // SAFETY: `release` is called for a slot that `free` or `evict` has freed, under the lock that every claim needs, and puts
    // it on the list of free slots only afterwards.
    unsafe { parts.values.take(number) }
}
