//! Handles: from the address that a program passes to the object behind it.
//!
//! Each kind of object has a pool ([`rkey_kit::Pool`]), whose slots begin with the C structure that the program
//! reads. The rules for every exported function:
//!
//! * A handle may be any address: one that is not a live object of its kind is refused with `EINVAL`. While a
//!   call uses an object, no other thread destroys it.
//! * A pointer to attributes or output is null (refused with `EINVAL`), or valid for the whole call and not
//!   used by other threads.
//! * The call that destroys an object is its last use.

#![allow(unsafe_code)]
// UNSAFETY: turns addresses from C into references, after the pool has validated them.

use rkey_kit::{Errno, Pool};
use std::sync::atomic::{AtomicU32, Ordering};

/// An object behind a handle.
///
/// # Safety
/// A field of type `C` in an `UnsafeCell` is at `OFFSET` bytes from the start of the object (programs read
/// and write it).
pub unsafe trait Object: Sized + Send + Sync + 'static {
    /// The structure whose address is the handle.
    type C;
    /// Its offset in the object.
    const OFFSET: usize = 0;
    /// The pool of this kind of object.
    fn pool() -> &'static Pool<Self>;
}

/// The object behind a handle.
///
/// # Errors
/// `EINVAL`: no live object is there.
///
/// # Safety
/// As verbs requires, the program does not destroy the object while another thread uses it.
#[inline]
pub unsafe fn find<'a, T: Object>(handle: *const T::C) -> Result<&'a T, Errno> {
    // SAFETY: the caller promises that the object stays while the reference is used.
    unsafe { T::pool().get(object_address(handle)) }.ok_or(Errno::INVAL)
}

/// Puts an object into its pool and returns its handle.
///
/// # Errors
/// `ENOMEM`: the pool is full.
pub fn insert<T: Object>(object: T) -> Result<*mut T::C, Errno> {
    let address = T::pool().put(object).ok_or(Errno::NOMEM)?;
    Ok(address.as_ptr().wrapping_byte_add(T::OFFSET).cast())
}

/// Takes an object out of its pool; its handle becomes invalid.
///
/// # Errors
/// `EINVAL`: no live object is there.
///
/// # Safety
/// No reference to it is used any more.
pub unsafe fn remove<T: Object>(handle: *const T::C) -> Result<T, Errno> {
    // SAFETY: the caller promises it.
    unsafe { T::pool().take(object_address(handle)) }.ok_or(Errno::INVAL)
}

/// The handle of an object.
#[inline]
#[must_use]
pub fn handle_of<T: Object>(object: &T) -> *mut T::C {
    (&raw const *object)
        .wrapping_byte_add(T::OFFSET)
        .cast_mut()
        .cast()
}

#[inline]
fn object_address<T: Object>(handle: *const T::C) -> *const T {
    handle.cast::<T>().wrapping_byte_sub(T::OFFSET)
}

/// The object behind a handle that may be null.
///
/// # Errors
/// `EINVAL`: neither null nor a live object.
///
/// # Safety
/// As for [`find`].
pub unsafe fn find_or_null<'a, T: Object>(handle: *const T::C) -> Result<Option<&'a T>, Errno> {
    if handle.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller promises it.
    unsafe { find(handle) }.map(Some)
}

/// A structure that the program passes in.
///
/// # Errors
/// `EINVAL`: null or misaligned.
///
/// # Safety
/// If not null, it points to a `T` that nothing writes while the reference is used.
pub unsafe fn input<'a, T>(pointer: *const T) -> Result<&'a T, Errno> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Errno::INVAL);
    }
    // SAFETY: aligned and not null; the caller promises the rest.
    Ok(unsafe { &*pointer })
}

/// A structure that the program wants filled in.
///
/// # Errors
/// `EINVAL`: null or misaligned.
///
/// # Safety
/// If not null, it points to a valid `T` that nothing else uses meanwhile.
pub unsafe fn output<'a, T>(pointer: *mut T) -> Result<&'a mut T, Errno> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Errno::INVAL);
    }
    // SAFETY: aligned and not null; the caller promises the rest.
    Ok(unsafe { &mut *pointer })
}

/// The number of objects that use another one.
#[derive(Debug, Default)]
pub struct Users(AtomicU32);

impl Users {
    /// Counts one more.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts one fewer.
    pub fn remove(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Checks that the object may be destroyed.
    ///
    /// # Errors
    /// `EBUSY`: it still has users.
    pub fn none(&self) -> Result<(), Errno> {
        if self.0.load(Ordering::Acquire) == 0 {
            Ok(())
        } else {
            Err(Errno::BUSY)
        }
    }
}
