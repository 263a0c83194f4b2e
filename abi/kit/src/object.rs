//! Handles: from the address that a C program passes to the object behind it.
//!
//! Each kind of object has a [`Pool`]. An address that is not a live object of its kind (null, an integer, a freed object
//! or one of another kind) is refused with `EINVAL` before the memory at the address is accessed.

#![allow(unsafe_code)]
// UNSAFETY: turns addresses that C passes into references, after the pool has checked them.

use crate::{Errno, Pool, Spares, Vacant};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::LocalKey;

/// An object behind a handle. [`object!`](crate::object!) implements it.
///
/// # Safety
/// `C` is the type of the field at `OFFSET` bytes from the start of the object, or of the first field of that field,
/// in an `UnsafeCell` (programs read and write it).
pub unsafe trait Object: Sized + Send + Sync + 'static {
    /// The structure whose address is the handle.
    type C;
    /// The offset of the C structure in the object.
    const OFFSET: usize = 0;
    /// The pool of this kind of object.
    fn pool() -> &'static Pool<Self>;
}

/// Implements [`Object`] for a type whose field is a structure for programs. `object!(Mine, c: MyC, 64)` creates a pool with 64
/// slots; the field `c` must be an `UnsafeCell<MyC>`, which the compiler checks.
#[macro_export]
macro_rules! object {
    ($object:ty, $field:tt: $c:ty, $capacity:expr) => {
        // SAFETY: `OFFSET` is where the field is, and compiles only if the field has the right type.
        unsafe impl $crate::Object for $object {
            type C = $c;
            const OFFSET: usize = {
                let of = $crate::object::type_of(|object: &$object| &object.$field);
                let _: std::marker::PhantomData<std::cell::UnsafeCell<$c>> = of;
                std::mem::offset_of!($object, $field)
            };
            fn pool() -> &'static $crate::Pool<Self> {
                static POOL: $crate::Pool<$object> = $crate::Pool::new($capacity);
                &POOL
            }
        }
    };
}

/// Captures the exact type of a field. (A type annotation on a reference would not, because the reference could be coerced.)
#[doc(hidden)]
pub const fn type_of<O, T>(_: fn(&O) -> &T) -> PhantomData<T> {
    PhantomData
}

/// The object behind a handle.
///
/// # Errors
/// `EINVAL`: no live object has this address.
///
/// # Safety
/// No other thread may remove the object while the reference is in use. (Every API requires that: a program must not destroy
/// an object while another thread uses it.)
#[inline]
pub unsafe fn find<'a, T: Object>(handle: *const T::C) -> Result<&'a T, Errno> {
    // SAFETY: the caller guarantees that the object stays while the reference is used.
    unsafe { T::pool().get(object_address(handle)) }.ok_or(Errno::INVAL)
}

/// The object behind a handle that may be null.
///
/// # Errors
/// `EINVAL`: neither null nor a live object.
///
/// # Safety
/// Same as [`find`].
pub unsafe fn find_or_null<'a, T: Object>(handle: *const T::C) -> Result<Option<&'a T>, Errno> {
    if handle.is_null() {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { find(handle) }.map(Some)
}

/// Adds an object to its pool and returns its handle.
///
/// # Errors
/// `ENOMEM`: the pool is full, or no memory is available.
pub fn insert<T: Object>(object: T) -> Result<*mut T::C, Errno> {
    let address = T::pool().put(object).ok_or(Errno::NOMEM)?;
    Ok(address.as_ptr().wrapping_byte_add(T::OFFSET).cast())
}

/// Removes an object from its pool; its handle becomes invalid.
///
/// # Errors
/// `EINVAL`: no live object has this address.
///
/// # Safety
/// No reference to it may be used afterwards.
pub unsafe fn remove<T: Object>(handle: *const T::C) -> Result<T, Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { T::pool().take(object_address(handle)) }.ok_or(Errno::INVAL)
}

/// Reserves a slot for an object whose handle is needed before the object exists. Takes one of this thread's spare slots if there
/// are any.
///
/// # Errors
/// `ENOMEM`: the pool is full, or no memory is available.
#[inline]
pub fn vacant<T: Object>(
    spares: &'static LocalKey<Spares<T>>,
) -> Result<Vacant<'static, T>, Errno> {
    let vacant = spares.try_with(|spares| T::pool().vacant(Some(spares)));
    // A thread that is exiting no longer has spare slots.
    vacant
        .unwrap_or_else(|_| T::pool().vacant(None))
        .ok_or(Errno::NOMEM)
}

