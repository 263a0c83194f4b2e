//! The live device keys: a lock-free map from a key to its slot.
//!
//! The map is a hash table of buckets of eight cells, one cache line each. Keys are as good as random, so their own bits
//! select the bucket. When a key finds no free cell, a level with four times the cells is added; existing levels stay
//! in place, so readers never see a table move.
//!
//! A cell is one word, so a reader sees a key with its own slot or not at all. The result may be outdated: the caller
//! pins the slot under the generation that the map returned, which fails if the key has become stale since.
//!
//! The cell of a stale key keeps its contents until another key needs the cell. So a denial can still say, for some time,
//! what the key named.

use crate::Limits;
use crate::objects::id::GENERATIONS;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;

const BUCKET: usize = if cfg!(loom) { 1 } else { 8 };
const FIRST_LEVEL: usize = if cfg!(loom) { 2 } else { 64 };
const LEVELS: usize = 9;
/// A cell that was never used.
const EMPTY: u64 = 0;
/// Set in a cell whose key is live.
const LIVE: u64 = 1 << 31;
const INDEX_BITS: u32 = 20;

const _: () = assert!(Limits::KEY_SLOTS <= 1 << INDEX_BITS && GENERATIONS <= 1 << 11);

/// Cells that fill one cache line. Each has a key (32 bits), `LIVE`, a generation (11) and a slot (20).
#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket([AtomicU64; BUCKET]);

/// Keys and their slots. Only the holder of the protection table's lock makes changes.
pub(crate) struct KeyTable {
    levels: [OnceLock<Box<[Bucket]>>; LEVELS],
    /// The number of levels.
    grown: AtomicUsize,
    /// How many cells of each level were never used.
    empty: [AtomicUsize; LEVELS],
}

/// What the table has recorded for a key.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct RecordedKey {
    pub(crate) index: u32,
    pub(crate) generation: u32,
    /// The key is live.
    pub(crate) live: bool,
}

#[inline]
fn word(key: u32, index: u32, generation: u32) -> u64 {
    u64::from(key) << 32 | LIVE | u64::from(generation << INDEX_BITS | index)
}

impl KeyTable {
    pub(crate) fn new() -> Self {
        Self {
            levels: [const { OnceLock::new() }; LEVELS],
            grown: AtomicUsize::new(0),
            empty: std::array::from_fn(|_| AtomicUsize::new(0)),
        }
    }

    /// The slot and the generation of a live key.
    #[inline]
    pub(crate) fn find(&self, key: u32) -> Option<(u32, u32)> {
        let (mask, wanted) = (!0 << 32 | LIVE, u64::from(key) << 32 | LIVE);
        for level in self.levels() {
            for cell in cells(level, key) {
                let word = cell.load(Ordering::Relaxed);
                if word & mask == wanted {
                    let name = (word & (LIVE - 1)) as u32;
                    return Some((name & ((1 << INDEX_BITS) - 1), name >> INDEX_BITS));
                }
            }
        }
        None
    }

    /// What the table still records for a key, live or stale.
    #[cold]
    pub(crate) fn recall(&self, key: u32) -> Option<RecordedKey> {
        if let Some((index, generation)) = self.find(key) {
            return Some(RecordedKey {
                index,
                generation,
                live: true,
            });
        }
        let cells = self.levels().flat_map(|level| cells(level, key));
        let words = cells.map(|cell| cell.load(Ordering::Relaxed));
        words
            .filter(|word| *word != EMPTY && (word >> 32) as u32 == key)
            .map(|word| {
                let name = (word & (LIVE - 1)) as u32;
                RecordedKey {
                    index: name & ((1 << INDEX_BITS) - 1),
                    generation: name >> INDEX_BITS,
                    live: word & LIVE != 0,
                }
            })
            .last()
    }

    /// Whether one of the 256 keys that share these upper 24 bits is live.
    #[cold]
    pub(crate) fn any_with_prefix(&self, key: u32) -> bool {
        self.levels()
            .flat_map(|level| cells(level, key))
            .map(|cell| cell.load(Ordering::Relaxed))
            .any(|word| word & LIVE != 0 && (word >> 40) as u32 == key >> 8)
    }

    /// Adds a key that is not live. Returns false if there is no room for it.
    #[inline]
    #[must_use]
    pub(crate) fn insert(&self, key: u32, index: u32, generation: u32) -> bool {
        let Some(cell) = self.room(key).or_else(|| self.grow(key)) else {
            return false;
        };
        cell.store(word(key, index, generation), Ordering::Relaxed);
        true
    }

    /// A cell for a key in the largest level with room, which lookups try before smaller ones. While that level has
    /// cells that were never used, prefers one of them, so that the table remembers more stale keys.
    #[inline]
    fn room(&self, key: u32) -> Option<&AtomicU64> {
        // Usually the first cell is free, and the others need not be computed.
        let newest = self.grown.load(Ordering::Relaxed).wrapping_sub(1);
        if let Some(cell) = self.first_cell(newest, key)
            && cell.load(Ordering::Relaxed) & LIVE == 0
            && self.empty.get(newest)?.load(Ordering::Relaxed) == 0
        {
            return Some(cell);
        }
        self.find_room(key)
    }

    /// Fetches the cells for a key that will be added soon.
    #[inline]
    pub(crate) fn prefetch(&self, key: u32) {
        let newest = self.grown.load(Ordering::Relaxed).wrapping_sub(1);
        if let Some(cell) = self.first_cell(newest, key) {
            rkey_base::hint::prefetch_write(std::ptr::from_ref(cell).cast());
        }
    }

    /// The cell to try first for a key in a level.
    #[inline]
    fn first_cell(&self, level: usize, key: u32) -> Option<&AtomicU64> {
        cells(self.levels.get(level)?.get()?, key).next()
    }

