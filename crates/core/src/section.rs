//! Sections: checks under a lock that the caller holds anyway, which then change nothing in memory.
//!
//! A pin and its end are two atomic read-modify-writes, several times as much as the rest of a check. An engine does
//! all its checks and all its copies under its own lock, so it can do without: it keeps a [`Section`] behind that lock.
//!
//! **The contract.** Whoever closes or re-registers a region has to pass through that lock once (lock it and unlock it,
//! or [`pass`](rkey_base::lock::SpinLock::pass) by)
//! after the request that ended the region returned and before the memory goes back to its owner (and, where a region
//! is changed in place, before [`crate::Changing::finish`]). What was granted in
//! the section before has ended by then, and what is asked in it later sees that the region has ended.
//! [`crate::Closing::is_drained`] speaks of pinned leases only.

use crate::check::usual;
use crate::denial::{Ask, NamedKey};
use crate::entry::Entry;
use crate::lease::{Granted, Held, Lease};
use crate::sync::{Ordering, fence};
use crate::table::Protection;
use crate::{Access, Accessor, Denial, DomainId, LocalKey, LocalUse, Operation, RegionId, WireKey};
use rkey_base::range::VaRange;
use std::cell::Cell;

/// The right to check without pins. It is worth what the lock is worth behind which it is kept: see the contract of
/// [`Protection::section`].
#[derive(Debug)]
pub struct Section {
    /// Slots of keys that were used lately; a key has one place here.
    lately: [Cell<Found>; LATELY],
}

const LATELY: usize = 8;

/// A key and its slot. As long as keys come from the same permutation and no slot's generations begin anew, no other
/// key is found in this generation of the slot.
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
    /// The caller promises that after a region was closed or re-registered that lock is locked and unlocked, or passed
    /// by, once before the region's memory is anybody else's. Leases given in the section do not outlive the lock's guard.
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
    /// The refusal, with everything there is to say about it.
    #[inline]
    pub fn check_remote_in<'s>(
        &'s self,
        section: &'s Section,
        who: &Accessor,
        key: WireKey,
        addr: u64,
        len: u64,
        want: Operation,
    ) -> Result<Lease<'s>, Box<Denial>> {
        let wraps = self.keys.wraps();
        let slot = match key {
            WireKey::Device(device) => self.find_in(section, device.0, wraps),
            WireKey::Requested(requested) => self.requested.find(who.domain, requested),
        };
        let ask = Ask::remote(who, key, addr, len, want);
        if len > 0
            && let Some(slot) = slot
            && let Some(lease) = self.look(section, slot, &ask, want.needs(), want.alignment())
        {
            // The generation of the slot may be a later one with the same number. Then this shows another count.
            fence(Ordering::Acquire);
            if self.keys.wraps() == wraps {
                return Ok(lease);
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
    ) -> Result<Lease<'s>, Box<Denial>> {
        let ask = Ask::local(domain, NamedKey::Local(key), addr, len, want);
        if len > 0
            && let Some(slot) = self.keys.open_local(key)
            && let Some(lease) = self.look(section, slot, &ask, want.needs(), 0)
        {
            return Ok(lease);
        }
        self.check_local(domain, key, addr, len, want)
    }

    /// Whether a request of this side may name this memory of a region at this moment, for whoever wants to know
    /// before it is posted. Nothing is held: the memory may not be touched on the strength of the answer.
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
        let ask = Ask::local(domain, NamedKey::Region(region), addr, len, want);
        let slot = (region.index, region.generation);
        if self.straight(slot, &ask, want.needs(), 0).is_some() {
            return Ok(());
        }
        self.check_region(domain, region, addr, len, want).map(drop)
    }

    /// The slot of a live remote key, or of one that was live a while ago.
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

    /// The straight path in a section. Everything that it does not grant is decided again, with a pin.
    #[inline]
    fn look<'s>(
        &'s self,
        _: &'s Section,
        slot: (u32, u32),
        ask: &Ask,
        needs: Access,
        alignment: u64,
    ) -> Option<Lease<'s>> {
        let (range, counter) = self.straight(slot, ask, needs, alignment)?;
        let (index, generation) = slot;
        Some(Lease {
            held: Held::Section {
                region: RegionId { index, generation },
                counter,
            },
            memory: Granted::One(range),
            through_window: false,
        })
    }

    /// The straight path without a pin: the memory asked for, as it is at this moment, and the region's counter.
    #[inline]
    fn straight(
        &self,
        (index, generation): (u32, u32),
        ask: &Ask,
        needs: Access,
        alignment: u64,
    ) -> Option<(VaRange, Option<u32>)> {
        let look = self.slots.look(index)?;
        let range = usual(look.value(), ask, needs, alignment)?;
        let counter = Entry::tied(&look.value().counter);
        // The slot may have been given out anew while it was read. If it is live under this generation after that, it
        // was so all the time, or was changed in place: then its rights kept us away (see `Entry::begin_change`).
        fence(Ordering::Acquire);
        look.is_live(generation).then_some((range, counter))
    }
}
