//! The border between C and Rust: nothing unwinds across it.

use crate::errno::{Errno, Failure};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a C function. An error sets `errno` and becomes the failure value of the call; a
/// panic (a bug of ours, already reported by the panic hook) becomes `EIO` instead of the end of
/// the program.
#[inline]
pub fn fence<R: Failure>(body: impl FnOnce() -> Result<R, Errno>) -> R {
    // What a panicking body leaves behind is looked at by nobody: locks of ours do not poison, and
    // a device whose engine panicked refuses everything.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(errno)) => failed(errno),
        Err(_) => failed(Errno::IO),
    }
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
    fn a_panic_becomes_an_error() {
        let code: i32 = fence(|| panic!("a bug"));
        assert_eq!(code, libc::EIO);
        assert_eq!(Errno::last(), Errno::IO);
    }

    #[test]
    fn values_and_errors_pass() {
        assert_eq!(fence(|| Ok(0)), 0);
        assert_eq!(fence::<i32>(|| Err(Errno::BUSY)), libc::EBUSY);
        assert!(fence::<*mut u8>(|| Err(Errno::NOMEM)).is_null());
        assert_eq!(Errno::last(), Errno::NOMEM);
    }
}
