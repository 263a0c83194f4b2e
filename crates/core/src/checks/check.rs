//! The decision about an access: a grant, or a denial.
//!
//! On the fast path, for a plain, enabled region, a check finds the slot of the key, pins it, and compares the rights
//! and flags (in one step), the domain, and the range (with arithmetic that cannot wrap). Everything else takes the
//! slow path.
//!
//! The order of the checks is fixed, so that a request that is wrong in several ways always gets the same reason: no
//! bytes (granted), the key, the domain, disabled or unbound, the endpoint, the peer, the right, wrap-around, the
//! range, the alignment. In an access through a window, the window's endpoint and right come before the region's
//! endpoint and peer.
//!
//! A request of **no bytes** is granted without checking its key, as in InfiniBand: it touches no memory.

use crate::checks::refusal::{has_right, refuse_entry, slot_reason};
use crate::denials::denial::{NamedKey, Request};
use crate::objects::state::RegionEvent;
use crate::protection::entry::{Entry, flag};
use crate::protection::grant::{Grant, KeptBy};
use crate::protection::granted::Granted;
use crate::protection::table::Protection;
use crate::sync::Ordering;
use crate::{
    Access, Accessor, Denial, DomainId, Key, LKey, LocalUse, Operation, RKey, Reason, RegionId,
    SlotNow,
};
use rkey_base::range::VaRange;
use rkey_base::slab::{Pin, Slab};

