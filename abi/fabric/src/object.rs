//! Handles: from the address that a program passes to the object behind it, and the border at which
//! errors become negative numbers.
//!
//! Each kind of object has a pool ([`rkey_kit::Pool`]), whose places begin with the structure that
//! programs read. An address that is no live object of its kind is refused with `-FI_EINVAL`.

#![allow(unsafe_code)]
// UNSAFETY: turns addresses that C passes into references, after the pool has checked them.

use crate::errno::{FiError, Result};
use rkey_kit::{Pool, Spares, Vacant};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::LocalKey;

/// An object that a program has a handle of.
///
/// # Safety
/// The object is `repr(C)` and begins with a `C` in an `UnsafeCell` (programs and libfabric's core
/// write to it).
pub(crate) unsafe trait Object: Sized + Send + Sync + 'static {
    /// The structure whose address is the handle.
    type C;
    /// Where objects of this kind are.
    fn pool() -> &'static Pool<Self>;
}

/// Declares the pool of an object and what its handle points to.
macro_rules! object {
    ($object:ty, $c:ty, $capacity:literal) => {
        // SAFETY: the object is `repr(C)` and its first field is the structure in an `UnsafeCell`.
        unsafe impl $crate::object::Object for $object {
            type C = $c;
            fn pool() -> &'static rkey_kit::Pool<Self> {
                static POOL: rkey_kit::Pool<$object> = rkey_kit::Pool::new($capacity);
                &POOL
            }
        }
        // SAFETY: the structure holds addresses of tables that never change and numbers; programs are
        // told not to change it. Everything behind it is `Send` and `Sync` by itself.
        unsafe impl Send for $object {}
        // SAFETY: as above.
        unsafe impl Sync for $object {}
    };
}
pub(crate) use object;

/// The object behind a handle; `FI_EINVAL` if there is none (any more).
///
/// # Safety
/// The program keeps the rule of libfabric that an object is not closed while another thread uses it.
#[inline]
pub(crate) unsafe fn find<'a, T: Object, H>(handle: *const H) -> Result<&'a T> {
    // SAFETY: the caller vouches that the object stays while the reference is used.
    unsafe { T::pool().get(handle.cast()) }.ok_or(FiError::INVAL)
}

/// Makes an object and gives its handle to the program.
///
/// # Safety
/// `into` is null or points to space for a handle.
pub(crate) unsafe fn place<T: Object>(object: T, into: *mut *mut T::C) -> Result<&'static T> {
    if into.is_null() {
        return Err(FiError::INVAL);
    }
    let address = T::pool().put(object).ok_or(FiError::NOMEM)?;
    // SAFETY: not null, so it is room for a handle.
    unsafe { *into = address.as_ptr().cast() };
    // SAFETY: the object was made just now, and the program has no other handle yet.
    Ok(unsafe { &*address.as_ptr() })
}

/// Takes an object away from its handle.
///
/// # Safety
/// No reference to it is used any more.
pub(crate) unsafe fn remove<T: Object, H>(handle: *const H) -> Result<T> {
    // SAFETY: the caller promises it.
    unsafe { T::pool().take(handle.cast()) }.ok_or(FiError::INVAL)
}

/// A place for an object whose handle is needed to make it, from the spare ones of this thread if there is one.
#[inline]
pub(crate) fn vacant<T: Object>(
    spares: &'static LocalKey<Spares<T>>,
) -> Result<Vacant<'static, T>> {
    let vacant = spares.try_with(|spares| T::pool().vacant(Some(spares)));
    // A thread that is ending has no spare places any more.
    vacant
        .unwrap_or_else(|_| T::pool().vacant(None))
        .ok_or(FiError::NOMEM)
}

/// Ends an object of a kind that [`vacant`] is used for.
///
/// # Safety
/// No reference to it is used any more, no other thread ends or removes it, and nothing looks through its pool.
#[inline]
pub(crate) unsafe fn end<T: Object, H>(
    spares: &'static LocalKey<Spares<T>>,
    handle: *const H,
) -> Result<()> {
    // SAFETY: the caller promises it.
    let end = |spares: Option<&Spares<T>>| unsafe { T::pool().end(spares, handle.cast()) };
    let ended = spares.try_with(|spares| end(Some(spares)));
    match ended.unwrap_or_else(|_| end(None)) {
        true => Ok(()),
        false => Err(FiError::INVAL),
    }
}

/// The handle of an object.
#[inline]
pub(crate) fn handle_of<T: Object>(object: &T) -> *mut T::C {
    (&raw const *object).cast_mut().cast()
}

/// A structure that a program passes for us to read.
///
/// # Safety
/// If it is not null, it is a `T` that nobody writes meanwhile.
pub(crate) unsafe fn input<'a, T>(pointer: *const T) -> Result<&'a T> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(FiError::INVAL);
    }
    // SAFETY: aligned and not null, and the caller promises the rest.
    Ok(unsafe { &*pointer })
}

/// Room that a program passes for us to write to.
///
/// # Safety
/// If it is not null, it is room for a `T`.
pub(crate) unsafe fn output<T>(pointer: *mut T, value: T) -> Result<()> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(FiError::INVAL);
    }
    // SAFETY: aligned and not null, and the caller promises the rest.
    unsafe { pointer.write(value) };
    Ok(())
}

/// A list that a program passes.
///
/// # Safety
/// If it is not null, there are `count` elements that nobody writes meanwhile.
pub(crate) unsafe fn list<'a, T>(pointer: *const T, count: usize) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    let bytes = count.checked_mul(size_of::<T>());
    if pointer.is_null() || !pointer.is_aligned() || bytes.is_none_or(|b| b > isize::MAX as usize) {
        return Err(FiError::INVAL);
    }
    // SAFETY: aligned, not null, of a length that exists, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Runs the body of a C function that returns 0 or a negative number. A panic (a bug of ours) becomes
/// `-FI_EIO`.
#[inline]
pub(crate) fn status(body: impl FnOnce() -> Result<()>) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => error.code(),
        Err(_) => FiError::IO.code(),
    }
}

/// The same for functions that return a count.
#[inline]
pub(crate) fn count(body: impl FnOnce() -> Result<usize>) -> isize {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(count)) => count as isize,
        Ok(Err(error)) => error.code() as isize,
        Err(_) => FiError::IO.code() as isize,
    }
}

/// The same for data transfers.
#[inline]
pub(crate) fn transfer(body: impl FnOnce() -> Result<()>) -> isize {
    count(|| body().map(|()| 0))
}

/// An object cannot be closed while others use it.
#[cold]
pub(crate) fn busy(who: &str) -> FiError {
    FiError::BUSY.because(format_args!("there still are {who}: fi_close them first"))
}

/// How many other objects hang on an object.
#[derive(Debug, Default)]
pub(crate) struct Users(AtomicU32);

impl Users {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// `FI_EBUSY` while there are any; `who` they can be.
    pub(crate) fn none(&self, who: &str) -> Result<()> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(busy(who))
        }
    }
}
