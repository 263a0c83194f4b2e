//! The registrations of entries. A value may be read while its entry is pinned, and written or taken while its slot belongs to
//! one thread; the entry's word says which.

// UNSAFETY: the cells are read by many threads and written by one at a time, without a lock.
#![allow(unsafe_code)]

use super::slots::CHUNK;
use std::cell::UnsafeCell;
use std::sync::OnceLock;

type Cells<T> = Box<[UnsafeCell<Option<T>>; CHUNK]>;

/// One value for each slot.
pub(crate) struct Values<T> {
    chunks: Box<[OnceLock<Cells<T>>]>,
}

// SAFETY: `get` lends `&T` to several threads (`T: Sync`) and `put` and `take` move values between threads (`T: Send`);
// their contracts keep the two apart.
unsafe impl<T: Send + Sync> Sync for Values<T> {}
// SAFETY: sending it sends the values.
unsafe impl<T: Send> Send for Values<T> {}

impl<T> Values<T> {
    /// Room for `capacity` values, allocated on first use.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            chunks: (0..capacity.div_ceil(CHUNK))
                .map(|_| OnceLock::new())
                .collect(),
        }
    }

    fn cell(&self, slot: u32) -> &UnsafeCell<Option<T>> {
        let slot = slot as usize;
        let cells = self.chunks[slot / CHUNK]
            .get_or_init(|| Box::new(std::array::from_fn(|_| UnsafeCell::new(None))));
        &cells[slot % CHUNK]
    }

    /// The value of a slot.
    ///
    /// # Safety
    /// The caller has pinned the slot's entry or claimed it, and keeps it pinned for as long as it uses the reference.
    /// A claimed entry's value is not stored or taken during that time.
    #[inline]
    pub(crate) unsafe fn get(&self, slot: u32) -> Option<&T> {
        let cells = self.chunks[slot as usize / CHUNK].get()?;
        // SAFETY: while the entry is pinned, the contracts of `put` and `take` forbid calling them for this slot.
        unsafe { (*cells[slot as usize % CHUNK].get()).as_ref() }
    }

    /// Stores the value of a slot.
    ///
    /// # Safety
    /// The caller has claimed the slot and not yet published its entry.
    pub(crate) unsafe fn put(&self, slot: u32, value: T) {
        // SAFETY: a pending entry cannot be pinned, so no other thread reads the cell.
        unsafe { *self.cell(slot).get() = Some(value) };
    }

    /// Takes the value of a slot.
    ///
    /// # Safety
    /// The caller has freed the slot (`Word::free`, `Word::evict`), and no thread can have claimed it since; or the
    /// caller has claimed the slot and never publishes its entry.
    pub(crate) unsafe fn take(&self, slot: u32) -> Option<T> {
        // SAFETY: a slot is freed only without users, and a free slot cannot be pinned, so no other thread reads the cell.
        unsafe { (*self.cell(slot).get()).take() }
    }
}