impl Protection {
    /// Checks an operation of a peer.
    ///
    /// # Errors
    /// The denial, with the complete reason.
    #[inline]
    pub fn check_remote(
        &self,
        who: &Accessor,
        key: RKey,
        addr: u64,
        len: u64,
        want: Operation,
    ) -> Result<Grant<'_>, Box<Denial>> {
        let request = Request::remote(who, key, addr, len, want);
        if len == 0 {
            return Ok(Grant::NOTHING);
        }
        if let RKey::Device(device) = key
            && let Some(pin) = self.pin_found(&self.slots, || self.keys.remote.find(device.0))
        {
            return self.check_entry(pin, &request, want.needs(), want.alignment());
        }
        self.check_other_key(&request, want)
    }

    /// Checks how one of this side's requests uses local memory that it names by local key.
    ///
    /// # Errors
    /// Same as [`Self::check_remote`].
    #[inline]
    pub fn check_local(
        &self,
        domain: DomainId,
        key: LKey,
        addr: u64,
        len: u64,
        want: LocalUse,
    ) -> Result<Grant<'_>, Box<Denial>> {
        let request = Request::local(domain, NamedKey::Local(key), addr, len, want);
        if len == 0 {
            return Ok(Grant::NOTHING);
        }
        if let Some((index, generation)) = self.keys.open_local(key)
            && let Some(pin) = self.slots.pin(index, generation)
        {
            return self.check_entry(pin, &request, want.needs(), 0);
        }
        Err(self.refuse(&request, self.why_key_is_refused(self.name(key.0), false)))
    }

    /// Like [`Self::check_local`], for a region named by its handle. Addresses are those that requests to the region
    /// use.
    ///
    /// # Errors
    /// Same as [`Self::check_remote`].
    pub fn check_region(
        &self,
        domain: DomainId,
        region: RegionId,
        addr: u64,
        len: u64,
        want: LocalUse,
    ) -> Result<Grant<'_>, Box<Denial>> {
        let request = Request::local(domain, NamedKey::Region(region), addr, len, want);
        if len == 0 {
            return Ok(Grant::NOTHING);
        }
        match self.slots.pin(region.index, region.generation) {
            Some(pin) if pin.rights() & flag::WINDOW != 0 => {
                Err(self.refuse(&request, Reason::UnknownKey))
            }
            Some(pin) => self.check_entry(pin, &request, want.needs(), 0),
            None => Err(self.refuse(
                &request,
                slot_reason(&self.slots, region.index, region.generation),
            )),
        }
    }

    /// Pins the slot of the key that `find` looks up.
    ///
    /// Between the lookup and the pin, the key can become stale and its slot can be reused until its generations wrap;
    /// the pin then gets another object under the same generation. [`Keys::wrap`](crate::keys::key::Keys::wrap) was called in
    /// between, and the pin synchronises with the thread that made the slot live, so this function sees that the number
    /// of wraps has changed, and looks the key up again. A lookup after the wrap does not find the stale key.
    #[inline]
    fn pin_found<'a>(
        &self,
        slab: &'a Slab<Entry>,
        find: impl Fn() -> Option<(u32, u32)>,
    ) -> Option<Pin<'a, Entry>> {
        loop {
            let wraps = self.keys.wraps();
            let (index, generation) = find()?;
            let pin = slab.pin(index, generation)?;
            if self.keys.wraps() == wraps {
                return Some(pin);
            }
        }
    }

    /// Checks an access to a pinned slot.
    #[inline]
    fn check_entry<'a>(
        &'a self,
        pin: Pin<'a, Entry>,
        request: &Request,
        needs: Access,
        alignment: u64,
    ) -> Result<Grant<'a>, Box<Denial>> {
        if let Some(range) = check_plain_region(&pin, request, needs, alignment) {
            return Ok(Grant {
                kept_by: KeptBy::Pinned(pin),
                memory: Granted::One(range),
                through_window: false,
            });
        }
        self.check_unusual(pin, request, needs, alignment)
    }

    /// The slow path: unusual regions, windows, and every denial.
    #[cold]
    #[inline(never)]
    fn check_unusual<'a>(
        &'a self,
        pin: Pin<'a, Entry>,
        request: &Request,
        needs: Access,
        alignment: u64,
    ) -> Result<Grant<'a>, Box<Denial>> {
        let rights = pin.rights();
        if rights & flag::WINDOW != 0 {
            return self.check_window(&pin, request, None, needs, alignment);
        }
        let decide = || {
            self.check_domain(&pin, request)?;
            if crate::owner::registration::state(&pin)
                .step(RegionEvent::Access)
                .is_none()
            {
                return Err(Reason::Disabled);
            }
            let bound = Entry::bound(&pin.endpoint);
            if rights & flag::ENDPOINT != 0 && request.qp.is_some() && bound != request.qp {
                return Err(Reason::WrongEndpoint { bound });
            }
            if rights & flag::PEER != 0 && request.qp.is_some() && pin.peer() != request.peer {
                return Err(Reason::OtherPeer);
            }
            has_right(pin.access(), needs)?;
            if rights & flag::NULL != 0 {
                return self.nothing(&pin, request, needs);
            }
            let offset = self.offset_in(&pin, request.addr, request.len)?;
            self.memory_of(&pin, offset, request.len, alignment)
        };
        match decide() {
            Ok(memory) => Ok(Grant {
                kept_by: KeptBy::Pinned(pin),
                memory,
                through_window: false,
            }),
            Err(reason) => Err(refuse_entry(&pin, request, reason)),
        }
    }

    /// Checks that memory and request are in one domain. A peer may also reach memory of another API if the owner allows that.
    fn check_domain(&self, entry: &Entry, request: &Request) -> Result<(), Reason> {
        let owner = entry.domain();
        let is_remote = request.qp.is_some();
        if owner == request.domain || is_remote && self.may_reach(request.domain, owner) {
            return Ok(());
        }
        Err(Reason::OtherDomain { owner })
    }

    /// Checks an access through a window. For a type 2 window, `consumer_bits` are those of the request's key.
    fn check_window(
        &self,
        window: &Entry,
        request: &Request,
        consumer_bits: Option<u8>,
        needs: Access,
        alignment: u64,
    ) -> Result<Grant<'_>, Box<Denial>> {
        let decide = || {
            self.check_domain(window, request)?;
            let (to, version) = window.binding().ok_or(Reason::Unbound)?;
            if consumer_bits.is_some_and(|bits| bits != to.consumer_bits) {
                return Err(Reason::StaleKey {
                    now: SlotNow::Rebound,
                });
            }
            if to.qp.is_some() && to.qp != request.qp {
                return Err(Reason::WrongEndpoint { bound: to.qp });
            }
            has_right(to.access, needs)?;
            // Pin the region, not the window: an access through a window that is then unbound must delay the
            // region's deregistration. The second check ensures that the window was still bound to the region when that
            // was pinned.
            let region = self
                .slots
                .pin(to.region, to.region_generation)
                .ok_or(Reason::Unbound)?;
            if !window.unchanged(version) {
                return Err(Reason::Unbound);
            }
            let bound = Entry::bound(&region.endpoint);
            if region.rights() & flag::ENDPOINT != 0 && bound != request.qp {
                return Err(Reason::WrongEndpoint { bound });
            }
            if region.rights() & flag::PEER != 0 && region.peer() != request.peer {
                return Err(Reason::OtherPeer);
            }
            let offset = self.offset_in_window(&to, &region, request.addr, request.len)?;
            let memory = self.memory_of(&region, offset, request.len, alignment)?;
            Ok(Grant {
                kept_by: KeptBy::Pinned(region),
                memory,
                through_window: true,
            })
        };
        decide().map_err(|reason| {
            let mut denial = refuse_entry(window, request, reason);
            denial.window = true;
            denial
        })
    }

    /// Checks an access by any other key: requested, of a type 2 window, or unknown.
    #[inline(never)]
    fn check_other_key(
        &self,
        request: &Request,
        want: Operation,
    ) -> Result<Grant<'_>, Box<Denial>> {
        let NamedKey::Remote(key) = request.key else {
            return Err(self.refuse(request, Reason::UnknownKey));
        };
        let device = match key {
            RKey::Device(device) => device,
            RKey::Requested(requested) => {
                let find = || self.requested.find(request.domain, requested);
                if let Some(pin) = self.pin_found(&self.slots, find) {
                    return self.check_entry(pin, request, want.needs(), want.alignment());
                }
                if let Some(decided) = self.check_key_of_other_api(request, requested, want) {
                    return decided;
                }
                let reason = find().map_or(Reason::UnknownKey, |(index, generation)| {
                    slot_reason(&self.slots, index, generation)
                });
                return Err(self.refuse(request, reason));
            }
        };
        let prefix = device.with_consumer_bits(0);
        if let Some(pin) = self.pin_found(&self.type2, || self.keys.type2.find(prefix.0)) {
            let bits = Some(device.consumer_bits());
            return self.check_window(&pin, request, bits, want.needs(), want.alignment());
        }
        Err(self.refuse(request, self.why_key_is_refused(self.name(device.0), true)))
    }

    /// Checks an access by a requested key that no region of the domain has: the number may be a key that the device
    /// chose for an object of another API. `None` if no such object has it.
    fn check_key_of_other_api(
        &self,
        request: &Request,
        key: u64,
        want: Operation,
    ) -> Option<Result<Grant<'_>, Box<Denial>>> {
        let key = Key(u32::try_from(key).ok()?);
        let is_other = |entry: &Entry| entry.domain().api() != request.domain.api();
        if let Some(pin) = self.pin_found(&self.slots, || self.keys.remote.find(key.0)) {
            return is_other(&pin)
                .then(|| self.check_entry(pin, request, want.needs(), want.alignment()));
        }
        let prefix = key.with_consumer_bits(0);
        let pin = self.pin_found(&self.type2, || self.keys.type2.find(prefix.0))?;
        let bits = Some(key.consumer_bits());
        is_other(&pin)
            .then(|| self.check_window(&pin, request, bits, want.needs(), want.alignment()))
    }
}

