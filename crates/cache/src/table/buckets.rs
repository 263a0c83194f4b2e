//! Finds entries by address: for lookups, and for the monitors that end entries.
//!
//! The *level* of an entry is the binary logarithm of its length, rounded up. At each level, the address space is divided into
//! *granules* of the level's size, so an entry has bytes in at most two granules of its level. An entry is in one bucket, chosen by its level
//! and the granule in which it begins. So a search looks at few buckets for each level that has entries: for the entries that contain a range, at
//! most two; for those that have a byte in a range, one more than the range has granules, or two more.
//!
//! A bucket is a list that is linked through the slots. One thread at a time changes the buckets, while others walk them without a lock. An
//! entry is added at the front, so a walk that is at any entry still finds all entries that are older than that entry. A walk may be at an entry that
//! is removed and whose slot is then added to another bucket. It then reaches the end of that bucket, and begins again, because each end
//! has the number of its bucket. So a walk finds each entry that was in the bucket before the walk began and is still there when it ends.

use super::slots::Slots;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use rkey_base::range::VaRange;

/// The level of all entries that are shorter. Short entries share levels, so that a search has fewer levels to look at.
const LOWEST: u32 = 6;

/// The level of all entries that are longer. They are all in one bucket.
const HIGHEST: u32 = 48;

const LEVELS: usize = HIGHEST as usize + 1;

/// The bit of a link that is the end of a bucket; the other bits are the bucket's number.
const END: u32 = 1 << 31;

/// The maximum number of buckets.
const MOST: usize = if cfg!(loom) { 2 } else { 1 << 16 };

fn level_of(len: u64) -> u32 {
    let level = u64::BITS - len.saturating_sub(1).leading_zeros();
    level.clamp(LOWEST, HIGHEST)
}

/// The granules of one level in which entries may begin, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    level: u32,
    first: u64,
    last: u64,
}

impl Span {
    /// The granules of the level that have an address from `first` to `last`.
    #[inline]
    fn new(level: u32, first: u64, last: u64) -> Self {
        let granule = |address| {
            if level == HIGHEST {
                0
            } else {
                address >> level
            }
        };
        Self {
            level,
            first: granule(first),
            last: granule(last),
        }
    }

    fn len(&self) -> u64 {
        self.last - self.first + 1
    }
}

/// What is known of the entries of one level. Changed only by the thread that changes the buckets.
#[derive(Debug)]
struct Level {
    entries: AtomicU32,
    /// No entry begins below this address, or above the other one. They are reset only when the last entry is removed.
    lowest: AtomicU64,
    highest: AtomicU64,
}

impl Level {
    fn new() -> Self {
        Self {
            entries: AtomicU32::new(0),
            lowest: AtomicU64::new(u64::MAX),
            highest: AtomicU64::new(0),
        }
    }

    /// Notes an entry that begins at this address. `true` if it is the first one.
    fn add(&self, start: u64) -> bool {
        if start < self.lowest.load(Ordering::Relaxed) {
            self.lowest.store(start, Ordering::SeqCst);
        }
        if start > self.highest.load(Ordering::Relaxed) {
            self.highest.store(start, Ordering::SeqCst);
        }
        let before = self.entries.load(Ordering::Relaxed);
        self.entries.store(before + 1, Ordering::Relaxed);
        before == 0
    }

    /// Forgets an entry. `true` if it was the last one.
    fn remove(&self) -> bool {
        let left = self.entries.load(Ordering::Relaxed) - 1;
        self.entries.store(left, Ordering::Relaxed);
        if left == 0 {
            self.lowest.store(u64::MAX, Ordering::SeqCst);
            self.highest.store(0, Ordering::SeqCst);
        }
        left == 0
    }
}

/// The lists of entries.
#[derive(Debug)]
pub(super) struct Buckets {
    /// The first entry of each bucket, or its end.
    first: Box<[AtomicU32]>,
    /// Bit n: there are entries of level n.
    levels: AtomicU64,
    level: [Level; LEVELS],
}

impl Buckets {
    /// Buckets for so many entries.
    pub(super) fn new(capacity: usize) -> Self {
        let count = (2 * capacity).next_power_of_two().min(MOST);
        Self {
            first: (0..count as u32)
                .map(|bucket| AtomicU32::new(END | bucket))
                .collect(),
            levels: AtomicU64::new(0),
            level: std::array::from_fn(|_| Level::new()),
        }
    }

