//! Functions that only provider libraries of vendors call, and only for their own devices.
//!
//! Some programs load the provider libraries (perftest does), and loading fails without these symbols. A provider library registers
//! itself when it is loaded, which has no effect. Since none of its devices exists here, it calls nothing else.

use rkey_kit::Errno;
use std::ffi::{c_int, c_void};

/// For functions that return an error number.
pub extern "C" fn refuse() -> c_int {
    Errno::OPNOTSUPP.set();
    Errno::OPNOTSUPP.raw()
}

/// For functions that return -1 on failure.
pub extern "C" fn refuse_minus_one() -> c_int {
    Errno::OPNOTSUPP.set();
    -1
}

/// For functions that return a pointer.
pub extern "C" fn refuse_null() -> *mut c_void {
    Errno::OPNOTSUPP.set();
    std::ptr::null_mut()
}

/// For functions that return nothing.
pub extern "C" fn ignore() {}

/// For functions that return a count.
pub extern "C" fn ignore_zero() -> c_int {
    0
}
