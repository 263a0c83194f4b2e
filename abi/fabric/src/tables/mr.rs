//! `fi_mr_reg`, `fi_mr_regv`, `fi_mr_regattr` and the table of a region.

#![allow(unsafe_code)]
// UNSAFETY: C functions that read structures of the program.

use crate::av::Av;
use crate::cntr::CntrObject;
use crate::domain::{Domain, DomainObject};
use crate::ep::object::EpObject;
use crate::ep::scalable::SepObject;
use crate::errno::{FiError, Result};
use crate::mr::attr::{AvKeys, Tail, register, register_with};
use crate::mr::bind::{bind_counter, bind_endpoint};
use crate::mr::region::{self, Mr, MrObject};
use crate::nosys;
use crate::object::{find, input, status};
use crate::sys::*;
use libc::iovec;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// The registration calls of a domain.
pub(super) static OPS: OpsMr = OpsMr {
    size: size_of::<OpsMr>(),
    reg,
    regv,
    regattr,
};

static FID_OPS: Ops = Ops {
    close: region::close,
    bind,
    control: region::control,
    ..nosys::OPS
};

/// `fi_mr_reg`.
unsafe extern "C" fn reg(
    domain: *mut Fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    let iov = iovec {
        iov_base: buf.cast_mut(),
        iov_len: len,
    };
    status(|| {
        // SAFETY: `find` validates the handle.
        let owner = unsafe { find::<DomainObject, _>(domain)? };
        let listed = (&raw const iov, 1);
        let attr = attributes(listed, access, offset, requested_key, flags, context)?;
        // SAFETY: our own attributes; the caller guarantees what they point to.
        unsafe { register(&owner.inner, &attr, None, flags, &FID_OPS, mr) }
    })
}

/// `fi_mr_regv`.
unsafe extern "C" fn regv(
    domain: *mut Fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let owner = unsafe { find::<DomainObject, _>(domain)? };
        let attr = attributes((iov, count), access, offset, requested_key, flags, context)?;
        // SAFETY: our own attributes; the caller guarantees what they point to.
        unsafe { register_with(&owner.inner, &attr, None, flags, &FID_OPS, mr) }
    })
}

/// The attributes of a registration with `fi_mr_reg` or `fi_mr_regv`.
#[inline(always)]
fn attributes(
    (mr_iov, iov_count): (*const iovec, usize),
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    context: *mut c_void,
) -> Result<MrAttr> {
    if flags & FI_MR_DMABUF != 0 {
        tracing::warn!(
            "FI_MR_DMABUF needs fi_mr_regattr: the other calls cannot pass its attributes"
        );
        return Err(FiError::BADFLAGS);
    }
    Ok(MrAttr {
        mr_iov,
        iov_count,
        access,
        offset,
        requested_key,
        context,
        auth_key_size: 0,
        auth_key: std::ptr::null_mut(),
        iface: FI_HMEM_SYSTEM,
        device: 0,
    })
}

/// `fi_mr_regattr`.
unsafe extern "C" fn regattr(
    domain: *mut Fid,
    attr: *const MrAttr,
    flags: u64,
    mr: *mut *mut FidMr,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let owner = unsafe { find::<DomainObject, _>(domain)? };
        // SAFETY: the caller guarantees valid attributes.
        let known = unsafe { input(attr)? };
        let tail = Tail::read(attr, owner.inner.version);
        // SAFETY: the caller guarantees valid attributes and what they point to.
        unsafe { register_with(&owner.inner, known, Some(tail), flags, &FID_OPS, mr) }
    })
}

/// Checks that a region may be bound to an endpoint of this domain with this address vector.
fn check_endpoint(mr: &Mr, domain: &Arc<Domain>, av: Option<Arc<Av>>) -> Result<()> {
    if !mr.is_of(domain) {
        return Err(FiError::INVAL);
    }
    // FI-210: the address vector of the region's keys must be the endpoint's.
    let foreign = |keys: &AvKeys| av.is_none_or(|av| !Arc::ptr_eq(&av, &keys.av));
    if mr.keys().is_some_and(foreign) {
        tracing::warn!(
            "a region and its endpoint must have their authorization keys from the same address vector"
        );
        return Err(FiError::INVAL);
    }
    Ok(())
}

/// `fi_mr_bind`.
unsafe extern "C" fn bind(fid: *mut Fid, bound: *mut Fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; `input` refuses null; the caller guarantees the rest; every handle
        // begins with a `fid`.
        let (object, class) =
            unsafe { (find::<MrObject, _>(fid)?, input(bound.cast_const())?.fclass) };
        let mr = &object.inner;
        match class {
            FI_CLASS_CNTR => {
                // SAFETY: `find` validates the handle.
                let counter = unsafe { find::<CntrObject, _>(bound)? };
                bind_counter(mr, &counter.inner, flags)
            }
            FI_CLASS_EP => {
                // SAFETY: `find` validates the handle.
                let ep = &unsafe { find::<EpObject, _>(bound)? }.inner;
                check_endpoint(mr, &ep.domain, ep.bound_av())?;
                bind_endpoint(mr, ep.region_number(), flags)
            }
            // All contexts of the endpoint may use the region, and so may peers that reach one of them.
            FI_CLASS_SEP => {
                // SAFETY: `find` validates the handle.
                let sep = &unsafe { find::<SepObject, _>(bound)? }.inner;
                check_endpoint(mr, &sep.domain, sep.bound_av())?;
                bind_endpoint(mr, sep.number, flags)
            }
            FI_CLASS_TX_CTX | FI_CLASS_RX_CTX => Err(FiError::INVAL.because(format_args!(
                "a region is bound to a scalable endpoint, not to one of its contexts"
            ))),
            // FI-I37, FI-183: no other objects can be bound to a region.
            _ => Err(FiError::NOSYS),
        }
    })
}
