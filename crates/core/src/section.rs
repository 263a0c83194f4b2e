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
use crate::key::Named;
use crate::lease::{Granted, Held, Lease};
use crate::sync::{Ordering, fence};
use crate::table::Protection;
use crate::{Access, Accessor, Denial, DomainId, LocalKey, LocalUse, Operation, RegionId, WireKey};

/// The right to check without pins. It is worth what the lock is worth behind which it is kept: see the contract of
/// [`Protection::section`].
#[derive(Debug)]
pub struct Section(());

impl Protection {
    /// A section, to be kept behind a lock.
    ///
    /// The caller promises that after a region was closed or re-registered that lock is locked and unlocked, or passed
    /// by, once before the region's memory is anybody else's. Leases given in the section do not outlive the lock's guard.
    #[must_use]
    pub fn section(&self) -> Section {
        Section(())
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
        let slot = match key {
            WireKey::Device(device) => match self.keys.open(device.0) {
                Named::Remote { index, generation } => Some((index, generation)),
                Named::Local { .. } | Named::Type2 { .. } => None,
            },
            WireKey::Requested(requested) => self.requested.find(who.domain, requested),
        };
        let ask = Ask::remote(who, key, addr, len, want);
        if len > 0
            && let Some(slot) = slot
            && let Some(lease) = self.look(section, slot, &ask, want.needs(), want.alignment())
        {
            return Ok(lease);
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
            && let Named::Local { index, generation } = self.keys.open(key.0)
            && let Some(lease) = self.look(section, (index, generation), &ask, want.needs(), 0)
        {
            return Ok(lease);
        }
        self.check_local(domain, key, addr, len, want)
    }

    /// The straight path without a pin. Everything that it does not grant is decided again, with one.
    #[inline]
    fn look<'s>(
        &'s self,
        _: &'s Section,
        (index, generation): (u32, u32),
        ask: &Ask,
        needs: Access,
        alignment: u64,
    ) -> Option<Lease<'s>> {
        let look = self.slots.look(index)?;
        let range = usual(look.value(), ask, needs, alignment)?;
        let counter = Entry::tied(&look.value().counter);
        // The slot may have been given out anew while it was read. If it is live under this generation after that, it
        // was so all the time.
        fence(Ordering::Acquire);
        look.is_live(generation).then_some(Lease {
            held: Held::Section {
                region: RegionId { index, generation },
                counter,
            },
            memory: Granted::One(range),
            through_window: false,
        })
    }
}
