//! Shared receive contexts: receives that any of several endpoints may use.
//!
//! The receives are in a separate pool. Messages without a receive stay with the endpoint at which they arrived;
//! after each posted receive the endpoints offer theirs again. A thread that holds an endpoint's state may lock
//! the pool; a thread that holds the pool must not lock an endpoint.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::receive::{Wanted, prepare};
use super::*;
use crate::domain::DomainObject;
use crate::nosys::{self, nosys};
use crate::object::{Users, busy, find, object, publish, remove, status, transfer_status};
use parking_lot::RwLock;
use rkey_device::describe::{TAGS, Traffic};
use rkey_rdm::endpoint;
use rkey_rdm::matching::Pattern;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::AtomicU64;

/// The object behind the program's handle.
#[repr(C)]
pub(crate) struct SrxObject {
    fid: UnsafeCell<FidEp>,
    pub(crate) inner: Arc<Srx>,
}
object!(SrxObject, FidEp, 4096);

/// A shared receive context.
pub(crate) struct Srx {
    pub(crate) domain: Arc<Domain>,
    pd: Arc<ProtectionDomain>,
    caps: u64,
    pub(super) flags: u64,
    pub(super) min_multi_recv: AtomicUsize,
    /// The address vector of its unconnected endpoints, which all have the same one.
    av: OnceLock<Arc<Av>>,
    endpoints: RwLock<Vec<Arc<Endpoint>>>,
    /// How many receives were ever posted; changes under the lock of the pool.
    posts: AtomicU64,
    pool: Mutex<Pool>,
    users: Users,
}

/// Its receives.
type Pool = endpoint::Pool<EpHost>;

impl Srx {
    /// Locks the receives.
    pub(super) fn with_pool<T>(&self, with: impl FnOnce(&mut Pool) -> T) -> T {
        with(&mut self.pool.lock())
    }

    /// How many receives were ever posted.
    #[inline]
    pub(super) fn posts(&self) -> u64 {
        self.posts.load(Ordering::Acquire)
    }

    /// Reserves it for an endpoint that will use it.
    pub(super) fn join(&self, ep: &Endpoint) -> Result<()> {
        if !Arc::ptr_eq(&self.domain, &ep.domain) {
            return Err(FiError::INVAL);
        }
        if self.domain.av_keys || self.pd.id != ep.pd.id {
            tracing::warn!(
                "a shared receive context has the authorization key of its domain, and this endpoint has another"
            );
            return Err(FiError::INVAL);
        }
        self.users.add();
        Ok(())
    }

    pub(super) fn part(&self) {
        self.users.remove();
    }

    /// Adds an endpoint that is being enabled.
    pub(super) fn attach(&self, ep: &Arc<Endpoint>, av: Option<&Arc<Av>>) -> Result<()> {
        if let Some(av) = av
            && !Arc::ptr_eq(self.av.get_or_init(|| Arc::clone(av)), av)
        {
            tracing::warn!(
                "endpoints of one shared receive context must use the same address vector"
            );
            return Err(FiError::INVAL);
        }
        self.endpoints.write().push(Arc::clone(ep));
        Ok(())
    }

    /// Describes its receives, and the sender of each that names one; does nothing while the program holds the
    /// lock.
    pub(super) fn count(
        &self,
        until: std::time::Instant,
        traffic: &mut Traffic,
        wanted: &mut dyn FnMut(SocketAddr),
    ) -> Option<()> {
        let pool = rkey_device::describe::lock_until(&self.pool, until)?;
        let (messages, tagged) = (pool.matching(false), pool.matching(true));
        let all = messages.wanted().chain(tagged.wanted());
        all.for_each(|source| wanted(*source));
        traffic.receives = messages.posted();
        traffic.tagged_receives = tagged.posted();
        traffic.wanted_tags = tagged.wanted_tags().take(TAGS).collect();
        Some(())
    }

    /// Removes a closing endpoint, which drops its own messages.
    pub(super) fn detach(&self, ep: &Arc<Endpoint>) {
        self.endpoints.write().retain(|it| !Arc::ptr_eq(it, ep));
    }