    fn find_room(&self, key: u32) -> Option<&AtomicU64> {
        let grown = self.grown.load(Ordering::Relaxed).min(LEVELS);
        for (level, empty) in self.levels().zip(self.empty[..grown].iter().rev()) {
            let left = empty.load(Ordering::Relaxed);
            let mut ended = None;
            for cell in cells(level, key) {
                match cell.load(Ordering::Relaxed) {
                    EMPTY => {
                        empty.store(left - 1, Ordering::Relaxed);
                        return Some(cell);
                    }
                    word if word & LIVE != 0 => {}
                    _ if left == 0 => return Some(cell),
                    _ => ended = ended.or(Some(cell)),
                }
            }
            if ended.is_some() {
                return ended;
            }
        }
        None
    }

    /// Marks a key as stale.
    #[inline]
    pub(crate) fn end(&self, key: u32, index: u32, generation: u32) {
        let live = word(key, index, generation);
        let newest = self.grown.load(Ordering::Relaxed).wrapping_sub(1);
        match self.first_cell(newest, key) {
            Some(cell) if cell.load(Ordering::Relaxed) == live => {
                cell.store(live & !LIVE, Ordering::Relaxed);
            }
            _ => self.find_and_end(key, live),
        }
    }

    fn find_and_end(&self, key: u32, live: u64) {
        for level in self.levels() {
            for cell in cells(level, key) {
                if cell.load(Ordering::Relaxed) == live {
                    return cell.store(live & !LIVE, Ordering::Relaxed);
                }
            }
        }
    }

    /// Adds a level and returns the cell for a key in it.
    #[cold]
    fn grow(&self, key: u32) -> Option<&AtomicU64> {
        let grown = self.grown.load(Ordering::Relaxed);
        let level = self.levels.get(grown)?.get_or_init(|| {
            let buckets = (FIRST_LEVEL << (2 * grown)) / BUCKET;
            (0..buckets).map(|_| Bucket::default()).collect()
        });
        self.empty[grown].store(level.len() * BUCKET - 1, Ordering::Relaxed);
        self.grown.store(grown + 1, Ordering::Release);
        cells(level, key).next()
    }

    /// The levels, the largest and usually fullest first.
    #[inline(always)]
    fn levels(&self) -> impl Iterator<Item = &[Bucket]> {
        let grown = self.grown.load(Ordering::Acquire).min(LEVELS);
        let levels = self.levels[..grown].iter().rev();
        levels.map_while(|level| Some(&**level.get()?))
    }
}

/// The cells of a level that may hold a key, in the order in which they are tried. The bucket depends on the upper 24
/// bits only, so that `any_with_prefix` need only search one bucket of each level.
#[inline(always)]
fn cells(level: &[Bucket], key: u32) -> impl Iterator<Item = &AtomicU64> {
    // The number of buckets of a level is a power of two. Bits that select no bucket select the first cell to try.
    let bucket = &level[(key >> 8) as usize & (level.len() - 1)].0;
    let first = (key >> 29) as usize;
    (0..BUCKET).map(move |number| &bucket[(number + first) % BUCKET])
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Secrets;
    use crate::keys::cipher::Cipher;

    fn keys() -> impl Iterator<Item = u32> {
        let cipher = Cipher::new(&Secrets([1, 2, 3, 4]), 0);
        (0..).map(move |number| cipher.encrypt([number])[0])
    }

    #[test]
    fn live_keys_are_found_and_ended_keys_are_remembered() {
        let table = KeyTable::new();
        let count = if cfg!(miri) { 200 } else { 20_000 };
        let keys: Vec<u32> = keys().take(count).collect();
        for (index, key) in (0..).zip(&keys) {
            assert_eq!(table.find(*key), None);
            assert!(table.insert(*key, index, 7));
        }
        for (index, key) in (0..).zip(&keys) {
            assert_eq!(table.find(*key), Some((index, 7)));
            assert!(table.any_with_prefix(*key ^ 0xff));
        }
        for (index, key) in (0..).zip(&keys).step_by(2) {
            table.end(*key, index, 6); // another use of the slot
            assert!(table.find(*key).is_some());
            table.end(*key, index, 7);
            assert_eq!(table.find(*key), None);
            let ended = RecordedKey {
                index,
                generation: 7,
                live: false,
            };
            assert_eq!(table.recall(*key), Some(ended));
        }
        for (index, key) in (0..).zip(&keys).skip(1).step_by(2) {
            assert_eq!(table.find(*key), Some((index, 7)));
        }
        assert_eq!(table.recall(!keys[0]), None);
        assert!(!table.any_with_prefix(!keys[0]));
    }

    /// The cells of stale keys are reused.
    #[test]
    #[cfg_attr(miri, ignore = "many thousand steps")]
    fn a_table_of_few_live_keys_stays_small() {
        let table = KeyTable::new();
        for key in keys().take(100_000) {
            assert!(table.insert(key, 1, 2));
            table.end(key, 1, 2);
        }
        assert_eq!(table.grown.load(Ordering::Relaxed), 1);
    }

    /// There is room for the maximum number of live keys.
    #[test]
    #[cfg_attr(miri, ignore = "a million steps")]
    fn the_key_table_has_room_for_the_maximum_number_of_keys() {
        let table = KeyTable::new();
        let keys: Vec<u32> = keys().take(Limits::KEY_SLOTS as usize).collect();
        for (index, key) in (0..).zip(&keys) {
            assert!(table.insert(*key, index, 2_047));
        }
        let found = (0..)
            .zip(&keys)
            .filter(|(index, key)| table.find(**key) == Some((*index, 2_047)));
        assert_eq!(found.count(), keys.len());
    }
}
