//! All entries of a cache: their ranges, and what ends them.
//!
//! A monitor holds a reference to the entries and may call [`Entries::invalidate`] at any time: in the middle of
//! `munmap`, `free` or a signal handler, with any lock held. So `invalidate` takes no lock, allocates nothing and makes
//! no system call: it only marks entries, and the cache frees them later. The marks are in the table itself, so there
//! is at most one for each entry, however many changes affect it.

use super::buckets::Buckets;
use super::slots::{NONE, Slot, Slots};
use super::word::{OVERFLOW_HITS, Pin};
use crate::request::Class;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::why::Cause;
use rkey_base::range::VaRange;

/// How many ended entries are recorded, for explanations.
const REMEMBERED: usize = if cfg!(loom) { 2 } else { 64 };

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
    slots: Slots,
    buckets: Buckets,
    /// The queue of dead entries without users: a stack, linked through the slots.
    dead: AtomicU32,
    invalidated: AtomicU64,
    ended: [Ended; REMEMBERED],
    ended_count: AtomicUsize,
}

impl Entries {
    /// A table for `capacity` entries, at most [`MOST`](super::slots::MOST).
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            slots: Slots::new(capacity),
            buckets: Buckets::new(capacity),
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
    pub(crate) fn slot(&self, number: u32) -> &Slot {
        self.slots.get(number)
    }

    /// The numbers of the slots that were ever claimed.
    pub(crate) fn numbers(&self) -> std::ops::Range<u32> {
        self.slots.numbers()
    }

    /// Begins an entry in a free slot, pinned by the caller. The caller has the lock of the slots.
    pub(crate) fn claim(&self, number: u32, range: VaRange, class: Class) {
        let slot = self.slots.prepare(number);
        slot.describe(range, class);
        slot.word.claim();
        self.buckets.add(&self.slots, number, &range);
    }

    /// From now on, a change of memory ends the claimed entry.
    pub(crate) fn arm(&self, number: u32) {
        self.slot(number).word.arm();
    }

    /// Takes an entry whose slot was freed out of its bucket. The caller has the lock of the slots, and has not yet claimed the slot
    /// again.
    pub(crate) fn remove(&self, number: u32) {
        let range = self.slot(number).range();
        self.buckets.remove(&self.slots, number, &range);
    }

    /// Finds a valid entry that serves the lookup, and pins it.
    #[inline]
    pub(crate) fn find(&self, range: &VaRange, want: Class, exact: bool) -> Option<u32> {
        self.buckets.find_containing(&self.slots, *range, |number| {
            self.slot(number).word.is_valid() && self.pin(number, range, want, exact).is_some()
        })
    }

    /// Passes the entries that have a byte in `range` to `each`, which may get an entry more than once.
    pub(crate) fn each_overlapping(&self, range: VaRange, mut each: impl FnMut(u32, &Slot)) {
        // A slot that gets another entry during the search need not be checked again, because that entry is newer than the
        // search. The range that is read here may be mixed from both.
        let mut check = |number| {
            let slot = self.slot(number);
            if slot.range().overlaps(&range) {
                each(number, slot);
            }
        };
        let count = self.slots.count() as u64;
        let looked = self.buckets.spread(range) <= count
            && (self.buckets).each_overlapping(&self.slots, range, count, &mut check);
        if !looked {
            self.numbers().for_each(&mut check);
        }
    }

    /// Pins the entry in a slot if it is valid and serves the lookup.
    #[inline]
    pub(crate) fn pin(
        &self,
        number: u32,
        range: &VaRange,
        want: Class,
        exact: bool,
    ) -> Option<&Slot> {
        let slot = self.slot(number);
        if !slot.serves(range, want, exact) {
            return None;
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
                return None;
            }
        }
        // Check again: the slot may have got another entry between the first check and the pin.
        if slot.serves(range, want, exact) {
            return Some(slot);
        }
        slot.no_hit();
        self.unpin(number);
        None
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
        self.each_overlapping(range, |number, slot| {
            // If the slot has got another entry, ending that one costs a miss but is not an error.
            if slot.word.is_valid_or_pending() && self.clear(number) {
                self.remember(slot.range(), cause);
                count += 1;
            }
        });
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
            slot.in_queue.store(head, Ordering::Relaxed);
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
            let next = self.slot(number).in_queue.load(Ordering::Relaxed);
            each(number);
            number = next;
        }
    }

    /// The hits of all entries.
    pub(crate) fn hits(&self) -> u64 {
        self.numbers()
            .map(|number| self.slot(number).all_hits())
            .fold(0, u64::wrapping_add)
    }
}
