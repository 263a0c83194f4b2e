//! Error numbers, and how C functions return them.

#![allow(unsafe_code)]
// UNSAFETY: `errno` is a variable of the C library that is accessed by a raw pointer.

use std::fmt;

/// One of the C library's error numbers, as in `errno.h`. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident = $number:ident;)*) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Self = Self(libc::$number);)*
        }

        const NAMES: &[(Errno, &str)] = &[$((Errno::$name, stringify!($number))),*];
    };
}

numbers! {
    /// Not permitted.
    PERM = EPERM;
    /// No such file or object.
    NOENT = ENOENT;
    /// Interrupted by a signal.
    INTR = EINTR;
    /// An internal error.
    IO = EIO;
    /// A descriptor that is not open or not of the right kind.
    BADF = EBADF;
    /// Not available now; try again.
    AGAIN = EAGAIN;
    /// Out of memory, or a queue or table is full.
    NOMEM = ENOMEM;
    /// Not allowed.
    ACCES = EACCES;
    /// An address that cannot be accessed.
    FAULT = EFAULT;
    /// Still in use.
    BUSY = EBUSY;
    /// Already exists.
    EXIST = EEXIST;
    /// No such device.
    NODEV = ENODEV;
    /// An argument that is not allowed.
    INVAL = EINVAL;
    /// Too many open files.
    MFILE = EMFILE;
    /// Out of range.
    RANGE = ERANGE;
    /// No space left.
    NOSPC = ENOSPC;
    /// No data available.
    NODATA = ENODATA;
    /// Not supported by this device.
    OPNOTSUPP = EOPNOTSUPP;
    /// No such function.
    NOSYS = ENOSYS;
    /// The network is unreachable.
    NETUNREACH = ENETUNREACH;
    /// Timed out.
    TIMEDOUT = ETIMEDOUT;
}

impl Errno {
    /// The error of this thread's last failed call of the C library.
    #[must_use]
    pub fn last() -> Self {
        Self::from(&std::io::Error::last_os_error())
    }

    /// Converts a number. 0 and negative numbers become [`Errno::IO`].
    #[must_use]
    pub const fn from_raw(number: i32) -> Self {
        if number > 0 { Self(number) } else { Self::IO }
    }

    /// The number.
    #[must_use]
    pub const fn raw(self) -> i32 {
        self.0
    }

    /// Stores the number in this thread's `errno`.
    pub fn set(self) {
        // SAFETY: the C library returns the address of this thread's errno, which is valid as long as the thread runs.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// The number of a system error; [`Errno::IO`] if it has none.
impl From<&std::io::Error> for Errno {
    fn from(error: &std::io::Error) -> Self {
        error.raw_os_error().map_or(Self::IO, Self::from_raw)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(errno, _)| errno == self) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

/// How a C function reports failure, for results of this type.
pub trait Failure {
    /// The value that the function returns; the caller sets `errno`.
    fn failed(errno: Errno) -> Self;
}

/// Calls that return 0 or the error number itself.
impl Failure for i32 {
    fn failed(errno: Errno) -> Self {
        errno.raw()
    }
}

/// Calls that return a pointer, null on failure.
impl<T> Failure for *mut T {
    fn failed(_: Errno) -> Self {
        std::ptr::null_mut()
    }
}

/// Calls that return a pointer, null on failure.
impl<T> Failure for *const T {
    fn failed(_: Errno) -> Self {
        std::ptr::null()
    }
}

/// Calls that return a count, negative on failure.
impl Failure for isize {
    fn failed(errno: Errno) -> Self {
        -(errno.raw() as isize)
    }
}

/// Calls that return nothing.
impl Failure for () {
    fn failed(_: Errno) -> Self {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_is_set_and_read() {
        Errno::BUSY.set();
        assert_eq!(Errno::last(), Errno::BUSY);
        assert_eq!(format!("{:?}", Errno::BUSY), "EBUSY");
        assert_eq!(Errno::from_raw(-3), Errno::IO);
        let system = std::io::Error::from_raw_os_error(libc::EBUSY);
        assert_eq!(Errno::from(&system), Errno::BUSY);
        assert_eq!(Errno::from(&std::io::Error::other("none")), Errno::IO);
    }

    #[test]
    fn a_failure_takes_the_form_of_the_return_type() {
        assert_eq!(i32::failed(Errno::INVAL), libc::EINVAL);
        assert!(<*mut u8>::failed(Errno::INVAL).is_null());
        assert_eq!(isize::failed(Errno::INVAL), -(libc::EINVAL as isize));
    }
}
