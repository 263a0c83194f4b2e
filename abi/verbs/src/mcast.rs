//! Multicast groups: not offered yet, and said so (the device has room for none).

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::sys::Qp;
use rkey_kit::{Errno, fence};
use std::ffi::c_int;

/// `ibv_attach_mcast`.
///
/// # Safety
/// A queue pair and a GID, or anything else.
pub unsafe extern "C" fn attach_mcast(_: *mut Qp, _: *const [u8; 16], _: u16) -> c_int {
    fence(|| Err(Errno::OPNOTSUPP))
}

/// `ibv_detach_mcast`.
///
/// # Safety
/// A queue pair and a GID, or anything else.
pub unsafe extern "C" fn detach_mcast(_: *mut Qp, _: *const [u8; 16], _: u16) -> c_int {
    fence(|| Err(Errno::INVAL))
}
