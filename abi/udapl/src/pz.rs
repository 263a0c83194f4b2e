//! PZs (protection zones): domains of the device.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::argument;
use crate::fail::{Fail, call};
use crate::ia::Ia;
use crate::object::{find, insert, remove};
use crate::sys::consts::*;
use crate::sys::{IaHandle, PzHandle, PzParam, Return};
use rkey_device::core::DomainId;
use rkey_kit::object::Users;
use std::sync::Arc;

/// A protection zone.
pub struct Pz {
    ia: Arc<Ia>,
    /// The handle of the PZ.
    pub handle: usize,
    /// The device's domain.
    pub domain: DomainId,
    /// EPs, LMRs, RMRs and SRQs in it.
    pub users: Users,
}

crate::kind!(
    Pz,
    HANDLE_TYPE_PZ,
    INVALID_HANDLE_PZ,
    RESOURCE_PROTECTION_DOMAIN,
    1 << 16
);

impl Pz {
    /// The IA that the object belongs to.
    #[must_use]
    pub fn ia(&self) -> &Arc<Ia> {
        &self.ia
    }

    /// Closes the PZ.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE`.
    pub fn close(&self) -> crate::fail::Result {
        Ok(self.ia.device.close_domain(self.domain)?)
    }
}

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
