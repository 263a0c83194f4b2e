//! All entries of a cache: their ranges, and what ends them.
//!
//! A monitor holds a reference to the entries and may call [`Entries::invalidate`] at any time: in the middle of
//! `munmap`, `free` or a signal handler, with any lock held. So `invalidate` takes no lock, allocates nothing and makes
//! no system call: it only marks entries, and the cache frees them later. The marks are in the table itself, so there
//! is at most one for each entry, however many changes affect it.

use super::word::{OVERFLOW_HITS, Pin, Word};
use crate::request::Class;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::why::Cause;
use rkey_base::range::VaRange;
use std::sync::OnceLock;

/// How many slots are allocated together.
pub(crate) const CHUNK: usize = if cfg!(loom) { 2 } else { 64 };

/// The number that means "no slot".
pub(crate) const NONE: u32 = u32::MAX;

/// How many ended entries are recorded, for explanations.
const REMEMBERED: usize = if cfg!(loom) { 2 } else { 64 };

/// The maximum number of entries of a table.
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
    /// The next slot in the queue of dead entries.
    next: AtomicU32,
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
            next: AtomicU32::new(NONE),
        }
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
    fn serves(&self, range: &VaRange, want: Class, exact: bool) -> bool {
        self.start.load(Ordering::Relaxed) <= range.start()
            && range.end() <= self.end.load(Ordering::Relaxed)
            && self.class().serves(want, exact)
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

/// Slots, and a range that contains the ranges of all their entries.
#[derive(Debug)]
struct Chunk {
    lowest: AtomicU64,
    highest: AtomicU64,
    slots: Box<[Slot]>,
}

impl Chunk {
    fn new() -> Self {
        Self {
            lowest: AtomicU64::new(u64::MAX),
            highest: AtomicU64::new(0),
            slots: (0..CHUNK).map(|_| Slot::new()).collect(),
        }
    }

    fn concerns(&self, range: &VaRange) -> bool {
        self.lowest.load(Ordering::SeqCst) < range.end()
            && range.start() < self.highest.load(Ordering::SeqCst)
    }
}

/// The record of an entry that ended. Its fields may belong to different entries, which is good enough for explanations.
#[derive(Debug)]
struct Ended {
    start: AtomicU64,
    end: AtomicU64,
    cause: AtomicU64,
}

impl Ended {
    fn new() -> Self {
        Self {
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            cause: AtomicU64::new(0),
        }
    }
}

/// The entries of one cache, as monitors see them.
///
/// ```
/// # use rkey_base::range::VaRange;
/// # use rkey_cache::{Cause, Entries};
/// fn munmap_was_called(entries: &Entries, address: u64, len: u64) {
///     if let Some(range) = VaRange::new(address, len) {
///         entries.invalidate(range, Cause::Unmapped);
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Entries {
    chunks: Box<[OnceLock<Chunk>]>,
    /// Slots from this number on were never used.
    high: AtomicUsize,
    /// The queue of dead entries without users: a stack, linked through the slots.
    dead: AtomicU32,
    invalidated: AtomicU64,
    ended: [Ended; REMEMBERED],
    ended_count: AtomicUsize,
}

impl Entries {
    /// A table for `capacity` entries, at most [`MOST`].
    pub(crate) fn new(capacity: usize) -> Self {
        let chunks = capacity.min(MOST).div_ceil(CHUNK);
        Self {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            high: AtomicUsize::new(0),
            dead: AtomicU32::new(NONE),
            invalidated: AtomicU64::new(0),
            ended: std::array::from_fn(|_| Ended::new()),
            ended_count: AtomicUsize::new(0),
        }
    }

    /// A slot that was claimed before.
    ///
    /// # Panics
    /// If the slot was never claimed.
    #[inline]
    pub(crate) fn slot(&self, slot: u32) -> &Slot {
        let chunk = self.chunks[slot as usize / CHUNK]
            .get()
            .expect("the slot was claimed before");
        &chunk.slots[slot as usize % CHUNK]
    }

    /// The number of slots that were ever used.
    pub(crate) fn high(&self) -> usize {
        self.high.load(Ordering::Acquire)
    }

    /// Begins an entry in a free slot, pinned by the caller. The caller has the lock of the slots.
    pub(crate) fn claim(&self, number: u32, range: VaRange, class: Class) {
        let index = number as usize;
        let chunk = self.chunks[index / CHUNK].get_or_init(Chunk::new);
        let slot = &chunk.slots[index % CHUNK];
        slot.start.store(range.start(), Ordering::Relaxed);
        slot.end.store(range.end(), Ordering::Relaxed);
        slot.class.store(class.bits(), Ordering::Relaxed);
        chunk.lowest.fetch_min(range.start(), Ordering::SeqCst);
        chunk.highest.fetch_max(range.end(), Ordering::SeqCst);
        self.high.fetch_max(index + 1, Ordering::SeqCst);
        slot.word.claim();
    }

    /// From now on, a change of memory ends the claimed entry.
    pub(crate) fn arm(&self, number: u32) {
        self.slot(number).word.arm();
    }

    /// Resets the range of a chunk that has no slot in use. The caller has the lock of the slots.
    pub(crate) fn reset_chunk(&self, number: u32) {
        if let Some(chunk) = self.chunks[number as usize / CHUNK].get() {
            chunk.lowest.store(u64::MAX, Ordering::SeqCst);
            chunk.highest.store(0, Ordering::SeqCst);
        }
    }

    /// Pins the entry in a slot if it is valid and serves the lookup.
    #[inline]
    pub(crate) fn pin(&self, number: u32, range: &VaRange, want: Class, exact: bool) -> bool {
        let slot = self.slot(number);
        if !slot.serves(range, want, exact) {
            return false;
        }
        match slot.word.pin() {
            Pin::Held => {}
            Pin::HeldAndOverflowed => {
                if slot.word.take_overflow() {
                    slot.add_hits(OVERFLOW_HITS);
                }
            }
            Pin::Refused { orphaned } => {
                slot.no_hit();
                if orphaned {
                    self.queue(number);
                }
                return false;
            }
        }
        // Check again: the slot may have got another entry between the first check and the pin.
        if slot.serves(range, want, exact) {
            return true;
        }
        slot.no_hit();
        self.unpin(number);
        false
    }

    /// Unpins an entry. `true` if that orphaned it, so that it can be reaped.
    #[inline]
    pub(crate) fn unpin(&self, number: u32) -> bool {
        let orphaned = self.slot(number).word.unpin();
        if orphaned {
            self.queue(number);
        }
        orphaned
    }

    /// Ends the entry in a slot. `true` if it was valid or pending.
    pub(crate) fn clear(&self, number: u32) -> bool {
        let cleared = self.slot(number).word.clear();
        if cleared.orphaned {
            self.queue(number);
        }
        cleared.ended
    }

    /// Ends a pinned entry because other memory was found in its range.
    pub(crate) fn end_replaced(&self, number: u32) {
        if self.clear(number) {
            self.remember(self.slot(number).range(), Cause::Replaced);
            self.invalidated.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends every entry that has a byte in `range` (monitors pass whole pages), including those that are being
    /// registered. No lookup that begins after this returns gets one of them.
    ///
    /// Takes no lock, allocates nothing, makes no system call: it may be called from a signal handler, and inside any function
    /// of the C library. Returns how many entries ended.
    pub fn invalidate(&self, range: VaRange, cause: Cause) -> usize {
        if range.is_empty() {
            return 0;
        }
        let mut count = 0;
        let high = self.high.load(Ordering::SeqCst);
        for (index, chunk) in self.chunks[..high.div_ceil(CHUNK)].iter().enumerate() {
            let Some(chunk) = chunk.get().filter(|chunk| chunk.concerns(&range)) else {
                continue;
            };
            for (inner, slot) in chunk.slots.iter().enumerate() {
                // A slot that gets another entry during the scan need not be checked again, because that entry is newer than
                // the change. If the range read here is mixed from both, ending the new entry costs a miss but is not
                // an error.
                if slot.word.is_valid_or_pending()
                    && slot.range().overlaps(&range)
                    && self.clear((index * CHUNK + inner) as u32)
                {
                    self.remember(slot.range(), cause);
                    count += 1;
                }
            }
        }
        self.invalidated.fetch_add(count as u64, Ordering::Relaxed);
        count
    }

    /// Ends every entry. Returns how many ended.
    pub fn invalidate_all(&self, cause: Cause) -> usize {
        let everything = VaRange::new(0, u64::MAX).expect("the whole address space is a range");
        self.invalidate(everything, cause)
    }

    /// How many entries have been invalidated.
    #[must_use]
    pub fn invalidated(&self) -> u64 {
        self.invalidated.load(Ordering::Relaxed)
    }

    fn remember(&self, range: VaRange, cause: Cause) {
        let ended = &self.ended[self.ended_count.fetch_add(1, Ordering::Relaxed) % REMEMBERED];
        ended.start.store(range.start(), Ordering::Relaxed);
        ended.end.store(range.end(), Ordering::Relaxed);
        ended.cause.store(cause as u64, Ordering::Relaxed);
    }

    /// Why the last entry that covered the range ended, if that is still recorded.
    pub(crate) fn end_of(&self, range: &VaRange) -> Option<Cause> {
        let count = self.ended_count.load(Ordering::Relaxed);
        let newest_first = (count.saturating_sub(REMEMBERED)..count).rev();
        newest_first.into_iter().find_map(|index| {
            let ended = &self.ended[index % REMEMBERED];
            let covers = ended.start.load(Ordering::Relaxed) <= range.start()
                && range.end() <= ended.end.load(Ordering::Relaxed);
            let cause = ended.cause.load(Ordering::Relaxed) as usize;
            covers.then(|| Cause::ALL.get(cause).copied()).flatten()
        })
    }

    /// Puts an unused dead entry on the queue. Lock-free.
    fn queue(&self, number: u32) {
        let slot = self.slot(number);
        if !slot.word.queue() {
            return;
        }
        let mut head = self.dead.load(Ordering::Relaxed);
        loop {
            slot.next.store(head, Ordering::Relaxed);
            match self
                .dead
                .compare_exchange_weak(head, number, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Whether dead entries wait for the cache to free them.
    #[inline]
    pub(crate) fn has_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed) != NONE
    }

    /// Takes all dead entries from the queue. The caller has the lock of the slots.
    pub(crate) fn take_dead(&self, mut each: impl FnMut(u32)) {
        let mut number = self.dead.swap(NONE, Ordering::AcqRel);
        while number != NONE {
            // Read the link first: once the slot is freed, it can be queued again.
            let next = self.slot(number).next.load(Ordering::Relaxed);
            each(number);
            number = next;
        }
    }

    /// The hits of all entries.
    pub(crate) fn hits(&self) -> u64 {
        (0..self.high() as u32)
            .filter(|&number| self.chunks[number as usize / CHUNK].get().is_some())
            .map(|number| {
                let slot = self.slot(number);
                slot.hits
                    .load(Ordering::Relaxed)
                    .wrapping_add(slot.word.hits())
            })
            .fold(0, u64::wrapping_add)
    }
}