/// Like [`remove`], for an object of a kind that uses [`vacant`].
///
/// # Errors
/// Same as for [`remove`].
///
/// # Safety
/// Same as for [`remove`].
#[inline]
pub unsafe fn remove_sparing<T: Object>(
    spares: &'static LocalKey<Spares<T>>,
    handle: *const T::C,
) -> Result<T, Errno> {
    let object = object_address(handle);
    // SAFETY: guaranteed by the caller.
    let take = |spares: Option<&Spares<T>>| unsafe { T::pool().take_sparing(spares, object) };
    let taken = spares.try_with(|spares| take(Some(spares)));
    taken.unwrap_or_else(|_| take(None)).ok_or(Errno::INVAL)
}

/// Destroys an object of a kind that uses [`vacant`].
///
/// # Errors
/// `EINVAL`: no live object has this address.
///
/// # Safety
/// Same as [`Pool::end`]: no reference to it is used afterwards, no other thread ends or removes it, and nothing searches
/// its pool.
#[inline]
pub unsafe fn end<T: Object>(
    spares: &'static LocalKey<Spares<T>>,
    handle: *const T::C,
) -> Result<(), Errno> {
    let object = object_address(handle);
    // SAFETY: guaranteed by the caller.
    let end = |spares: Option<&Spares<T>>| unsafe { T::pool().end(spares, object) };
    let ended = spares.try_with(|spares| end(Some(spares)));
    match ended.unwrap_or_else(|_| end(None)) {
        true => Ok(()),
        false => Err(Errno::INVAL),
    }
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

/// Counts the objects that use an object.
#[derive(Debug, Default)]
pub struct Users(AtomicU32);

impl Users {
    /// Adds a user.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Removes a user.
    pub fn remove(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether no object uses it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Checks that no object uses it, so that it may be destroyed.
    ///
    /// # Errors
    /// `EBUSY`: it has users.
    pub fn none(&self) -> Result<(), Errno> {
        match self.is_empty() {
            true => Ok(()),
            false => Err(Errno::BUSY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::ptr::{null, null_mut, without_provenance};

    /// The part of an object that a C program sees.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Seen {
        context: *mut u8,
        number: u32,
    }

    struct First {
        c: UnsafeCell<Seen>,
        name: String,
    }

    struct Second {
        name: String,
        c: UnsafeCell<Seen>,
        /// Ensures that the structure is not at the start.
        wide: u128,
    }

    // SAFETY: the tests leave the structures alone.
    unsafe impl Send for First {}
    // SAFETY: as above.
    unsafe impl Sync for First {}
    // SAFETY: as above.
    unsafe impl Send for Second {}
    // SAFETY: as above.
    unsafe impl Sync for Second {}

    object!(First, c: Seen, 4);
    object!(Second, c: Seen, 4);

    fn seen(number: u32) -> UnsafeCell<Seen> {
        let context = null_mut();
        UnsafeCell::new(Seen { context, number })
    }

    fn first(name: &str) -> First {
        let (c, name) = (seen(1), name.to_owned());
        First { c, name }
    }

    fn second(name: &str) -> Second {
        let (c, name) = (seen(2), name.to_owned());
        let wide = 3;
        Second { name, c, wide }
    }

    /// The result of `find` for an address.
    fn found<T: Object<C = Seen>>(handle: *const Seen) -> Result<(), Errno> {
        // SAFETY: the reference is dropped at once, and each kind of object is removed in one test only.
        unsafe { find::<T>(handle) }.map(drop)
    }

    #[test]
    fn a_handle_is_the_address_of_the_structure_that_programs_read() {
        let (one, two) = (insert(first("a")).unwrap(), insert(second("b")).unwrap());
        // SAFETY: nothing removes them while the references are used.
        unsafe {
            assert_eq!([(*one).number, (*two).number], [1, 2]);
            let (first, second) = (find::<First>(one).unwrap(), find::<Second>(two).unwrap());
            assert_eq!([&*first.name, &*second.name], ["a", "b"]);
            assert_eq!([handle_of(first), handle_of(second)], [one, two]);
            assert_eq!(second.wide, 3);
            assert!(remove::<First>(one).is_ok() && remove::<Second>(two).is_ok());
        }
    }

    #[test]
    fn addresses_that_are_not_live_objects_of_the_kind_are_refused() {
        struct Kind(UnsafeCell<Seen>);
        struct Other(UnsafeCell<Seen>);
        // SAFETY: the tests leave the structures alone.
        unsafe impl Send for Kind {}
        // SAFETY: as above.
        unsafe impl Sync for Kind {}
        // SAFETY: as above.
        unsafe impl Send for Other {}
        // SAFETY: as above.
        unsafe impl Sync for Other {}
        object!(Kind, 0: Seen, 4);
        object!(Other, 0: Seen, 4);

        let own = UnsafeCell::new(0u64);
        let before_any: [*const Seen; 3] = [null(), without_provenance(64), own.get().cast()];
        for wild in before_any {
            assert_eq!(found::<Kind>(wild), Err(Errno::INVAL));
        }
        let live = insert(Kind(seen(5))).unwrap();
        let other = insert(Other(seen(6))).unwrap();
        let freed = insert(Kind(seen(7))).unwrap();
        // SAFETY: nothing else uses it.
        let taken = unsafe { remove::<Kind>(freed) }.unwrap();
        assert_eq!(taken.0.into_inner().number, 7);

        assert_eq!(found::<Kind>(live), Ok(()));
        let stale_or_wrong = [
            null(),
            freed,
            other,
            own.get().cast(),
            live.wrapping_byte_add(1),
            live.wrapping_byte_add(8),
            live.wrapping_byte_sub(64),
            live.wrapping_add(1 << 20),
            without_provenance(usize::MAX),
            without_provenance(usize::MAX & !63),
        ];
        for wild in stale_or_wrong {
            assert_eq!(found::<Kind>(wild), Err(Errno::INVAL), "{wild:?}");
            // SAFETY: there is nothing to remove.
            let removed = unsafe { remove::<Kind>(wild) };
            assert_eq!(removed.err(), Some(Errno::INVAL), "{wild:?}");
        }
        assert_eq!(found::<Kind>(live), Ok(()));
        assert_eq!(found::<Other>(other), Ok(()));
    }

    #[test]
    fn null_is_allowed_where_an_argument_is_optional() {
        struct Kind(UnsafeCell<u8>);
        // SAFETY: the test leaves the structure alone.
        unsafe impl Sync for Kind {}
        object!(Kind, 0: u8, 1);
        let live = insert(Kind(UnsafeCell::new(0))).unwrap();
        // SAFETY: nothing is removed.
        unsafe {
            assert!(find_or_null::<Kind>(null()).unwrap().is_none());
            assert!(find_or_null::<Kind>(live).unwrap().is_some());
            let wild = find_or_null::<Kind>(live.wrapping_add(1));
            assert_eq!(wild.err(), Some(Errno::INVAL));
        }
        let full = insert(Kind(UnsafeCell::new(0)));
        assert_eq!(full.err(), Some(Errno::NOMEM));
    }

    #[test]
    fn an_object_in_a_spare_slot_is_destroyed_once() {
        struct Kind(UnsafeCell<u8>);
        // SAFETY: the test leaves the structure alone.
        unsafe impl Sync for Kind {}
        object!(Kind, 0: u8, 1);
        thread_local! {
            static SPARES: Spares<Kind> = const { Spares::new(<Kind as Object>::pool) };
        }
        for _ in 0..3 {
            let place = vacant::<Kind>(&SPARES).unwrap();
            let address = place.address().as_ptr();
            let handle = handle_of(place.fill(Kind(UnsafeCell::new(9))));
            assert_eq!(handle.cast(), address);
            assert_eq!(vacant::<Kind>(&SPARES).err(), Some(Errno::NOMEM));
            // SAFETY: no reference is in use, and one thread has the pool.
            unsafe {
                assert_eq!(end::<Kind>(&SPARES, handle), Ok(()));
                assert_eq!(end::<Kind>(&SPARES, handle), Err(Errno::INVAL));
                assert_eq!(end::<Kind>(&SPARES, null()), Err(Errno::INVAL));
            }
        }
    }

    #[test]
    fn an_object_with_users_is_busy() {
        let users = Users::default();
        assert_eq!(users.none(), Ok(()));
        users.add();
        assert_eq!((users.none(), users.is_empty()), (Err(Errno::BUSY), false));
        users.remove();
        assert_eq!((users.none(), users.is_empty()), (Ok(()), true));
    }
}
