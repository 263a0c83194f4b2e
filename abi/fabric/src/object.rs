//! libfabric's form of handles, and the boundary at which errors become negative numbers.
//!
//! [`mod@rkey_kit::object`] does the checks. This module adds what is specific to libfabric: each handle begins with a
//! `fid`, so one function may get handles of several kinds, and errors have libfabric's numbers.

#![allow(unsafe_code)]
// UNSAFETY: forwards addresses that C passes.

use crate::errno::{FiError, Result};
use rkey_kit::Spares;
pub(crate) use rkey_kit::argument::{input, list};
use rkey_kit::contained;
pub(crate) use rkey_kit::object::{Object, Users, handle_of, vacant};
use std::ffi::c_void;
use std::thread::LocalKey;

/// Declares the pool of an object and what its handle points to: the structure in its field `fid`.
macro_rules! object {
    ($object:ty, $c:ty, $capacity:literal) => {
        rkey_kit::object!($object, fid: $c, $capacity);
        // SAFETY: the structure holds numbers, and addresses of tables that never change; programs must not change it.
        // Everything behind it is itself `Send` and `Sync`.
        unsafe impl Send for $object {}
        // SAFETY: as above.
        unsafe impl Sync for $object {}
    };
}
pub(crate) use object;

/// The object behind a handle; fails with `FI_EINVAL` if the handle is invalid or stale.
///
/// # Safety
/// Same as [`rkey_kit::object::find`].
#[inline]
pub(crate) unsafe fn find<'a, T: Object, H>(handle: *const H) -> Result<&'a T> {
    // SAFETY: guaranteed by the caller.
    unsafe { rkey_kit::object::find(handle.cast()) }.map_err(FiError::from)
}

/// Adds an object to its pool and stores its handle for the program.
///
/// # Safety
/// `into` is null or points to space for a handle.
pub(crate) unsafe fn publish<T: Object>(object: T, into: *mut *mut T::C) -> Result<&'static T> {
    if into.is_null() {
        return Err(FiError::INVAL);
    }
    let handle = rkey_kit::object::insert(object)?;
    // SAFETY: not null, so it is room for a handle; the object was made just now, and the program has no other handle.
    unsafe {
        *into = handle;
        find(handle)
    }
}

/// Removes the object behind a handle, which becomes invalid.
///
/// # Safety
/// Same as [`rkey_kit::object::remove`].
pub(crate) unsafe fn remove<T: Object, H>(handle: *const H) -> Result<T> {
    // SAFETY: guaranteed by the caller.
    unsafe { rkey_kit::object::remove(handle.cast()) }.map_err(FiError::from)
}

/// Destroys an object of a kind that uses [`vacant`].
///
/// # Safety
/// Same as [`rkey_kit::object::end`].
#[inline]
pub(crate) unsafe fn end<T: Object, H>(
    spares: &'static LocalKey<Spares<T>>,
    handle: *const H,
) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    unsafe { rkey_kit::object::end(spares, handle.cast()) }.map_err(FiError::from)
}

/// Writes a value to memory that a program passes.
///
/// # Safety
/// Same as [`rkey_kit::argument::store`].
pub(crate) unsafe fn store<T>(room: *mut T, value: T) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    unsafe { rkey_kit::argument::store(room, value) }.map_err(FiError::from)
}

/// Writes as many bytes as fit, and sets `len` to the full length. Returns whether all bytes fit.
///
/// # Safety
/// `len` is null or points to a length, and `room` is valid for writes of that many bytes.
pub(crate) unsafe fn write_truncated(
    bytes: &[u8],
    room: *mut c_void,
    len: *mut usize,
) -> Result<bool> {
    if len.is_null() {
        return Err(FiError::INVAL);
    }
    // SAFETY: not null, so it is a number.
    let capacity = unsafe { *len };
    let cut = bytes.len().min(capacity);
    if cut > 0 && room.is_null() {
        return Err(FiError::INVAL);
    }
    // SAFETY: the caller guarantees this length.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), room.cast::<u8>(), cut);
        *len = bytes.len();
    }
    Ok(cut == bytes.len())
}

/// Writes a name for the program. Returns `FI_ETOOSMALL` if it does not fit.
///
/// # Safety
/// `len` is null or points to a length, and `addr` is valid for writes of that many bytes.
pub(crate) unsafe fn write_name(name: &[u8], addr: *mut c_void, len: *mut usize) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    if unsafe { write_truncated(name, addr, len)? } {
        Ok(())
    } else {
        Err(FiError::TOOSMALL)
    }
}

/// Runs the body of a C function that returns 0 or a negative number. A panic (a bug in rkey) becomes `-FI_EIO`.
#[inline]
pub(crate) fn status(body: impl FnOnce() -> Result<()>) -> i32 {
    match contained(body) {
        Ok(()) => 0,
        Err(error) => error.code(),
    }
}

/// Like [`status`], for functions that return a count.
#[inline]
pub(crate) fn count(body: impl FnOnce() -> Result<usize>) -> isize {
    match contained(body) {
        Ok(count) => count as isize,
        Err(error) => error.code() as isize,
    }
}

/// Like [`status`], for data transfers.
#[inline]
pub(crate) fn transfer_status(body: impl FnOnce() -> Result<()>) -> isize {
    count(|| body().map(|()| 0))
}

/// The error for closing an object that is still in use.
#[cold]
pub(crate) fn busy(who: &str) -> FiError {
    FiError::BUSY.because(format_args!(
        "still in use by {who}; close them first (fi_close)"
    ))
}
