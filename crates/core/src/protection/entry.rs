//! One slot of the table: a region or a window, as 56 bytes of atomics next to the slab's own word.
//!
//! Checks read a slot without a lock. They rely on two rules:
//!
//! * a region's slot does not change while it is pinned, except for its flags, its endpoint and its counter, which
//!   are single words;
//! * a window's slot changes at binds and invalidations. Its `version` is odd during a change and different
//!   afterwards. A reader that sees either refuses, because the window was unbound at some moment in between: every
//!   change begins or ends with an unbound window. No reader ever waits.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::{Access, DomainId};

/// Flags above the access rights in `Entry::rights`.
pub(crate) mod flag {
    /// The region is not enabled.
    pub(crate) const DISABLED: u32 = 1 << 16;
    /// The region is a scatter list; `start` is its number.
    pub(crate) const SCATTER: u32 = 1 << 17;
    /// Only the endpoint in `endpoint` may use it.
    pub(crate) const ENDPOINT: u32 = 1 << 18;
    /// The slot is a window.
    pub(crate) const WINDOW: u32 = 1 << 19;
    /// The window is bound.
    pub(crate) const BOUND: u32 = 1 << 20;
    /// Only the peer in `link_generation` may use it.
    pub(crate) const PEER: u32 = 1 << 26;
    /// The region is being changed in place; its slot will be live again under the same generation.
    pub(crate) const CHANGING: u32 = 1 << 28;
    /// A check of a slot with any of these flags leaves the fast path.
    pub(crate) const UNUSUAL: u32 = DISABLED | SCATTER | ENDPOINT | WINDOW | PEER | CHANGING;
    /// `enable` has enabled the region: no other endpoint or counter can be bound to it.
    pub(crate) const ENABLED: u32 = 1 << 21;
    /// The region has a requested key.
    pub(crate) const REQUESTED: u32 = 1 << 22;
    /// The region's memory is part of a shared segment.
    pub(crate) const SHARED: u32 = 1 << 23;
    /// Requests use the region's virtual addresses.
    pub(crate) const VIRTUAL: u32 = 1 << 24;
    /// The front end registered the region for its own use.
    pub(crate) const INTERNAL: u32 = 1 << 27;
    /// A null region: its scatter list is the zeros that reads get, and the sink that writes go to.
    pub(crate) const NULL: u32 = 1 << 25;
    /// A slot with any of these is released only under the table's lock.
    pub(crate) const NEEDS_REGISTRY: u32 = SCATTER | WINDOW | SHARED | INTERNAL | NULL;
}

/// Stored in place of an endpoint or a counter if there is none.
pub(crate) const NONE: u32 = u32::MAX;

/// A slot.
#[derive(Default)]
pub(crate) struct Entry {
    /// Region: address of the first byte in the owner's process, or the number of the scatter list. Window: its
    /// offset in the region, in bytes.
    pub(crate) start: AtomicU64,
    /// Length in bytes.
    pub(crate) len: AtomicU64,
    /// The address that requests use for the first byte.
    pub(crate) base: AtomicU64,
    /// Access rights and flags.
    pub(crate) rights: AtomicU32,
    /// The domain.
    pub(crate) domain: AtomicU32,
    /// Region: the endpoint bound to it. Type 2 window: its queue pair.
    pub(crate) endpoint: AtomicU32,
    /// Region: the counter bound to it. Window: the consumer's bits of its key.
    pub(crate) counter: AtomicU32,
    /// Region: number of windows bound to it. Window: slot of its region.
    pub(crate) link: AtomicU32,
    /// Region: the only peer that it serves, if any. Window: generation of its region's slot.
    pub(crate) link_generation: AtomicU32,
    /// Window: changes with every bind and invalidation; odd during the change. Region: upper half of the requested
    /// key.
    pub(crate) version: AtomicU32,
    /// Window: its index in the list of windows. Region: lower half of the requested key.
    pub(crate) window: AtomicU32,
}

impl Entry {
    /// Access rights and flags. Sequentially consistent for [`Self::begin_change`].
    #[inline]
    pub(crate) fn rights(&self) -> u32 {
        self.rights.load(Ordering::SeqCst)
    }

