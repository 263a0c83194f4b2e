//! Finds an entry by address.
//!
//! The entries of one class (rights and kind) are sorted by their first address, and none contains another of its
//! class. So they are also sorted by their ends, and if an entry of the class contains a range, the last one that
//! begins at or before the range does.
//!
//! One thread at a time changes the index, while others read it. A reader may see a list in the middle of a change, so
//! it only gets a *candidate*, which it must pin and compare. At worst it misses an entry, and the cache searches again
//! under the lock.

use super::entries::NONE;
use crate::request::Class;
use smallvec::SmallVec;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The number of classes that an index can have at a time.
pub(crate) const CLASSES: usize = 32;

#[derive(Debug)]
struct Arrays {
    starts: Box<[AtomicU64]>,
    slots: Box<[AtomicU32]>,
}

/// The entries of one class.
#[derive(Debug)]
pub(crate) struct List {
    class: AtomicU64,
    len: AtomicUsize,
    arrays: OnceLock<Arrays>,
}

impl List {
    fn new() -> Self {
        Self {
            class: AtomicU64::new(0),
            len: AtomicUsize::new(0),
            arrays: OnceLock::new(),
        }
    }

    #[inline]
    fn class(&self) -> Class {
        Class::from_bits(self.class.load(Ordering::Relaxed))
    }

    /// How many entries begin at or before an address. The list may be changing.
    #[inline]
    fn position(arrays: &Arrays, len: usize, address: u64) -> usize {
        let (mut base, mut size) = (0, len);
        while size > 0 {
            let half = size / 2;
            let begins = arrays.starts[base + half].load(Ordering::Relaxed) <= address;
            base = if begins { base + half + 1 } else { base };
            size = if begins { size - half - 1 } else { half };
        }
        base
    }

    /// The last entry that begins at or before an address.
    #[inline]
    fn before(&self, address: u64) -> Option<u32> {
        let arrays = self.arrays.get()?;
        let len = self.len.load(Ordering::Acquire);
        let position = Self::position(arrays, len, address);
        let slot = arrays.slots[position.checked_sub(1)?].load(Ordering::Acquire);
        (slot != NONE).then_some(slot)
    }

    /// The first entry that begins after an address.
    fn after(&self, address: u64) -> Option<u32> {
        let arrays = self.arrays.get()?;
        let len = self.len.load(Ordering::Acquire);
        let position = Self::position(arrays, len, address);
        (position < len).then(|| arrays.slots[position].load(Ordering::Acquire))
    }
}

/// The index of one cache.
#[derive(Debug)]
pub(crate) struct Index {
    lists: [List; CLASSES],
    /// Lists from this number on were never used.
    high: AtomicUsize,
    capacity: usize,
}

