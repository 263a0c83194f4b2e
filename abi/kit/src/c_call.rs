//! The boundary between C and Rust: nothing unwinds across it.

use crate::errno::{Errno, Failure};
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code that may panic because of a bug. Returns `None` if it panicked; the panic hook has already reported the panic.
#[inline(always)]
pub fn caught<T>(body: impl FnOnce() -> T) -> Option<T> {
    // A panic may leave shared state inconsistent. Our locks do not poison, so later calls still run; a device whose
    // engine panicked refuses them.
    catch_unwind(AssertUnwindSafe(body)).ok()
}

/// Like [`caught`], for code that returns an error: a panic becomes `EIO`.
#[inline(always)]
pub fn contained<T, E: From<Errno>>(body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    caught(body).unwrap_or_else(|| Err(Errno::IO.into()))
}

/// Runs the body of a C function. An error sets `errno` and becomes the failure value of the call; a panic (a bug in
/// rkey, already reported by the panic hook) becomes `EIO` instead of ending the program.
#[inline]
pub fn c_call<R: Failure>(body: impl FnOnce() -> Result<R, Errno>) -> R {
    match contained(body) {
        Ok(value) => value,
        Err(errno) => failed(errno),
    }
}

/// Like [`c_call`], for calls that return -1 for every error.
pub fn c_call_or_minus_one(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    contained(body).unwrap_or_else(|errno| {
        errno.set();
        -1
    })
}

#[cold]
fn failed<R: Failure>(errno: Errno) -> R {
    errno.set();
    R::failed(errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_eio() {
        let code: i32 = c_call(|| panic!("a bug"));
        assert_eq!(code, libc::EIO);
        assert_eq!(Errno::last(), Errno::IO);
    }

    #[test]
    fn a_panic_becomes_an_error_of_the_callers_type() {
        #[derive(Debug, PartialEq)]
        struct Own(i32);
        impl From<Errno> for Own {
            fn from(errno: Errno) -> Self {
                Self(-errno.raw())
            }
        }
        assert_eq!(
            contained::<(), Own>(|| panic!("a bug")),
            Err(Own(-libc::EIO))
        );
        assert_eq!(contained(|| Err::<(), _>(Own(7))), Err(Own(7)));
        assert_eq!(contained(|| Ok::<_, Own>(7)), Ok(7));
    }

    #[test]
    fn a_fence_returns_values_and_sets_errno_for_errors() {
        assert_eq!(c_call(|| Ok(0)), 0);
        assert_eq!(c_call::<i32>(|| Err(Errno::BUSY)), libc::EBUSY);
        assert!(c_call::<*mut u8>(|| Err(Errno::NOMEM)).is_null());
        assert_eq!(Errno::last(), Errno::NOMEM);
        assert_eq!(c_call_or_minus_one(|| Ok(0)), 0);
        assert_eq!(c_call_or_minus_one(|| Err(Errno::BUSY)), -1);
        assert_eq!(Errno::last(), Errno::BUSY);
        assert_eq!(c_call_or_minus_one(|| panic!("a bug")), -1);
    }
}
