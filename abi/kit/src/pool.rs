//! Objects whose addresses a C program holds as handles.
//!
//! A program may pass anything as a handle: null, a freed object, an object of another kind, an integer. A pool therefore keeps the
//! objects of one type in one range of address space, in slots of the same size, and never releases that range. So a live object can
//! be recognized by its address, without accessing memory outside the range: the address is the start of a slot, and the slot is
//! marked live. The check takes about a nanosecond.
//!
//! A pool cannot detect that a slot has been freed and reused: a stale handle then refers to the new object, as with `malloc`.

#![allow(unsafe_code)]
// UNSAFETY: reserves address space, places objects there, and checks addresses that C passes.

use parking_lot::Mutex;
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// How many bytes a pool makes accessible at a time.
const STEP: usize = 256 * 1024;

const FREE: u32 = 0;
const LIVE: u32 = 0x6b65_7921;
/// Live, and a search is inspecting the object, which prevents its removal.
const INSPECTED: u32 = LIVE ^ 1;

/// Whether a slot in this state holds an object.
#[inline]
const fn is_live(state: u32) -> bool {
    state | 1 == LIVE | 1
}

/// A slot. The object comes first, so that its address is the address of the slot.
#[repr(C, align(64))]
struct Slot<T> {
    value: UnsafeCell<MaybeUninit<T>>,
    state: AtomicU32,
}

impl<T> Slot<T> {
    /// Frees a live slot if no search is inspecting its object; otherwise returns the slot's state. If several threads try,
    /// only one succeeds.
    #[inline]
    fn release(&self) -> Result<(), u32> {
        let state = &self.state;
        let changed = state.compare_exchange(LIVE, FREE, Ordering::AcqRel, Ordering::Relaxed);
        changed.map(drop)
    }

    /// Moves the object out of a slot.
    ///
    /// # Safety
    /// The caller has released the slot, calls this only once, and has not added the slot to a list yet.
    #[inline]
    unsafe fn value(&self) -> T {
        // SAFETY: the slot was live until the caller released it, and it is not in a free list yet, so no other thread
        // can claim it.
        unsafe { (*self.value.get()).assume_init_read() }
    }

    /// Keeps the object of a live slot alive until the result is dropped. Must be called with the free list locked, so that
    /// two searches never inspect the same object.
    fn inspect(&self) -> Option<Inspected<'_, T>> {
        let state = &self.state;
        let changed = state.compare_exchange(LIVE, INSPECTED, Ordering::Acquire, Ordering::Relaxed);
        changed.is_ok().then(|| Inspected(self))
    }
}

/// A slot that a search is inspecting.
struct Inspected<'a, T>(&'a Slot<T>);

impl<T> Drop for Inspected<'_, T> {
    fn drop(&mut self) {
        // Nothing else changes this state.
        self.0.state.store(LIVE, Ordering::Release);
    }
}

/// Slots for objects of type `T`.
pub struct Pool<T> {
    /// The start of the range; null until the first object.
    base: AtomicPtr<u8>,
    /// How many bytes from `base` on are accessible.
    usable: AtomicUsize,
    capacity: usize,
    free_list: Mutex<FreeList>,
    objects: std::marker::PhantomData<T>,
}

struct FreeList {
    free: Vec<u32>,
    fresh: u32,
    reserved: u32,
}

// SAFETY: only the thread that claimed a slot stores an object in it, and only one thread removes the object: the one that
// changes the state from `LIVE` to `FREE`. Shared access to objects is as for a plain `&T`.
unsafe impl<T: Send + Sync> Sync for Pool<T> {}

