//! Objects of newer versions of rdma-core that this device does not have: hints for DMA (`ibv_dmah`), device memory
//! as a dma-buf, completion counters. The calls answer as their manual pages say for a device without them, so that
//! programs go on without.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::context::ContextObject;
use crate::object::find;
use crate::sys::Context;
use rkey_kit::{Errno, fence};
use std::ffi::{c_int, c_void};

/// Makes an object of a context: there is none.
///
/// # Safety
/// A context, or anything else.
pub unsafe extern "C" fn make(context: *mut Context, _attr: *mut c_void) -> *mut c_void {
    fence(|| {
        // SAFETY: a context as the caller promises, or something that is refused.
        unsafe { find::<ContextObject>(context)? };
        Err(Errno::OPNOTSUPP)
    })
}

/// Asks a context what it has of them: nothing.
///
/// # Safety
/// A context, or anything else.
pub unsafe extern "C" fn ask(context: *mut Context, _into: *mut c_void) -> c_int {
    fence(|| {
        // SAFETY: a context as the caller promises, or something that is refused.
        unsafe { find::<ContextObject>(context)? };
        Err(Errno::OPNOTSUPP)
    })
}

/// Uses an object, which cannot be one. The arguments are not looked at.
pub extern "C" fn use_object() -> c_int {
    fence(|| Err(Errno::OPNOTSUPP))
}

/// Asks for a descriptor: `-1`.
pub extern "C" fn export() -> c_int {
    Errno::OPNOTSUPP.set();
    -1
}
