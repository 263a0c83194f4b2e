//! The table of an endpoint: opening, closing, and all other calls except transfers.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::{atomic, collective, msg, rma, tagged};
use crate::connect_request::{Request, take_request};
use crate::domain::DomainObject;
use crate::ep::flags::{self, OpFlags};
use crate::ep::group::join;
use crate::ep::object::EpObject;
use crate::ep::*;
use crate::info::filter::Hints;
use crate::info::{default_source, wire_addresses};
use crate::nosys::{self, nosys};
use crate::object::{busy, find, handle_of, input, publish, remove, status, transfer_status};
use crate::pep::PepObject;
use std::cell::UnsafeCell;
use std::ffi::c_void;

/// The structure of a handle of this class.
pub(super) fn fid_of(class: usize, context: *mut c_void) -> UnsafeCell<FidEp> {
    fid_with(class, context, &FID_OPS, &OPS, &CM)
}

/// The structure of a handle with the calls of transfers and these tables.
pub(super) fn fid_with(
    class: usize,
    context: *mut c_void,
    fid_ops: &'static Ops,
    ops: &'static OpsEp,
    cm: &'static OpsCm,
) -> UnsafeCell<FidEp> {
    UnsafeCell::new(FidEp {
        fid: Fid::new(class, context, fid_ops),
        ops,
        cm,
        msg: &msg::OPS,
        rma: &rma::OPS,
        tagged: &tagged::OPS,
        atomic: &atomic::OPS,
        collective: &collective::OPS,
    })
}

static FID_OPS: Ops = Ops {
    close,
    bind: binding::bind,
    control,
    ..nosys::OPS
};

pub(super) const OPS: OpsEp = OpsEp {
    size: size_of::<OpsEp>(),
    cancel,
    getopt: options::getopt,
    setopt: options::setopt,
    tx_ctx: nosys!(
        c_int,
        *mut FidEp,
        c_int,
        *mut TxAttr,
        *mut *mut FidEp,
        *mut c_void
    ),
    rx_ctx: nosys!(
        c_int,
        *mut FidEp,
        c_int,
        *mut RxAttr,
        *mut *mut FidEp,
        *mut c_void
    ),
    rx_size_left,
    tx_size_left,
    export_xpu: nosys!(c_int, *mut FidEp, *mut c_void),
};

pub(super) static CM: OpsCm = OpsCm {
    size: size_of::<OpsCm>(),
    setname: name::setname,
    getname: name::getname,
    getpeer: connect::getpeer,
    connect: connect::connect,
    listen: nosys!(c_int, *mut FidPep),
    accept: connect::accept,
    reject: nosys!(c_int, *mut FidPep, *mut Fid, *const c_void, usize),
    shutdown: connect::shutdown,
    join,
};

/// `fi_endpoint`.
///
/// # Safety
/// The arguments must be valid as described in fi_endpoint(3).
pub(crate) unsafe extern "C" fn endpoint(
    domain: *mut FidDomain,
    info: *mut Info,
    ep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // Check this before the handle in the `fi_info` is consumed.
        if ep.is_null() {
            return Err(FiError::INVAL);
        }
        // SAFETY: `find` validates the handle; the caller guarantees a valid `fi_info`.
        let (owner, info) = unsafe { (find::<DomainObject, _>(domain)?, input(info)?) };
        // SAFETY: as above.
        let info = unsafe { Hints::read(info) };
        let attr = info.ep.ok_or(FiError::INVAL)?;
        let ep_type = attr.ep_type;
        if !matches!(ep_type, FI_EP_RDM | FI_EP_MSG | FI_EP_DGRAM) {
            return Err(FiError::INVAL);
        }
        let shares = attr.rx_ctx_cnt == FI_SHARED_CONTEXT;
        let shares_tx = attr.tx_ctx_cnt == FI_SHARED_CONTEXT;
        if attr.tx_ctx_cnt > 1 && !shares_tx || attr.rx_ctx_cnt > 1 && !shares {
            return Err(FiError::INVAL.because(format_args!(
                "fi_endpoint opens endpoints with one context for each direction: use fi_scalable_ep for several"
            )));
        }
        // SAFETY: the caller guarantees valid attributes.
        let pd = unsafe { own_pd(&owner.inner, attr)? };
        let source = source_of(&owner.inner, &info);
        // SAFETY: `origin` validates the handle, which is that of a passive endpoint or a connection request.
        let (local_address, request) =
            unsafe { origin(&owner.inner, ep_type, info.handle, source)? };
        let offered = crate::info::offer::primary(ep_type) | crate::info::offer::secondary(ep_type);
        let caps = if info.caps == 0 { offered } else { info.caps };
        let inner = Arc::new(Endpoint {
            shares,
            shares_tx,
            setup: Mutex::new(Setup {
                local_address,
                request,
                ..Setup::default()
            }),
            ..Endpoint::new(&owner.inner, pd, ep_type, caps)
        });
        let object = EpObject {
            fid: fid_of(FI_CLASS_EP, context),
            inner,
            flags: OpFlags::new(
                info.tx.map_or(0, |tx| tx.op_flags),
                info.rx.map_or(0, |rx| rx.op_flags),
            ),
            is_alias: false,
        };
        // SAFETY: room for a handle, as the caller guarantees.
        let published = unsafe { publish(object, ep)? };
        published
            .inner
            .handle
            .store(handle_of(published) as usize, Ordering::Release);
        owner.inner.users.add();
        Ok(())
    })
}

