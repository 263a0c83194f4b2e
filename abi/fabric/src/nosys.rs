//! Functions for operation table entries that this provider does not support: they ignore their arguments and return
//! `-FI_ENOSYS`.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

/// A C function of the given type that returns `-FI_ENOSYS`.
macro_rules! nosys {
    ($result:ty $(, $arg:ty)*) => {{
        unsafe extern "C" fn nosys($(_: $arg),*) -> $result {
            $crate::errno::FiError::NOSYS.code() as $result
        }
        nosys
    }};
}
pub(crate) use nosys;

use crate::sys::{Fid, Ops};
use std::ffi::{c_char, c_int, c_void};

/// The default operations of any handle: none.
pub(crate) const OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close: nosys!(c_int, *mut Fid),
    bind: nosys!(c_int, *mut Fid, *mut Fid, u64),
    control: nosys!(c_int, *mut Fid, c_int, *mut c_void),
    ops_open: nosys!(
        c_int,
        *mut Fid,
        *const c_char,
        u64,
        *mut *mut c_void,
        *mut c_void
    ),
    tostr: nosys!(c_int, *const Fid, *mut c_char, usize),
    ops_set: nosys!(
        c_int,
        *mut Fid,
        *const c_char,
        u64,
        *mut c_void,
        *mut c_void
    ),
};
