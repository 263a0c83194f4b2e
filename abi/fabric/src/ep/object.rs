//! The handle of an endpoint.

#![allow(unsafe_code)]
// UNSAFETY: reads the handle.

use super::flags::OpFlags;
use super::*;
use crate::object::object;
use std::cell::UnsafeCell;
use std::ffi::c_void;

/// The object behind the program's handle.
#[repr(C)]
pub(crate) struct EpObject {
    pub(super) fid: UnsafeCell<FidEp>,
    pub(crate) inner: Arc<Endpoint>,
    pub(super) flags: OpFlags,
    /// Whether `fi_ep_alias` created the handle: closing an alias does not close the endpoint.
    pub(super) is_alias: bool,
}
object!(EpObject, FidEp, 65536);

impl EpObject {
    /// The program's context for the endpoint.
    pub(super) fn context(&self) -> *mut c_void {
        // SAFETY: programs must not change a handle while it is in use.
        unsafe { (*self.fid.get()).fid.context }
    }
}
