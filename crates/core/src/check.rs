//! The decision about an access: a lease, or a denial.
//!
//! The straight path is a plain, enabled region named by a device key: open the key, pin the slot, compare rights and
//! flags in one step, the domain, and the range, all with arithmetic that cannot wrap. Everything else leaves it.
//!
//! The order in which reasons are looked for is fixed, so that a request that is wrong in several ways always gets the
//! same answer: no bytes (granted), the key, the domain, disabled or unbound, the endpoint, the peer, the right,
//! wrap-around, the range, the alignment.
//!
//! A request of **no bytes** is granted without a look at its key, as InfiniBand has it: it touches no memory.

use crate::denial::{Ask, NamedKey};
use crate::entry::{BoundTo, Entry, flag};
use crate::key::Named;
use crate::lease::{Granted, Held, Lease};
use crate::state::RegionEvent;
use crate::sync::Ordering;
use crate::table::Protection;
use crate::{
    Access, Accessor, Denial, DomainId, LocalKey, LocalUse, Operation, Reason, RegionId, SlotNow,
    WireKey,
};
use rkey_base::range::VaRange;
use rkey_base::slab::{Pin, Slab, State};

impl Protection {
    /// Decides about an operation that a peer asks for.
    ///
    /// # Errors
    /// The refusal, with everything there is to say about it.
    #[inline]
    pub fn check_remote(
        &self,
        who: &Accessor,
        key: WireKey,
        addr: u64,
        len: u64,
        want: Operation,
    ) -> Result<Lease<'_>, Box<Denial>> {
        let ask = Ask::remote(who, key, addr, len, want);
        if len == 0 {
            return Ok(Lease::NOTHING);
        }
        if let WireKey::Device(device) = key
            && let Some(pin) = self.pin_found(&self.slots, || self.keys.remote.find(device.0))
        {
            return self.check_entry(pin, &ask, want.needs(), want.alignment());
        }
        self.check_other_key(&ask, want)
    }

    /// Decides about the use of local memory by a request of this side, named by local key.
    ///
    /// # Errors
    /// As [`Self::check_remote`].
    #[inline]
    pub fn check_local(
        &self,
        domain: DomainId,
        key: LocalKey,
        addr: u64,
        len: u64,
        want: LocalUse,
    ) -> Result<Lease<'_>, Box<Denial>> {
        let ask = Ask::local(domain, NamedKey::Local(key), addr, len, want);
        if len == 0 {
            return Ok(Lease::NOTHING);
        }
        if let Some((index, generation)) = self.keys.open_local(key)
            && let Some(pin) = self.slots.pin(index, generation)
        {
            return self.check_entry(pin, &ask, want.needs(), 0);
        }
        Err(self.refuse(&ask, self.no_such_key(self.name(key.0), false)))
    }

    /// The same for a region named by its handle. Addresses are those that requests to the region use.
    ///
    /// # Errors
    /// As [`Self::check_remote`].
    pub fn check_region(
        &self,
        domain: DomainId,
        region: RegionId,
        addr: u64,
        len: u64,
        want: LocalUse,
    ) -> Result<Lease<'_>, Box<Denial>> {
        let ask = Ask::local(domain, NamedKey::Region(region), addr, len, want);
        if len == 0 {
            return Ok(Lease::NOTHING);
        }
        match self.slots.pin(region.index, region.generation) {
            Some(pin) if pin.rights() & flag::WINDOW != 0 => {
                Err(self.refuse(&ask, Reason::UnknownKey))
            }
            Some(pin) => self.check_entry(pin, &ask, want.needs(), 0),
            None => Err(self.refuse(
                &ask,
                slot_reason(&self.slots, region.index, region.generation),
            )),
        }
    }

    /// Pins the slot of the key that `find` looks up.
    ///
    /// Between the two steps the key can end and its slot be given out again, so often that it lives under the same
    /// generation as something else. [`Keys::wrap`](crate::key::Keys::wrap) is called in between then: the number of
    /// wraps has changed after the pin, which synchronises with what made the slot live, and the key is looked up again.
    /// A look-up that comes after the wrap does not find the key, because it ended before.
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

    /// Decides about a pinned slot.
    #[inline]
    fn check_entry<'a>(
        &'a self,
        pin: Pin<'a, Entry>,
        ask: &Ask,
        needs: Access,
        alignment: u64,
    ) -> Result<Lease<'a>, Box<Denial>> {
        if let Some(range) = usual(&pin, ask, needs, alignment) {
            return Ok(Lease {
                held: Held::Pinned(pin),
                memory: Granted::One(range),
                through_window: false,
            });
        }
        self.check_unusual(pin, ask, needs, alignment)
    }

    /// Decides slowly: unusual regions, windows, and every refusal.
    #[cold]
    #[inline(never)]
    fn check_unusual<'a>(
        &'a self,
        pin: Pin<'a, Entry>,
        ask: &Ask,
        needs: Access,
        alignment: u64,
    ) -> Result<Lease<'a>, Box<Denial>> {
        let rights = pin.rights();
        if rights & flag::WINDOW != 0 {
            return self.check_window(&pin, ask, None, needs, alignment);
        }
        let decide = || {
            if pin.domain() != ask.domain {
                return Err(Reason::OtherDomain {
                    owner: pin.domain(),
                });
            }
            if crate::registry::state(&pin)
                .step(RegionEvent::Access)
                .is_none()
            {
                return Err(Reason::Disabled);
            }
            let bound = Entry::tied(&pin.endpoint);
            if rights & flag::ENDPOINT != 0 && ask.qp.is_some() && bound != ask.qp {
                return Err(Reason::WrongEndpoint { bound });
            }
            if rights & flag::PEER != 0 && ask.qp.is_some() && pin.peer() != ask.peer {
                return Err(Reason::OtherPeer);
            }
            has_right(pin.access(), needs)?;
            if rights & flag::NULL != 0 {
                return self.nothing(&pin, ask, needs);
            }
            let offset = self.offset_in(&pin, ask.addr, ask.len)?;
            self.memory_of(&pin, offset, ask.len, alignment)
        };
        match decide() {
            Ok(memory) => Ok(Lease {
                held: Held::Pinned(pin),
                memory,
                through_window: false,
            }),
            Err(reason) => Err(self.refuse(ask, reason)),
        }
    }

    /// Decides about a window; `consumer_bits` are those of the key that was used, for a type 2 window.
    fn check_window(
        &self,
        window: &Entry,
        ask: &Ask,
        consumer_bits: Option<u8>,
        needs: Access,
        alignment: u64,
    ) -> Result<Lease<'_>, Box<Denial>> {
        let decide = || {
            let owner = window.domain();
            if owner != ask.domain {
                return Err(Reason::OtherDomain { owner });
            }
            let (to, version) = window.binding().ok_or(Reason::Unbound)?;
            if consumer_bits.is_some_and(|bits| bits != to.consumer_bits) {
                return Err(Reason::StaleKey {
                    now: SlotNow::Rebound,
                });
            }
            if to.qp.is_some() && to.qp != ask.qp {
                return Err(Reason::WrongEndpoint { bound: to.qp });
            }
            has_right(to.access, needs)?;
            // The region is pinned, not the window: what is under way through a window that is unbound meanwhile
            // holds up the close of the region. The second look makes sure that the window was still bound to it
            // when it was pinned.
            let region = self
                .slots
                .pin(to.region, to.region_generation)
                .ok_or(Reason::Unbound)?;
            if !window.unchanged(version) {
                return Err(Reason::Unbound);
            }
            let bound = Entry::tied(&region.endpoint);
            if region.rights() & flag::ENDPOINT != 0 && bound != ask.qp {
                return Err(Reason::WrongEndpoint { bound });
            }
            if region.rights() & flag::PEER != 0 && region.peer() != ask.peer {
                return Err(Reason::OtherPeer);
            }
            let offset = self.offset_in_window(&to, &region, ask.addr, ask.len)?;
            let memory = self.memory_of(&region, offset, ask.len, alignment)?;
            Ok(Lease {
                held: Held::Pinned(region),
                memory,
                through_window: true,
            })
        };
        decide().map_err(|reason| {
            let mut denial = self.refuse(ask, reason);
            denial.window = true;
            denial
        })
    }

    /// Keys that are not the remote device key of something in the shared slots, and keys of nothing.
    #[inline(never)]
    fn check_other_key(&self, ask: &Ask, want: Operation) -> Result<Lease<'_>, Box<Denial>> {
        let NamedKey::Remote(key) = ask.key else {
            return Err(self.refuse(ask, Reason::UnknownKey));
        };
        let device = match key {
            WireKey::Device(device) => device,
            WireKey::Requested(requested) => {
                let find = || self.requested.find(ask.domain, requested);
                if let Some(pin) = self.pin_found(&self.slots, find) {
                    return self.check_entry(pin, ask, want.needs(), want.alignment());
                }
                let reason = find().map_or(Reason::UnknownKey, |(index, generation)| {
                    slot_reason(&self.slots, index, generation)
                });
                return Err(self.refuse(ask, reason));
            }
        };
        let prefix = device.with_consumer_bits(0);
        if let Some(pin) = self.pin_found(&self.type2, || self.keys.type2.find(prefix.0)) {
            let bits = Some(device.consumer_bits());
            return self.check_window(&pin, ask, bits, want.needs(), want.alignment());
        }
        Err(self.refuse(ask, self.no_such_key(self.name(device.0), true)))
    }

    #[cold]
    pub(crate) fn refuse(&self, ask: &Ask, reason: Reason) -> Box<Denial> {
        ask.refuse(reason, self.api)
    }

    /// Why a key names nothing that it could be used for.
    #[cold]
    pub(crate) fn no_such_key(&self, named: Named, remote: bool) -> Reason {
        let (slab, index, generation, misused) = match named {
            Named::Remote { index, generation } => (&self.slots, index, generation, !remote),
            Named::Local { index, generation } => (&self.slots, index, generation, remote),
            Named::Type2 { index, generation } => (&self.type2, index, generation, !remote),
            Named::Ended => {
                return Reason::StaleKey { now: SlotNow::Free };
            }
            Named::Nothing => return Reason::UnknownKey,
        };
        match slab.peek(index) {
            Some((now, State::Live)) if now == generation && misused => {
                let window = slab
                    .get(index)
                    .is_some_and(|entry| entry.rights() & flag::WINDOW != 0);
                match (remote, window) {
                    (true, false) => Reason::LocalKeyUsedRemotely,
                    (true, true) => Reason::UnknownKey, // windows have no local keys
                    (false, _) => Reason::RemoteKeyUsedLocally,
                }
            }
            _ => match (slot_reason(slab, index, generation), named) {
                (Reason::StaleKey { now }, Named::Remote { .. }) => {
                    let rebound = self.rebound_since(index, generation);
                    Reason::StaleKey {
                        now: if rebound { SlotNow::Rebound } else { now },
                    }
                }
                // The slot has begun again with its first generation.
                (Reason::UnknownKey, Named::Remote { .. } | Named::Type2 { .. }) => {
                    Reason::StaleKey {
                        now: SlotNow::Reused,
                    }
                }
                (reason, _) => reason,
            },
        }
    }

    /// Whether this was one of the last keys of a window that has another key now. Not worth waiting for the books.
    fn rebound_since(&self, index: u32, generation: u32) -> bool {
        let Some(books) = self.books.try_lock() else {
            return false;
        };
        let Some(entry) = self.slots.get(index) else {
            return false;
        };
        let place = entry.window.load(Ordering::Relaxed) as usize;
        let record = books.windows.get(place).filter(|record| record.open);
        record.is_some_and(|record| record.recent.contains(&Some((index, generation))))
    }

    /// Where in a region `len` bytes at `addr` begin.
    pub(crate) fn offset_in(&self, region: &Entry, addr: u64, len: u64) -> Result<u64, Reason> {
        let asked = VaRange::new(addr, len).ok_or(Reason::Wraps)?;
        let rights = region.rights();
        let start = region.start.load(Ordering::Relaxed);
        if rights & (flag::SCATTER | flag::VIRTUAL) == flag::SCATTER | flag::VIRTUAL {
            let pieces = self.scatter.get(start).ok_or(Reason::Closing)?;
            return match pieces.offset_of(&asked) {
                Some(offset) => Ok(offset),
                None if pieces.hull().contains(&asked) => Err(Reason::NotInOnePiece),
                None => Err(Reason::out_of_range(pieces.hull(), addr, len)),
            };
        }
        let virtual_start = (rights & flag::SCATTER == 0).then_some(start);
        let base = region.base.load(Ordering::Relaxed);
        inside(
            base,
            region.len.load(Ordering::Relaxed),
            asked,
            virtual_start,
        )
    }

    /// Where in its region `len` bytes at `addr` of a window begin.
    fn offset_in_window(
        &self,
        window: &BoundTo,
        region: &Entry,
        addr: u64,
        len: u64,
    ) -> Result<u64, Reason> {
        let asked = VaRange::new(addr, len).ok_or(Reason::Wraps)?;
        let scattered = region.rights() & flag::SCATTER != 0;
        let virtual_start = region
            .base
            .load(Ordering::Relaxed)
            .checked_add(window.offset);
        let offset = inside(
            window.base,
            window.len,
            asked,
            virtual_start.filter(|_| !scattered),
        )?;
        window.offset.checked_add(offset).ok_or(Reason::Wraps)
    }

    /// The memory of `len` bytes from `offset` on in a region; the caller knows that they are inside.
    fn memory_of(
        &self,
        region: &Entry,
        offset: u64,
        len: u64,
        alignment: u64,
    ) -> Result<Granted, Reason> {
        let start = region.start.load(Ordering::Relaxed);
        let memory = if region.rights() & flag::SCATTER == 0 {
            let whole = VaRange::new(start, region.len.load(Ordering::Relaxed));
            Granted::One(
                whole
                    .and_then(|it| it.slice(offset, len))
                    .ok_or(Reason::Closing)?,
            )
        } else {
            let pieces = self.scatter.get(start).ok_or(Reason::Closing)?;
            let spans = pieces.spans(offset, len).ok_or(Reason::Closing)?;
            match spans[..] {
                [one] => Granted::One(one),
                _ => Granted::Many(spans.into()),
            }
        };
        match &memory {
            Granted::One(range) if range.start() & alignment != 0 => Err(Reason::Misaligned),
            Granted::Many(_) if alignment != 0 => Err(Reason::Misaligned),
            _ => Ok(memory),
        }
    }
}

