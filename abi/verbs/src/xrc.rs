//! Extended reliable connections: not offered yet, and said so.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::sys::{Context, Qp, QpOpenAttr, Srq, Xrcd, XrcdInitAttr};
use rkey_kit::{Errno, fence};
use std::ffi::c_int;

/// `ibv_open_xrcd`.
///
/// # Safety
/// A context, and attributes.
pub unsafe extern "C" fn open_xrcd(_: *mut Context, _: *mut XrcdInitAttr) -> *mut Xrcd {
    fence(|| Err(Errno::OPNOTSUPP))
}

/// `ibv_close_xrcd`.
///
/// # Safety
/// An XRC domain, or anything else.
pub unsafe extern "C" fn close_xrcd(_: *mut Xrcd) -> c_int {
    fence(|| Err(Errno::INVAL))
}

/// `ibv_open_qp`.
///
/// # Safety
/// A context, and attributes.
pub unsafe extern "C" fn open_qp(_: *mut Context, _: *mut QpOpenAttr) -> *mut Qp {
    fence(|| Err(Errno::OPNOTSUPP))
}

/// `ibv_get_srq_num`: only those of XRC have one.
///
/// # Safety
/// A shared receive queue, and room for a number.
pub unsafe extern "C" fn get_srq_num(_: *mut Srq, _: *mut u32) -> c_int {
    fence(|| Err(Errno::OPNOTSUPP))
}

/// Ends what a context that is closed leaves: nothing.
///
/// # Safety
/// Nobody uses anything of the context.
pub unsafe fn sweep(_: *mut Context) {}