    /// Makes checks leave the fast path until the new rights are stored, after the rest of the slot.
    ///
    /// A check in a section that does not see this flag already holds the section's lock. So if the caller takes and
    /// releases that lock after this call, and only then changes the slot, no check sees half of the change. Comparing
    /// the slot's generation before and after would not reveal the change.
    pub(crate) fn begin_change(&self) {
        self.rights.fetch_or(flag::CHANGING, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn access(&self) -> Access {
        Access::from_bits_truncate(self.rights() & 0xffff)
    }

    #[inline]
    pub(crate) fn domain(&self) -> DomainId {
        DomainId(self.domain.load(Ordering::Relaxed))
    }

    /// The only peer that the region serves, if any.
    pub(crate) fn peer(&self) -> Option<u32> {
        (self.rights() & flag::PEER != 0).then(|| self.link_generation.load(Ordering::Relaxed))
    }

    /// The requested key, if there is one. The slot must be a region's and must not change during the call.
    #[inline]
    pub(crate) fn requested(&self) -> Option<u64> {
        if self.rights() & flag::REQUESTED == 0 {
            return None;
        }
        let high = u64::from(self.version.load(Ordering::Relaxed));
        Some(high << 32 | u64::from(self.window.load(Ordering::Relaxed)))
    }

    /// Stores the requested key.
    #[inline]
    pub(crate) fn note_requested(&self, key: u64) {
        self.version.store((key >> 32) as u32, Ordering::Relaxed);
        self.window.store(key as u32, Ordering::Relaxed);
    }

    /// Whether the slot must be held ([`Slab::hold`](rkey_base::slab::Slab::hold)), so that it ends only under the table's
    /// lock: ending it also changes the registry, or is refused because something is bound to the region.
    pub(crate) fn must_be_held(&self) -> bool {
        self.rights() & flag::NEEDS_REGISTRY != 0
            || self.link.load(Ordering::Relaxed) > 0
            || Self::bound(&self.endpoint).is_some()
            || Self::bound(&self.counter).is_some()
    }

    /// Changes flags; the caller holds the table's lock.
    pub(crate) fn change_flags(&self, set: u32, clear: u32) {
        let rights = self.rights.load(Ordering::Relaxed);
        self.rights.store(rights & !clear | set, Ordering::Release);
    }

    /// The endpoint or counter in `cell`; `None` if there is none.
    #[inline]
    pub(crate) fn bound(cell: &AtomicU32) -> Option<u32> {
        let value = cell.load(Ordering::Relaxed);
        (value != NONE).then_some(value)
    }

    /// Changes a window's binding; the caller holds the table's lock.
    pub(crate) fn rebind(&self, binding: Option<&BoundTo>) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        match binding {
            Some(to) => {
                self.start.store(to.offset, Ordering::Relaxed);
                self.len.store(to.len, Ordering::Relaxed);
                self.base.store(to.base, Ordering::Relaxed);
                self.endpoint
                    .store(to.qp.unwrap_or(NONE), Ordering::Relaxed);
                self.counter
                    .store(u32::from(to.consumer_bits), Ordering::Relaxed);
                self.link.store(to.region, Ordering::Relaxed);
                self.link_generation
                    .store(to.region_generation, Ordering::Relaxed);
                let rights = to.access.bits() | flag::WINDOW | flag::BOUND;
                self.rights.store(rights, Ordering::Relaxed);
            }
            None => self.rights.store(flag::WINDOW, Ordering::Relaxed),
        }
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }

    /// A window's binding at this moment; `None` while it is unbound or changing.
    pub(crate) fn binding(&self) -> Option<(BoundTo, u32)> {
        let version = self.version.load(Ordering::Acquire);
        let rights = self.rights.load(Ordering::Relaxed);
        let binding = BoundTo {
            offset: self.start.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            base: self.base.load(Ordering::Relaxed),
            access: Access::from_bits_truncate(rights & 0xffff),
            qp: Self::bound(&self.endpoint),
            consumer_bits: self.counter.load(Ordering::Relaxed) as u8,
            region: self.link.load(Ordering::Relaxed),
            region_generation: self.link_generation.load(Ordering::Relaxed),
        };
        let bound = version & 1 == 0 && rights & flag::BOUND != 0 && self.unchanged(version);
        bound.then_some((binding, version))
    }

    /// Whether the binding read at `version` is still current.
    pub(crate) fn unchanged(&self, version: u32) -> bool {
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == version
    }
}

/// A window's binding.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) struct BoundTo {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) base: u64,
    pub(crate) access: Access,
    pub(crate) qp: Option<u32>,
    pub(crate) consumer_bits: u8,
    pub(crate) region: u32,
    pub(crate) region_generation: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_and_its_word_fill_one_cache_line() {
        assert_eq!(size_of::<Entry>(), 56);
    }
}
