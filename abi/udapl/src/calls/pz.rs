//! The calls on PZs.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::handles::argument;
use crate::handles::fail::{Fail, call};
use crate::handles::object::{find, insert, remove};
use crate::objects::ia::Ia;
use crate::objects::pz::Pz;
use crate::sys::consts::*;
use crate::sys::{IaHandle, PzHandle, PzParam, Return};
use rkey_kit::object::Users;
use std::sync::Arc;

/// `dat_pz_create`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn create(ia: IaHandle, pz: *mut PzHandle) -> Return {
    call("dat_pz_create", || {
        // SAFETY: `find` validates the handle.
        let ia = unsafe { find::<Ia>(ia)? };
        argument::room(2, pz)?;
        let domain = ia
            .device
            .create_domain()
            .map_err(|_| Fail::resource(RESOURCE_PROTECTION_DOMAIN))?;
        let made = insert::<Pz>(ia.table, |handle| {
            Ok(Arc::new(Pz {
                ia: Arc::clone(ia),
                handle,
                domain,
                users: Users::default(),
            }))
        });
        let handle = made.inspect_err(|_| {
            let _ = ia.device.close_domain(domain);
        })?;
        // SAFETY: room for a handle.
        unsafe { argument::store(2, pz, handle) }
    })
}

/// `dat_pz_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn query(
    pz: PzHandle,
    mask: dat_pz_param_mask,
    param: *mut PzParam,
) -> Return {
    call("dat_pz_query", || {
        // SAFETY: `find` validates the handle.
        let pz = unsafe { find::<Pz>(pz)? };
        argument::mask(2, mask as u64, PZ_FIELD_ALL as u64)?;
        let value = PzParam {
            ia_handle: pz.ia.number(),
        };
        // SAFETY: the caller promises that there is room.
        unsafe { argument::store(3, param, value) }
    })
}

/// `dat_pz_free`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn free(pz: PzHandle) -> Return {
    call("dat_pz_free", || {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<Pz>(pz)? };
        if !object.users.is_empty() {
            return Err(Fail::state(INVALID_STATE_PZ_IN_USE));
        }
        object.close()?;
        // SAFETY: the last use of the handle.
        unsafe { remove::<Pz>(pz as usize) }.map(drop)
    })
}
