//! Whether a peer may be able to access memory without the engine. Readable without the engine's lock.

use rkey_core::{LKey, RegionId};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Our memory that a peer may still access directly: a remote iovec that the peer has not acknowledged named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExposedMemory {
    /// The number of the queue pair of the request. The queue pair may no longer exist.
    pub qpn: u32,
    /// The key of the region. The region may no longer exist.
    pub key: LKey,
}

/// The exposure of an engine's memory. The exposure changes only under the engine's lock; a reader may rely on it only if
/// the reader has taken that lock since the memory could last be named.
#[derive(Debug, Default)]
pub struct Exposure {
    named: AtomicBool,
    /// A bit for each region that peers may have warrants for: its slot, modulo 64.
    warranted: AtomicU64,
    lost_links: AtomicU64,
}

impl Exposure {
    /// Whether remote iovecs may be outstanding. If not, no peer can access our memory, except through links that have
    /// been lost ([`Self::lost_links`]).
    #[inline]
    #[must_use]
    pub fn is_memory_named(&self) -> bool {
        // Acquire, because a link is recorded as lost before its requests cease to be outstanding.
        self.named.load(Ordering::Acquire)
    }

    /// The number of links detached so far. Read it after [`Self::is_memory_named`].
    #[inline]
    #[must_use]
    pub fn lost_links(&self) -> u64 {
        self.lost_links.load(Ordering::Acquire)
    }

    /// Whether peers may have warrants, or may still be copying with one that was revoked.
    #[inline]
    #[must_use]
    pub fn is_warranted(&self) -> bool {
        self.warranted.load(Ordering::Acquire) != 0
    }

    /// Like [`is_warranted`](Self::is_warranted), for warrants of one region. May also be true because of another region.
    #[inline]
    #[must_use]
    pub fn may_be_warranted(&self, region: RegionId) -> bool {
        self.warranted.load(Ordering::Acquire) & warrant_bit(region) != 0
    }

    pub(crate) fn set_warranted(&self, regions: impl Iterator<Item = RegionId>) {
        let bits = regions.fold(0, |bits, region| bits | warrant_bit(region));
        self.warranted.store(bits, Ordering::Release);
    }

    #[inline]
    pub(crate) fn set_named(&self, named: bool) {
        self.named.store(named, Ordering::Release);
    }

    pub(crate) fn link_lost(&self) {
        self.lost_links.fetch_add(1, Ordering::Release);
    }
}

const fn warrant_bit(region: RegionId) -> u64 {
    1 << (region.slot() % 64)
}
