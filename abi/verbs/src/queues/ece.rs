//! Enhanced connection establishment: options that peers agree on before they connect. This device has none.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::object::{find, input, output};
use crate::queues::qp::QpObject;
use crate::sys::{Ece, Qp};
use rkey_kit::{Errno, c_call};
use std::ffi::c_int;

/// `ibv_query_ece`: fails with `EOPNOTSUPP`, because there are no options.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn query_ece(qp: *mut Qp, ece: *mut Ece) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle; `output` refuses null; the caller guarantees the rest.
        unsafe {
            find::<QpObject>(qp)?;
            output(ece)?;
        }
        Err(Errno::OPNOTSUPP)
    })
}

/// `ibv_set_ece`: fails with `EOPNOTSUPP`, or `EINVAL` for unknown fields.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn set_ece(qp: *mut Qp, ece: *mut Ece) -> c_int {
    c_call(|| {
        // SAFETY: `find` validates the handle; `input` refuses null; the caller guarantees the rest.
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
