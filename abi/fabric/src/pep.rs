//! Passive endpoints: listening for connections of `FI_EP_MSG`.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::address::Format;
use crate::backlog::Backlog;
use crate::connect_request::{RequestObject, parameters, read_request, reject as reject_request};
use crate::eq::{Eq, EqObject};
use crate::errno::{FiError, Result};
use crate::fabric::{Fabric, FabricObject};
use crate::info::build::new_info;
use crate::info::filter::{Hints, matches};
use crate::info::offer::{CM_DATA_SIZE, Offer};
use crate::info::{default_source, required, wire_addresses};
use crate::local_address::LocalAddress;
use crate::nosys::{self, nosys};
use crate::object::{find, handle_of, object, publish, remove, status, write_name};
use crate::sys::*;
use parking_lot::Mutex;
use rkey_device::Incoming;
use rkey_endpoint::complaint::complain;
use rkey_endpoint::listeners::Serving;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

/// The object behind the program's handle.
#[repr(C)]
pub(crate) struct PepObject {
    fid: UnsafeCell<FidPep>,
    inner: Arc<Passive>,
}
object!(PepObject, FidPep, 4096);

/// A passive endpoint.
struct Passive {
    fabric: Arc<Fabric>,
    /// The attributes that connection requests offer: those of this endpoint.
    offer: Offer,
    format: Format,
    state: Mutex<State>,
    backlog: Backlog,
}

struct State {
    /// `None` once an endpoint has taken it over.
    local_address: Option<LocalAddress>,
    eq: Option<Arc<Eq>>,
    serving: Option<Serving>,
}

impl State {
    /// The address, unless an endpoint has taken it over.
    fn local_address(&mut self) -> Result<&mut LocalAddress> {
        self.local_address.as_mut().ok_or_else(|| {
            FiError::OPBADSTATE.because(format_args!(
                "an endpoint has taken over the address of the passive endpoint"
            ))
        })
    }
}

/// The error for an option that a passive endpoint does not have, or that cannot be set.
const NO_SUCH: FiError = FiError(libc::ENOPROTOOPT);

static FID_OPS: Ops = Ops {
    close,
    bind,
    ..nosys::OPS
};

static OPS: OpsEp = OpsEp {
    size: size_of::<OpsEp>(),
    cancel: nosys!(isize, *mut Fid, *mut c_void),
    getopt,
    setopt,
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
    rx_size_left: nosys!(isize, *mut FidEp),
    tx_size_left: nosys!(isize, *mut FidEp),
    export_xpu: nosys!(c_int, *mut FidEp, *mut c_void),
};

static CM: OpsCm = OpsCm {
    size: size_of::<OpsCm>(),
    setname,
    getname,
    getpeer: nosys!(c_int, *mut FidEp, *mut c_void, *mut usize),
    connect: nosys!(c_int, *mut FidEp, *const c_void, *const c_void, usize),
    listen,
    accept: nosys!(c_int, *mut FidEp, *const c_void, usize),
    reject,
    shutdown: nosys!(c_int, *mut FidEp, u64),
    join: nosys!(
        c_int,
        *mut FidEp,
        *const c_void,
        u64,
        *mut *mut FidMc,
        *mut c_void
    ),
};

/// `fi_passive_ep`.
///
/// # Safety
/// The arguments must be valid as described in fi_endpoint(3).
pub(crate) unsafe extern "C" fn passive_ep(
    fabric: *mut FidFabric,
    info: *mut Info,
    pep: *mut *mut FidPep,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let owner = unsafe { find::<FabricObject, _>(fabric)? };
        if info.is_null() {
            return Err(FiError::INVAL);
        }
        // SAFETY: the program's `fi_info` from `fi_getinfo`.
        let hints = unsafe { Hints::read(info) };
        let format = Format::of(hints.addr_format).ok_or(FiError::INVAL)?;
        let wire = wire_addresses();
        let mut offer = matches(
            owner.api_version(),
            FI_EP_MSG,
            &hints,
            required(FI_EP_MSG, &hints, &wire)?,
        )
        .map_err(|why| {
            tracing::info!("no passive endpoint matches this fi_info: {why}");
            FiError::INVAL
        })?;
        // SAFETY: null or a C string: names in attributes are.
        let name = unsafe { prov_name(hints.fabric) };
        offer.prov_name = Some(name.to_owned());
        let address = hints.src_addr.and_then(|bytes| format.decode(bytes));
        let mut local_address = LocalAddress::for_hosts(
            address.map_or_else(|| default_source(format, &wire), |it| it.0),
        );
        if address.is_some() {
            local_address.reserve(&owner.inner.device()?)?;
        }
        let state = State {
            local_address: Some(local_address),
            eq: None,
            serving: None,
        };
        let inner = Passive {
            fabric: Arc::clone(&owner.inner),
            offer,
            format,
            state: Mutex::new(state),
            backlog: Backlog::default(),
        };
        let object = PepObject {
            fid: UnsafeCell::new(FidPep {
                fid: Fid::new(FI_CLASS_PEP, context, &FID_OPS),
                ops: &OPS,
                cm: &CM,
            }),
            inner: Arc::new(inner),
        };
        // SAFETY: the caller guarantees room for a handle.
        unsafe { publish(object, pep)? };
        owner.inner.users.add();
        Ok(())
    })
}

