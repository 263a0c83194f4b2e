//! Options that peers agree on before they connect. This device has none.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::object::{find, input, output};
use crate::qp::QpObject;
use crate::sys::{Ece, Qp};
use rkey_kit::{Errno, fence};
use std::ffi::c_int;

/// `ibv_query_ece`: this device has no options that peers have to agree on.
///
/// # Safety
/// A queue pair, or anything else.
pub unsafe extern "C" fn query_ece(qp: *mut Qp, ece: *mut Ece) -> c_int {
    fence(|| {
        // SAFETY: as the caller promises, or refused.
        unsafe {
            find::<QpObject>(qp)?;
            output(ece)?;
        }
        Err(Errno::OPNOTSUPP)
    })
}

/// `ibv_set_ece`.
///
/// # Safety
/// A queue pair, and options.
pub unsafe extern "C" fn set_ece(qp: *mut Qp, ece: *mut Ece) -> c_int {
    fence(|| {
        // SAFETY: as the caller promises, or refused.
        let ece = unsafe {
            find::<QpObject>(qp)?;
            input(ece)?
        };
        Err(if ece.comp_mask != 0 {
            Errno::INVAL
        } else {
            Errno::OPNOTSUPP
        })
    })
}
