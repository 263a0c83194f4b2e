//! Regions of device memory.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::memory::dm::{self, DmObject, DmRef};
use crate::memory::mr::{Registration, register_dm};
use crate::memory::pd::PdObject;
use crate::object::find;
use crate::sys::consts::*;
use crate::sys::{Dm, Mr, Pd};
use rkey_device::core::Addressing;
use rkey_kit::{Errno, c_call};
use std::ffi::c_uint;

/// `ibv_reg_dm_mr`: the region's addresses start at zero.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn reg_dm_mr(
    pd: *mut Pd,
    dm: *mut Dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut Mr {
    c_call(|| {
        // SAFETY: `find` validates the handles.
        let (object, memory) = unsafe { (find::<PdObject>(pd)?, find::<DmObject>(dm)?) };
        if access & ACCESS_ZERO_BASED == 0 || access & ACCESS_ON_DEMAND != 0 {
            return Err(Errno::INVAL);
        }
        let wanted = Registration {
            start: dm::at(memory, offset, length)? as u64,
            len: length as u64,
            addressing: Addressing::Zero,
            flags: access,
            shown: std::ptr::null_mut(),
        };
        // SAFETY: our own memory, which stays mapped while a region covers it.
        unsafe { register_dm(object, pd, &wanted, DmRef::new(dm)?) }
    })
}
