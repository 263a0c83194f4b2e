//! RSPs (reserved service points): each accepts one connection, for one EP.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::calls::psp::request_evd;
use crate::handles::argument;
use crate::handles::fail::{Fail, call};
use crate::handles::object::{find, insert, remove};
use crate::objects::ep::Ep;
use crate::objects::ia::Ia;
use crate::objects::service::{Rsp, Service, Target};
use crate::sys::consts::*;
use crate::sys::{ConnQual, EpHandle, EvdHandle, IaHandle, Return, RspHandle, RspParam};
use crate::values::ep_state::Step;
use std::sync::Arc;

/// `dat_rsp_create`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn create(
    ia: IaHandle,
    conn_qual: ConnQual,
    ep: EpHandle,
    evd: EvdHandle,
    rsp: *mut RspHandle,
) -> Return {
    call("dat_rsp_create", || {
        // SAFETY: `find` validates the handles.
        let (ia, ep, evd) = unsafe {
            let ia = find::<Ia>(ia)?;
            (ia, find::<Ep>(ep)?, request_evd(evd)?)
        };
        argument::room(5, rsp)?;
        if !Arc::ptr_eq(ep.ia(), ia) {
            return Err(Fail::handle(INVALID_HANDLE_EP));
        }
        ep.take_step(Step::Reserve)?;
        let mut made = None;
        let inserted = insert::<Rsp>(ia.table, |handle| {
            let target = Target::Reserved(Arc::clone(ep));
            let service = Service::listen(ia, handle, Some(conn_qual), evd, target)?;
            made = Some(Arc::clone(&service));
            let ep = Arc::clone(ep);
            Ok(Arc::new(Rsp { service, ep }))
        });
        let handle = inserted.inspect_err(|_| {
            let _ = ep.take_step(Step::Release);
        })?;
        if let Some(service) = made {
            ia.worker().serve(&service);
        }
        // SAFETY: room for a handle.
        unsafe { argument::store(5, rsp, handle) }
    })
}

/// `dat_rsp_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn query(
    rsp: RspHandle,
    mask: dat_rsp_param_mask,
    param: *mut RspParam,
) -> Return {
    call("dat_rsp_query", || {
        // SAFETY: `find` validates the handle.
        let rsp = unsafe { find::<Rsp>(rsp)? };
        argument::mask(2, mask.into(), RSP_FIELD_ALL.into())?;
        let value = RspParam {
            ia_handle: rsp.ia().number(),
            conn_qual: rsp.service.conn_qual(),
            evd_handle: rsp.service.evd().handle as EvdHandle,
            ep_handle: rsp.ep.handle as EpHandle,
        };
        // SAFETY: the caller promises that there is room.
        unsafe { argument::store(3, param, value) }
    })
}

/// `dat_rsp_free`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn free(rsp: RspHandle) -> Return {
    call("dat_rsp_free", || {
        // SAFETY: the last use of the handle, which `remove` validates.
        unsafe { remove::<Rsp>(rsp as usize)? }.close();
        Ok(())
    })
}
