//! Requested keys (libfabric): a lock-free map from a domain and a 64-bit key to a slot.
//!
//! A hash table of buckets of eight cells. When a key finds no free cell, a level with four times the cells is added;
//! existing levels stay in place, so readers never see a table move. A cell's target is written last and removed first.
//! A reader reads the target before and after the key, and ignores the cell if the target has changed. The caller then
//! pins the slot that it found; the pin fails if the slot no longer has that key.
//!
//! With many keys, the cost of a lookup is the cache lines that it touches. A bucket is two adjacent lines, and a
//! lookup starts with the line in which the key was stored if it had room.

use crate::objects::id::GENERATIONS;
use crate::sync::{AtomicU64, AtomicUsize, Ordering, fence};
use crate::{DomainId, Limits, RegionId};
use rkey_base::lock::{Guard, SpinLock};
use std::sync::OnceLock;

const BUCKET: usize = if cfg!(loom) { 1 } else { 8 };
const FIRST_LEVEL: usize = if cfg!(loom) { 1 } else { 64 };
const LEVELS: usize = 9;
/// The target of a free cell.
const EMPTY: u64 = 0;
/// Set in the target of a cell that is not free.
const USED: u64 = 1 << 31;
const INDEX_BITS: u32 = 20;

const _: () = assert!(Limits::KEY_SLOTS <= 1 << INDEX_BITS && GENERATIONS <= 1 << 11);
const _: () = assert!(USED == 1 << 31);

#[derive(Debug, Default)]
struct Cell {
    /// Domain (32 bits), `USED`, generation (11) and slot index (20); `EMPTY` when the cell is free.
    target: AtomicU64,
    key: AtomicU64,
}

/// Cells that are checked together; they fill a pair of cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Bucket([Cell; BUCKET]);

/// The table of requested keys.
pub(crate) struct Requested {
    levels: [OnceLock<Box<[Bucket]>>; LEVELS],
    /// The number of levels.
    grown: AtomicUsize,
    factor: u64,
    /// Held by the thread that adds keys, which takes no other lock while it has this one.
    adding: SpinLock<()>,
}

/// The right to add keys: one thread has it at a time.
pub(crate) struct Adding<'a> {
    table: &'a Requested,
    _lock: Guard<'a, ()>,
}

/// Whether a key can be added.
pub(crate) enum Vacancy<'a> {
    /// The key can be added in this cell.
    Room(Room<'a>),
    /// The table already has the key.
    Taken,
    /// The table has no room for it.
    Full,
}

/// Room for a key, valid until another key is added.
#[must_use = "the key is not in the table yet"]
pub(crate) struct Room<'a> {
    cell: &'a Cell,
    domain: DomainId,
    key: u64,
}

impl Room<'_> {
    /// Adds the key.
    #[inline]
    pub(crate) fn fill(self, region: RegionId) {
        // Readers ignore the cell until its target is set; the fence keeps the store of the key after the removal
        // that emptied the cell.
        fence(Ordering::Release);
        self.cell.key.store(self.key, Ordering::Relaxed);
        let target = target(self.domain, region);
        self.cell.target.store(target, Ordering::Release);
    }
}

#[inline]
fn target(domain: DomainId, region: RegionId) -> u64 {
    let name = region.generation << INDEX_BITS | region.index;
    u64::from(domain.0) << 32 | USED | u64::from(name)
}

impl Requested {
    pub(crate) fn new(random: u64) -> Self {
        Self {
            levels: [const { OnceLock::new() }; LEVELS],
            grown: AtomicUsize::new(0),
            factor: random | 1,
            adding: SpinLock::new(()),
        }
    }

    /// The slot index and generation that `key` names in `domain`.
    #[inline]
    pub(crate) fn find(&self, domain: DomainId, key: u64) -> Option<(u32, u32)> {
        let mixed = self.mix(domain, key);
        for level in self.levels() {
            for cell in cells(level, mixed) {
                let target = cell.target.load(Ordering::Acquire);
                if !belongs(target, domain) || cell.key.load(Ordering::Relaxed) != key {
                    continue;
                }
                fence(Ordering::Acquire);
                if cell.target.load(Ordering::Relaxed) == target {
                    let name = (target & (USED - 1)) as u32;
                    return Some((name & ((1 << INDEX_BITS) - 1), name >> INDEX_BITS));
                }
            }
        }
        None
    }

