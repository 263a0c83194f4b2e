//! Sections: checks under a lock that the caller holds anyway, which then write nothing to memory.
//!
//! A pin and its release are two atomic read-modify-writes, several times the cost of the rest of a check. An engine
//! makes all its checks and copies under its own lock, so it needs no pins: it keeps a [`Section`] behind that lock.
//!
//! **The contract.** Deregistering or re-registering a region must pass through that lock once (lock and unlock it,
//! or [`pass`](rkey_base::lock::SpinLock::pass)), after the call that ended the region returned and before the memory
//! goes back to its owner (and, if a region is changed in place, before [`crate::Changing::finish`]). By then earlier
//! grants in the section have ended, and later checks in it see that the region has ended.
//! [`crate::Closing::is_drained`] covers pinned grants only.

use crate::check::usual;
use crate::denial::{NamedKey, Request};
use crate::entry::Entry;
use crate::grant::{Grant, Granted, Held};
use crate::sync::{Ordering, fence};
use crate::table::Protection;
use crate::{Access, Accessor, Denial, DomainId, LocalKey, LocalUse, Operation, RegionId, WireKey};
use rkey_base::range::VaRange;
use std::cell::Cell;

/// The permission to check without pins. It is only as good as the lock that guards it: see the contract of
/// [`Protection::section`].
#[derive(Debug)]
pub struct Section {
    /// Slots of recently used keys, one cell per key hash.
    lately: [Cell<Found>; LATELY],
}

const LATELY: usize = 8;

/// A key and its slot. The entry is valid while keys come from the same permutation and no slot's generations have
/// wrapped.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// Of which table's keys, and from which permutation.
    of: (usize, u32),
    /// How often generations had begun anew.
    wraps: u32,
    key: u32,
    slot: (u32, u32),
}

impl Protection {
    /// A section, to be kept behind a lock.
    ///
    /// The caller promises to lock and unlock that lock, or to pass through it, once after a region was deregistered
    /// or re-registered and before the region's memory is reused. Grants given in the section must not outlive the
    /// lock's guard.
    #[must_use]
    pub fn section(&self) -> Section {
        let nothing = Found {
            of: (0, 0),
            wraps: 0,
            key: 0,
            slot: (0, 0),
        };
        Section {
            lately: std::array::from_fn(|_| Cell::new(nothing)),
        }
    }

    /// As [`Self::check_remote`], in a section.
    ///
    /// # Errors
    /// The denial, with the complete reason.
    #[inline]
    pub fn check_remote_in<'s>(
        &'s self,
        section: &'s Section,
        who: &Accessor,
        key: WireKey,
        addr: u64,
        len: u64,
        want: Operation,
    ) -> Result<Grant<'s>, Box<Denial>> {
        let wraps = self.keys.wraps();
        let slot = match key {
            WireKey::Device(device) => self.find_in(section, device.0, wraps),
            WireKey::Requested(requested) => self.requested.find(who.domain, requested),
        };
        let request = Request::remote(who, key, addr, len, want);
        if len > 0
            && let Some(slot) = slot
            && let Some(grant) = self.look(section, slot, &request, want.needs(), want.alignment())
        {
            // The generation may have wrapped to the same number; then this count has changed.
            fence(Ordering::Acquire);
            if self.keys.wraps() == wraps {
                return Ok(grant);
            }
        }
        self.check_remote(who, key, addr, len, want)
    }

    /// As [`Self::check_local`], in a section.
    ///
    /// # Errors
    /// As [`Self::check_remote`].
    #[inline]
    pub fn check_local_in<'s>(
        &'s self,
        section: &'s Section,
        domain: DomainId,
        key: LocalKey,
        addr: u64,
        len: u64,
        want: LocalUse,
    ) -> Result<Grant<'s>, Box<Denial>> {
        let request = Request::local(domain, NamedKey::Local(key), addr, len, want);
        if len > 0
            && let Some(slot) = self.keys.open_local(key)
            && let Some(grant) = self.look(section, slot, &request, want.needs(), 0)
        {
            return Ok(grant);
        }
        self.check_local(domain, key, addr, len, want)
    }

    /// Whether a request of this side may name this memory of a region at this moment, as a check before posting.
    /// Nothing is held: the result does not permit touching the memory.
    ///
    /// # Errors
    /// As [`Self::check_region`].
    #[inline]
    pub fn allows(
        &self,
        domain: DomainId,
        region: RegionId,
        addr: u64,
        len: u64,
        want: LocalUse,
    ) -> Result<(), Box<Denial>> {
        let request = Request::local(domain, NamedKey::Region(region), addr, len, want);
        let slot = (region.index, region.generation);
        if self.straight(slot, &request, want.needs(), 0).is_some() {
            return Ok(());
        }
        self.check_region(domain, region, addr, len, want).map(drop)
    }

    /// The slot of a key that is live, or was recently.
    #[inline]
    fn find_in(&self, section: &Section, key: u32, wraps: u32) -> Option<(u32, u32)> {
        let place = &section.lately[key as usize % LATELY];
        let last = place.get();
        let of = (&raw const self.keys as usize, self.keys.permutation());
        if last.key == key && last.of == of && last.wraps == wraps {
            return Some(last.slot);
        }
        let slot = self.keys.remote.find(key)?;
        place.set(Found {
            of,
            wraps,
            key,
            slot,
        });
        Some(slot)
    }

    /// The fast path in a section. What it does not grant is checked again, with a pin.
    #[inline]
    fn look<'s>(
        &'s self,
        _: &'s Section,
        slot: (u32, u32),
        request: &Request,
        needs: Access,
        alignment: u64,
    ) -> Option<Grant<'s>> {
        let (range, counter) = self.straight(slot, request, needs, alignment)?;
        let (index, generation) = slot;
        Some(Grant {
            held: Held::Section {
                region: RegionId { index, generation },
                counter,
            },
            memory: Granted::One(range),
            through_window: false,
        })
    }

    /// The fast path without a pin: the memory, as it is at this moment, and the region's counter.
    #[inline]
    fn straight(
        &self,
        (index, generation): (u32, u32),
        request: &Request,
        needs: Access,
        alignment: u64,
    ) -> Option<(VaRange, Option<u32>)> {
        let look = self.slots.look(index)?;
        let range = usual(look.value(), request, needs, alignment)?;
        let counter = Entry::tied(&look.value().counter);
        // The slot may have been reused while it was read. If it is still live under this generation, it was so all
        // the time, or was changed in place: then its rights kept us off the fast path (see `Entry::begin_change`).
        fence(Ordering::Acquire);
        look.is_live(generation).then_some((range, counter))
    }
}