/// `fi_close`.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let pep = Arc::clone(&unsafe { find::<PepObject, _>(fid)? }.inner);
        let (serving, eq) = {
            let mut state = pep.state.lock();
            (state.serving.take(), state.eq.take())
        };
        // Drop `serving` without the state locked: that waits for the listeners' thread, whose handler locks the state.
        drop(serving);
        if let Some(eq) = eq {
            eq.forget(fid as usize);
            eq.users.remove();
        }
        // SAFETY: the program no longer uses the endpoint.
        unsafe { remove::<PepObject, _>(fid)? };
        pep.fabric.users.remove();
        Ok(())
    })
}

/// `fi_pep_bind`.
unsafe extern "C" fn bind(fid: *mut Fid, bound: *mut Fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handles.
        let (pep, eq) = unsafe {
            (
                &find::<PepObject, _>(fid)?.inner,
                &find::<EqObject, _>(bound)?.inner,
            )
        };
        if flags != 0 {
            return Err(FiError::BADFLAGS);
        }
        let mut state = pep.state.lock();
        state.local_address()?;
        if state.eq.is_some() {
            return Err(FiError::BUSY);
        }
        eq.users.add();
        state.eq = Some(Arc::clone(eq));
        Ok(())
    })
}

/// `fi_getopt`.
unsafe extern "C" fn getopt(
    fid: *mut Fid,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<PepObject, _>(fid)? };
        if level != 0 || option != FI_OPT_CM_DATA_SIZE || len.is_null() || value.is_null() {
            return Err(NO_SUCH);
        }
        // SAFETY: not null, so it is the length of the program's buffer.
        unsafe {
            if *len < size_of::<usize>() {
                return Err(FiError::TOOSMALL);
            }
            *len = size_of::<usize>();
            value.cast::<usize>().write_unaligned(CM_DATA_SIZE);
        }
        Ok(())
    })
}

/// `fi_setopt` of a passive endpoint, whose only option is read-only.
unsafe extern "C" fn setopt(_: *mut Fid, _: c_int, _: c_int, _: *const c_void, _: usize) -> c_int {
    NO_SUCH.code()
}

/// `fi_setname`.
unsafe extern "C" fn setname(fid: *mut Fid, addr: *mut c_void, len: usize) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; the program promises this many bytes.
        let (pep, bytes) = unsafe {
            (
                &find::<PepObject, _>(fid)?.inner,
                crate::object::list(addr.cast::<u8>().cast_const(), len)?,
            )
        };
        let (address, _) = pep.format.decode(bytes).ok_or(FiError::INVAL)?;
        let mut state = pep.state.lock();
        if state.serving.is_some() {
            return Err(FiError::OPBADSTATE);
        }
        state
            .local_address()?
            .assign(&pep.fabric.device()?, address)
    })
}

/// `fi_getname`.
unsafe extern "C" fn getname(fid: *mut Fid, addr: *mut c_void, len: *mut usize) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let pep = &unsafe { find::<PepObject, _>(fid)? }.inner;
        let device = pep.fabric.device()?;
        let name = pep.state.lock().local_address()?.name(&device);
        // SAFETY: the caller guarantees that both are writable.
        unsafe { write_name(&pep.format.encode(name), addr, len) }
    })
}