    /// Locks the table for adding keys.
    #[inline]
    pub(crate) fn adding(&self) -> Adding<'_> {
        Adding {
            table: self,
            _lock: self.adding.lock(),
        }
    }

    #[inline(always)]
    fn vacancy(&self, domain: DomainId, key: u64) -> Vacancy<'_> {
        let mixed = self.mix(domain, key);
        // Prefer the largest level with room, because lookups start with the largest.
        let mut free = None;
        for level in self.levels() {
            for cell in &bucket(level, mixed).0 {
                if belongs(cell.target.load(Ordering::Relaxed), domain)
                    && cell.key.load(Ordering::Relaxed) == key
                {
                    return Vacancy::Taken;
                }
            }
            let is_free = |cell: &&Cell| cell.target.load(Ordering::Relaxed) == EMPTY;
            free = free.or_else(|| cells(level, mixed).find(is_free));
        }
        match free.or_else(|| self.grow(mixed)) {
            Some(cell) => Vacancy::Room(Room { cell, domain, key }),
            None => Vacancy::Full,
        }
    }

    /// Adds a level and returns the cell for a key in it.
    #[cold]
    fn grow(&self, mixed: u64) -> Option<&Cell> {
        let grown = self.grown.load(Ordering::Relaxed);
        let level = self.levels.get(grown)?.get_or_init(|| {
            let buckets = (FIRST_LEVEL << (2 * grown)) / BUCKET;
            (0..buckets).map(|_| Bucket::default()).collect()
        });
        self.grown.store(grown + 1, Ordering::Release);
        cells(level, mixed).next()
    }

    /// Removes a key if it names this region. Takes no lock: no other thread changes a cell that is in use.
    #[inline]
    pub(crate) fn remove(&self, domain: DomainId, key: u64, region: RegionId) {
        let mixed = self.mix(domain, key);
        let target = target(domain, region);
        for level in self.levels() {
            for cell in cells(level, mixed) {
                if cell.target.load(Ordering::Relaxed) == target {
                    return cell.target.store(EMPTY, Ordering::Release);
                }
            }
        }
    }

    /// The levels, the largest and usually fullest first.
    #[inline(always)]
    fn levels(&self) -> impl Iterator<Item = &[Bucket]> {
        let grown = self.grown.load(Ordering::Acquire).min(LEVELS);
        let levels = self.levels[..grown].iter().rev();
        levels.map_while(|level| Some(&**level.get()?))
    }

    #[inline]
    fn mix(&self, domain: DomainId, key: u64) -> u64 {
        let mixed = (key ^ u64::from(domain.0).rotate_left(40)).wrapping_mul(self.factor);
        (mixed ^ mixed >> 32).wrapping_mul(self.factor)
    }
}

impl Adding<'_> {
    /// Whether a key can be added, and in which cell.
    #[inline(always)]
    pub(crate) fn vacancy(&self, domain: DomainId, key: u64) -> Vacancy<'_> {
        self.table.vacancy(domain, key)
    }
}

/// Whether a cell with this target holds a key of this domain.
#[inline]
fn belongs(target: u64, domain: DomainId) -> bool {
    // `USED` is the bit below the domain.
    target >> 31 == u64::from(domain.0) << 1 | 1
}

/// The cells of a level that may hold a key, in lookup order.
#[inline]
fn cells(level: &[Bucket], mixed: u64) -> impl Iterator<Item = &Cell> {
    // A bit that does not select the bucket selects the half to try first.
    let first = (mixed >> 35) as usize & 1;
    let (one, other) = bucket(level, mixed).0.split_at(BUCKET / 2 * first);
    other.iter().chain(one)
}

/// The bucket of a key. The number of buckets of a level is a power of two.
#[inline]
fn bucket(level: &[Bucket], mixed: u64) -> &Bucket {
    &level[(mixed >> 36) as usize & (level.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(index: u32, generation: u32) -> RegionId {
        RegionId { index, generation }
    }

    fn add(table: &Requested, domain: DomainId, key: u32, generation: u32) {
        let adding = table.adding();
        let Vacancy::Room(room) = adding.vacancy(domain, u64::from(key)) else {
            panic!("no room for {key}");
        };
        room.fill(region(key, generation));
        let again = adding.vacancy(domain, u64::from(key));
        assert!(matches!(again, Vacancy::Taken));
    }

    #[test]
    #[cfg_attr(miri, ignore = "many thousand steps")]
    fn ten_thousand_keys_are_found_and_removed() {
        let table = Requested::new(0x1234_5678_9abc_def1);
        let (one, two) = (DomainId(1), DomainId(2));
        for key in 0..10_000u32 {
            add(&table, one, key, 7);
            add(&table, two, key, 8);
        }
        for key in 0..10_000u32 {
            assert_eq!(table.find(one, u64::from(key)), Some((key, 7)));
            assert_eq!(table.find(two, u64::from(key)), Some((key, 8)));
        }
        for key in (0..10_000).step_by(2) {
            table.remove(one, key, region(key as u32, 6)); // another use of the slot
            assert!(table.find(one, key).is_some());
            table.remove(one, key, region(key as u32, 7));
        }
        for key in 0..10_000 {
            assert_eq!(table.find(one, key).is_some(), key % 2 == 1);
            assert!(table.find(two, key).is_some());
        }
        assert_eq!(table.find(DomainId(3), 1), None);
    }
}
