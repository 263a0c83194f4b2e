//! The calls on RMRs, and the checks of a bind.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::handles::argument;
use crate::handles::fail::{Fail, Result, call};
use crate::handles::object::{find, find_or_null, insert, remove};
use crate::objects::ep::Ep;
use crate::objects::lmr::Lmr;
use crate::objects::pz::Pz;
use crate::objects::requests::{Options, RequestKind};
use crate::objects::rmr::{Binding, Rmr};
use crate::sys::consts::*;
use crate::sys::{
    EpHandle, LmrHandle, LmrTriplet, PzHandle, Return, RmrContext, RmrCookie, RmrHandle, RmrParam,
};
use crate::values::event::bits;
use crate::values::privileges::rights;
use parking_lot::Mutex;
use rkey_device::ReservedKey;
use rkey_device::base::VaRange;
use rkey_device::core::{Access, Api, LKey, Rules, WindowKind};
use rkey_device::engine::Work;
use std::sync::{Arc, Weak};

/// Reports why a bind was refused: to the watcher (`rkey run --explain`), or in the log.
fn refused(why: &str) {
    rkey_device::denials::refused(&format!("dat_rmr_bind refused: {why}"));
}

/// Checks a bind against its LMR (dat_rmr_bind; DA-028 to DA-030, DA-055).
fn check(lmr: &Lmr, triplet: &LmrTriplet, access: Access) -> Result<VaRange> {
    let asked = VaRange::new(triplet.virtual_address, triplet.segment_length.into())
        .ok_or(Fail::argument(3))?;
    if triplet.lmr_context != lmr.context() {
        refused("lmr_context of the triplet is not the context of lmr_handle");
        return Err(Fail::argument(3));
    }
    let end = lmr.start() + lmr.memory.len();
    if asked.start() < lmr.start() || asked.start() + asked.len() > end {
        refused(&format!(
            "{} B at {:#x} are not inside the LMR ({:#x} to {end:#x}, {} B)",
            asked.len(),
            asked.start(),
            lmr.start(),
            lmr.memory.len(),
        ));
        return Err(Fail::argument(3));
    }
    let needs = [
        (Access::REMOTE_READ, Access::LOCAL_READ, PRIVILEGES_READ),
        (Access::REMOTE_WRITE, Access::LOCAL_WRITE, PRIVILEGES_WRITE),
        (Access::REMOTE_ATOMIC, Access::LOCAL_WRITE, PRIVILEGES_WRITE),
    ];
    for (remote, local, subtype) in needs {
        if access.contains(remote) && !lmr.access.contains(local) {
            refused(&format!(
                "to grant peers {}, the LMR needs {}; it has {}",
                Api::Udapl.names(remote),
                Api::Udapl.names(local),
                Api::Udapl.names(lmr.access)
            ));
            return Err(Fail::new(PRIVILEGES_VIOLATION, subtype));
        }
    }
    Ok(asked)
}

/// Posts a bind, and returns the new context (undefined for a triplet of length 0, which unbinds).
///
/// # Errors
/// Same as `dat_rmr_bind`. After an error, nothing has been posted.
fn post_bind(
    rmr: &Arc<Rmr>,
    lmr: Option<&Arc<Lmr>>,
    triplet: &LmrTriplet,
    privileges: dat_mem_priv_flags,
    ep: &Arc<Ep>,
    cookie: u64,
    flags: dat_completion_flags,
) -> Result<RmrContext> {
    let options = Options::of_request(ep, 8, flags)?;
    let access = rights(4, privileges)? & Access::REMOTE;
    if !ep.takes_requests() {
        return Err(Fail::state(ep.state().subtype()));
    }
    if !ep.is_in(&rmr.pz) {
        refused("the EP and the RMR are in different PZs");
        return Err(Fail::PROTECTION);
    }
    let device = &rmr.pz.ia().device;
    let unbind = triplet.segment_length == 0;
    let (range, region, key) = if unbind {
        let nothing = VaRange::new(0, 0).ok_or(Fail::INTERNAL)?;
        (nothing, LKey(0), None)
    } else {
        let lmr = lmr.ok_or(Fail::handle(INVALID_HANDLE_LMR))?;
        if !Arc::ptr_eq(&lmr.pz, &rmr.pz) {
            refused("the LMR and the RMR are in different PZs");
            return Err(Fail::PROTECTION);
        }
        let range = check(lmr, triplet, access)?;
        let key = device.reserve_window_key(rmr.window)?;
        (range, lmr.region.local_key, Some(key))
    };
    let new = key.as_ref().map(ReservedKey::key);
    let context = new.map_or(0, |key| key.0);
    let work = Work::Bind {
        window: rmr.window,
        region,
        range,
        access,
        zero_based: false,
        key: new,
        rules: Rules::UDAPL,
    };
    let to = Binding {
        triplet: *triplet,
        privileges,
        context,
    };
    rmr.used_by(ep);
    ep.post(
        work,
        &[],
        cookie,
        options,
        RequestKind::Bind(Arc::clone(rmr), to),
    )?;
    if let Some(key) = key {
        key.posted();
    }
    Ok(context)
}

