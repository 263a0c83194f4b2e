//! The registrar, which registers memory for the cache.

use crate::maps::Backing;
use crate::request::{Kind, Rights};
use rkey_base::range::VaRange;

/// What a registration refers to, which determines how the cache ensures that no entry is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Follows {
    /// The virtual addresses: the device reads what is mapped there at the time of the transfer (a software device, on-demand
    /// paging). An entry cannot be stale. The cache makes no system call.
    Addresses,
    /// An object and an offset (memfd, dma-buf). At each hit the cache asks the kernel whether the same part of the same
    /// object is still mapped there (`PROCMAP_QUERY`, Linux 6.11). Private memory has no object and is not cached.
    Object,
    /// The physical pages that were mapped when it was registered: the registrar pins them. Needs a monitor that sees
    /// every change. An entry covers only the pages of the buffer that it was made for, the memory is watched before
    /// it is pinned, and each hit is validated.
    Pages,
    /// An allocation of an accelerator's runtime, which has an id of its own even if its address is used again. At each hit
    /// the cache asks the registrar ([`Registrar::is_current`]). Needs no monitor.
    Allocation,
}

/// A request to register memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The memory.
    pub range: VaRange,
    /// The rights to register, no more and no fewer.
    pub rights: Rights,
    /// The kind of memory.
    pub kind: Kind,
    /// The object that is mapped there, for a registrar that [follows objects](Follows::Object).
    pub backing: Option<Backing>,
}

/// Registers memory: a device, a domain, a ring.
///
/// The cache calls it without holding a lock.
pub trait Registrar: Send + Sync {
    /// What a lookup returns: a handle, a key.
    type Registration: Send + Sync;
    /// Why a registration failed.
    type Error;

    /// What registrations refer to.
    fn follows(&self) -> Follows;

    /// Registers memory.
    ///
    /// # Errors
    /// The registrar's own error, which the lookup returns.
    fn register(&self, request: &Request) -> Result<Self::Registration, Self::Error>;

    /// Ends a registration that is no longer used. A registrar that [follows pages](Follows::Pages) must unpin them.
    fn deregister(&self, registration: Self::Registration);

    /// Whether the memory of `range`, which is a part of this registration, still belongs to the allocation that was
    /// registered. Called at each hit of a registrar that [follows allocations](Follows::Allocation).
    fn is_current(&self, registration: &Self::Registration, range: &VaRange) -> bool {
        let _ = (registration, range);
        true
    }

    /// Whether the error is due to too many registrations. If so, the cache evicts all idle entries and tries again.
    fn is_exhausted(&self, error: &Self::Error) -> bool {
        let _ = error;
        false
    }
}
