//! The calls on LMRs.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::handles::argument;
use crate::handles::fail::{Fail, Result, call};
use crate::handles::object::{find, remove};
use crate::objects::ia::Ia;
use crate::objects::lmr::{Lmr, LmrRequest, make};
use crate::objects::pz::Pz;
use crate::sys::consts::*;
use crate::sys::{
    IaHandle, LmrContext, LmrHandle, LmrParam, LmrTriplet, PzHandle, RegionDescription, Return,
    RmrContext, Vaddr, Vlen,
};

/// Checks the arguments of the two synchronization calls.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
unsafe fn check_segments(ia: IaHandle, segments: *const LmrTriplet, count: Vlen) -> Result {
    // SAFETY: `find` validates the handle.
    unsafe { find::<Ia>(ia)? };
    match count > 0 && segments.is_null() {
        true => Err(Fail::argument(2)),
        false => Ok(()),
    }
}

/// `dat_lmr_create`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[allow(clippy::too_many_arguments)] // of the C function
pub unsafe extern "C" fn create(
    ia: IaHandle,
    mem_type: dat_mem_type,
    description: RegionDescription,
    length: Vlen,
    pz: PzHandle,
    privileges: dat_mem_priv_flags,
    va_type: dat_va_type,
    handle: *mut LmrHandle,
    context: *mut LmrContext,
    remote_context: *mut RmrContext,
    registered_length: *mut Vlen,
    registered_address: *mut Vaddr,
) -> Return {
    call("dat_lmr_create", || {
        // SAFETY: `find` validates the handles.
        let (ia, pz) = unsafe { (find::<Ia>(ia)?, find::<Pz>(pz)?) };
        argument::room(8, handle)?;
        let asked = LmrRequest {
            mem_type,
            description,
            length,
            privileges,
            va_type,
        };
        // SAFETY: guaranteed by the caller.
        let (made, lmr) = unsafe { make(ia, pz, asked)? };
        // SAFETY: null, or room for each.
        unsafe {
            argument::store(8, handle, made)?;
            argument::store_if(9, context, lmr.context())?;
            argument::store_if(10, remote_context, lmr.remote_context())?;
            argument::store_if(11, registered_length, lmr.memory.len())?;
            argument::store_if(12, registered_address, lmr.start())
        }
    })
}

/// `dat_lmr_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn query(
    lmr: LmrHandle,
    mask: dat_lmr_param_mask,
    param: *mut LmrParam,
) -> Return {
    call("dat_lmr_query", || {
        // SAFETY: `find` validates the handle.
        let lmr = unsafe { find::<Lmr>(lmr)? };
        argument::mask(2, mask.into(), LMR_FIELD_ALL.into())?;
        let value = LmrParam {
            ia_handle: lmr.pz.ia().number(),
            mem_type: lmr.asked.mem_type,
            region_desc: lmr.asked.description,
            length: lmr.memory.len(),
            pz_handle: lmr.pz.handle as PzHandle,
            mem_priv: lmr.asked.privileges,
            va_type: lmr.asked.va_type,
            lmr_context: lmr.context(),
            rmr_context: lmr.remote_context(),
            registered_size: lmr.memory.len(),
            registered_address: lmr.start(),
        };
        // SAFETY: the caller promises that there is room.
        unsafe { argument::store(3, param, value) }
    })
}

/// `dat_lmr_free`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn free(lmr: LmrHandle) -> Return {
    call("dat_lmr_free", || {
        // SAFETY: `find` validates the handle.
        unsafe { find::<Lmr>(lmr)? }.close()?;
        // SAFETY: the last use of the handle.
        unsafe { remove::<Lmr>(lmr as usize) }.map(drop)
    })
}

/// `dat_lmr_sync_rdma_read`: only checks its arguments, because the memory of an LMR is always coherent here.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn sync_rdma_read(
    ia: IaHandle,
    segments: *const LmrTriplet,
    count: Vlen,
) -> Return {
    // SAFETY: guaranteed by the caller.
    call("dat_lmr_sync_rdma_read", || unsafe {
        check_segments(ia, segments, count)
    })
}

/// `dat_lmr_sync_rdma_write`: like [`sync_rdma_read`].
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn sync_rdma_write(
    ia: IaHandle,
    segments: *const LmrTriplet,
    count: Vlen,
) -> Return {
    // SAFETY: guaranteed by the caller.
    call("dat_lmr_sync_rdma_write", || unsafe {
        check_segments(ia, segments, count)
    })
}
