//! Objects of later rdma-core versions that this device does not offer: DMA handles (`ibv_dmah`), device
//! memory as a dma-buf, completion counters. Each call fails as its manual page says for a device without
//! them, so programs fall back.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::device::context::ContextObject;
use crate::object::find;
use crate::sys::Context;
use rkey_kit::{Errno, c_call};
use std::ffi::{c_int, c_void};

/// Implements every constructor of such an object: fails with `EOPNOTSUPP`, or `EINVAL` for an invalid context.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn create(context: *mut Context, _attr: *mut c_void) -> *mut c_void {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<ContextObject>(context)? };
        Err(Errno::OPNOTSUPP)
    })
}

/// Implements every query for the capabilities of such objects: fails with `EOPNOTSUPP`, or `EINVAL` for an invalid context.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn query(context: *mut Context, _into: *mut c_void) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<ContextObject>(context)? };
        Err(Errno::OPNOTSUPP)
    })
}

/// Implements every call on such an object: fails with `EOPNOTSUPP`. No such object exists, so the arguments are ignored.
pub extern "C" fn use_object() -> c_int {
    c_call(|| Err(Errno::OPNOTSUPP))
}

/// `ibv_dm_export_dmabuf_fd`: returns -1, with `EOPNOTSUPP` in `errno`.
pub extern "C" fn export() -> c_int {
    Errno::OPNOTSUPP.set();
    -1
}