/// The straight path: the memory asked for, if the slot is a usual region that grants it.
#[inline(always)]
pub(crate) fn usual(entry: &Entry, ask: &Ask, needs: Access, alignment: u64) -> Option<VaRange> {
    let plain = entry.rights() & (needs.bits() | flag::UNUSUAL) == needs.bits();
    if !plain || entry.domain() != ask.domain {
        return None;
    }
    // `slice` refuses what is not inside; offsets before the base do not exist.
    let offset = ask.addr.checked_sub(entry.base.load(Ordering::Relaxed))?;
    let memory = VaRange::new(
        entry.start.load(Ordering::Relaxed),
        entry.len.load(Ordering::Relaxed),
    )?;
    let range = memory.slice(offset, ask.len)?;
    (range.start() & alignment == 0).then_some(range)
}

/// Where in `len` bytes that requests name from `base` on the range `asked` begins. `virtual_start` is where these
/// bytes are by the other way of counting, for a hint to who mixed the two up.
fn inside(base: u64, len: u64, asked: VaRange, virtual_start: Option<u64>) -> Result<u64, Reason> {
    let memory = VaRange::new(base, len).ok_or(Reason::Wraps)?;
    if memory.contains(&asked) {
        return Ok(asked.start() - base);
    }
    let fits = |start| VaRange::new(start, len).is_some_and(|range| range.contains(&asked));
    match virtual_start {
        Some(start) if base == 0 && fits(start) => Err(Reason::ZeroBased {
            len,
            offset: asked.start() - start,
        }),
        _ if base > 0 && fits(0) => Err(Reason::NotZeroBased { memory }),
        _ => Err(Reason::out_of_range(memory, asked.start(), asked.len())),
    }
}

