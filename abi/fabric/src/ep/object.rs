//! The handle of an endpoint: making it, binding, enabling, names, closing.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::header::{Header, Kind};
use super::*;
use crate::av::{AvObject, give_cut};
use crate::cntr::CntrObject;
use crate::cq::CqObject;
use crate::domain::{DomainObject, number};
use crate::eq::EqObject;
use crate::info::filter::Hints;
use crate::nosys::{self, nosys};
use crate::object::{find, handle_of, input, object, place, remove, status, transfer};
use shared::SrxObject;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::time::Instant;

/// What a program has a handle of.
#[repr(C)]
pub(crate) struct EpObject {
    fid: UnsafeCell<FidEp>,
    pub(crate) inner: Arc<Endpoint>,
}
object!(EpObject, FidEp, 65536);

static FID_OPS: Ops = Ops {
    close,
    bind,
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
        *mut c_void,
        *mut *mut FidEp,
        *mut c_void
    ),
    rx_ctx: nosys!(
        c_int,
        *mut FidEp,
        c_int,
        *mut c_void,
        *mut *mut FidEp,
        *mut c_void
    ),
    rx_size_left,
    tx_size_left,
    export_xpu: nosys!(c_int, *mut FidEp, *mut c_void),
};

pub(super) static CM: OpsCm = OpsCm {
    size: size_of::<OpsCm>(),
    setname,
    getname,
    getpeer: connect::getpeer,
    connect: connect::connect,
    listen: nosys!(c_int, *mut FidPep),
    accept: connect::accept,
    reject: nosys!(c_int, *mut FidPep, *mut Fid, *const c_void, usize),
    shutdown: connect::shutdown,
    join: collective::join,
};

/// `fi_endpoint`.
///
/// # Safety
/// Arguments as fi_endpoint(3) asks for them.
pub(crate) unsafe extern "C" fn endpoint(
    domain: *mut FidDomain,
    info: *mut Info,
    ep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused; an `fi_info` as the caller promises.
        let (owner, handle) = unsafe { (find::<DomainObject, _>(domain)?, input(info)?.handle) };
        // SAFETY: as above.
        let info = unsafe { Hints::read(info) };
        let attr = info.ep.ok_or(FiError::INVAL)?;
        let ep_type = attr.ep_type;
        if !matches!(ep_type, FI_EP_RDM | FI_EP_MSG | FI_EP_DGRAM) {
            return Err(FiError::INVAL);
        }
        let shares = attr.rx_ctx_cnt == FI_SHARED_CONTEXT;
        if attr.tx_ctx_cnt > 1 || attr.rx_ctx_cnt > 1 && !shares {
            return Err(FiError::NOSYS);
        }
        let auth_key = match owner.inner.version >= version(1, 5) {
            // SAFETY: null or so many bytes, as the program says.
            true => unsafe { crate::object::list(attr.auth_key, attr.auth_key_size)? },
            false => &[],
        };
        if owner.inner.av_keys && (ep_type == FI_EP_MSG || !auth_key.is_empty()) {
            tracing::warn!(
                "in an FI_AV_AUTH_KEY domain endpoints have their keys from an address vector"
            );
            return Err(FiError::INVAL);
        }
        let source = info
            .src_addr
            .and_then(|bytes| owner.inner.format.decode(bytes));
        let request = match handle.is_null() {
            true => None,
            // SAFETY: the handle of a connection request, or something that is refused.
            false => unsafe { connect::take_request(handle)? },
        };
        let offered = crate::info::offer::primary(ep_type) | crate::info::offer::secondary(ep_type);
        let inner = Arc::new(Endpoint {
            domain: Arc::clone(&owner.inner),
            group: EpGroup {
                own: owner.inner.group(auth_key)?,
                found: OnceLock::new(),
            },
            number: number(),
            ep_type,
            shares,
            caps: if info.caps == 0 { offered } else { info.caps },
            tx_flags: info.tx.map_or(0, |tx| tx.op_flags),
            rx_flags: info.rx.map_or(0, |rx| rx.op_flags),
            handle: AtomicUsize::new(0),
            setup: Mutex::new(Setup {
                source: source.map(|(address, _)| address),
                request,
                ..Setup::default()
            }),
            live: OnceLock::new(),
            min_multi_recv: AtomicUsize::new(MIN_MULTI_RECV),
            closing: AtomicBool::new(false),
        });
        let object = EpObject {
            fid: UnsafeCell::new(FidEp {
                fid: Fid::new(FI_CLASS_EP, context, &FID_OPS),
                ops: &OPS,
                cm: &CM,
                msg: &msg::OPS,
                rma: &rma::OPS,
                tagged: &tagged::OPS,
                atomic: &atomic::OPS,
                collective: &collective::OPS,
            }),
            inner,
        };
        // SAFETY: room for a handle, as the caller promises.
        let placed = unsafe { place(object, ep)? };
        placed
            .inner
            .handle
            .store(handle_of(placed) as usize, Ordering::Release);
        owner.inner.users.add();
        Ok(())
    })
}

