//! LMRs and RMRs.
//!
//! In DAT 1.2, a bind names its LMR by context only; in DAT 2.0, by handle as well. So the library remembers the handle for
//! each context.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::code::{bad_argument, renumbered, to_dat1_code};
use crate::layouts::{LmrParam, LmrTriplet, NULL, RmrParam};
use crate::table::call_provider;
use daplrkey::sys::{
    self, Context, Handle, IaHandle, LmrContext, LmrHandle, PzHandle, RegionDescription, Return,
    RmrContext, RmrHandle, SUCCESS, Vaddr, Vlen, dat_completion_flags, dat_lmr_param_mask,
    dat_mem_priv_flags, dat_mem_type, dat_rmr_param_mask,
};
use parking_lot::Mutex;
use rkey_kit::argument;
use std::collections::HashMap;
use std::sync::LazyLock;

/// A privilege of Solaris that does not concern access: it disables relaxed ordering of writes to the memory.
const RO_DISABLE: dat_mem_priv_flags = 0x100;
/// All fields of an LMR in DAT 1.2, and the fields before the one that DAT 2.0 inserted.
const LMR_FIELDS: dat_lmr_param_mask = 0x3ff;
const BEFORE_VA_TYPE: dat_lmr_param_mask = 0x3f;
/// All fields of an RMR in DAT 1.2.
const RMR_FIELDS: dat_rmr_param_mask = 0x1f;

/// LMRs by their IA and context.
static LMRS: LazyLock<Mutex<HashMap<(usize, LmrContext), usize>>> = LazyLock::new(Mutex::default);

/// Forgets the LMRs of a closed IA.
pub(crate) fn forget_all(ia: IaHandle) {
    LMRS.lock().retain(|(of, _), _| *of != ia as usize);
}

/// Converts a segment to that of DAT 2.0; `None` if its length has more than 32 bits.
pub(crate) fn to_dat2_triplet(triplet: &LmrTriplet) -> Option<sys::LmrTriplet> {
    Some(sys::LmrTriplet {
        virtual_address: triplet.virtual_address,
        segment_length: u32::try_from(triplet.segment_length).ok()?,
        lmr_context: triplet.lmr_context,
    })
}

/// Converts the segment back to that of DAT 1.2.
fn to_dat1_triplet(triplet: &sys::LmrTriplet) -> LmrTriplet {
    LmrTriplet {
        lmr_context: triplet.lmr_context,
        pad: 0,
        virtual_address: triplet.virtual_address,
        segment_length: triplet.segment_length.into(),
    }
}

/// Queries an LMR through DAT 2.0.
fn lmr_param(lmr: LmrHandle, mask: dat_lmr_param_mask) -> Result<sys::LmrParam, Return> {
    // SAFETY: all zeros is a value of this structure, which has no references.
    let mut param: sys::LmrParam = unsafe { std::mem::zeroed() };
    match call_provider!(
        lmr_query_func,
        INVALID_HANDLE_LMR,
        lmr,
        mask,
        &raw mut param
    ) {
        SUCCESS => Ok(param),
        code => Err(code),
    }
}

/// `dat_lmr_create`, which has no address type in DAT 1.2.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[allow(clippy::too_many_arguments)] // of the C function
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_lmr_create(
    ia: IaHandle,
    mem_type: dat_mem_type,
    region: RegionDescription,
    len: Vlen,
    pz: PzHandle,
    privileges: dat_mem_priv_flags,
    lmr: *mut LmrHandle,
    lmr_context: *mut LmrContext,
    rmr_context: *mut RmrContext,
    registered_len: *mut Vlen,
    registered_address: *mut Vaddr,
) -> Return {
    if lmr.is_null() || !lmr.is_aligned() {
        return bad_argument(7);
    }
    let (mut made, mut context) = (NULL, 0);
    let code = call_provider!(
        lmr_create_func,
        INVALID_HANDLE_IA,
        ia,
        mem_type,
        region,
        len,
        pz,
        privileges & !RO_DISABLE,
        sys::VA_TYPE_VA,
        &raw mut made,
        &raw mut context,
        rmr_context,
        registered_len,
        registered_address
    );
    if code != SUCCESS {
        return renumbered(code, |number| if number > 7 { number - 1 } else { number });
    }
    LMRS.lock().insert((ia as usize, context), made as usize);
    // SAFETY: checked above; the caller promises room for a context, or passes null.
    unsafe {
        lmr.write(made);
        let _ = argument::store(lmr_context, context);
    }
    SUCCESS
}

/// `dat_lmr_free`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_lmr_free(lmr: LmrHandle) -> Return {
    let known = lmr_param(lmr, sys::LMR_FIELD_ALL);
    let code = call_provider!(lmr_free_func, INVALID_HANDLE_LMR, lmr);
    if code == SUCCESS
        && let Ok(param) = known
    {
        let name = (param.ia_handle as usize, param.lmr_context);
        let mut lmrs = LMRS.lock();
        // The context may already belong to a newer LMR.
        if lmrs.get(&name) == Some(&(lmr as usize)) {
            lmrs.remove(&name);
        }
    }
    to_dat1_code(code)
}

