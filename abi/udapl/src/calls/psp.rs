//! PSPs (public service points).

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::handles::argument;
use crate::handles::fail::{Fail, Result, call};
use crate::handles::object::{find, insert, remove};
use crate::objects::evd::Evd;
use crate::objects::ia::Ia;
use crate::objects::service::{Psp, Service, Target};
use crate::sys::consts::*;
use crate::sys::{ConnQual, EvdHandle, IaHandle, PspHandle, PspParam, Return};
use std::sync::Arc;

/// An EVD for connection requests; it may belong to another open IA.
///
/// # Errors
/// `DAT_INVALID_HANDLE`.
///
/// # Safety
/// No other thread frees the EVD while the reference is used.
pub unsafe fn request_evd<'a>(evd: EvdHandle) -> Result<&'a Arc<Evd>> {
    let fail = Fail::handle(INVALID_HANDLE_EVD_CR);
    // SAFETY: guaranteed by the caller.
    let evd = unsafe { find::<Evd>(evd) }.map_err(|_| fail)?;
    match evd.flags & EVD_CR_FLAG != 0 {
        true => Ok(evd),
        false => Err(fail),
    }
}

/// Creates a PSP, at any free qualifier if none is given.
///
/// # Errors
/// `DAT_CONN_QUAL_IN_USE`, `DAT_CONN_QUAL_UNAVAILABLE`, `DAT_INVALID_PARAMETER`.
pub fn make(
    ia: &Arc<Ia>,
    conn_qual: Option<u64>,
    evd: &Arc<Evd>,
    flags: dat_psp_flags,
) -> Result<(PspHandle, u64)> {
    let target = match flags {
        PSP_CONSUMER_FLAG => Target::Consumer,
        PSP_PROVIDER_FLAG => Target::Provider,
        _ => return Err(Fail::argument(4)),
    };
    let mut made = None;
    let handle = insert::<Psp>(ia.table, |handle| {
        let service = Service::listen(ia, handle, conn_qual, evd, target)?;
        made = Some(Arc::clone(&service));
        Ok(Arc::new(Psp(service)))
    })?;
    let service = made.ok_or(Fail::INTERNAL)?;
    ia.worker().serve(&service);
    Ok((handle, service.conn_qual()))
}

/// `dat_psp_create`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn create(
    ia: IaHandle,
    conn_qual: ConnQual,
    evd: EvdHandle,
    flags: dat_psp_flags,
    psp: *mut PspHandle,
) -> Return {
    call("dat_psp_create", || {
        // SAFETY: `find` validates the handles.
        let (ia, evd) = unsafe {
            let ia = find::<Ia>(ia)?;
            (ia, request_evd(evd)?)
        };
        argument::room(5, psp)?;
        let (handle, _) = make(ia, Some(conn_qual), evd, flags)?;
        // SAFETY: room for a handle.
        unsafe { argument::store(5, psp, handle) }
    })
}

/// `dat_psp_create_any`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn create_any(
    ia: IaHandle,
    conn_qual: *mut ConnQual,
    evd: EvdHandle,
    flags: dat_psp_flags,
    psp: *mut PspHandle,
) -> Return {
    call("dat_psp_create_any", || {
        // SAFETY: `find` validates the handles.
        let (ia, evd) = unsafe {
            let ia = find::<Ia>(ia)?;
            (ia, request_evd(evd)?)
        };
        argument::room(2, conn_qual)?;
        argument::room(5, psp)?;
        let (handle, number) = make(ia, None, evd, flags)?;
        // SAFETY: room for both.
        unsafe {
            argument::store(2, conn_qual, number)?;
            argument::store(5, psp, handle)
        }
    })
}

/// `dat_psp_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn query(
    psp: PspHandle,
    mask: dat_psp_param_mask,
    param: *mut PspParam,
) -> Return {
    call("dat_psp_query", || {
        // SAFETY: `find` validates the handle.
        let psp = unsafe { find::<Psp>(psp)? };
        argument::mask(2, mask.into(), PSP_FIELD_ALL.into())?;
        let value = PspParam {
            ia_handle: psp.0.ia().number(),
            conn_qual: psp.0.conn_qual(),
            evd_handle: psp.0.evd().handle as EvdHandle,
            psp_flags: match psp.0.target {
                Target::Provider => PSP_PROVIDER_FLAG,
                _ => PSP_CONSUMER_FLAG,
            },
        };
        // SAFETY: the caller promises that there is room.
        unsafe { argument::store(3, param, value) }
    })
}

/// `dat_psp_free`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn free(psp: PspHandle) -> Return {
    call("dat_psp_free", || {
        // SAFETY: the last use of the handle, which `remove` validates.
        unsafe { remove::<Psp>(psp as usize)? }.0.close();
        Ok(())
    })
}
