//! Handles: map the address that a program holds to its object.
//!
//! The first word of every object is the address of the provider's function table. libdat2 reads it from every handle, even
//! a stale one, before it calls us. The pools of [`rkey_kit`] keep the memory of freed objects, so this read always finds
//! the table. Each call here then checks that the handle names a live object of the right kind.

#![allow(unsafe_code)]
// UNSAFETY: turns addresses that C passes into references, after the pool has checked them.

use crate::handles::fail::{Fail, Result};
use crate::sys::consts::*;
use crate::sys::{Handle, Provider};
use rkey_kit::Object;
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The part of an object that libdat2 reads.
#[repr(C)]
pub struct HandleHeader {
    provider: *const Provider,
}

/// An object as a program holds it.
#[repr(C)]
pub struct Held<T> {
    pub(crate) head: UnsafeCell<HandleHeader>,
    /// What the program stored with `dat_set_consumer_context`.
    context: AtomicU64,
    it: Arc<T>,
}

// SAFETY: the head is written once, before the object has a handle.
unsafe impl<T: Send + Sync> Sync for Held<T> {}
// SAFETY: the table that the head points to lives as long as the process.
unsafe impl<T: Send + Sync> Send for Held<T> {}

impl<T> Held<T> {
    /// The object.
    #[must_use]
    pub fn it(&self) -> &Arc<T> {
        &self.it
    }
}

/// A kind of object that programs hold. [`kind!`](crate::kind) implements it.
pub trait Kind: Sized + Send + Sync + 'static {
    /// The number of the kind for `dat_get_handle_type`.
    const TYPE: dat_handle_type;
    /// The subtype that a call returns with `DAT_INVALID_HANDLE` for any other handle.
    const INVALID: dat_return_subtype;
    /// The subtype that a call returns with `DAT_INSUFFICIENT_RESOURCES` when there are too many objects.
    const EXHAUSTED: dat_return_subtype;
}

/// Makes a type a kind of object that programs hold.
#[macro_export]
macro_rules! kind {
    ($object:ty, $kind:ident, $invalid:ident, $exhausted:ident, $capacity:expr) => {
        rkey_kit::object!($crate::handles::object::Held<$object>, head: $crate::handles::object::HandleHeader, $capacity);
        impl $crate::handles::object::Kind for $object {
            const TYPE: $crate::sys::dat_handle_type = $crate::sys::$kind;
            const INVALID: $crate::sys::dat_return_subtype = $crate::sys::$invalid;
            const EXHAUSTED: $crate::sys::dat_return_subtype = $crate::sys::$exhausted;
        }
    };
}

/// The function table of an object's provider, to which the first word of its handle points.
#[derive(Clone, Copy, Debug)]
pub struct Table(pub *const Provider);
// SAFETY: it lives as long as the process, and is never written once a program knows it.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

/// Adds an object and returns its handle. `make` gets the handle in advance.
///
/// # Errors
/// `DAT_INSUFFICIENT_RESOURCES`, and the errors of `make`.
pub fn insert<T: Kind>(table: Table, make: impl FnOnce(usize) -> Result<Arc<T>>) -> Result<Handle>
where
    Held<T>: Object,
{
    let vacant = Held::<T>::pool()
        .vacant(None)
        .ok_or(Fail::resource(T::EXHAUSTED))?;
    let address = vacant.address();
    let it = make(address.as_ptr() as usize)?;
    vacant.fill(Held {
        head: UnsafeCell::new(HandleHeader { provider: table.0 }),
        context: AtomicU64::new(0),
        it,
    });
    Ok(address.as_ptr().cast())
}

/// The object behind a handle.
///
/// # Errors
/// `DAT_INVALID_HANDLE`.
///
/// # Safety
/// No other thread frees the object while the reference is used (DAT does not allow freeing an object while a call uses
/// it).
#[inline]
pub unsafe fn find<'a, T: Kind>(handle: Handle) -> Result<&'a Arc<T>>
where
    Held<T>: Object,
{
    // SAFETY: the caller promises that the object lives while the reference is used.
    let held = unsafe { Held::<T>::pool().get(handle.cast_const().cast()) };
    held.map(Held::it).ok_or(Fail::handle(T::INVALID))
}

/// The object behind a handle that may be `DAT_HANDLE_NULL`.
///
/// # Errors
/// `DAT_INVALID_HANDLE`.
///
/// # Safety
/// Same as [`find`].
pub unsafe fn find_or_null<'a, T: Kind>(handle: Handle) -> Result<Option<&'a Arc<T>>>
where
    Held<T>: Object,
{
    if handle.is_null() {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { find(handle) }.map(Some)
}

/// Invalidates a handle and returns its object.
///
/// # Errors
/// `DAT_INVALID_HANDLE`.
///
/// # Safety
/// No reference from [`find`] may be used afterwards.
pub unsafe fn remove<T: Kind>(handle: usize) -> Result<Arc<T>>
where
    Held<T>: Object,
{
    // SAFETY: guaranteed by the caller.
    let held = unsafe { Held::<T>::pool().take(handle as *const Held<T>) };
    held.map(|held| held.it).ok_or(Fail::handle(T::INVALID))
}

/// The live objects for which `wanted` is true.
#[must_use]
pub fn all<T: Kind>(wanted: impl Fn(&T) -> bool) -> Vec<Arc<T>>
where
    Held<T>: Object,
{
    let mut found = Vec::new();
    Held::<T>::pool().find_map(|held| {
        if wanted(&held.it) {
            found.push(Arc::clone(&held.it));
        }
        None::<()>
    });
    found
}

/// Removes the live objects for which `wanted` is true.
///
/// # Safety
/// No reference from [`find`] to them may be used afterwards.
#[must_use]
pub unsafe fn sweep<T: Kind>(wanted: impl Fn(&T) -> bool) -> Vec<Arc<T>>
where
    Held<T>: Object,
{
    let found = Held::<T>::pool().live(|held| wanted(&held.it));
    let handles = found.into_iter().map(|held| held as usize);
    // SAFETY: guaranteed by the caller.
    handles
        .filter_map(|it| unsafe { remove(it) }.ok())
        .collect()
}

/// Whether there is a live object for which `wanted` is true.
#[must_use]
pub fn any<T: Kind>(wanted: impl Fn(&T) -> bool) -> bool
where
    Held<T>: Object,
{
    Held::<T>::pool()
        .find_map(|held| wanted(&held.it).then_some(()))
        .is_some()
}

/// The type and the context of a handle, if it is of this kind.
#[must_use]
pub fn context_of<T: Kind>(handle: Handle) -> Option<(dat_handle_type, &'static AtomicU64)>
where
    Held<T>: Object,
{
    // SAFETY: the memory of a pool is never released, and the context of a freed object is still a number.
    let held = unsafe { Held::<T>::pool().get(handle.cast_const().cast::<Held<T>>()) };
    held.map(|held| (T::TYPE, &held.context))
}

/// Reads a context.
#[must_use]
pub fn load(context: &AtomicU64) -> u64 {
    context.load(Ordering::Acquire)
}