/// The fast path: the memory, if the slot is a plain region that allows the request.
#[inline(always)]
pub(crate) fn check_plain_region(
    entry: &Entry,
    request: &Request,
    needs: Access,
    alignment: u64,
) -> Option<VaRange> {
    let plain = entry.rights() & (needs.bits() | flag::UNUSUAL) == needs.bits();
    if !plain || entry.domain() != request.domain {
        return None;
    }
    // `slice` refuses ranges outside; `checked_sub` refuses addresses before the base.
    let offset = request
        .addr
        .checked_sub(entry.base.load(Ordering::Relaxed))?;
    let memory = VaRange::new(
        entry.start.load(Ordering::Relaxed),
        entry.len.load(Ordering::Relaxed),
    )?;
    let range = memory.slice(offset, request.len)?;
    (range.start() & alignment == 0).then_some(range)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::objects::id::GENERATIONS;
    use crate::{Limits, RegionSpec, Secrets};
    use std::cell::Cell;

    const REGION: u64 = 0x1000;

    /// A table with one slot.
    fn table() -> (Protection, DomainId) {
        let limits = Limits {
            key_slots: 1,
            ..Limits::default()
        };
        let table = Protection::new(limits, Secrets([1, 2, 3, 4]));
        let domain = table.create_domain().unwrap();
        (table, domain)
    }

    fn register(table: &Protection, domain: DomainId) -> crate::Region {
        let ranges = [VaRange::new(REGION, 64).unwrap()];
        let spec = RegionSpec::new(domain, &ranges, Access::all());
        table.register(&spec).unwrap()
    }

    /// Between lookup and pin, the key's slot passes through all generations, and is live under the first one again.
    #[test]
    fn a_slot_reused_between_lookup_and_pin_is_looked_up_again() {
        let (table, domain) = table();
        let first = register(&table, domain);
        let last = Cell::new(first.id);
        let find = || {
            let found = table.keys.remote.find(first.key.0);
            if found.is_some() {
                for _ in 0..GENERATIONS {
                    table.deregister(last.get()).unwrap().finish().unwrap();
                    last.set(register(&table, domain).id);
                }
            }
            found
        };
        assert!(table.pin_found(&table.slots, find).is_none());
        assert_eq!(last.get(), first.id, "the same slot and generation");
        assert_eq!(table.slots.pins(first.id.index), 0);
    }
}
