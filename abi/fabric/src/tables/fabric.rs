//! `fi_fabric` and the table of a fabric: what it opens, and `fi_trywait`.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::domain::domain_open;
use crate::eq::eq_open;
use crate::errno::FiError;
use crate::fabric::FabricObject;
use crate::info::FABRIC_NAME;
use crate::nosys::{self, nosys};
use crate::object::{busy, find, publish, remove, status};
use crate::pep::passive_ep;
use crate::sys::*;
use crate::{cntr, cq, eq};
use std::ffi::{CStr, c_int, c_void};

static FID_OPS: Ops = Ops {
    close,
    ..nosys::OPS
};

static OPS: OpsFabric = OpsFabric {
    size: size_of::<OpsFabric>(),
    domain: domain_open,
    passive_ep,
    eq_open,
    wait_open: nosys!(c_int, *mut FidFabric, *mut c_void, *mut *mut c_void),
    trywait,
    domain2,
};

/// `fi_fabric`, as libfabric's core calls it.
///
/// # Safety
/// The arguments must be valid as described in fi_fabric(3).
pub(crate) unsafe extern "C" fn fabric(
    attr: *mut FabricAttr,
    fabric: *mut *mut FidFabric,
    context: *mut c_void,
) -> c_int {
    status(|| {
        rkey_kit::log::start();
        // SAFETY: the caller guarantees null or attributes.
        let name = unsafe { attr.as_ref() }.map_or(std::ptr::null_mut(), |attr| attr.name);
        // SAFETY: the name is null or a C string.
        if !name.is_null() && unsafe { CStr::from_ptr(name) } != FABRIC_NAME {
            return Err(FiError::NODATA);
        }
        let object = FabricObject::new(FidFabric {
            fid: Fid::new(FI_CLASS_FABRIC, context, &FID_OPS),
            ops: &OPS,
            api_version: 0,
        });
        // SAFETY: the caller guarantees room for a handle.
        unsafe { publish(object, fabric) }.map(drop)
    })
}

/// `fi_close` of a fabric: returns `-FI_EBUSY` while it has open objects.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<FabricObject, _>(fid)? }
            .inner
            .users
            .none()
            .map_err(|_| busy("domains, event queues or passive endpoints of the fabric"))?;
        // SAFETY: the program no longer uses the fabric.
        unsafe { remove::<FabricObject, _>(fid) }.map(drop)
    })
}

/// `fi_domain2`.
unsafe extern "C" fn domain2(
    fabric: *mut FidFabric,
    info: *mut Info,
    domain: *mut *mut FidDomain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return FiError::BADFLAGS.code();
    }
    // SAFETY: the caller guarantees valid arguments.
    unsafe { domain_open(fabric, info, domain, context) }
}

/// `fi_trywait`: prepares for a wait on the descriptors of these objects; returns `-FI_EAGAIN` if the program should
/// read one of them first.
unsafe extern "C" fn trywait(fabric: *mut FidFabric, fids: *mut *mut Fid, count: c_int) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<FabricObject, _>(fabric)? };
        let count = usize::try_from(count).map_err(|_| FiError::INVAL)?;
        // SAFETY: the caller guarantees a list of this length.
        for &fid in unsafe { crate::object::list(fids.cast_const(), count)? } {
            // SAFETY: the program's handles: each begins with a `fid`.
            match unsafe { crate::object::input(fid.cast_const())? }.fclass {
                // SAFETY: `trywait` validates the handle.
                FI_CLASS_CQ => unsafe { cq::trywait(fid)? },
                // SAFETY: as above.
                FI_CLASS_EQ => unsafe { eq::trywait(fid)? },
                // SAFETY: as above.
                FI_CLASS_CNTR => unsafe { cntr::trywait(fid)? },
                _ => return Err(FiError::INVAL),
            }
        }
        Ok(())
    })
}
