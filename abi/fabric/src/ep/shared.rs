//! Shared receive contexts: receives that any of several endpoints may use.
//!
//! The receives are in a separate pool. Unexpected messages stay at the endpoint where they arrived; when a receive is posted,
//! the endpoints offer them again. Lock order: a thread that holds an endpoint's state may lock the pool; a thread that holds
//! the pool must not lock an endpoint.

#![allow(unsafe_code)]
// UNSAFETY: declares a kind of handle.

use super::receive::{Wanted, prepare};
use super::*;
use crate::object::{Users, object};
use parking_lot::RwLock;
use rkey_device::describe::{TAGS, Traffic};
use rkey_rdm::endpoint;
use rkey_rdm::matching::Pattern;
use std::cell::UnsafeCell;
use std::sync::atomic::AtomicU64;

/// The object behind the program's handle.
#[repr(C)]
pub(crate) struct SrxObject {
    pub(super) fid: UnsafeCell<FidEp>,
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
    /// The address vector of its endpoints, set by the first endpoint that has one. All must use the same one.
    av: OnceLock<Arc<Av>>,
    endpoints: RwLock<Vec<Arc<Endpoint>>>,
    /// The number of receives posted so far. Changes only under the lock of the pool.
    posts: AtomicU64,
    pool: Mutex<Pool>,
    pub(super) users: Users,
}

/// The receives of a shared receive context.
type Pool = endpoint::Pool<EpHost>;

impl Srx {
    /// A context with these capabilities (0 means all) and these default flags for its receives.
    pub(super) fn new(domain: &Arc<Domain>, caps: u64, flags: u64) -> Result<Self> {
        let offered =
            crate::info::offer::primary(FI_EP_RDM) | crate::info::offer::secondary(FI_EP_RDM);
        Ok(Self {
            domain: Arc::clone(domain),
            pd: domain.pd(&[])?,
            caps: if caps == 0 { offered } else { caps },
            flags,
            min_multi_recv: AtomicUsize::new(MIN_MULTI_RECV),
            av: OnceLock::new(),
            endpoints: RwLock::default(),
            posts: AtomicU64::new(0),
            pool: Mutex::default(),
            users: Users::default(),
        })
    }

    /// Locks the receives.
    pub(super) fn with_pool<T>(&self, with: impl FnOnce(&mut Pool) -> T) -> T {
        with(&mut self.pool.lock())
    }

    /// The number of receives posted so far.
    #[inline]
    pub(super) fn posts(&self) -> u64 {
        self.posts.load(Ordering::Acquire)
    }

    /// Checks that an endpoint may use the context, and counts it as a user.
    pub(super) fn join(&self, ep: &Endpoint) -> Result<()> {
        if !Arc::ptr_eq(&self.domain, &ep.domain) {
            return Err(FiError::INVAL);
        }
        if self.domain.av_keys {
            tracing::warn!(
                "endpoints of an FI_AV_AUTH_KEY domain cannot use shared receive contexts, because their authorization keys come from their address vectors"
            );
            return Err(FiError::INVAL);
        }
        if self.pd.id != ep.pd.id {
            tracing::warn!(
                "an endpoint with a shared receive context must have its domain's authorization key: open it without auth_key"
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

    /// Sets the receives in `traffic`, and calls `wanted` with the sender that each names, if any. `None` if the receives
    /// stay locked until `until`.
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
                    live.state.lock().rdm.offer_to_shared_receives(&live.host);
                }
            }
        }
        Ok(())
    }

    /// Looks for a message at each endpoint in turn.
    fn peek(&self, wanted: &Wanted<'_>, pattern: &Pattern<SocketAddr>) -> Result<()> {
        let endpoints = self.endpoints.read();
        let live = endpoints
            .iter()
            .filter_map(|ep| Some((ep, ep.live.get()?)))
            .collect::<Vec<_>>();
        for (ep, live) in &live {
            if ep.try_peek(live, wanted, pattern)? {
                return Ok(());
            }
        }
        let (_, first) = live.first().ok_or(FiError::OPBADSTATE)?;
        Endpoint::report_no_message(first, wanted)
    }

    /// Cancels a waiting receive. Its completion goes to the queue of an enabled endpoint, if there is one.
    pub(super) fn cancel(&self, context: usize) -> Result<()> {
        let canceled = self.with_pool(|pool| pool.cancel(|it| it.is_of(context)));
        let (receive, tagged) = canceled.ok_or(FiError::NOENT)?;
        let endpoints = self.endpoints.read();
        if let Some(live) = endpoints.iter().find_map(|ep| ep.live.get()) {
            receive.cancel(&live.host, tagged);
        }
        Ok(())
    }
}