impl<T: 'static> Pool<T> {
    /// The distance between two objects, in bytes.
    const STRIDE: usize = size_of::<Slot<T>>().next_power_of_two();

    /// Creates an empty pool for up to `capacity` objects. Does not allocate memory yet.
    #[must_use]
    pub const fn new(capacity: u32) -> Self {
        Self {
            base: AtomicPtr::new(std::ptr::null_mut()),
            usable: AtomicUsize::new(0),
            capacity: capacity as usize,
            free_list: Mutex::new(FreeList {
                free: Vec::new(),
                fresh: 0,
                reserved: 0,
            }),
            objects: std::marker::PhantomData,
        }
    }

    fn slot(&self, index: u32) -> *const Slot<T> {
        let base = self.base.load(Ordering::Acquire);
        base.wrapping_add(index as usize * Self::STRIDE).cast()
    }

    /// Adds an object and returns its address, or `None` if the pool is full or no memory is available.
    pub fn put(&self, value: T) -> Option<NonNull<T>> {
        let vacant = self.vacant(None)?;
        let address = vacant.address();
        vacant.fill(value);
        Some(address)
    }

    /// Reserves a slot, from the spare ones if there are any. Returns `None` in the same cases as [`Pool::put`].
    #[inline]
    pub fn vacant(&self, spares: Option<&Spares<T>>) -> Option<Vacant<'_, T>> {
        let index = match spares.and_then(Spares::pop) {
            Some(index) => index,
            None => self.claim()?,
        };
        Some(Vacant { pool: self, index })
    }

    fn claim(&self) -> Option<u32> {
        let mut free_list = self.free_list.lock();
        if let Some(index) = free_list.free.pop() {
            return Some(index);
        }
        if free_list.reserved == 0 {
            self.reserve(&mut free_list);
        }
        if free_list.fresh >= free_list.reserved {
            return None;
        }
        let end = (free_list.fresh as usize + 1) * Self::STRIDE;
        while self.usable.load(Ordering::Relaxed) < end {
            self.extend(&free_list)?;
        }
        free_list.fresh += 1;
        Some(free_list.fresh - 1)
    }

    /// Reserves address space for `capacity` slots, or for fewer if the kernel refuses that much.
    fn reserve(&self, free_list: &mut FreeList) {
        let mut slots = self.capacity;
        while slots > 0 {
            if let Some(start) = space::reserve(slots * Self::STRIDE) {
                self.base.store(start.as_ptr(), Ordering::Release);
                free_list.reserved = u32::try_from(slots).unwrap_or(u32::MAX);
                return;
            }
            slots /= 2;
        }
    }

    fn extend(&self, free_list: &FreeList) -> Option<()> {
        let usable = self.usable.load(Ordering::Relaxed);
        let len = STEP.min(free_list.reserved as usize * Self::STRIDE - usable);
        let start = self.base.load(Ordering::Relaxed).wrapping_add(usable);
        // SAFETY: these bytes are part of our own reservation, and nothing is stored in them yet.
        unsafe { space::make_usable(start, len) }?;
        self.usable.store(usable + len, Ordering::Release);
        Some(())
    }

    /// The slot that begins at an address, and its index, if there is one.
    #[inline]
    fn at(&self, address: *const T) -> Option<(&Slot<T>, usize)> {
        // Load `usable` first: once it is not 0, `base` is set.
        let usable = self.usable.load(Ordering::Acquire);
        let base = self.base.load(Ordering::Relaxed);
        let offset = address.addr().wrapping_sub(base.addr());
        if offset >= usable || !offset.is_multiple_of(Self::STRIDE) {
            return None;
        }
        let slot = base.wrapping_add(offset).cast::<Slot<T>>();
        // SAFETY: a whole number of strides into the accessible part of the reservation, which is never released; a slot of
        // zeros is free.
        Some((unsafe { &*slot }, offset / Self::STRIDE))
    }

    /// The live object at an address that C passed, if there is one.
    ///
    /// # Safety
    /// No other thread may free the object while the reference is in use. (C programs must not destroy an object while another
    /// thread uses it.)
    #[inline]
    #[must_use]
    pub unsafe fn get<'a>(&self, address: *const T) -> Option<&'a T> {
        let (slot, _) = self.at(address)?;
        if !is_live(slot.state.load(Ordering::Acquire)) {
            return None;
        }
        // SAFETY: a live slot holds an object, and the caller guarantees that it stays.
        Some(unsafe { &*slot.value.get().cast::<T>() })
    }

    /// Whether there is a live object at the address.
    #[must_use]
    pub fn contains(&self, address: *const T) -> bool {
        self.at(address)
            .is_some_and(|(slot, _)| is_live(slot.state.load(Ordering::Acquire)))
    }

    /// Removes the object at an address; if several threads try, exactly one gets it.
    ///
    /// # Safety
    /// No reference to the object may be used afterwards.
    pub unsafe fn take(&self, address: *const T) -> Option<T> {
        let (slot, index) = self.at(address)?;
        // Searches hold this lock, so no search is inspecting an object now.
        let mut free_list = self.free_list.lock();
        slot.release().ok()?;
        // SAFETY: only we have released the slot, and it is not in the free list yet.
        let value = unsafe { slot.value() };
        free_list.free.push(index as u32);
        Some(value)
    }

    /// Like [`Pool::take`], but without a lock if no search is inspecting the object and the spare slots have room for its slot.
    ///
    /// # Safety
    /// Same as for [`Pool::take`].
    #[inline]
    pub unsafe fn take_sparing(&self, spares: Option<&Spares<T>>, address: *const T) -> Option<T> {
        let (slot, index) = self.at(address)?;
        match slot.release() {
            // SAFETY: guaranteed by the caller.
            Err(INSPECTED) => return unsafe { self.take(address) },
            released => released.ok()?,
        }
        // SAFETY: only we have released the slot, and it is in no list yet.
        let value = unsafe { slot.value() };
        self.put_back(spares, index as u32);
        Some(value)
    }

    /// Makes a slot available again. The slot must not be live or in a list.
    #[inline]
    fn put_back(&self, spares: Option<&Spares<T>>, index: u32) {
        if !spares.is_some_and(|spares| spares.push(index)) {
            self.free_list.lock().free.push(index);
        }
    }

    /// Destroys the object at an address, without a lock if the spare slots have room for its slot. Returns `false` if
    /// it is not a live object.
    ///
    /// # Safety
    /// No reference to the object may be used afterwards, no other thread may remove or destroy it, and no thread may search this
    /// pool ([`Pool::find_map`], [`Pool::live`]).
    #[inline]
    pub unsafe fn end(&self, spares: Option<&Spares<T>>, address: *const T) -> bool {
        let Some((slot, index)) = self.at(address) else {
            return false;
        };
        if slot.state.load(Ordering::Acquire) != LIVE {
            return false;
        }
        slot.state.store(FREE, Ordering::Release);
        // SAFETY: the slot was live until now, and the caller guarantees that only we destroy the object.
        unsafe { (*slot.value.get()).assume_init_drop() };
        self.put_back(spares, index as u32);
        true
    }

    /// Passes the live objects to `look`, one after the other, until it returns a value. A thread that removes the
    /// object under inspection waits until the search is over. `look` must not add or remove objects of this pool.
    pub fn find_map<R>(&self, mut look: impl FnMut(&T) -> Option<R>) -> Option<R> {
        let free_list = self.free_list.lock();
        (0..free_list.fresh).find_map(|index| {
            // SAFETY: a slot that was once allocated is accessible, and the space of a pool is never released.
            let seen = unsafe { &*self.slot(index) }.inspect()?;
            // SAFETY: the slot is live, and nothing removes its object before `seen` is dropped.
            look(unsafe { &*seen.0.value.get().cast::<T>() })
        })
    }

    /// The addresses of the live objects for which `wanted` is true. `wanted` has the same restrictions as the closure of
    /// [`Pool::find_map`].
    #[must_use]
    pub fn live(&self, wanted: impl Fn(&T) -> bool) -> Vec<*const T> {
        let mut found = Vec::new();
        self.find_map(|object| {
            if wanted(object) {
                found.push(&raw const *object);
            }
            None::<()>
        });
        found
    }
}

