//! Functions that only the vendors' provider libraries call, and only for devices of theirs.
//!
//! Programs load those libraries along (perftest does), and they do not load without these symbols.
//! They register themselves when they are loaded, which is ignored; no device of theirs is ever found,
//! so nothing else is called.

use rkey_kit::Errno;
use std::ffi::{c_int, c_void};

/// For what returns an error number.
pub extern "C" fn refuse() -> c_int {
    Errno::OPNOTSUPP.set();
    Errno::OPNOTSUPP.raw()
}

/// For what returns -1 on failure.
pub extern "C" fn refuse_minus_one() -> c_int {
    Errno::OPNOTSUPP.set();
    -1
}

/// For what returns a pointer.
pub extern "C" fn refuse_null() -> *mut c_void {
    Errno::OPNOTSUPP.set();
    std::ptr::null_mut()
}

/// For what returns nothing.
pub extern "C" fn ignore() {}

/// For what returns a count.
pub extern "C" fn ignore_zero() -> c_int {
    0
}