/// `fi_listen`.
unsafe extern "C" fn listen(pep: *mut FidPep) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let pep = &unsafe { find::<PepObject, _>(pep)? }.inner;
        let mut state = pep.state.lock();
        state.local_address()?;
        if state.eq.is_none() {
            return Err(FiError::NOEQ);
        }
        if state.serving.is_some() {
            return Err(FiError::OPBADSTATE);
        }
        let listener = state.local_address()?.listen(&pep.fabric.device()?)?;
        let weak = Arc::downgrade(pep);
        let handler = move |incoming: Incoming, _| {
            match weak.upgrade() {
                Some(pep) => {
                    let peer = incoming.peer().described();
                    if let Err(error) = pep.handle_request(incoming) {
                        tracing::info!("cannot report a connection request from {peer}: {error:?}");
                    }
                }
                None => incoming.reject(""),
            }
            None
        };
        state.serving = Some(pep.fabric.listeners.serve(listener, Box::new(handler))?);
        Ok(())
    })
}

impl Passive {
    /// Reports a peer's connection request in the event queue.
    fn handle_request(self: &Arc<Self>, incoming: Incoming) -> Result<()> {
        let (eq, address) = {
            let mut state = self.state.lock();
            let eq = state.eq.clone().ok_or(FiError::NOEQ)?;
            (eq, state.local_address()?.name(&self.fabric.device()?))
        };
        let Some((request, peer, data)) = read_request(incoming) else {
            return Ok(());
        };
        let added = self.backlog.add(request);
        // If the backlog was full, `add` has dropped requests whose clients have ended. Remove the events of those requests.
        eq.forget_ended_requests();
        let request = match added {
            Ok(request) => request,
            Err(request) => {
                complain(format_args!(
                    "refused a connection from {peer}: too many requests are pending at {address} (answer them with fi_accept or fi_reject)"
                ));
                request.incoming.reject("");
                return Ok(());
            }
        };
        let info = new_info(&self.offer, self.format, address, Some(peer))?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: room for a handle on our own stack; the `fi_info` is ours until it is in the queue.
        unsafe {
            if let Err(error) = publish(RequestObject::new(request), &mut handle) {
                crate::info::build::free(info);
                return Err(error);
            }
            (*info).handle = handle;
        }
        let pep = PepObject::handle_in(self);
        eq.connection(FI_CONNREQ, pep, info, &data);
        Ok(())
    }
}

/// The provider name in the program's `fi_info`, in which libfabric's core includes the layers above this provider.
///
/// # Safety
/// The name is null or a C string.
unsafe fn prov_name(fabric: Option<&FabricAttr>) -> &CStr {
    match fabric.map(|fabric| fabric.prov_name) {
        // SAFETY: guaranteed by the caller.
        Some(name) if !name.is_null() => unsafe { CStr::from_ptr(name) },
        _ => crate::NAME,
    }
}

impl PepObject {
    /// Transfers the address to an endpoint. After that, the passive endpoint is unusable, and bound to nothing.
    ///
    /// # Errors
    /// `FI_EINVAL`: another fabric. `FI_EOPBADSTATE`: it is listening, or has already transferred its address.
    pub(crate) fn take_local_address(&self, fabric: &Arc<Fabric>) -> Result<LocalAddress> {
        let pep = &self.inner;
        if !Arc::ptr_eq(&pep.fabric, fabric) {
            return Err(FiError::INVAL);
        }
        let (local_address, eq) = {
            let mut state = pep.state.lock();
            if state.serving.is_some() {
                return Err(FiError::OPBADSTATE);
            }
            state.local_address()?;
            (state.local_address.take(), state.eq.take())
        };
        if let Some(eq) = eq {
            eq.forget(handle_of(self) as usize);
            eq.users.remove();
        }
        local_address.ok_or(FiError::OPBADSTATE)
    }

    /// The handle of a passive endpoint.
    fn handle_in(inner: &Arc<Passive>) -> usize {
        use crate::object::Object;
        let same = |object: &Self| Arc::ptr_eq(&object.inner, inner);
        let found =
            Self::pool().find_map(|object| same(object).then(|| handle_of(object) as usize));
        found.unwrap_or(0)
    }
}

/// `fi_reject`.
unsafe extern "C" fn reject(
    pep: *mut FidPep,
    handle: *mut Fid,
    param: *const c_void,
    len: usize,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handles; the caller guarantees valid data.
        unsafe {
            find::<PepObject, _>(pep)?;
            reject_request(handle, parameters(param, len)?)
        }
    })
}