/// `fi_ep_bind`.
unsafe extern "C" fn bind(fid: *mut Fid, bound: *mut Fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused; every handle begins with a `fid`.
        let (object, class) =
            unsafe { (find::<EpObject, _>(fid)?, input(bound.cast_const())?.fclass) };
        let ep = &object.inner;
        let mut setup = ep.setup.lock();
        if setup.enabled {
            return Err(FiError::OPBADSTATE);
        }
        match class {
            FI_CLASS_CQ => {
                // SAFETY: a handle, or something that is refused.
                let cq = &unsafe { find::<CqObject, _>(bound)? }.inner;
                bind_cq(ep, &mut setup, cq, flags)
            }
            FI_CLASS_CNTR => {
                // SAFETY: a handle, or something that is refused.
                let counter = &unsafe { find::<CntrObject, _>(bound)? }.inner;
                bind_counter(ep, &mut setup, counter, flags)
            }
            FI_CLASS_AV => {
                // SAFETY: a handle, or something that is refused.
                let av = &unsafe { find::<AvObject, _>(bound)? }.inner;
                if !Arc::ptr_eq(&av.domain, &ep.domain) || ep.ep_type == FI_EP_MSG || flags != 0 {
                    return Err(FiError::INVAL);
                }
                if setup.av.is_some() {
                    return Err(FiError::BUSY);
                }
                av.users.add();
                setup.av = Some(Arc::clone(av));
                Ok(())
            }
            FI_CLASS_SRX_CTX => {
                // SAFETY: a handle, or something that is refused.
                let srx = &unsafe { find::<SrxObject, _>(bound)? }.inner;
                if flags != 0 {
                    return Err(FiError::BADFLAGS);
                }
                if !ep.shares {
                    tracing::warn!(
                        "an endpoint takes a shared receive context if its rx_ctx_cnt is FI_SHARED_CONTEXT"
                    );
                    return Err(FiError::INVAL);
                }
                if setup.srx.is_some() {
                    return Err(FiError::BUSY);
                }
                srx.join(ep)?;
                setup.srx = Some(Arc::clone(srx));
                Ok(())
            }
            FI_CLASS_EQ => {
                // SAFETY: a handle, or something that is refused.
                let eq = &unsafe { find::<EqObject, _>(bound)? }.inner;
                if !Arc::ptr_eq(&eq.fabric, &ep.domain.fabric) {
                    return Err(FiError::INVAL);
                }
                if setup.eq.is_some() {
                    return Err(FiError::BUSY);
                }
                eq.users.add();
                setup.eq = Some(Arc::clone(eq));
                Ok(())
            }
            _ => Err(FiError::INVAL),
        }
    })
}

fn bind_cq(ep: &Endpoint, setup: &mut Setup, cq: &Arc<Cq>, flags: u64) -> Result<()> {
    if flags & !(FI_SEND | FI_RECV | FI_SELECTIVE_COMPLETION) != 0 {
        return Err(FiError::BADFLAGS);
    }
    if flags & (FI_SEND | FI_RECV) == 0 || !Arc::ptr_eq(&cq.domain, &ep.domain) {
        return Err(FiError::INVAL);
    }
    let taken = (flags & FI_SEND != 0 && setup.tx.is_some())
        || (flags & FI_RECV != 0 && setup.rx.is_some());
    if taken {
        return Err(FiError::BUSY);
    }
    let side = Side {
        cq: Arc::clone(cq),
        selective: flags & FI_SELECTIVE_COMPLETION != 0,
    };
    if flags & FI_SEND != 0 {
        cq.users.add();
        setup.tx = Some(side.clone());
    }
    if flags & FI_RECV != 0 {
        cq.users.add();
        setup.rx = Some(side);
    }
    Ok(())
}

