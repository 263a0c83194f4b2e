//! Fork support. A NIC needs the parent's registered pages to stay in place after a fork. This device uses the parent's virtual
//! addresses, so the calls have nothing to do.

use crate::sys::consts::FORK_UNNEEDED;
use std::ffi::{c_int, c_void};

/// `ibv_fork_init`.
pub extern "C" fn fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`.
pub extern "C" fn is_fork_initialized() -> c_int {
    FORK_UNNEEDED
}

/// `ibv_dontfork_range` and `ibv_dofork_range`.
pub extern "C" fn fork_range(_start: *mut c_void, _len: usize) -> c_int {
    0
}
