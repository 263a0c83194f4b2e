//! The calls on CRs.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::handles::argument;
use crate::handles::fail::{Fail, Result, call};
use crate::handles::object::{all, find, find_or_null, remove};
use crate::objects::connection::check_data;
use crate::objects::cr::Cr;
use crate::objects::ep::Ep;
use crate::objects::service::Psp;
use crate::sys::consts::*;
use crate::sys::{ConnQual, CrHandle, CrParam, EpHandle, Pvoid, Return};
use std::sync::Arc;

/// Accepts a request with the given EP, or with the request's own EP.
///
/// # Errors
/// `DAT_INVALID_HANDLE`, `DAT_INVALID_STATE`, `DAT_INVALID_PARAMETER`.
fn accept_with(cr: &Arc<Cr>, ep: Option<&Arc<Ep>>, data: &[u8]) -> Result {
    check_data(3, data)?;
    let ep = match (&cr.ep, ep) {
        (Some(own), None) => own,
        (Some(own), Some(ep)) if Arc::ptr_eq(own, ep) => own,
        (None, Some(ep)) if Arc::ptr_eq(ep.ia(), &cr.ia) => ep,
        _ => return Err(Fail::handle(INVALID_HANDLE_EP)),
    };
    ep.accept(cr, data)
}

/// `dat_cr_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn query(
    cr: CrHandle,
    mask: dat_cr_param_mask,
    param: *mut CrParam,
) -> Return {
    call("dat_cr_query", || {
        // SAFETY: `find` validates the handle.
        let cr = unsafe { find::<Cr>(cr)? };
        argument::mask(2, mask.into(), CR_FIELD_ALL.into())?;
        let value = CrParam {
            remote_ia_address_ptr: cr.visible.pointer(),
            remote_port_qual: cr.hello.port,
            private_data_size: cr.hello.data.len() as Count,
            private_data: cr.data.0.get().cast(),
            local_ep_handle: cr.ep.as_ref().map_or(0, |ep| ep.handle) as EpHandle,
        };
        // SAFETY: the caller promises that there is room.
        unsafe { argument::store(3, param, value) }
    })
}

/// `dat_cr_accept`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn accept(cr: CrHandle, ep: EpHandle, size: Count, data: Pvoid) -> Return {
    call("dat_cr_accept", || {
        // SAFETY: `find` validates the handles; the caller promises the data.
        unsafe {
            let object = find::<Cr>(cr)?;
            let ep = find_or_null::<Ep>(ep)?;
            let data = argument::list((3, size), (4, data.cast_const().cast()))?;
            accept_with(object, ep, data)?;
        }
        // SAFETY: the last use of the handle.
        unsafe { remove::<Cr>(cr as usize) }.map(drop)
    })
}

/// `dat_cr_reject`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn reject(cr: CrHandle, size: Count, data: Pvoid) -> Return {
    call("dat_cr_reject", || {
        // SAFETY: `find` validates the handle; the caller promises the data.
        let data = unsafe {
            find::<Cr>(cr)?;
            argument::list((2, size), (3, data.cast_const().cast()))?
        };
        check_data(2, data)?;
        // SAFETY: the last use of the handle.
        unsafe { remove::<Cr>(cr as usize)? }.reject(data);
        Ok(())
    })
}

/// `dat_cr_handoff`, which passes a request to another PSP of this IA.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn handoff(cr: CrHandle, conn_qual: ConnQual) -> Return {
    call("dat_cr_handoff", || {
        // SAFETY: `find` validates the handle.
        let object = Arc::clone(unsafe { find::<Cr>(cr)? });
        let here =
            |psp: &Psp| Arc::ptr_eq(psp.0.ia(), object.ia()) && psp.0.conn_qual() == conn_qual;
        let found = all::<Psp>(here);
        let psp = found
            .first()
            .ok_or(Fail::new(CONN_QUAL_UNAVAILABLE, NO_SUBTYPE))?;
        if object.ep.is_some() {
            return Err(Fail::state(INVALID_STATE_EP_RESERVED));
        }
        // If the PSP is being freed, the request stays with the CR.
        psp.0
            .hand(|| Some((object.take()?, object.hello.clone())))?;
        // SAFETY: the last use of the handle.
        unsafe { remove::<Cr>(cr as usize) }.map(drop)
    })
}