fn bind_counter(
    ep: &Endpoint,
    setup: &mut Setup,
    counter: &Arc<Counter>,
    flags: u64,
) -> Result<()> {
    if !Arc::ptr_eq(&counter.domain, &ep.domain) || flags == 0 {
        return Err(FiError::INVAL);
    }
    let remote = flags & (FI_REMOTE_READ | FI_REMOTE_WRITE);
    if remote != 0 {
        // FI-I24.
        ep.check_caps(FI_RMA_EVENT)?;
    }
    let flags = flags & !remote;
    let places = [
        (FI_SEND, SENT),
        (FI_RECV, RECEIVED),
        (FI_READ, READ),
        (FI_WRITE, WRITTEN),
    ];
    if flags & !places.iter().fold(0, |all, (flag, _)| all | flag) != 0 {
        return Err(FiError::BADFLAGS);
    }
    let wanted = || {
        places
            .iter()
            .filter(|(flag, _)| flags & flag != 0)
            .map(|&(_, place)| place)
    };
    let of_peers = || {
        REMOTE
            .iter()
            .enumerate()
            .filter(|(_, (flag, _))| remote & flag != 0)
    };
    if wanted().any(|place| setup.counters[place].is_some())
        || of_peers().any(|(place, _)| setup.remote[place].is_some())
    {
        return Err(FiError::BUSY);
    }
    if remote != 0 {
        crate::mr::bind::count_for_endpoints(&ep.domain);
    }
    for (place, &(_, kind)) in of_peers() {
        counter.users.add();
        counter.watch(ep.number, kind);
        setup.remote[place] = Some(Arc::clone(counter));
    }
    for place in wanted() {
        counter.users.add();
        setup.counters[place] = Some(Arc::clone(counter));
    }
    Ok(())
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused.
        let object = unsafe { find::<EpObject, _>(fid)? };
        match command {
            FI_ENABLE => object.inner.enable(),
            _ => Err(FiError::NOSYS),
        }
    })
}

impl Endpoint {
    /// Makes the endpoint usable. A second time does nothing.
    pub(super) fn enable(self: &Arc<Self>) -> Result<()> {
        let mut setup = self.setup.lock();
        if setup.enabled {
            return Ok(());
        }
        let transmits = self.caps & (FI_SEND | FI_READ | FI_WRITE | FI_COLLECTIVE) != 0;
        let counted =
            |places: &[usize]| places.iter().any(|&place| setup.counters[place].is_some());
        if transmits && setup.tx.is_none() && !counted(&[SENT, READ, WRITTEN]) {
            return Err(FiError::NOCQ);
        }
        if self.caps & FI_RECV != 0 && setup.rx.is_none() && !counted(&[RECEIVED]) {
            return Err(FiError::NOCQ);
        }
        if self.ep_type != FI_EP_MSG && setup.av.is_none() {
            return Err(FiError::NOAV);
        }
        if self.ep_type == FI_EP_MSG && setup.eq.is_none() {
            return Err(FiError::NOEQ);
        }
        if self.shares && setup.srx.is_none() {
            tracing::warn!("the endpoint has to be bound to its shared receive context");
            return Err(FiError::NORX);
        }
        let auth_key = self.take_auth_key(&setup)?;
        let device = &self.domain.device;
        let waits = [&setup.tx, &setup.rx]
            .into_iter()
            .flatten()
            .any(|side| side.cq.wait.is_some());
        let channel = if waits {
            Some(device.create_channel()?)
        } else {
            None
        };
        let cq = device.create_cq(BUFFERS + 4 * SENDS, channel.as_ref())?;
        let srq = device.create_srq(self.group.id, BUFFERS, 1)?;
        let wish = setup
            .source
            .unwrap_or_else(|| self.domain.format.loopback(0));
        let live = Live {
            this: Arc::downgrade(self),
            tx: setup.tx.clone(),
            rx: setup.rx.clone(),
            srx: setup.srx.clone(),
            av: setup.av.clone(),
            eq: setup.eq.clone(),
            counters: setup.counters.clone(),
            remote: setup.remote.clone(),
            cq,
            channel,
            srq,
            buffers: Buffers::new(),
            name: Mutex::new(wish),
            serving: Mutex::new(None),
            state: Mutex::default(),
        };
        for index in 0..BUFFERS {
            self.post_buffer(&live, index);
        }
        if self.ep_type != FI_EP_MSG {
            let listener = device.listen(wish)?;
            *live.name.lock() = reachable(listener.local_address());
            let weak = Arc::downgrade(self);
            let handler = move |incoming: rkey_device::Incoming| match weak.upgrade() {
                Some(ep) => ep.take(incoming),
                None => {
                    incoming.reject("the endpoint is closed");
                    None
                }
            };
            *live.serving.lock() = Some(self.domain.fabric.cm.serve(listener, Box::new(handler))?);
        }
        if let Some(srx) = &setup.srx {
            srx.attach(self, setup.av.as_ref())?;
        }
        if self.live.set(live).is_err() {
            return Ok(());
        }
        setup.enabled = true;
        if let Some(key) = &auth_key {
            key.users.add();
        }
        setup.auth_key = auth_key;
        let fd = self.fd();
        for side in [&setup.tx, &setup.rx].into_iter().flatten() {
            side.cq.attach(self, fd)?;
        }
        for counter in setup.counters.iter().chain(&setup.remote).flatten() {
            counter.attach(self);
        }
        if self.domain.auto_progress {
            let ep = Arc::clone(self);
            std::thread::Builder::new()
                .name("rkey-fi-progress".to_owned())
                .spawn(move || ep.run())
                .map_err(|_| FiError::NOMEM)?;
        }
        Ok(())
    }

