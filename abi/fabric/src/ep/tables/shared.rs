//! The table of a shared receive context.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::object::{CM, fid_with};
use crate::domain::DomainObject;
use crate::ep::shared::{Srx, SrxObject};
use crate::errno::FiError;
use crate::nosys::{self, nosys};
use crate::object::{busy, find, publish, remove, status, transfer_status};
use crate::sys::*;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

static FID_OPS: Ops = Ops {
    close,
    control,
    ..nosys::OPS
};

static OPS: OpsEp = OpsEp {
    size: size_of::<OpsEp>(),
    cancel,
    rx_size_left,
    tx_size_left: nosys!(isize, *mut FidEp),
    ..super::object::OPS
};

/// `fi_srx_context`.
///
/// # Safety
/// The arguments must be valid as described in fi_endpoint(3).
pub(crate) unsafe extern "C" fn srx_context(
    domain: *mut FidDomain,
    attr: *mut RxAttr,
    ep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; the caller guarantees that the attributes are null or valid.
        let (owner, attr) = unsafe { (find::<DomainObject, _>(domain)?, attr.as_ref()) };
        let caps = attr.map_or(0, |attr| attr.caps);
        let flags = attr.map_or(0, |attr| attr.op_flags);
        if flags & !crate::info::offer::RX_OP_FLAGS != 0 {
            return Err(FiError::BADFLAGS);
        }
        let inner = Srx::new(&owner.inner, caps, flags)?;
        let object = SrxObject {
            fid: fid_with(FI_CLASS_SRX_CTX, context, &FID_OPS, &OPS, &CM),
            inner: Arc::new(inner),
        };
        // SAFETY: room for a handle, as the caller guarantees.
        unsafe { publish(object, ep)? };
        owner.inner.users.add();
        Ok(())
    })
}

/// `fi_close`: returns `-FI_EBUSY` while endpoints are bound to the context. Drops outstanding receives without a completion.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<SrxObject, _>(fid)? }
            .inner
            .users
            .none()
            .map_err(|_| busy("endpoints that are bound to the shared receive context"))?;
        // SAFETY: the program no longer uses the context.
        let object = unsafe { remove::<SrxObject, _>(fid)? };
        object.inner.domain.users.remove();
        Ok(())
    })
}

/// `fi_control`: `fi_enable`.
unsafe extern "C" fn control(fid: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<SrxObject, _>(fid)? };
        match command {
            // The context is usable from the start.
            FI_ENABLE => Ok(()),
            _ => Err(FiError::NOSYS),
        }
    })
}

/// `fi_cancel`.
unsafe extern "C" fn cancel(fid: *mut Fid, context: *mut c_void) -> isize {
    transfer_status(|| {
        // SAFETY: `find` validates the handle.
        let srx = &unsafe { find::<SrxObject, _>(fid)? }.inner;
        srx.cancel(context as usize)
    })
}

/// `fi_rx_size_left`.
unsafe extern "C" fn rx_size_left(ep: *mut FidEp) -> isize {
    crate::object::count(|| {
        // SAFETY: `find` validates the handle.
        let srx = &unsafe { find::<SrxObject, _>(ep)? }.inner;
        let posted =
            srx.with_pool(|pool| pool.matching(false).posted() + pool.matching(true).posted());
        Ok(crate::info::offer::RX_SIZE.saturating_sub(posted))
    })
}
