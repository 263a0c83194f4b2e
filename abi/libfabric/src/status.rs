//! Error numbers, which calls return negated.

use rkey_kit::{Errno, contained};
use std::ffi::c_int;

/// A positive error number of libfabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed(pub c_int);

impl Failed {
    pub(crate) const NOENT: Self = Self(libc::ENOENT);
    pub(crate) const NOMEM: Self = Self(libc::ENOMEM);
    pub(crate) const INVAL: Self = Self(libc::EINVAL);
    pub(crate) const NODEV: Self = Self(libc::ENODEV);
    pub(crate) const NOSYS: Self = Self(libc::ENOSYS);
    pub(crate) const NODATA: Self = Self(libc::ENODATA);
    pub(crate) const BADFLAGS: Self = Self(260);
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self(errno.raw())
    }
}

/// The result of a call that returns 0 or a negative number.
pub type Result<T> = std::result::Result<T, Failed>;

/// 0, or the error that a function of the provider returned.
pub(crate) fn passed(code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Failed(code.wrapping_neg())),
    }
}

/// Runs the body of a C function that returns 0 or a negative number. A panic (a bug in rkey) becomes `-FI_EIO`.
pub(crate) fn status(body: impl FnOnce() -> Result<()>) -> c_int {
    match contained(body) {
        Ok(()) => 0,
        Err(Failed(number)) => number.wrapping_neg(),
    }
}