/// `dat_rmr_create`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn create(pz: PzHandle, rmr: *mut RmrHandle) -> Return {
    call("dat_rmr_create", || {
        // SAFETY: `find` validates the handle.
        let pz = unsafe { find::<Pz>(pz)? };
        argument::room(2, rmr)?;
        let ia = pz.ia();
        let window = ia.device.create_window(pz.domain, WindowKind::Dat)?;
        let made = insert::<Rmr>(ia.table, |handle| {
            Ok(Arc::new(Rmr {
                pz: Arc::clone(pz),
                handle,
                window: window.id,
                bound: Mutex::new(None),
                eps: Mutex::default(),
            }))
        });
        let handle = made.inspect_err(|_| {
            let _ = ia.device.deallocate_window(window.id);
        })?;
        pz.users.add();
        // SAFETY: room for a handle.
        unsafe { argument::store(2, rmr, handle) }
    })
}

/// `dat_rmr_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn query(
    rmr: RmrHandle,
    mask: dat_rmr_param_mask,
    param: *mut RmrParam,
) -> Return {
    call("dat_rmr_query", || {
        // SAFETY: `find` validates the handle.
        let rmr = unsafe { find::<Rmr>(rmr)? };
        argument::mask(2, mask.into(), RMR_FIELD_ALL.into())?;
        let eps: Vec<_> = rmr.eps.lock().iter().filter_map(Weak::upgrade).collect();
        for ep in eps {
            ep.collect_requests();
        }
        let bound = rmr.bound.lock().unwrap_or_default();
        let value = RmrParam {
            ia_handle: rmr.pz.ia().number(),
            pz_handle: rmr.pz.handle as PzHandle,
            lmr_triplet: bound.triplet,
            mem_priv: bound.privileges,
            rmr_context: bound.context,
            rmr_scope: RMR_SCOPE_PZ,
            va_type: VA_TYPE_VA,
        };
        // SAFETY: the caller promises that there is room.
        unsafe { argument::store(3, param, value) }
    })
}

/// `dat_rmr_bind`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
#[allow(clippy::too_many_arguments)] // of the C function
pub unsafe extern "C" fn bind(
    rmr: RmrHandle,
    lmr: LmrHandle,
    triplet: *const LmrTriplet,
    privileges: dat_mem_priv_flags,
    va_type: dat_va_type,
    ep: EpHandle,
    cookie: RmrCookie,
    flags: dat_completion_flags,
    context: *mut RmrContext,
) -> Return {
    call("dat_rmr_bind", || {
        // SAFETY: `find` validates the handles; the caller promises the triplet.
        let (rmr, triplet, ep) = unsafe {
            let rmr = find::<Rmr>(rmr)?;
            (rmr, argument::input(3, triplet)?, find::<Ep>(ep)?)
        };
        let unbind = triplet.segment_length == 0;
        let lmr = match unbind {
            // An unbind names no LMR (dat.h).
            true => None,
            // SAFETY: `find` validates the handle.
            false => unsafe { find_or_null::<Lmr>(lmr)? },
        };
        match va_type {
            VA_TYPE_VA => {}
            VA_TYPE_ZB => return Err(Fail::NO_MODEL),
            _ => return Err(Fail::argument(5)),
        }
        if !(unbind && context.is_null()) {
            argument::room(9, context)?;
        }
        let new = post_bind(rmr, lmr, triplet, privileges, ep, bits(cookie), flags)?;
        // SAFETY: null, or room for a context.
        unsafe { argument::store_if(9, context, new) }
    })
}

/// `dat_rmr_free`: also unbinds it.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn free(rmr: RmrHandle) -> Return {
    call("dat_rmr_free", || {
        // SAFETY: `find` validates the handle.
        unsafe { find::<Rmr>(rmr)? }.close()?;
        // SAFETY: the last use of the handle.
        unsafe { remove::<Rmr>(rmr as usize) }.map(drop)
    })
}
