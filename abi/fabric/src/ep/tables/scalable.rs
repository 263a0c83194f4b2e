//! The table of a scalable endpoint: opening it and its contexts, and binding the objects that they share.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::object::{CM, OPS as EP_OPS, fid_of, fid_with, own_pd, source_of};
use crate::av::AvObject;
use crate::domain::DomainObject;
use crate::ep::context::{self, Choice, Context, Direction};
use crate::ep::flags::OpFlags;
use crate::ep::object::EpObject;
use crate::ep::scalable::{Sep, SepObject};
use crate::ep::*;
use crate::eq::EqObject;
use crate::info::filter::{Hints, RX_ONLY, TX_ONLY};
use crate::info::offer;
use crate::nosys::{self, nosys};
use crate::object::{busy, find, handle_of, input, list, publish, remove, status, write_name};
use std::ffi::c_void;

static FID_OPS: Ops = Ops {
    close,
    bind,
    control,
    ..nosys::OPS
};

/// Calls that cancel receives or concern options are supported on the contexts only.
static OPS: OpsEp = OpsEp {
    cancel: nosys!(isize, *mut Fid, *mut c_void),
    getopt: nosys!(c_int, *mut Fid, c_int, c_int, *mut c_void, *mut usize),
    setopt: nosys!(c_int, *mut Fid, c_int, c_int, *const c_void, usize),
    tx_ctx,
    rx_ctx,
    rx_size_left: nosys!(isize, *mut FidEp),
    tx_size_left: nosys!(isize, *mut FidEp),
    ..EP_OPS
};

static SEP_CM: OpsCm = OpsCm {
    setname,
    getname,
    ..CM
};

/// `fi_scalable_ep`.
///
/// # Safety
/// The arguments must be valid as described in fi_endpoint(3).
pub(crate) unsafe extern "C" fn scalable_ep(
    domain: *mut FidDomain,
    info: *mut Info,
    sep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; the caller guarantees a valid `fi_info`.
        let (owner, info) = unsafe { (find::<DomainObject, _>(domain)?, input(info)?) };
        // SAFETY: as above.
        let info = unsafe { Hints::read(info) };
        let attr = info.ep.ok_or(FiError::INVAL)?;
        let counts = counts(attr, &info)?;
        // SAFETY: the caller guarantees valid attributes.
        let pd = unsafe { own_pd(&owner.inner, attr)? };
        let inner = Sep::new(
            &owner.inner,
            pd,
            attr.ep_type,
            (transmit_choice(attr.ep_type, &info), counts.0),
            (receive_choice(attr.ep_type, &info), counts.1),
            LocalAddress::for_hosts(source_of(&owner.inner, &info)),
        );
        let object = SepObject {
            fid: fid_with(FI_CLASS_SEP, context, &FID_OPS, &OPS, &SEP_CM),
            inner: Arc::new(inner),
        };
        // SAFETY: room for a handle, as the caller guarantees.
        unsafe { publish(object, sep)? };
        owner.inner.users.add();
        Ok(())
    })
}

/// The numbers of transmit and receive contexts of a scalable endpoint; fails if there can be none with this `fi_info`.
fn counts(attr: &EpAttr, info: &Hints<'_>) -> Result<(usize, usize)> {
    if !matches!(attr.ep_type, FI_EP_RDM | FI_EP_DGRAM) {
        return Err(FiError::OPNOTSUPP.because(format_args!(
            "the type of a scalable endpoint must be FI_EP_RDM or FI_EP_DGRAM"
        )));
    }
    if info.handle != 0 {
        return Err(FiError::INVAL);
    }
    if info.caps & FI_COLLECTIVE != 0 {
        return Err(FiError::INVAL.because(format_args!(
            "a scalable endpoint has no collective operations: leave FI_COLLECTIVE out of the capabilities"
        )));
    }
    let most = offer::contexts(attr.ep_type);
    let count = |wanted: usize| {
        match wanted {
        FI_SHARED_CONTEXT => Err(FiError::INVAL.because(format_args!(
            "a scalable endpoint has its own contexts: FI_SHARED_CONTEXT is for fi_endpoint"
        ))),
        _ if wanted > most => Err(FiError::INVAL.because(format_args!(
            "a scalable endpoint has at most {most} contexts for each direction (max_ep_tx_ctx, max_ep_rx_ctx)"
        ))),
        _ => Ok(wanted.max(1)),
    }
    };
    Ok((count(attr.tx_ctx_cnt)?, count(attr.rx_ctx_cnt)?))
}

/// The capabilities of an endpoint with this `fi_info`.
fn all_caps(ep_type: c_int, info: &Hints<'_>) -> u64 {
    match info.caps {
        0 => offer::primary(ep_type) | offer::secondary(ep_type) | FI_NAMED_RX_CTX,
        caps => caps,
    }
}

/// The settings of transmit contexts, unless their own attributes request less.
fn transmit_choice(ep_type: c_int, info: &Hints<'_>) -> Choice {
    let caps = all_caps(ep_type, info) & !RX_ONLY;
    let narrowed = info.tx.map_or(0, |tx| tx.caps);
    Choice {
        caps: if narrowed == 0 { caps } else { caps & narrowed },
        op_flags: info.tx.map_or(0, |tx| tx.op_flags),
    }
}

/// The settings of receive contexts, unless their own attributes request less.
fn receive_choice(ep_type: c_int, info: &Hints<'_>) -> Choice {
    let caps = all_caps(ep_type, info) & !TX_ONLY;
    let narrowed = info.rx.map_or(0, |rx| rx.caps);
    Choice {
        caps: if narrowed == 0 { caps } else { caps & narrowed },
        op_flags: info.rx.map_or(0, |rx| rx.op_flags),
    }
}