/// `dat_lmr_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_lmr_query(
    lmr: LmrHandle,
    mask: dat_lmr_param_mask,
    param: *mut LmrParam,
) -> Return {
    if mask & !LMR_FIELDS != 0 {
        return bad_argument(2);
    }
    let mask = mask & BEFORE_VA_TYPE | (mask & !BEFORE_VA_TYPE) << 1;
    let found = match lmr_param(lmr, mask) {
        Ok(found) => found,
        Err(code) => return to_dat1_code(code),
    };
    let value = LmrParam {
        ia_handle: found.ia_handle,
        mem_type: found.mem_type,
        region_desc: found.region_desc,
        length: found.length,
        pz_handle: found.pz_handle,
        mem_priv: found.mem_priv,
        lmr_context: found.lmr_context,
        rmr_context: found.rmr_context,
        registered_size: found.registered_size,
        registered_address: found.registered_address,
    };
    // SAFETY: the caller promises that there is room.
    match unsafe { argument::store(param, value) } {
        Ok(()) => SUCCESS,
        Err(_) => bad_argument(3),
    }
}

/// `dat_lmr_sync_rdma_read`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_lmr_sync_rdma_read(
    ia: IaHandle,
    segments: *const LmrTriplet,
    count: Vlen,
) -> Return {
    // SAFETY: guaranteed by the caller.
    match unsafe { crate::post::segments(segments, count) } {
        Some(segments) => to_dat1_code(call_provider!(
            lmr_sync_rdma_read_func,
            INVALID_HANDLE_IA,
            ia,
            segments.as_ptr(),
            count
        )),
        None => bad_argument(2),
    }
}

/// `dat_lmr_sync_rdma_write`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_lmr_sync_rdma_write(
    ia: IaHandle,
    segments: *const LmrTriplet,
    count: Vlen,
) -> Return {
    // SAFETY: guaranteed by the caller.
    match unsafe { crate::post::segments(segments, count) } {
        Some(segments) => to_dat1_code(call_provider!(
            lmr_sync_rdma_write_func,
            INVALID_HANDLE_IA,
            ia,
            segments.as_ptr(),
            count
        )),
        None => bad_argument(2),
    }
}

/// Queries an RMR through DAT 2.0.
fn rmr_param(rmr: RmrHandle, mask: dat_rmr_param_mask) -> Result<sys::RmrParam, Return> {
    // SAFETY: all zeros is a value of this structure, which has no references.
    let mut param: sys::RmrParam = unsafe { std::mem::zeroed() };
    match call_provider!(
        rmr_query_func,
        INVALID_HANDLE_RMR,
        rmr,
        mask,
        &raw mut param
    ) {
        SUCCESS => Ok(param),
        code => Err(code),
    }
}

/// `dat_rmr_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_rmr_query(
    rmr: RmrHandle,
    mask: dat_rmr_param_mask,
    param: *mut RmrParam,
) -> Return {
    if mask & !RMR_FIELDS != 0 {
        return bad_argument(2);
    }
    let found = match rmr_param(rmr, mask) {
        Ok(found) => found,
        Err(code) => return to_dat1_code(code),
    };
    let value = RmrParam {
        ia_handle: found.ia_handle,
        pz_handle: found.pz_handle,
        lmr_triplet: to_dat1_triplet(&found.lmr_triplet),
        mem_priv: found.mem_priv,
        rmr_context: found.rmr_context,
    };
    // SAFETY: the caller promises that there is room.
    match unsafe { argument::store(param, value) } {
        Ok(()) => SUCCESS,
        Err(_) => bad_argument(3),
    }
}

/// The LMR that a bind names. A triplet of length 0 names none.
fn lmr_of(rmr: RmrHandle, triplet: &sys::LmrTriplet) -> Result<Handle, Return> {
    if triplet.segment_length == 0 {
        return Ok(NULL);
    }
    let ia = rmr_param(rmr, sys::RMR_FIELD_IA_HANDLE)
        .map_err(to_dat1_code)?
        .ia_handle;
    let lmr = LMRS
        .lock()
        .get(&(ia as usize, triplet.lmr_context))
        .copied();
    lmr.map(|lmr| lmr as Handle).ok_or_else(|| bad_argument(2))
}

/// `dat_rmr_bind`, with the seven arguments of its manual page.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_rmr_bind(
    rmr: RmrHandle,
    triplet: *const LmrTriplet,
    privileges: dat_mem_priv_flags,
    ep: Handle,
    cookie: Context,
    flags: dat_completion_flags,
    context: *mut RmrContext,
) -> Return {
    // SAFETY: the caller promises a triplet.
    let Some(triplet) = unsafe { argument::input(triplet) }
        .ok()
        .and_then(to_dat2_triplet)
    else {
        return bad_argument(2);
    };
    let lmr = match lmr_of(rmr, &triplet) {
        Ok(lmr) => lmr,
        Err(code) => return code,
    };
    let code = call_provider!(
        rmr_bind_func,
        INVALID_HANDLE_RMR,
        rmr,
        lmr,
        &raw const triplet,
        privileges,
        sys::VA_TYPE_VA,
        ep,
        cookie,
        flags,
        context
    );
    // DAT 2.0 has two more arguments: the LMR before the triplet, and the address type before the EP.
    renumbered(code, |number| match number {
        0..=1 => number,
        2..=5 => number - 1,
        _ => number - 2,
    })
}