/// The protection domain of a new endpoint with these attributes.
///
/// # Safety
/// The attributes are valid as described in fi_endpoint(3).
pub(super) unsafe fn own_pd(domain: &Domain, attr: &EpAttr) -> Result<Arc<ProtectionDomain>> {
    let auth_key = match domain.version >= version(1, 5) {
        // SAFETY: null or `len` bytes, as the program says.
        true => unsafe { crate::object::list(attr.auth_key, attr.auth_key_size)? },
        false => &[],
    };
    if domain.av_keys && attr.ep_type == FI_EP_MSG {
        tracing::warn!(
            "an FI_AV_AUTH_KEY domain has no FI_EP_MSG endpoints, because they have no address vector to take a key from"
        );
        return Err(FiError::INVAL);
    }
    if domain.av_keys && !auth_key.is_empty() {
        tracing::warn!(
            "endpoints of an FI_AV_AUTH_KEY domain take their keys from their address vector: open them without auth_key"
        );
        return Err(FiError::INVAL);
    }
    domain.pd(auth_key)
}

/// The address that the program requests for a new endpoint.
pub(super) fn source_of(domain: &Domain, info: &Hints<'_>) -> SocketAddr {
    let source = info.src_addr.and_then(|bytes| domain.format.decode(bytes));
    source.map_or_else(
        || default_source(domain.format, &wire_addresses()),
        |(address, _)| address,
    )
}

/// The address of a new endpoint, and the request that it answers, if any: the handle in its `fi_info` can be a
/// request's, or a passive endpoint's, whose address it takes over (fi_endpoint(3)).
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
unsafe fn origin(
    domain: &Domain,
    ep_type: c_int,
    handle: usize,
    source: SocketAddr,
) -> Result<(LocalAddress, Option<Request>)> {
    if handle == 0 {
        // A connected endpoint does not listen.
        let address = match ep_type {
            FI_EP_MSG => LocalAddress::new(source),
            _ => LocalAddress::for_hosts(source),
        };
        return Ok((address, None));
    }
    let handle = handle as *mut Fid;
    // SAFETY: guaranteed by the caller.
    if let Ok(pep) = unsafe { find::<PepObject, _>(handle) } {
        if ep_type != FI_EP_MSG {
            return Err(FiError::INVAL);
        }
        return Ok((pep.take_local_address(&domain.fabric)?, None));
    }
    // SAFETY: guaranteed by the caller.
    let request = unsafe { take_request(handle)? };
    Ok((LocalAddress::new(source), Some(request)))
}

/// `fi_control`: `fi_enable`, `fi_alias`, and the default flags.
unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<EpObject, _>(fid)? };
        match command {
            FI_ENABLE => object.inner.enable(),
            // SAFETY: the argument that goes with the command, as the program promises.
            FI_GETOPSFLAG => unsafe { flags::get(object, arg) },
            // SAFETY: as above.
            FI_SETOPSFLAG => unsafe { flags::set(object, arg) },
            // SAFETY: as above.
            FI_ALIAS => unsafe { alias(object, arg) },
            _ => Err(FiError::NOSYS),
        }
    })
}

/// `fi_close`: returns `-FI_EBUSY` while the endpoint has aliases.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<EpObject, _>(fid)? };
        if object.is_alias {
            // SAFETY: the program no longer uses the alias.
            unsafe { remove::<EpObject, _>(fid)? }
                .inner
                .aliases
                .remove();
            return Ok(());
        }
        let ep = Arc::clone(&object.inner);
        ep.aliases
            .none()
            .map_err(|_| busy("aliases of the endpoint"))?;
        ep.shut();
        // SAFETY: the program no longer uses the endpoint.
        let object = unsafe { remove::<EpObject, _>(fid)? };
        object.inner.domain.users.remove();
        Ok(())
    })
}

/// `FI_ALIAS`: another handle of the endpoint. It has this handle's flags, except on the side whose flags the program passes.
///
/// # Safety
/// `arg` is null, or the argument of `fi_alias`.
unsafe fn alias(object: &EpObject, arg: *mut c_void) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    let asked = unsafe { input(arg.cast::<Alias>())? };
    let flags = OpFlags::new(object.flags.transmit(), object.flags.receive());
    if asked.flags != 0 {
        flags.set(asked.flags)?;
    }
    let ep = &object.inner;
    let class = ep.context.as_ref().map_or(FI_CLASS_EP, Context::class);
    let alias = EpObject {
        fid: fid_of(class, object.context()),
        inner: Arc::clone(ep),
        flags,
        is_alias: true,
    };
    // SAFETY: room for a handle, as the caller guarantees, or null.
    unsafe { publish(alias, asked.fid.cast())? };
    ep.aliases.add();
    Ok(())
}

/// `fi_cancel`.
unsafe extern "C" fn cancel(fid: *mut Fid, context: *mut c_void) -> isize {
    transfer_status(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<EpObject, _>(fid)? }.inner.cancel(context)
    })
}

/// `fi_rx_size_left`.
unsafe extern "C" fn rx_size_left(ep: *mut FidEp) -> isize {
    crate::object::count(|| {
        // SAFETY: `find` validates the handle.
        let live = unsafe { find::<EpObject, _>(ep)? }.inner.live()?;
        let rdm = &live.state.lock().rdm;
        let posted =
            rdm.receives().matching(false).posted() + rdm.receives().matching(true).posted();
        Ok(crate::info::offer::RX_SIZE.saturating_sub(posted))
    })
}

/// `fi_tx_size_left`.
unsafe extern "C" fn tx_size_left(ep: *mut FidEp) -> isize {
    crate::object::count(|| {
        // SAFETY: `find` validates the handle.
        let live = unsafe { find::<EpObject, _>(ep)? }.inner.live()?;
        let under_way = live.state.lock().rdm.outbox().under_way();
        Ok(crate::info::offer::TX_SIZE.saturating_sub(under_way))
    })
}
