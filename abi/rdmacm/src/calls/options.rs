//! `rdma_set_option`, and the calls for vendor options (ECE).

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::objects::id::IdObject;
use crate::state::front::with_entry;
use crate::state::hub::Phase;
use crate::sys::*;
use rkey_kit::argument::{input, store};
use rkey_kit::object::find;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::ffi::{c_int, c_void};

/// The largest value of a timeout: 5 bits, for 4.096 µs * 2^31.
const TIME_CODE_MAX: u8 = 31;

/// Reads the value of an option. Its size must be exactly that of the option's type.
///
/// # Safety
/// If not null, it points to `len` bytes.
unsafe fn value<T: Copy>(at: *const c_void, len: usize) -> Result<T, Errno> {
    if at.is_null() || len != size_of::<T>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: not null and long enough; it may be unaligned. `T` is an integer.
    Ok(unsafe { at.cast::<T>().read_unaligned() })
}

unsafe fn set_id_option(
    object: &IdObject,
    name: c_int,
    at: *const c_void,
    len: usize,
) -> Result<(), Errno> {
    match name {
        OPTION_ID_TOS => {
            // SAFETY: guaranteed by the caller.
            let tos = unsafe { value::<u8>(at, len) }?;
            with_entry(object.key, |own| {
                own.options.tos = tos;
                Ok(())
            })
        }
        OPTION_ID_REUSEADDR | OPTION_ID_AFONLY => {
            // SAFETY: guaranteed by the caller.
            let on = unsafe { value::<c_int>(at, len) }? != 0;
            with_entry(object.key, |own| {
                if own.phase == Phase::Listening {
                    return Err(Errno::INVAL);
                }
                match name {
                    OPTION_ID_REUSEADDR => own.options.reuse_address = on,
                    _ => own.options.one_family = Some(on),
                }
                Ok(())
            })
        }
        OPTION_ID_ACK_TIMEOUT => {
            // SAFETY: guaranteed by the caller.
            let code = unsafe { value::<u8>(at, len) }?;
            with_entry(object.key, |own| {
                if own.is_datagram() || code > TIME_CODE_MAX {
                    return Err(Errno::INVAL);
                }
                own.options.ack_timeout = Some(code);
                Ok(())
            })
        }
        _ => Err(Errno::NOSYS),
    }
}

/// Accepts a program's own path records. The device chooses the path itself, so this only does what `rdma_resolve_route` does.
fn set_path(object: &IdObject, len: usize) -> Result<(), Errno> {
    const PATH_DATA: usize = 72;
    if len == 0 || !len.is_multiple_of(PATH_DATA) {
        return Err(Errno::INVAL);
    }
    crate::calls::resolve::find_route(object, 1)
}

/// `rdma_set_option`.
///
/// # Safety
/// If not null, `value` points to `len` bytes; the identifier must not be destroyed during the call.
pub unsafe extern "C" fn set_option(
    id: *mut CmId,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let object = find::<IdObject>(id)?;
            match (level, name) {
                (OPTION_ID, _) => set_id_option(object, name, value, len)?,
                (OPTION_IB, OPTION_IB_PATH) => set_path(object, len)?,
                _ => return Err(Errno::NOSYS),
            }
        }
        Ok(0)
    })
}

/// `rdma_set_local_ece`.
///
/// # Safety
/// `ece` is null or valid; the identifier must not be destroyed during the call.
pub unsafe extern "C" fn set_local_ece(id: *mut CmId, ece: *mut Ece) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let (object, ece) = unsafe { (find::<IdObject>(id)?, input(ece)?) };
        if !object.qp().is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
            return Err(Errno::INVAL);
        }
        with_entry(object.key, |own| {
            own.ece.vendor = ece.vendor_id & 0xff_ffff;
            own.ece.options = ece.options;
            Ok(0)
        })
    })
}

/// `rdma_get_remote_ece`.
///
/// # Safety
/// `ece` is null or valid for writes; the identifier must not be destroyed during the call.
pub unsafe extern "C" fn get_remote_ece(id: *mut CmId, ece: *mut Ece) -> c_int {
    c_call_or_minus_one(|| {
        // SAFETY: guaranteed by the caller.
        let object = unsafe { find::<IdObject>(id)? };
        if !object.qp().is_null() || ece.is_null() {
            return Err(Errno::INVAL);
        }
        let remote = with_entry(object.key, |own| Ok(own.remote_ece))?;
        let converted = Ece {
            vendor_id: remote.vendor,
            options: remote.options,
            comp_mask: 0,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { store(ece, converted)? };
        Ok(0)
    })
}