    /// Posts a receive, or peeks at a message, depending on the flags.
    pub(super) fn receive(&self, wanted: &Wanted<'_>) -> Result<()> {
        let pattern = wanted.pattern(self.caps, &self.pd, self.av.get().map(|av| &**av))?;
        if wanted.flags & (FI_PEEK | FI_CLAIM | FI_DISCARD) != 0 {
            return self.peek(wanted, &pattern);
        }
        let receive = prepare(&self.domain, &self.pd, self.caps, wanted)?;
        let messages_wait = self.with_pool(|pool| {
            self.posts.fetch_add(1, Ordering::Release);
            pool.post(wanted.tag.is_some(), pattern, receive)
        });
        if messages_wait {
            for ep in &*self.endpoints.read() {
                if let Some(live) = ep.live.get() {
                    live.state.lock().rdm.settle(&live.host);
                }
            }
        }
        Ok(())
    }

    /// Peeks at a message, at one endpoint after the other.
    fn peek(&self, wanted: &Wanted<'_>, pattern: &Pattern<SocketAddr>) -> Result<()> {
        let endpoints = self.endpoints.read();
        let live = endpoints
            .iter()
            .filter_map(|ep| Some((ep, ep.live.get()?)))
            .collect::<Vec<_>>();
        for (ep, live) in &live {
            if ep.try_look(live, wanted, pattern)? {
                return Ok(());
            }
        }
        let (_, first) = live.first().ok_or(FiError::OPBADSTATE)?;
        Endpoint::nothing_there(first, wanted)
    }

    /// Cancels a waiting receive; its completion goes to an endpoint's queue.
    fn cancel(&self, context: usize) -> Result<()> {
        let canceled = self.with_pool(|pool| pool.cancel(|it| it.is_of(context)));
        let (receive, tagged) = canceled.ok_or(FiError::NOENT)?;
        let endpoints = self.endpoints.read();
        if let Some(live) = endpoints.iter().find_map(|ep| ep.live.get()) {
            receive.cancel(&live.host, tagged);
        }
        Ok(())
    }
}

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
/// Arguments as fi_endpoint(3) requires.
pub(crate) unsafe extern "C" fn srx_context(
    domain: *mut FidDomain,
    attr: *mut RxAttr,
    ep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; null or attributes, as the caller promises.
        let (owner, attr) = unsafe { (find::<DomainObject, _>(domain)?, attr.as_ref()) };
        let caps = attr.map_or(0, |attr| attr.caps);
        let flags = attr.map_or(0, |attr| attr.op_flags);
        let offered =
            crate::info::offer::primary(FI_EP_RDM) | crate::info::offer::secondary(FI_EP_RDM);
        if flags & !crate::info::offer::RX_OP_FLAGS != 0 {
            return Err(FiError::BADFLAGS);
        }
        let inner = Srx {
            domain: Arc::clone(&owner.inner),
            pd: owner.inner.pd(&[])?,
            caps: if caps == 0 { offered } else { caps },
            flags,
            min_multi_recv: AtomicUsize::new(MIN_MULTI_RECV),
            av: OnceLock::new(),
            endpoints: RwLock::default(),
            posts: AtomicU64::new(0),
            pool: Mutex::default(),
            users: Users::default(),
        };
        let object = SrxObject {
            fid: UnsafeCell::new(FidEp {
                fid: Fid::new(FI_CLASS_SRX_CTX, context, &FID_OPS),
                ops: &OPS,
                cm: &super::object::CM,
                msg: &msg::OPS,
                rma: &rma::OPS,
                tagged: &tagged::OPS,
                atomic: &atomic::OPS,
                collective: &collective::OPS,
            }),
            inner: Arc::new(inner),
        };
        // SAFETY: room for a handle, as the caller promises.
        unsafe { publish(object, ep)? };
        owner.inner.users.add();
        Ok(())
    })
}

/// `fi_close`: `-FI_EBUSY` while endpoints are bound to it. Receives that still wait are dropped without a
/// completion.
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

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        unsafe { find::<SrxObject, _>(fid)? };
        match command {
            // It is usable from the start.
            FI_ENABLE => Ok(()),
            _ => Err(FiError::NOSYS),
        }
    })
}

unsafe extern "C" fn cancel(fid: *mut Fid, context: *mut c_void) -> isize {
    transfer_status(|| {
        // SAFETY: `find` validates the handle.
        let srx = &unsafe { find::<SrxObject, _>(fid)? }.inner;
        srx.cancel(context as usize)
    })
}

unsafe extern "C" fn rx_size_left(ep: *mut FidEp) -> isize {
    crate::object::count(|| {
        // SAFETY: `find` validates the handle.
        let srx = &unsafe { find::<SrxObject, _>(ep)? }.inner;
        let posted =
            srx.with_pool(|pool| pool.matching(false).posted() + pool.matching(true).posted());
        Ok(crate::info::offer::RX_SIZE.saturating_sub(posted))
    })
}