/// A slot reserved for a future object. Dropping it frees the slot.
pub struct Vacant<'a, T: 'static> {
    pool: &'a Pool<T>,
    index: u32,
}

impl<'a, T: 'static> Vacant<'a, T> {
    #[inline]
    fn slot(&self) -> &'a Slot<T> {
        // SAFETY: the slot was claimed, so it is accessible; the space of a pool is never released.
        unsafe { &*self.pool.slot(self.index) }
    }

    /// The future address of the object.
    #[inline]
    #[must_use]
    pub fn address(&self) -> NonNull<T> {
        NonNull::from(&self.slot().value).cast()
    }

    /// Stores the object.
    #[inline(always)]
    pub fn fill(self, value: T) -> &'a T {
        let slot = std::mem::ManuallyDrop::new(self).slot();
        // SAFETY: no other thread accesses the value of a slot that is not live.
        let stored = unsafe { (*slot.value.get()).write(value) };
        slot.state.store(LIVE, Ordering::Release);
        stored
    }
}

impl<T: 'static> Drop for Vacant<'_, T> {
    fn drop(&mut self) {
        self.pool.free_list.lock().free.push(self.index);
    }
}

/// Free slots of a pool that one thread keeps, so that it can create and destroy objects without a lock. They return to the pool
/// when the thread exits.
pub struct Spares<T: 'static> {
    pool: fn() -> &'static Pool<T>,
    count: Cell<usize>,
    slots: [Cell<u32>; SPARES],
}