impl Index {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            lists: std::array::from_fn(|_| List::new()),
            high: AtomicUsize::new(0),
            capacity,
        }
    }

    fn lists(&self) -> &[List] {
        &self.lists[..self.high.load(Ordering::Acquire)]
    }

    /// Tries each entry that may contain a range that begins at `address` and serve `want`, until `accept` takes one.
    #[inline]
    pub(crate) fn find(
        &self,
        address: u64,
        want: Class,
        exact: bool,
        mut accept: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        self.lists()
            .iter()
            .filter(|list| list.class().serves(want, exact))
            .find_map(|list| list.before(address).filter(|&slot| accept(slot)))
    }

    /// Removes entries that have ended but still hide others that may serve a lookup. The caller has the lock of the
    /// slots.
    pub(crate) fn unhide(
        &self,
        address: u64,
        want: Class,
        exact: bool,
        is_valid: impl Fn(u32) -> bool,
        start: impl Fn(u32) -> u64,
    ) {
        let serving = self
            .lists()
            .iter()
            .filter(|list| list.class().serves(want, exact));
        for list in serving {
            while let Some(slot) = list.before(address).filter(|&slot| !is_valid(slot)) {
                self.remove(list.class(), start(slot), slot);
            }
        }
    }

    /// The last entry of a class that begins at or before an address. The caller has the lock of the slots.
    pub(crate) fn before(&self, class: Class, address: u64) -> Option<u32> {
        self.list(class)?.before(address)
    }

    /// The entries next to an address, of every class, for explanations.
    pub(crate) fn neighbours(&self, address: u64) -> impl Iterator<Item = u32> + '_ {
        self.lists()
            .iter()
            .flat_map(move |list| [list.before(address), list.after(address)])
            .flatten()
    }

    fn list(&self, class: Class) -> Option<&List> {
        let used = |list: &&List| list.len.load(Ordering::Relaxed) > 0;
        self.lists()
            .iter()
            .filter(used)
            .find(|list| list.class() == class)
    }

    /// The entries of a class that a new entry of the class replaces, because it contains them. The caller has the lock of
    /// the slots.
    pub(crate) fn contained(
        &self,
        class: Class,
        start: u64,
        contains: impl Fn(u32) -> bool,
    ) -> SmallVec<[(u64, u32); 8]> {
        let Some((list, arrays)) = self
            .list(class)
            .and_then(|list| Some((list, list.arrays.get()?)))
        else {
            return SmallVec::new();
        };
        let len = list.len.load(Ordering::Relaxed);
        let first = match start.checked_sub(1) {
            Some(before) => List::position(arrays, len, before),
            None => 0,
        };
        (first..len)
            .map(|at| {
                let slot = arrays.slots[at].load(Ordering::Relaxed);
                (arrays.starts[at].load(Ordering::Relaxed), slot)
            })
            .take_while(|&(_, slot)| contains(slot))
            .collect()
    }

    /// Adds an entry. `false` if there are too many classes. The caller has the lock of the slots, and has removed the entries
    /// of the class that the new one contains, and any that contains it.
    pub(crate) fn insert(&self, class: Class, start: u64, slot: u32) -> bool {
        let Some(list) = self.list(class).or_else(|| self.new_list(class)) else {
            return false;
        };
        let arrays = list.arrays.get_or_init(|| Arrays {
            starts: (0..self.capacity).map(|_| AtomicU64::new(0)).collect(),
            slots: (0..self.capacity).map(|_| AtomicU32::new(NONE)).collect(),
        });
        let len = list.len.load(Ordering::Relaxed);
        let position = List::position(arrays, len, start);
        for at in (position..len).rev() {
            copy(arrays, at, at + 1);
        }
        arrays.starts[position].store(start, Ordering::Relaxed);
        arrays.slots[position].store(slot, Ordering::Release);
        list.len.store(len + 1, Ordering::Release);
        true
    }

    fn new_list(&self, class: Class) -> Option<&List> {
        let high = self.high.load(Ordering::Relaxed);
        let empty = |list: &&List| list.len.load(Ordering::Relaxed) == 0;
        let list = self.lists[..high].iter().find(empty).or_else(|| {
            let list = self.lists.get(high)?;
            self.high.store(high + 1, Ordering::Release);
            Some(list)
        })?;
        list.class.store(class.bits(), Ordering::Relaxed);
        Some(list)
    }

    /// Removes an entry, if the index lists it. The caller has the lock of the slots.
    pub(crate) fn remove(&self, class: Class, start: u64, slot: u32) {
        let Some((list, arrays)) = self
            .list(class)
            .and_then(|list| Some((list, list.arrays.get()?)))
        else {
            return;
        };
        let len = list.len.load(Ordering::Relaxed);
        // No two listed entries of a class begin at the same address.
        let Some(position) = List::position(arrays, len, start).checked_sub(1) else {
            return;
        };
        if arrays.slots[position].load(Ordering::Relaxed) != slot {
            return;
        }
        for at in position + 1..len {
            copy(arrays, at, at - 1);
        }
        list.len.store(len - 1, Ordering::Release);
    }
}

fn copy(arrays: &Arrays, from: usize, to: usize) {
    let start = arrays.starts[from].load(Ordering::Relaxed);
    let slot = arrays.slots[from].load(Ordering::Relaxed);
    arrays.starts[to].store(start, Ordering::Relaxed);
    arrays.slots[to].store(slot, Ordering::Release);
}
