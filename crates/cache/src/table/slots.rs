//! The slots of a cache: room for its entries.

use super::word::Word;
use crate::request::Class;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use rkey_base::range::VaRange;
use std::sync::OnceLock;

/// How many slots are allocated together.
pub(crate) const CHUNK: usize = if cfg!(loom) { 2 } else { 64 };

/// The number that means "no slot".
pub(crate) const NONE: u32 = u32::MAX;

/// The maximum number of slots of a cache.
pub(crate) const MOST: usize = 1 << 20;

/// A slot: one entry, or room for one.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Slot {
    pub(crate) word: Word,
    start: AtomicU64,
    end: AtomicU64,
    class: AtomicU64,
    /// The time of the last use, on the cache's clock.
    pub(crate) used: AtomicU64,
    /// Hits that are no longer counted in the word, minus pins that were not hits. May wrap.
    hits: AtomicU64,
    /// The next slot in the same bucket.
    pub(super) in_bucket: AtomicU32,
    /// The next slot in the queue of dead entries.
    pub(super) in_queue: AtomicU32,
}

impl Slot {
    fn new() -> Self {
        Self {
            word: Word::new(),
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            class: AtomicU64::new(0),
            used: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            in_bucket: AtomicU32::new(NONE),
            in_queue: AtomicU32::new(NONE),
        }
    }

    /// Describes the entry that is about to begin in this free slot.
    pub(super) fn describe(&self, range: VaRange, class: Class) {
        self.start.store(range.start(), Ordering::Relaxed);
        self.end.store(range.end(), Ordering::Relaxed);
        self.class.store(class.bits(), Ordering::Relaxed);
    }

    /// The entry's range. Unless the entry is pinned or the slots are locked, its two ends may belong to different entries.
    #[inline]
    pub(crate) fn range(&self) -> VaRange {
        let start = self.start.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        VaRange::new(start, end.saturating_sub(start))
            .expect("start plus length is the end, which fits in 64 bits")
    }

    /// The entry's class. Unless the entry is pinned or the slots are locked, the slot may get another entry at any time.
    #[inline]
    pub(crate) fn class(&self) -> Class {
        Class::from_bits(self.class.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn serves(&self, range: &VaRange, want: Class, exact: bool) -> bool {
        self.start.load(Ordering::Relaxed) <= range.start()
            && range.end() <= self.end.load(Ordering::Relaxed)
            && self.class().serves(want, exact)
    }

    /// The hits of all entries that the slot has had. May wrap.
    pub(super) fn all_hits(&self) -> u64 {
        let counted = self.hits.load(Ordering::Relaxed);
        counted.wrapping_add(self.word.hits())
    }

    /// Adds hits that the word no longer counts.
    pub(crate) fn add_hits(&self, hits: u64) {
        self.hits.fetch_add(hits, Ordering::Relaxed);
    }

    /// Subtracts a hit: the last pin was not one.
    pub(crate) fn no_hit(&self) {
        self.hits.fetch_sub(1, Ordering::Relaxed);
    }
}

type Chunk = Box<[Slot; CHUNK]>;

/// All slots, allocated when they are first claimed.
#[derive(Debug)]
pub(crate) struct Slots {
    chunks: Box<[OnceLock<Chunk>]>,
    /// Slots from this number on were never claimed.
    high: AtomicUsize,
}

impl Slots {
    /// Room for `capacity` slots, at most [`MOST`].
    pub(super) fn new(capacity: usize) -> Self {
        let chunks = capacity.min(MOST).div_ceil(CHUNK);
        Self {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            high: AtomicUsize::new(0),
        }
    }

    /// A slot that is about to be claimed. The caller has the lock of the slots.
    pub(super) fn prepare(&self, number: u32) -> &Slot {
        let index = number as usize;
        let chunk = &self.chunks[index / CHUNK];
        let chunk = chunk.get_or_init(|| Box::new(std::array::from_fn(|_| Slot::new())));
        if index >= self.high.load(Ordering::Relaxed) {
            self.high.store(index + 1, Ordering::SeqCst);
        }
        &chunk[index % CHUNK]
    }

    /// A slot that was claimed before.
    ///
    /// # Panics
    /// If the slot was never claimed.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> &Slot {
        let chunk = self.chunks[number as usize / CHUNK]
            .get()
            .expect("the slot was claimed before");
        &chunk[number as usize % CHUNK]
    }

    /// How many slots were ever claimed.
    pub(super) fn count(&self) -> usize {
        self.high.load(Ordering::SeqCst)
    }

    /// The numbers of the slots that were ever claimed.
    pub(super) fn numbers(&self) -> std::ops::Range<u32> {
        0..self.count() as u32
    }
}