    #[inline]
    fn bucket(&self, level: u32, granule: u64) -> usize {
        let hash = (granule << LOWEST | u64::from(level)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (hash >> 40) as usize & (self.first.len() - 1)
    }

    fn bucket_of(&self, range: &VaRange) -> (u32, usize) {
        let level = level_of(range.len());
        let span = Span::new(level, range.start(), range.start());
        (level, self.bucket(level, span.first))
    }

    /// The levels that have entries, from `lowest` on.
    #[inline]
    fn levels(&self, lowest: u32) -> impl Iterator<Item = u32> {
        let mut left = self.levels.load(Ordering::SeqCst) >> lowest << lowest;
        std::iter::from_fn(move || {
            let level = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (level < u64::BITS).then_some(level)
        })
    }

    /// Where the entries begin that contain a range.
    #[inline]
    fn containing(&self, range: VaRange) -> impl Iterator<Item = Span> {
        self.levels(level_of(range.len())).filter_map(move |level| {
            let first = range.end().saturating_sub(1 << level);
            self.span(level, first, range.start())
        })
    }

    /// Where the entries begin that have a byte in a range.
    #[inline]
    fn overlapping(&self, range: VaRange) -> impl Iterator<Item = Span> {
        self.levels(0).filter_map(move |level| {
            let first = range.start().saturating_sub((1 << level) - 1);
            self.span(level, first, range.end() - 1)
        })
    }

    /// Where the entries of a level begin that begin from address `first` to `last`. Entries of the highest level that begin before
    /// `first` may be longer than the level says.
    #[inline]
    fn span(&self, level: u32, first: u64, last: u64) -> Option<Span> {
        let known = &self.level[level as usize];
        let first = first.max(known.lowest.load(Ordering::SeqCst));
        let last = last.min(known.highest.load(Ordering::SeqCst));
        (first <= last || level == HIGHEST).then(|| Span::new(level, first, last))
    }

    /// How many buckets [`each_overlapping`](Self::each_overlapping) looks at.
    pub(super) fn spread(&self, range: VaRange) -> u64 {
        let spans = self.overlapping(range).map(|span| span.len());
        spans.fold(0, u64::saturating_add)
    }

    /// Passes the entries that may contain a range to `accept`, until it returns `true` for one.
    #[inline]
    pub(super) fn find_containing(
        &self,
        slots: &Slots,
        range: VaRange,
        mut accept: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        self.containing(range).find_map(|span| {
            (span.first..=span.last)
                .find_map(|granule| self.walk(slots, self.bucket(span.level, granule), &mut accept))
        })
    }

    /// Passes the entries that may have a byte in a range to `each`. `each` may get an entry more than once. Returns `false` if it has
    /// given up because there are more buckets to look at than `limit`: entries far away may come after [`spread`](Self::spread).
    #[inline]
    pub(super) fn each_overlapping(
        &self,
        slots: &Slots,
        range: VaRange,
        limit: u64,
        mut each: impl FnMut(u32),
    ) -> bool {
        let mut left = limit;
        for span in self.overlapping(range) {
            let Some(rest) = left.checked_sub(span.len()) else {
                return false;
            };
            left = rest;
            for granule in span.first..=span.last {
                let bucket = self.bucket(span.level, granule);
                self.walk(slots, bucket, &mut |number| {
                    each(number);
                    false
                });
            }
        }
        true
    }

    #[inline]
    fn walk(
        &self,
        slots: &Slots,
        bucket: usize,
        accept: &mut impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        loop {
            let mut number = self.first[bucket].load(Ordering::SeqCst);
            while number & END == 0 {
                if accept(number) {
                    return Some(number);
                }
                number = slots.get(number).in_bucket.load(Ordering::Acquire);
            }
            if number == END | bucket as u32 {
                return None;
            }
        }
    }

    /// Adds an entry. From now on, every search finds it. The caller has the lock of the slots.
    pub(super) fn add(&self, slots: &Slots, number: u32, range: &VaRange) {
        let (level, bucket) = self.bucket_of(range);
        if self.level[level as usize].add(range.start()) {
            let levels = self.levels.load(Ordering::Relaxed);
            self.levels.store(levels | 1 << level, Ordering::SeqCst);
        }
        let next = self.first[bucket].load(Ordering::Relaxed);
        slots.get(number).in_bucket.store(next, Ordering::Release);
        self.first[bucket].store(number, Ordering::SeqCst);
    }

    /// Removes an entry that was added. The caller has the lock of the slots.
    pub(super) fn remove(&self, slots: &Slots, number: u32, range: &VaRange) {
        let (level, bucket) = self.bucket_of(range);
        let mut link = &self.first[bucket];
        loop {
            let next = link.load(Ordering::Relaxed);
            if next == number {
                break;
            }
            debug_assert!(next & END == 0, "the entry is in its bucket");
            if next & END != 0 {
                return;
            }
            link = &slots.get(next).in_bucket;
        }
        let next = slots.get(number).in_bucket.load(Ordering::Relaxed);
        link.store(next, Ordering::SeqCst);
        if self.level[level as usize].remove() {
            let levels = self.levels.load(Ordering::Relaxed);
            self.levels.store(levels & !(1 << level), Ordering::SeqCst);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::request::{Class, Kind, Rights};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const CAPACITY: u32 = 40;

    /// Short ranges close together, and ranges of every length anywhere.
    fn any_range() -> impl Strategy<Value = VaRange> {
        let near = (0_u64..0x4000, 1_u64..0x2000);
        let far = (any::<u64>(), 0_u32..64)
            .prop_flat_map(|(start, level)| (Just(start), 1..=u64::MAX >> level));
        let longest = (0_u64..10, u64::MAX - 10..=u64::MAX);
        prop_oneof![4 => near, 2 => far, 1 => longest].prop_map(|(start, len)| {
            let start = start.min(u64::MAX - 1);
            VaRange::new(start, len.min(u64::MAX - start)).unwrap()
        })
    }

    fn found(buckets: &Buckets, slots: &Slots, range: VaRange) -> (Vec<u32>, Vec<u32>) {
        let matching = |numbers: Vec<u32>, matches: &dyn Fn(&VaRange) -> bool| {
            let mut numbers: Vec<u32> = numbers
                .into_iter()
                .filter(|&number| matches(&slots.get(number).range()))
                .collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers
        };
        let mut around = Vec::new();
        let none = buckets.find_containing(slots, range, |number| {
            around.push(number);
            false
        });
        assert_eq!(none, None);
        let around = matching(around, &|it| it.contains(&range));
        // The callers do not search more buckets than there are slots.
        let mut part = Vec::new();
        if buckets.spread(range) < 1000 {
            assert!(buckets.each_overlapping(slots, range, u64::MAX, |number| part.push(number)));
        }
        (around, matching(part, &|it| it.overlaps(&range)))
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 300 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Searches find what a list that is searched from end to end has.
        #[test]
        fn searches_match_a_plain_list(
            steps in prop::collection::vec((any_range(), any_range(), 0..CAPACITY), 1..120),
        ) {
            let slots = Slots::new(CAPACITY as usize);
            let buckets = Buckets::new(CAPACITY as usize);
            let mut known = BTreeMap::new();
            for (range, asked, number) in steps {
                if let Some(old) = known.remove(&number) {
                    buckets.remove(&slots, number, &old);
                } else {
                    let slot = slots.prepare(number);
                    slot.describe(range, Class::new(Rights(1), Kind::HOST));
                    buckets.add(&slots, number, &range);
                    known.insert(number, range);
                }
                for asked in [asked, range] {
                    let (around, part) = found(&buckets, &slots, asked);
                    let all = |matches: &dyn Fn(&VaRange) -> bool| -> Vec<u32> {
                        known.iter().filter(|(_, it)| matches(it)).map(|(&number, _)| number).collect()
                    };
                    prop_assert_eq!(around, all(&|it| it.contains(&asked)));
                    if buckets.spread(asked) < 1000 {
                        prop_assert_eq!(part, all(&|it| it.overlaps(&asked)));
                    }
                }
            }
            for (number, range) in known {
                buckets.remove(&slots, number, &range);
            }
            prop_assert_eq!(buckets.levels.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn a_search_looks_at_few_buckets() {
        let slots = Slots::new(1024);
        let buckets = Buckets::new(1024);
        for number in 0..1024 {
            let page = VaRange::new(u64::from(number) << 12, 0x1000).unwrap();
            slots.prepare(number);
            buckets.add(&slots, number, &page);
        }
        let page = VaRange::new(500 << 12, 0x1000).unwrap();
        assert_eq!(buckets.spread(page), 2);
        // Of a range, only the part where entries begin counts.
        let most = VaRange::new(100 << 12, 1 << 46).unwrap();
        assert_eq!(buckets.spread(most), 1024 - 99);
        let none = VaRange::new(1 << 30, 1 << 46).unwrap();
        assert_eq!(buckets.spread(none), 0);
        let mut steps = 0;
        assert!(buckets.each_overlapping(&slots, page, u64::MAX, |_| steps += 1));
        assert!(
            !buckets.each_overlapping(&slots, page, 0, |_| ()),
            "a limit"
        );
        assert!((2..10).contains(&steps), "{steps} entries compared");
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// The first pages of which the entries are in this bucket.
    fn pages(buckets: &Buckets, bucket: usize) -> impl Iterator<Item = VaRange> + '_ {
        (1..)
            .filter_map(|number| VaRange::new(number * 0x1000, 0x1000))
            .filter(move |page| buckets.bucket_of(page).1 == bucket)
    }

    /// As lookups search.
    fn finds(it: &(Slots, Buckets), number: u32, range: &VaRange) -> bool {
        let found = it.1.find_containing(&it.0, *range, |other| other == number);
        found == Some(number)
    }

    /// As monitors search.
    fn meets(it: &(Slots, Buckets), number: u32, range: &VaRange) -> bool {
        let mut met = false;
        it.1.each_overlapping(&it.0, *range, u64::MAX, |other| met |= other == number);
        met
    }

    /// Entry 0 stays. Entry 1, in front of it, is removed, and its slot gets an entry in another bucket and then one in the
    /// first bucket.
    fn search_while_others_move(search: fn(&(Slots, Buckets), u32, &VaRange) -> bool) {
        loom::model(move || {
            let slots = Slots::new(2);
            let buckets = Buckets::new(2);
            let first: Vec<VaRange> = pages(&buckets, 0).take(3).collect();
            let second = pages(&buckets, 1).next().unwrap();
            for number in 0..2 {
                slots.prepare(number);
                buckets.add(&slots, number, &first[number as usize]);
            }
            let stays = first[0];
            let it = Arc::new((slots, buckets));
            let searcher = {
                let it = Arc::clone(&it);
                thread::spawn(move || assert!(search(&it, 0, &stays), "missed"))
            };
            let (slots, buckets) = &*it;
            buckets.remove(slots, 1, &first[1]);
            buckets.add(slots, 1, &second);
            buckets.remove(slots, 1, &second);
            buckets.add(slots, 1, &first[2]);
            searcher.join().unwrap();
            assert!(search(&it, 0, &stays) && search(&it, 1, &first[2]));
        });
    }

    #[test]
    fn a_lookup_finds_an_entry_while_others_move_between_buckets() {
        search_while_others_move(finds);
    }

    #[test]
    fn a_change_finds_an_entry_while_others_move_between_buckets() {
        search_while_others_move(meets);
    }

    /// Entry 0 is older than the search, which another thread learns of; entry 1 is added in front of it in the meantime, and is the
    /// last one of its level in turn.
    fn search_after_an_addition(search: fn(&(Slots, Buckets), u32, &VaRange) -> bool) {
        loom::model(move || {
            let slots = Slots::new(2);
            let buckets = Buckets::new(2);
            let first: Vec<VaRange> = pages(&buckets, 0).take(2).collect();
            slots.prepare(0);
            slots.prepare(1);
            let stays = first[0];
            let it = Arc::new((slots, buckets));
            let added = Arc::new(AtomicU32::new(0));
            let searcher = {
                let (it, added) = (Arc::clone(&it), Arc::clone(&added));
                thread::spawn(move || {
                    let known = added.load(Ordering::Acquire) == 1;
                    assert!(search(&it, 0, &stays) || !known, "missed");
                })
            };
            let (slots, buckets) = &*it;
            buckets.add(slots, 1, &first[1]);
            buckets.remove(slots, 1, &first[1]);
            buckets.add(slots, 0, &stays);
            added.store(1, Ordering::Release);
            buckets.add(slots, 1, &first[1]);
            searcher.join().unwrap();
        });
    }

    #[test]
    fn a_lookup_finds_an_entry_that_was_added_before_it() {
        search_after_an_addition(finds);
    }

    #[test]
    fn a_change_finds_an_entry_that_was_added_before_it() {
        search_after_an_addition(meets);
    }
}
