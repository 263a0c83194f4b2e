//! The table of a shared transmit context.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::domain::DomainObject;
use crate::ep::stx::{Stx, StxObject};
use crate::errno::FiError;
use crate::info::offer::{INJECT_SIZE, TX_OP_FLAGS, TX_SIZE};
use crate::nosys::{self, nosys};
use crate::object::{busy, find, publish, remove, status};
use crate::sys::*;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

static FID_OPS: Ops = Ops {
    close,
    ..nosys::OPS
};

static OPS: OpsEp = OpsEp {
    size: size_of::<OpsEp>(),
    cancel: nosys!(isize, *mut Fid, *mut c_void),
    getopt: nosys!(c_int, *mut Fid, c_int, c_int, *mut c_void, *mut usize),
    setopt: nosys!(c_int, *mut Fid, c_int, c_int, *const c_void, usize),
    rx_size_left: nosys!(isize, *mut FidEp),
    tx_size_left: nosys!(isize, *mut FidEp),
    ..super::object::OPS
};

/// `fi_stx_context`.
///
/// # Safety
/// The arguments must be valid as described in fi_endpoint(3).
pub(crate) unsafe extern "C" fn stx_context(
    domain: *mut FidDomain,
    attr: *mut TxAttr,
    stx: *mut *mut FidStx,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; the caller guarantees that the attributes are null or valid.
        let (owner, attr) = unsafe { (find::<DomainObject, _>(domain)?, attr.as_ref()) };
        let caps = attr.map_or(0, |attr| attr.caps);
        let size = attr.map_or(0, |attr| attr.size);
        if attr.is_some_and(|attr| attr.op_flags & !TX_OP_FLAGS != 0) {
            return Err(FiError::BADFLAGS);
        }
        if size > TX_SIZE || attr.is_some_and(|attr| attr.inject_size > INJECT_SIZE) {
            return Err(FiError::INVAL);
        }
        let inner = Stx::new(&owner.inner, caps, size);
        let object = StxObject {
            fid: UnsafeCell::new(FidStx {
                fid: Fid::new(FI_CLASS_STX_CTX, context, &FID_OPS),
                ops: &OPS,
            }),
            inner: Arc::new(inner),
        };
        // SAFETY: room for a handle, as the caller guarantees.
        unsafe { publish(object, stx)? };
        owner.inner.users.add();
        Ok(())
    })
}

/// `fi_close`: returns `-FI_EBUSY` while endpoints are bound to the context.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<StxObject, _>(fid)? }
            .inner
            .users
            .none()
            .map_err(|_| busy("endpoints that are bound to the shared transmit context"))?;
        // SAFETY: the program no longer uses the context.
        let object = unsafe { remove::<StxObject, _>(fid)? };
        object.inner.domain.users.remove();
        Ok(())
    })
}
