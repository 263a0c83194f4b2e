//! Visits: many checks under one announcement, so that a check itself changes nothing in memory.
//!
//! A pin and its end cost two atomic read-modify-writes, several times as much as the rest of a check. Whoever makes
//! many checks one after the other, as an engine does, announces a *visit* instead: one number that is odd while it
//! lasts. A close looks at these numbers after it has made the key refuse, and waits for the visits that were under
//! way. Since the visitor announces itself before it looks at the slot, and the close retires the slot before it looks
//! at the visitor, all in one order, one of the two sees the other.

use crate::check::usual;
use crate::denial::{Ask, NamedKey};
use crate::entry::Entry;
use crate::key::Named;
use crate::lease::{Granted, Held, Lease};
use crate::table::Protection;
use crate::{Access, Accessor, Denial, DomainId, LocalKey, LocalUse, Operation, RegionId, WireKey};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The announcement of one visitor, on cache lines of its own: odd during a visit.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Phase(AtomicU64);

/// The visits that were under way when a region was closed.
#[derive(Default)]
pub(crate) struct Visits(Vec<(Arc<Phase>, u64)>);

impl Visits {
    /// To be called after the slot was retired.
    #[inline]
    pub(crate) fn under_way(visitors: &[Arc<Phase>]) -> Self {
        let mut visits = Vec::new();
        for phase in visitors {
            let number = phase.0.load(Ordering::SeqCst);
            if number & 1 == 1 {
                visits.push((Arc::clone(phase), number));
            }
        }
        Self(visits)
    }

    /// True when all of them have ended. It stays so.
    #[inline]
    pub(crate) fn are_over(&self) -> bool {
        self.0
            .iter()
            .all(|(phase, number)| phase.0.load(Ordering::Acquire) != *number)
    }
}

/// Somebody who makes visits, one at a time: an engine has one.
#[derive(Debug)]
pub struct Visitor {
    table: Arc<Protection>,
    phase: Arc<Phase>,
}

/// A visit: checks that are made while it lasts are cheap, and regions that are closed meanwhile drain when it ends.
///
/// Whoever waits for a close to drain during a visit of its own waits forever.
#[derive(Debug)]
pub struct Visit<'v> {
    visitor: &'v Visitor,
}

impl Protection {
    /// Somebody who makes visits.
    #[must_use]
    pub fn visitor(self: &Arc<Self>) -> Visitor {
        let phase = Arc::new(Phase::default());
        self.books.lock().visitors.push(Arc::clone(&phase));
        Visitor {
            table: Arc::clone(self),
            phase,
        }
    }
}

impl Visitor {
    /// Begins a visit. Cheap, but not as cheap as a check: make it once for many of them.
    #[inline]
    pub fn enter(&mut self) -> Visit<'_> {
        // The next odd number; only the visitor changes it. (A visit that was forgotten has left an odd one behind.)
        let number = self.phase.0.load(Ordering::Relaxed);
        let next = number.wrapping_add(1 + (number & 1));
        self.phase.0.swap(next, Ordering::SeqCst);
        Visit { visitor: self }
    }

    /// The table that is visited.
    #[must_use]
    pub fn table(&self) -> &Arc<Protection> {
        &self.table
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        let visitors = &mut self.table.books.lock().visitors;
        visitors.retain(|phase| !Arc::ptr_eq(phase, &self.phase));
    }
}

impl Drop for Visit<'_> {
    #[inline]
    fn drop(&mut self) {
        let phase = &self.visitor.phase.0;
        // Only the visitor changes its number, so this needs no read-modify-write. Release: what was done under leases
        // happens before the memory goes back to its owner.
        let number = phase.load(Ordering::Relaxed);
        phase.store(number.wrapping_add(1), Ordering::Release);
    }
}

impl Visit<'_> {
    /// As [`Protection::check_remote`]; the lease ends with the visit at the latest.
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
        let table = &self.visitor.table;
        let slot = match key {
            WireKey::Device(device) => match table.keys.open(device.0) {
                Named::Remote { index, generation } => Some((index, generation)),
                Named::Local { .. } | Named::Type2 { .. } => None,
            },
            WireKey::Requested(requested) => table.requested.find(who.domain, requested),
        };
        if len > 0
            && let Some((index, generation)) = slot
            && let Some(lease) = self.look(index, generation, &ask, want.needs(), want.alignment())
        {
            return Ok(lease);
        }
        table.check_remote(who, key, addr, len, want)
    }

    /// As [`Protection::check_local`]; the lease ends with the visit at the latest.
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
        let table = &self.visitor.table;
        if len > 0
            && let Named::Local { index, generation } = table.keys.open(key.0)
            && let Some(lease) = self.look(index, generation, &ask, want.needs(), 0)
        {
            return Ok(lease);
        }
        table.check_local(domain, key, addr, len, want)
    }

    /// The straight path without a pin. Everything that it does not grant is decided again, with one.
    #[inline]
    fn look(
        &self,
        index: u32,
        generation: u32,
        ask: &Ask,
        needs: Access,
        alignment: u64,
    ) -> Option<Lease<'_>> {
        let look = self.visitor.table.slots.look(index)?;
        let entry: &Entry = look.value();
        let range = usual(entry, ask, needs, alignment)?;
        // The slot may have been something else while it was read: windows give their slots back without waiting for
        // visits. If it is live under this generation after that, it was so all the time; and it stays, because from
        // now on a close sees the visit.
        fence(Ordering::Acquire);
        look.is_live(generation).then_some(Lease {
            held: Held::Visited(entry, RegionId { index, generation }),
            memory: Granted::One(range),
            through_window: false,
        })
    }
}
