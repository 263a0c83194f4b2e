//! `fi_domain` and the table of a domain: what it opens, and its control commands.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::av::{AvObject, av_open};
use crate::cntr::{CntrObject, cntr_open};
use crate::cq::{CqObject, cq_open};
use crate::domain::{Domain, DomainObject};
use crate::ep::datatype::limits;
use crate::ep::object::EpObject;
use crate::ep::scalable::SepObject;
use crate::ep::shared::SrxObject;
use crate::ep::stx::StxObject;
use crate::ep::tables::{self as ep_tables, work};
use crate::eq::EqObject;
use crate::errno::FiError;
use crate::fabric::FabricObject;
use crate::info::filter::Hints;
use crate::lenient;
use crate::mr::raw;
use crate::nosys::{self, nosys};
use crate::object::{Object, busy, find, publish, remove, status, store};
use crate::sys::*;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

static FID_OPS: Ops = Ops {
    close,
    bind,
    control,
    ..nosys::OPS
};

static OPS: OpsDomain = OpsDomain {
    size: size_of::<OpsDomain>(),
    av_open,
    cq_open,
    endpoint: ep_tables::object::endpoint,
    scalable_ep: ep_tables::scalable::scalable_ep,
    cntr_open,
    poll_open: nosys!(c_int, *mut FidDomain, *mut c_void, *mut *mut c_void),
    stx_ctx: ep_tables::stx::stx_context,
    srx_ctx: ep_tables::shared::srx_context,
    query_atomic,
    query_collective: ep_tables::collective::query,
    endpoint2,
    xpu_ctx: nosys!(
        c_int,
        *mut FidDomain,
        *mut c_void,
        *mut *mut c_void,
        *mut c_void
    ),
};

/// `fi_domain`.
///
/// # Safety
/// The arguments must be valid as described in fi_domain(3).
pub(crate) unsafe extern "C" fn domain_open(
    fabric: *mut FidFabric,
    info: *mut Info,
    domain: *mut *mut FidDomain,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let owner = unsafe { find::<FabricObject, _>(fabric)? };
        if info.is_null() {
            return Err(FiError::INVAL);
        }
        // SAFETY: the program's `fi_info` from `fi_getinfo`.
        let info = unsafe { Hints::read(info) };
        // SAFETY: the program's `fi_info`, which was read just now.
        let inner = unsafe { Domain::new(owner, &info)? };
        let fid = FidDomain {
            fid: Fid::new(FI_CLASS_DOMAIN, context, &FID_OPS),
            ops: &OPS,
            mr: &super::mr::OPS,
        };
        let object = DomainObject::new(fid, inner);
        // SAFETY: the caller guarantees room for a handle.
        unsafe { publish(object, domain)? };
        owner.inner.users.add();
        Ok(())
    })
}

/// The open objects of a domain: "2 endpoints, 1 completion queue".
fn open_objects(domain: &Arc<Domain>) -> String {
    macro_rules! open {
        ($object:ty) => {
            <$object>::pool()
                .live(|object| Arc::ptr_eq(&object.inner.domain, domain))
                .len()
        };
    }
    let all = [
        (open!(EpObject), "endpoint"),
        (open!(SepObject), "scalable endpoint"),
        (open!(SrxObject), "shared receive context"),
        (open!(StxObject), "shared transmit context"),
        (open!(CqObject), "completion queue"),
        (open!(CntrObject), "counter"),
        (open!(AvObject), "address vector"),
        (domain.regions(), "memory region"),
    ];
    let there = all.iter().filter(|(count, _)| *count > 0);
    let words: Vec<_> = there
        .map(|(count, what)| match count {
            1 => format!("1 {what}"),
            _ => format!("{count} {what}s"),
        })
        .collect();
    words.join(", ")
}

/// `fi_close` of a domain: returns `-FI_EBUSY` while it has open objects and, in strict mode, while keys of peers are
/// mapped (FI-I05, FI-176).
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let domain = &unsafe { find::<DomainObject, _>(fid)? }.inner;
        if !domain.users.is_empty() || domain.regions() > 0 {
            return Err(busy(&open_objects(domain)));
        }
        if !domain.raw_keys.is_empty() || !domain.plain_keys.lock().is_empty() {
            lenient::unless_strict(&lenient::MAPPED_KEYS, FiError::BUSY)?;
        }
        if let Some((eq, _)) = domain.eq.get() {
            eq.users.remove();
        }
        // SAFETY: the program no longer uses the domain.
        let object = unsafe { remove::<DomainObject, _>(fid)? };
        object.inner.fabric.users.remove();
        Ok(())
    })
}

/// `fi_domain_bind`: binds an event queue; with `FI_REG_MR`, registrations are reported there.
unsafe extern "C" fn bind(fid: *mut Fid, bound: *mut Fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handles.
        let (domain, eq) = unsafe { (find::<DomainObject, _>(fid)?, find::<EqObject, _>(bound)?) };
        if flags & !FI_REG_MR != 0 {
            return Err(FiError::BADFLAGS);
        }
        if !Arc::ptr_eq(&eq.inner.fabric, &domain.inner.fabric) {
            return Err(FiError::INVAL);
        }
        let bound = (Arc::clone(&eq.inner), flags & FI_REG_MR != 0);
        domain.inner.eq.set(bound).map_err(|_| FiError::BUSY)?;
        eq.inner.users.add();
        Ok(())
    })
}

/// `fi_control` of a domain: raw keys of peers, deferred work.
unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let domain = &unsafe { find::<DomainObject, _>(fid)? }.inner;
        match command {
            // SAFETY: the program promises the argument of the command.
            FI_MAP_RAW_MR => unsafe { raw::map(domain, arg.cast()) },
            // SAFETY: as above.
            FI_UNMAP_KEY => unsafe { raw::unmap(domain, arg.cast()) },
            // SAFETY: as above.
            FI_QUEUE_WORK => unsafe { work::queue(domain, arg.cast()) },
            FI_CANCEL_WORK => work::cancel(domain, arg.cast()),
            // SAFETY: as above.
            FI_FLUSH_WORK => unsafe { work::flush(domain, arg.cast()) },
            _ => Err(FiError::NOSYS),
        }
    })
}

/// `fi_endpoint2`.
unsafe extern "C" fn endpoint2(
    domain: *mut FidDomain,
    info: *mut Info,
    ep: *mut *mut FidEp,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return FiError::BADFLAGS.code();
    }
    // SAFETY: the caller guarantees valid arguments.
    unsafe { ep_tables::object::endpoint(domain, info, ep, context) }
}

/// `fi_query_atomic`.
unsafe extern "C" fn query_atomic(
    domain: *mut FidDomain,
    datatype: c_int,
    op: c_int,
    attr: *mut AtomicAttr,
    flags: u64,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<DomainObject, _>(domain)? };
        let kind = match flags & !FI_TAGGED {
            0 => rkey_rdm::atomic::Kind::Base,
            FI_FETCH_ATOMIC => rkey_rdm::atomic::Kind::Fetch,
            FI_COMPARE_ATOMIC => rkey_rdm::atomic::Kind::Compare,
            _ => return Err(FiError::BADFLAGS),
        };
        let (count, size) = limits(kind, datatype, op)?;
        // SAFETY: the caller guarantees that it is writable.
        unsafe { store(attr, AtomicAttr { count, size }) }
    })
}