    /// The key of an endpoint whose domain has them in address vectors: one (`max_ep_auth_key`).
    fn take_auth_key(&self, setup: &Setup) -> Result<Option<Arc<AuthKey>>> {
        if !self.domain.av_keys {
            return Ok(None);
        }
        let keys = setup.av.as_ref().ok_or(FiError::NOAV)?.auth_keys();
        let [key] = keys.as_slice() else {
            tracing::warn!(
                "the address vector of an endpoint has {} authorization keys, and an endpoint takes one (max_ep_auth_key)",
                keys.len()
            );
            return Err(FiError::INVAL);
        };
        let group = self.domain.group(&key.bytes)?;
        if self.group.found.get_or_init(|| Arc::clone(&group)).id != group.id {
            // An attempt of before took another.
            return Err(FiError::OPBADSTATE);
        }
        Ok(Some(Arc::clone(key)))
    }

    /// The address vector that it is bound to.
    pub(crate) fn bound_av(&self) -> Option<Arc<Av>> {
        self.setup.lock().av.clone()
    }

    /// Ends the endpoint: tells the peers, and takes everything apart.
    fn shut(self: &Arc<Self>) {
        self.closing.store(true, Ordering::Release);
        for counter in self.domain.work.forget(self.number) {
            counter.detach(self);
        }
        crate::mr::bind::detach_endpoint(&self.domain, self.number);
        if let Some(live) = self.live.get() {
            // Nobody comes any more.
            drop(live.serving.lock().take());
            {
                let mut state = live.state.lock();
                self.advance(live, &mut state);
                self.answer_owed(&mut state);
                for connection in 0..state.connections.len() {
                    if state.connections[connection].up {
                        self.say(&mut state, connection, &Header::new(Kind::Bye), &[]);
                    }
                }
            }
            self.linger(live);
            let (qps, operations) = {
                let mut state = live.state.lock();
                state.collective = None;
                if let Some(srx) = &live.srx {
                    srx.detach(
                        self,
                        state.messages.unexpected() + state.tagged.unexpected(),
                    );
                }
                let mut qps = Vec::new();
                for connection in &mut state.connections {
                    connection.up = false;
                    connection.lost = true;
                    qps.extend(connection.qp.take());
                }
                let mut operations = state.operations.drain();
                operations.extend(state.condemned.drain());
                (qps, operations)
            };
            // From here on no peer touches the program's memory, stopped or not.
            let deadline = Instant::now() + condemned::STUCK;
            for qp in &qps {
                qp.quiesce(deadline);
            }
            // Messages that the peers never fetched.
            for operation in operations {
                if let operation::Hold::Region(region, _) = operation.hold {
                    let _ = self.domain.device.close_region(region);
                }
            }
        }
        let fd = self.fd();
        let setup = std::mem::take(&mut *self.setup.lock());
        for side in [&setup.tx, &setup.rx].into_iter().flatten() {
            side.cq.detach(self, fd);
            side.cq.users.remove();
        }
        for counter in setup.counters.iter().flatten() {
            counter.detach(self);
            counter.users.remove();
        }
        for (counter, (_, kind)) in setup.remote.iter().zip(REMOTE) {
            if let Some(counter) = counter {
                counter.detach(self);
                counter.unwatch(self.number, kind);
                counter.users.remove();
            }
        }
        self.domain.device.forget_endpoint_counter(self.number);
        if let Some(srx) = &setup.srx {
            srx.part();
        }
        if let Some(key) = &setup.auth_key {
            key.users.remove();
        }
        if let Some(av) = &setup.av {
            av.users.remove();
        }
        if let Some(eq) = &setup.eq {
            eq.forget(self.handle.load(Ordering::Relaxed));
            eq.users.remove();
        }
        self.setup.lock().enabled = true;
    }
}

