//! Keys that programs ask for (libfabric): from a domain and a 64-bit key to a slot, without a lock.
//!
//! A hash table of buckets of eight cells. When a key finds no free cell, a level with four times the cells is added;
//! levels stay where they are, so that readers never meet a table that moves. A cell's target is written last and
//! taken away first, and a reader looks at it before and after the key: it believes only what did not change.
//! The caller that finds a target pins the slot, which tells whether it is still the one.

use crate::DomainId;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::OnceLock;

const BUCKET: usize = if cfg!(loom) { 1 } else { 8 };
const FIRST_LEVEL: usize = if cfg!(loom) { 1 } else { 64 };
const LEVELS: usize = 9;
const EMPTY: u64 = u64::MAX;

#[derive(Debug)]
struct Cell {
    /// Slot index and generation; `EMPTY` when the cell is free.
    target: AtomicU64,
    key: AtomicU64,
    domain: AtomicU32,
}

/// The table of requested keys. Changes are made by one caller at a time, who holds the protection table's lock.
pub(crate) struct Requested {
    levels: [OnceLock<Box<[Cell]>>; LEVELS],
    /// How many levels there are.
    grown: AtomicUsize,
    factor: u64,
}

impl Requested {
    pub(crate) fn new(random: u64) -> Self {
        Self {
            levels: [const { OnceLock::new() }; LEVELS],
            grown: AtomicUsize::new(0),
            factor: random | 1,
        }
    }

    /// The slot index and generation that `key` names in `domain`.
    #[inline]
    pub(crate) fn find(&self, domain: DomainId, key: u64) -> Option<(u32, u32)> {
        for level in self.levels() {
            for cell in self.bucket(level, domain, key) {
                let target = cell.target.load(Ordering::Acquire);
                if target == EMPTY
                    || cell.key.load(Ordering::Relaxed) != key
                    || cell.domain.load(Ordering::Relaxed) != domain.0
                {
                    continue;
                }
                fence(Ordering::Acquire);
                if cell.target.load(Ordering::Relaxed) == target {
                    return Some(((target >> 32) as u32, target as u32));
                }
            }
        }
        None
    }

    /// Adds a key that is not there; false when there is no room.
    pub(crate) fn insert(&self, domain: DomainId, key: u64, index: u32, generation: u32) -> bool {
        let grown = self.grown.load(Ordering::Relaxed);
        // The largest level first: it is the one that lookups try first.
        for number in (0..grown)
            .rev()
            .chain([grown])
            .take_while(|number| *number < LEVELS)
        {
            let level = self.levels[number].get_or_init(|| new_level(number));
            self.grown.store(grown.max(number + 1), Ordering::Release);
            for cell in self.bucket(level, domain, key) {
                if cell.target.load(Ordering::Relaxed) == EMPTY {
                    // Nobody believes the cell before its target is there again; the fence keeps these stores
                    // behind the removal that emptied it.
                    fence(Ordering::Release);
                    cell.key.store(key, Ordering::Relaxed);
                    cell.domain.store(domain.0, Ordering::Relaxed);
                    let target = u64::from(index) << 32 | u64::from(generation);
                    cell.target.store(target, Ordering::Release);
                    return true;
                }
            }
        }
        false
    }

    /// Takes a key away.
    pub(crate) fn remove(&self, domain: DomainId, key: u64) {
        for level in self.levels() {
            for cell in self.bucket(level, domain, key) {
                if cell.target.load(Ordering::Relaxed) != EMPTY
                    && cell.key.load(Ordering::Relaxed) == key
                    && cell.domain.load(Ordering::Relaxed) == domain.0
                {
                    cell.target.store(EMPTY, Ordering::Release);
                    return;
                }
            }
        }
    }

    /// The levels, the largest and usually fullest first.
    #[inline]
    fn levels(&self) -> impl Iterator<Item = &[Cell]> {
        let grown = self.grown.load(Ordering::Acquire).min(LEVELS);
        self.levels[..grown]
            .iter()
            .rev()
            .filter_map(|level| level.get().map(|level| &level[..]))
    }

    #[inline]
    fn bucket<'a>(&self, level: &'a [Cell], domain: DomainId, key: u64) -> &'a [Cell] {
        let mixed = (key ^ u64::from(domain.0).rotate_left(40)).wrapping_mul(self.factor);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(self.factor);
        // Levels have a power of two of cells, and at least a bucket.
        let start = (mixed >> 36) as usize & (level.len() - 1) & !(BUCKET - 1);
        &level[start..start + BUCKET]
    }
}

fn new_level(number: usize) -> Box<[Cell]> {
    let cells = FIRST_LEVEL << (2 * number);
    let empty = || Cell {
        target: AtomicU64::new(EMPTY),
        key: AtomicU64::new(0),
        domain: AtomicU32::new(0),
    };
    (0..cells).map(|_| empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "many thousand steps")]
    fn ten_thousand_keys_are_found_and_removed() {
        let table = Requested::new(0x1234_5678_9abc_def1);
        let (one, two) = (DomainId(1), DomainId(2));
        for key in 0..10_000u32 {
            assert!(table.insert(one, u64::from(key), key, 7));
            assert!(table.insert(two, u64::from(key), key, 8));
        }
        for key in 0..10_000u32 {
            assert_eq!(table.find(one, u64::from(key)), Some((key, 7)));
            assert_eq!(table.find(two, u64::from(key)), Some((key, 8)));
        }
        for key in (0..10_000).step_by(2) {
            table.remove(one, key);
        }
        for key in 0..10_000 {
            assert_eq!(table.find(one, key).is_some(), key % 2 == 1);
            assert!(table.find(two, key).is_some());
        }
        assert_eq!(table.find(DomainId(3), 1), None);
    }
}