fn has_right(granted: Access, needs: Access) -> Result<(), Reason> {
    let missing = needs.difference(granted);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Reason::Right { granted, missing })
    }
}

/// Why a generation of a slot could not be used a moment ago. One that is live now was being changed then.
fn slot_reason(slab: &Slab<Entry>, index: u32, generation: u32) -> Reason {
    let Some((current, state)) = slab.peek(index) else {
        return Reason::UnknownKey;
    };
    let gone = match state {
        State::Free | State::Claimed => SlotNow::Free,
        State::Live | State::Retired => SlotNow::Reused,
    };
    match generation.cmp(&current) {
        std::cmp::Ordering::Less => Reason::StaleKey { now: gone },
        std::cmp::Ordering::Equal if matches!(state, State::Live | State::Retired) => {
            Reason::Closing
        }
        _ => Reason::UnknownKey,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::key::GENERATIONS;
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

    /// The slot of a key lives under the same generation again when the thread that has found it goes on.
    #[test]
    fn a_slot_that_is_used_again_between_look_up_and_pin_is_not_the_keys() {
        let (table, domain) = table();
        let first = register(&table, domain);
        let last = Cell::new(first.id);
        let find = || {
            let found = table.keys.remote.find(first.key.0);
            if found.is_some() {
                for _ in 0..GENERATIONS {
                    table.close_region(last.get()).unwrap().finish().unwrap();
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