/// The address under which peers on this host find a listener.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        _ => return address,
    };
    SocketAddr::new(ip, address.port())
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused.
        let ep = Arc::clone(&unsafe { find::<EpObject, _>(fid)? }.inner);
        ep.shut();
        // SAFETY: the program uses the endpoint no more.
        let object = unsafe { remove::<EpObject, _>(fid)? };
        object.inner.domain.users.remove();
        Ok(())
    })
}

unsafe extern "C" fn cancel(fid: *mut Fid, context: *mut c_void) -> isize {
    transfer(|| {
        // SAFETY: a handle, or something that is refused.
        unsafe { find::<EpObject, _>(fid)? }.inner.cancel(context)
    })
}

unsafe extern "C" fn rx_size_left(ep: *mut FidEp) -> isize {
    crate::object::count(|| {
        // SAFETY: a handle, or something that is refused.
        let live = unsafe { find::<EpObject, _>(ep)? }.inner.live()?;
        let state = live.state.lock();
        let posted = state.messages.posted() + state.tagged.posted();
        Ok(crate::info::offer::RX_SIZE.saturating_sub(posted))
    })
}

unsafe extern "C" fn tx_size_left(ep: *mut FidEp) -> isize {
    crate::object::count(|| {
        // SAFETY: a handle, or something that is refused.
        let live = unsafe { find::<EpObject, _>(ep)? }.inner.live()?;
        let under_way = live.state.lock().operations.len();
        Ok(crate::info::offer::TX_SIZE.saturating_sub(under_way))
    })
}

/// `fi_setname`: the address, before the endpoint is enabled.
unsafe extern "C" fn setname(fid: *mut Fid, addr: *mut c_void, len: usize) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused; so many bytes as the program says.
        let (object, bytes) = unsafe {
            (
                find::<EpObject, _>(fid)?,
                crate::object::list(addr.cast::<u8>().cast_const(), len)?,
            )
        };
        let (address, _) = object
            .inner
            .domain
            .format
            .decode(bytes)
            .ok_or(FiError::INVAL)?;
        let mut setup = object.inner.setup.lock();
        if setup.enabled {
            return Err(FiError::OPBADSTATE);
        }
        setup.source = Some(address);
        Ok(())
    })
}

/// `fi_getname`.
unsafe extern "C" fn getname(fid: *mut Fid, addr: *mut c_void, len: *mut usize) -> c_int {
    status(|| {
        // SAFETY: a handle, or something that is refused.
        let ep = &unsafe { find::<EpObject, _>(fid)? }.inner;
        let name = match ep.live.get() {
            Some(live) => *live.name.lock(),
            None if ep.ep_type == FI_EP_MSG => ep
                .setup
                .lock()
                .source
                .unwrap_or_else(|| ep.domain.format.loopback(0)),
            None => return Err(FiError::OPBADSTATE),
        };
        // SAFETY: room as the caller promises.
        unsafe { give_name(&ep.domain.format.encode(name), addr, len) }
    })
}

/// Gives a name to the program; `FI_ETOOSMALL` when it has no room for all of it.
///
/// # Safety
/// `len` is null or a number, and `addr` has so many bytes.
pub(crate) unsafe fn give_name(name: &[u8], addr: *mut c_void, len: *mut usize) -> Result<()> {
    // SAFETY: as the caller promises.
    if unsafe { give_cut(name, addr, len)? } {
        Ok(())
    } else {
        Err(FiError::TOOSMALL)
    }
}
