//! Whether a peer may be able to reach into memory without asking the engine, for those who do not have its lock.

use rkey_core::LocalKey;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Memory of ours that a peer may still touch by itself: a request by reference named it, and was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The queue pair of the request, which need not exist any more.
    pub qpn: u32,
    /// The key of the region, which need not exist any more either.
    pub key: LocalKey,
}

/// What an engine says about that. It changes only under the engine's lock; who looks at it has passed the lock since
/// the memory in question could last be named.
#[derive(Debug, Default)]
pub struct Exposure {
    named: AtomicBool,
    lost_links: AtomicU64,
}

impl Exposure {
    /// Whether requests by reference may be outstanding. As long as there is none, no peer was told of any memory, unless
    /// over a link that was lost since.
    #[inline]
    #[must_use]
    pub fn is_memory_named(&self) -> bool {
        // Acquire, as a link is lost before its requests are not outstanding any more.
        self.named.load(Ordering::Acquire)
    }

    /// How many links have been taken out so far. To be asked after [`Self::is_memory_named`].
    #[inline]
    #[must_use]
    pub fn lost_links(&self) -> u64 {
        self.lost_links.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn set_named(&self, named: bool) {
        self.named.store(named, Ordering::Release);
    }

    pub(crate) fn link_lost(&self) {
        self.lost_links.fetch_add(1, Ordering::Release);
    }
}
