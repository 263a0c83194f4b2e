//! Handles: from the address that a program passes to the object behind it.
//!
//! Each kind of object has a pool ([`rkey_kit::Pool`]), whose places begin with the structure that
//! programs read. An address that is no live object of its kind is refused with `EINVAL`.

#![allow(unsafe_code)]
// UNSAFETY: turns addresses that C passes into references, after the pool has checked them.

use rkey_kit::{Errno, Pool};
use std::sync::atomic::{AtomicU32, Ordering};

/// An object that a program has a handle of.
///
/// # Safety
/// `C` is the type of the field at `OFFSET` bytes from the start of the object, in an `UnsafeCell`
/// (programs read and write it).
pub unsafe trait Object: Sized + Send + Sync + 'static {
    /// The structure whose address is the handle.
    type C;
    /// Where it is in the object.
    const OFFSET: usize = 0;
    /// Where objects of this kind are.
    fn pool() -> &'static Pool<Self>;
}

/// The object behind a handle.
///
/// # Errors
/// `EINVAL`: it is none, or none any more.
///
/// # Safety
/// The program keeps the rule of verbs that an object is not destroyed while another thread uses it.
#[inline]
pub unsafe fn find<'a, T: Object>(handle: *const T::C) -> Result<&'a T, Errno> {
    // SAFETY: the caller vouches that the object stays while the reference is used.
    unsafe { T::pool().get(object_address(handle)) }.ok_or(Errno::INVAL)
}

/// Makes an object; the result is its handle.
///
/// # Errors
/// `ENOMEM`: there are too many.
pub fn place<T: Object>(object: T) -> Result<*mut T::C, Errno> {
    let address = T::pool().put(object).ok_or(Errno::NOMEM)?;
    Ok(address.as_ptr().wrapping_byte_add(T::OFFSET).cast())
}

/// Takes an object away from its handle.
///
/// # Errors
/// `EINVAL`: it is none, or none any more.
///
/// # Safety
/// No reference to it is used any more.
pub unsafe fn remove<T: Object>(handle: *const T::C) -> Result<T, Errno> {
    // SAFETY: as promised by the caller.
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

/// An argument that may be null: the object, or none.
///
/// # Errors
/// `EINVAL`: it is not null and no object.
///
/// # Safety
/// As [`find`].
pub unsafe fn find_or_null<'a, T: Object>(handle: *const T::C) -> Result<Option<&'a T>, Errno> {
    if handle.is_null() {
        return Ok(None);
    }
    // SAFETY: as promised by the caller.
    unsafe { find(handle) }.map(Some)
}

/// A structure that a program passes for us to read.
///
/// # Errors
/// `EINVAL`: null or not aligned.
///
/// # Safety
/// If it is not null, it is a `T` that nobody writes meanwhile.
pub unsafe fn input<'a, T>(pointer: *const T) -> Result<&'a T, Errno> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Errno::INVAL);
    }
    // SAFETY: aligned and not null, and the caller promises the rest.
    Ok(unsafe { &*pointer })
}

/// A structure that a program passes for us to fill in.
///
/// # Errors
/// `EINVAL`: null or not aligned.
///
/// # Safety
/// If it is not null, it is room for a `T` that only we use now, and holds a valid one.
pub unsafe fn output<'a, T>(pointer: *mut T) -> Result<&'a mut T, Errno> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Errno::INVAL);
    }
    // SAFETY: aligned and not null, and the caller promises the rest.
    Ok(unsafe { &mut *pointer })
}

/// How many other objects hang on an object.
#[derive(Debug, Default)]
pub struct Users(AtomicU32);

impl Users {
    /// One more.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// One less.
    pub fn remove(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether there are none, as a condition for the end of the object.
    ///
    /// # Errors
    /// `EBUSY`.
    pub fn none(&self) -> Result<(), Errno> {
        if self.0.load(Ordering::Acquire) == 0 {
            Ok(())
        } else {
            Err(Errno::BUSY)
        }
    }
}