/// How many slots a thread keeps.
const SPARES: usize = 16;

impl<T> Spares<T> {
    /// Creates an empty list for a pool.
    #[must_use]
    pub const fn new(pool: fn() -> &'static Pool<T>) -> Self {
        Self {
            pool,
            count: Cell::new(0),
            slots: [const { Cell::new(0) }; SPARES],
        }
    }

    #[inline]
    fn pop(&self) -> Option<u32> {
        let last = self.count.get().checked_sub(1)?;
        let slot = self.slots.get(last)?.get();
        self.count.set(last);
        Some(slot)
    }

    /// Returns `false` if the list is full.
    #[inline]
    fn push(&self, index: u32) -> bool {
        let count = self.count.get();
        let Some(slot) = self.slots.get(count) else {
            return false;
        };
        slot.set(index);
        self.count.set(count + 1);
        true
    }
}

impl<T> Drop for Spares<T> {
    fn drop(&mut self) {
        if self.count.get() > 0 {
            let mut free_list = (self.pool)().free_list.lock();
            free_list.free.extend(std::iter::from_fn(|| self.pop()));
        }
    }
}

/// The address space of pools.
#[cfg(not(miri))]
mod space {
    use std::ptr::{NonNull, null_mut};

    /// Reserves `len` bytes that cannot be accessed yet.
    pub(super) fn reserve(len: usize) -> Option<NonNull<u8>> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let start = unsafe { libc::mmap(null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        let start = (start != libc::MAP_FAILED).then_some(start.cast())?;
        NonNull::new(start)
    }

    /// Makes these bytes accessible. They are zero.
    ///
    /// # Safety
    /// The bytes are whole pages of a reservation, and not in use.
    pub(super) unsafe fn make_usable(start: *mut u8, len: usize) -> Option<()> {
        let how = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: guaranteed by the caller.
        let failed = unsafe { libc::mprotect(start.cast(), len, how) };
        (failed == 0).then_some(())
    }
}

/// For Miri, which has no `mprotect`: all bytes are accessible from the start.
#[cfg(miri)]
mod space {
    use std::alloc::{Layout, alloc_zeroed};
    use std::ptr::NonNull;

    pub(super) fn reserve(len: usize) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(len, 4096).ok()?;
        // SAFETY: the length is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    pub(super) unsafe fn make_usable(_: *mut u8, _: usize) -> Option<()> {
        Some(())
    }
}

#[cfg(test)]
mod tests;