/// `fi_tx_context`.
unsafe extern "C" fn tx_ctx(
    sep: *mut FidEp,
    index: c_int,
    attr: *mut TxAttr,
    tx_ep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; the caller guarantees that the attributes are null or valid.
        let (sep, attr) = unsafe { (&find::<SepObject, _>(sep)?.inner, attr.as_mut()) };
        let choice = context::transmit(sep.ep_type, sep.transmit, attr)?;
        let flags = OpFlags::new(choice.op_flags, 0);
        // SAFETY: room for a handle, as the caller guarantees.
        unsafe {
            open(
                sep,
                Direction::Transmit,
                index,
                choice.caps,
                flags,
                tx_ep,
                context,
            )
        }
    })
}

/// `fi_rx_context`.
unsafe extern "C" fn rx_ctx(
    sep: *mut FidEp,
    index: c_int,
    attr: *mut RxAttr,
    rx_ep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; the caller guarantees that the attributes are null or valid.
        let (sep, attr) = unsafe { (&find::<SepObject, _>(sep)?.inner, attr.as_mut()) };
        let choice = context::receive(sep.receive, attr)?;
        let flags = OpFlags::new(0, choice.op_flags);
        // SAFETY: room for a handle, as the caller guarantees.
        unsafe {
            open(
                sep,
                Direction::Receive,
                index,
                choice.caps,
                flags,
                rx_ep,
                context,
            )
        }
    })
}

/// Opens a context.
///
/// # Safety
/// `into` is null or room for a handle.
unsafe fn open(
    sep: &Arc<Sep>,
    direction: Direction,
    index: c_int,
    caps: u64,
    flags: OpFlags,
    into: *mut *mut FidEp,
    context: *mut c_void,
) -> Result<()> {
    let index = usize::try_from(index).map_err(|_| FiError::INVAL)?;
    let mut ep = Endpoint::new(&sep.domain, Arc::clone(&sep.pd), sep.ep_type, caps);
    let kind = Context {
        sep: Arc::clone(sep),
        direction,
        index,
    };
    let class = kind.class();
    ep.context = Some(kind);
    let ep = Arc::new(ep);
    sep.join(direction, index, &ep)?;
    let object = EpObject {
        fid: fid_of(class, context),
        inner: Arc::clone(&ep),
        flags,
        is_alias: false,
    };
    // SAFETY: guaranteed by the caller.
    let published = unsafe { publish(object, into) }.inspect_err(|_| {
        sep.leave(direction, index);
        sep.users.remove();
    })?;
    let handle = handle_of(published) as usize;
    ep.handle.store(handle, Ordering::Release);
    sep.domain.users.add();
    Ok(())
}

/// `fi_scalable_ep_bind`.
unsafe extern "C" fn bind(fid: *mut Fid, bound: *mut Fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; every handle begins with a `fid`.
        let (sep, class) = unsafe {
            let sep = &find::<SepObject, _>(fid)?.inner;
            (sep, input(bound.cast_const())?.fclass)
        };
        if flags != 0 {
            return Err(FiError::BADFLAGS);
        }
        match class {
            // SAFETY: `find` validates the handle.
            FI_CLASS_AV => sep.bind_av(&unsafe { find::<AvObject, _>(bound)? }.inner),
            // SAFETY: as above.
            FI_CLASS_EQ => sep.bind_eq(&unsafe { find::<EqObject, _>(bound)? }.inner),
            _ => Err(FiError::INVAL.because(format_args!(
                "a scalable endpoint is bound to an address vector and an event queue: bind completion queues and counters to its contexts (fi_ep_bind)"
            ))),
        }
    })
}

/// `fi_control`: `fi_enable`.
unsafe extern "C" fn control(fid: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let sep = &unsafe { find::<SepObject, _>(fid)? }.inner;
        match command {
            FI_ENABLE => sep.enable().map(drop),
            FI_ALIAS => Err(FiError::OPNOTSUPP.because(format_args!(
                "a scalable endpoint has no aliases: make aliases of its contexts (fi_ep_alias)"
            ))),
            _ => Err(FiError::NOSYS),
        }
    })
}

/// `fi_close`: returns `-FI_EBUSY` while the endpoint has open contexts.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let sep = Arc::clone(&unsafe { find::<SepObject, _>(fid)? }.inner);
        sep.users
            .none()
            .map_err(|_| busy("contexts of the scalable endpoint"))?;
        sep.end();
        // SAFETY: the program no longer uses the endpoint.
        let object = unsafe { remove::<SepObject, _>(fid)? };
        object.inner.domain.users.remove();
        Ok(())
    })
}

/// `fi_setname`: reserves the address, before the endpoint or one of its contexts is enabled.
unsafe extern "C" fn setname(fid: *mut Fid, addr: *mut c_void, len: usize) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; the program says that there are `len` bytes.
        let (object, bytes) = unsafe {
            let bytes = list(addr.cast::<u8>().cast_const(), len)?;
            (find::<SepObject, _>(fid)?, bytes)
        };
        let format = object.inner.domain.format;
        let (address, _) = format.decode(bytes).ok_or(FiError::INVAL)?;
        object.inner.set_name(address)
    })
}

/// `fi_getname`.
unsafe extern "C" fn getname(fid: *mut Fid, addr: *mut c_void, len: *mut usize) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let sep = &unsafe { find::<SepObject, _>(fid)? }.inner;
        let name = sep.domain.format.encode(sep.name()?);
        // SAFETY: the caller guarantees the room.
        unsafe { write_name(&name, addr, len) }
    })
}
