//! Magazines, with which a thread registers and deregisters without the table's lock.
//!
//! A [`Magazine`] contains *ready* slots, which are claimed and have their keys already, and slots of regions that it
//! has *ended*. Registering takes a ready slot, fills it and makes it live. Deregistering an idle region ends it and
//! claims its slot for the next use in one step (`Slab::retire_and_claim`). Only when the
//! ready slots are used up, or too many have ended, does the thread take the table's lock. It then gives all ended
//! slots new keys at once or, if ready slots are left, frees the ended ones.
//!
//! **Keys.** A ready slot's key is in the table of keys but grants nothing; a peer that uses it gets the same denial as
//! for a number that was never issued. The key of an ended slot becomes stale with its generation; the table of keys
//! marks it as stale just before the slot gets another key or is freed.
//!
//! **Counts.** The table counts each slot of a magazine as a region of the magazine's domain, and some bytes in
//! addition: these are *prepaid*. So limits may seem to be reached, and a domain may seem busy, when they are
//! not. Before the table refuses an operation for that reason, it empties all magazines
//! ([`Protection::empty_all_magazines`]) and checks again. Inspection subtracts what is prepaid.
//!
//! **Locks.** A magazine has its own lock, which is biased to its thread; other threads take it to empty the magazine.
//! Locks are taken in this order: the table's, a magazine's, the one for requested keys.

use crate::objects::id::GENERATIONS;
use crate::owner::geometry::based;
use crate::owner::registration::{allowed, rights};
use crate::protection::entry::{Entry, NONE, flag};
use crate::protection::grant::Deregistering;
use crate::protection::stock::{Prepaid, ReadySlot, Stock, Stocks};
use crate::protection::table::{Protection, Registry};
use crate::sync::Ordering;
use crate::{CoreError, DomainId, MemoryKind, Region, RegionId, RegionSpec};
use rkey_base::biased::{BiasedLock, Owner, OwnerGuard};
use rkey_base::range::VaRange;
use rkey_base::slab::Claimed;
use std::sync::{Arc, Weak};

/// How many slots a magazine takes at once, and how many ended slots it collects.
const ROOM: usize = if cfg!(loom) { 1 } else { 16 };
/// How many bytes a magazine prepays at once.
const BYTES: u64 = 1 << 30;

/// What one thread needs to register and deregister without the table's lock ([`Protection::register_from`],
/// [`Protection::deregister_into`], [`Protection::revoke_and_deregister_into`]). Dropping it returns everything to its
/// table.
pub struct Magazine {
    stock: Owner<Stock>,
    table: Weak<Protection>,
}

impl Magazine {
    /// Whether the magazine belongs to this table.
    #[inline]
    #[must_use]
    pub fn is_of(&self, table: &Protection) -> bool {
        std::ptr::eq(self.table.as_ptr(), table)
    }

    /// Whether the magazine's table still exists.
    #[must_use]
    pub fn has_table(&self) -> bool {
        self.table.strong_count() > 0
    }
}

impl Drop for Magazine {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            let mut registry = table.registry.lock();
            table.empty(&mut registry, &mut self.stock.lock());
            let mine = self.stock.shared();
            registry
                .magazines
                .retain(|other| !Stocks::ptr_eq(other, mine));
        }
    }
}

impl std::fmt::Debug for Magazine {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stock = self.stock.lock();
        let (ready, ended) = (stock.ready.len(), stock.ended.len());
        write!(out, "Magazine({ready} ready, {ended} ended)")
    }
}

impl Protection {
    /// An empty magazine.
    #[must_use]
    pub fn magazine(self: &Arc<Self>) -> Magazine {
        let stock = Owner::new(Stock {
            domain: DomainId(0),
            bytes: 0,
            ready: Vec::with_capacity(ROOM),
            ended: Vec::with_capacity(ROOM),
        });
        let shared = Stocks::clone(stock.shared());
        self.registry.lock().magazines.push(shared);
        let table = Arc::downgrade(self);
        Magazine { stock, table }
    }

    /// Like [`Self::register`], usually without the table's lock.
    ///
    /// # Errors
    /// Same as [`Self::register`].
    #[inline]
    pub fn register_from(
        &self,
        magazine: &Magazine,
        spec: &RegionSpec<'_>,
    ) -> Result<Region, CoreError> {
        match spec.ranges {
            [range]
                if spec.memory == MemoryKind::User && !spec.internal && magazine.is_of(self) =>
            {
                self.register_plain(magazine, *range, spec)
            }
            _ => self.register(spec),
        }
    }

    #[inline]
    fn register_plain(
        &self,
        magazine: &Magazine,
        range: VaRange,
        spec: &RegionSpec<'_>,
    ) -> Result<Region, CoreError> {
        let (start, len) = (range.start(), range.len());
        if len == 0 {
            return Err(CoreError::Empty);
        }
        self.bounded(len)?;
        let (base, flags) = based(spec.addressing, start, len)?;
        let access = allowed(spec.access, spec.rules)?;
        let mut rights = rights(spec, access) | flags;
        let requested = spec.requested_key.filter(|_| access.is_remote());
        let mut stock = magazine.stock.lock();
        let has_all = stock.domain == spec.domain && stock.bytes >= len && !stock.ready.is_empty();
        if !has_all {
            drop(stock);
            match self.restock(magazine, spec.domain, len) {
                Some(restocked) => stock = restocked,
                None => return self.register(spec),
            }
        }
        let Some(ready) = stock.ready.last().copied() else {
            return Err(CoreError::NoSuchDomain(spec.domain)); // cannot happen: `restock` has added one
        };
        let id = ready.id();
        if let Some(key) = requested {
            let adding = self.requested.adding();
            self.may_request(&adding, spec.domain, key)?.fill(id);
            rights |= flag::REQUESTED;
        }
        stock.ready.pop();
        stock.bytes -= len;
        if let Some(slot) = self.take_up(&ready) {
            slot.start.store(start, Ordering::Relaxed);
            slot.len.store(len, Ordering::Relaxed);
            slot.base.store(base, Ordering::Relaxed);
            slot.domain.store(spec.domain.0, Ordering::Relaxed);
            slot.endpoint.store(NONE, Ordering::Relaxed);
            slot.counter.store(NONE, Ordering::Relaxed);
            slot.link.store(0, Ordering::Relaxed);
            if let Some(peer) = spec.peer {
                slot.link_generation.store(peer, Ordering::Relaxed);
            }
            if let Some(key) = requested {
                slot.note_requested(key);
            }
            // Last: see `Entry::begin_change`.
            slot.rights.store(rights, Ordering::Release);
            slot.publish();
        }
        Ok(Region {
            id,
            local_key: self.keys.local(id.index, id.generation),
            key: ready.key,
            requested,
        })
    }

    /// Like [`Self::deregister`], usually without the table's lock.
    ///
    /// # Errors
    /// Same as [`Self::deregister`].
    #[inline]
    pub fn deregister_into(
        &self,
        magazine: &Magazine,
        region: RegionId,
    ) -> Result<Deregistering<'_>, CoreError> {
        match self.end_idle(magazine, region) {
            Some(deregistering) => Ok(deregistering),
            None => self.deregister(region),
        }
    }

    /// Like [`Self::revoke_and_deregister`], usually without the table's lock.
    ///
    /// # Errors
    /// Same as [`Self::revoke_and_deregister`].
    #[inline]
    pub fn revoke_and_deregister_into(
        &self,
        magazine: &Magazine,
        region: RegionId,
    ) -> Result<Deregistering<'_>, CoreError> {
        // `end_idle` refuses a region with windows or bindings, because such a region is held.
        match self.end_idle(magazine, region) {
            Some(deregistering) => Ok(deregistering),
            None => self.revoke_and_deregister(region),
        }
    }

    /// Ends a region that is idle. `None` if the region is pinned or held, or if its slot is in its last generation.
    #[inline]
    fn end_idle(&self, magazine: &Magazine, region: RegionId) -> Option<Deregistering<'_>> {
        let RegionId { index, generation } = region;
        let next = generation + 1;
        if next >= GENERATIONS || !magazine.is_of(self) {
            return None;
        }
        let mut stock = magazine.stock.lock();
        if stock.ended.len() >= ROOM {
            drop(stock);
            stock = self.unload(magazine);
        }
        let slot = self.slots.retire_and_claim(index, generation, next)?;
        let (domain, rights) = (slot.domain(), slot.rights());
        if rights & flag::REQUESTED != 0 {
            self.forget_requested(region, &slot);
        }
        if stock.domain != domain {
            if stock.regions() > 0 {
                drop(stock);
                self.count_ended(domain, rights, slot);
                return Some(Deregistering::new(self, None, false));
            }
            stock.domain = domain;
        }
        stock.bytes += slot.len.load(Ordering::Relaxed);
        stock.ended.push((index, next));
        Some(Deregistering::new(self, None, false))
    }

    /// Moves the contents of all magazines back to the table, so that the counts are exact. The caller has the table's
    /// lock.
    #[cold]
    pub(crate) fn empty_all_magazines(&self, registry: &mut Registry) {
        let magazines = std::mem::take(&mut registry.magazines);
        for mut stock in BiasedLock::lock_all(&magazines) {
            self.empty(registry, &mut stock);
        }
        registry.magazines = magazines;
    }

    /// Makes sure that a magazine has a ready slot that counts in this domain, and this many prepaid bytes. `None` if
    /// the limits do not allow that, or the domain is not open.
    #[cold]
    fn restock<'a>(
        &self,
        magazine: &'a Magazine,
        domain: DomainId,
        len: u64,
    ) -> Option<OwnerGuard<'a, Stock>> {
        let mut registry = self.registry.lock();
        registry.domains.children(domain).ok()?;
        let mut stock = magazine.stock.lock();
        registry.recount(&stock, domain);
        stock.domain = domain;
        if stock.ready.is_empty() {
            self.renew(&mut registry, &mut stock);
        }
        if stock.ready.is_empty() {
            while stock.ready.len() < ROOM && registry.regions < self.limits.max_regions {
                let Some(ready) = self.ready_slot(&mut registry) else {
                    break;
                };
                stock.ready.push(ready);
                registry.regions += 1;
                registry.domains.children(domain).ok()?.regions += 1;
            }
        }
        if stock.bytes < len {
            let room = self.limits.max_total_bytes - registry.bytes;
            let more = len.max(BYTES).min(room);
            registry.bytes += more;
            stock.bytes += more;
        }
        (!stock.ready.is_empty() && stock.bytes >= len).then_some(stock)
    }

    /// Makes room for an ended slot, under the table's lock.
    #[cold]
    fn unload<'a>(&self, magazine: &'a Magazine) -> OwnerGuard<'a, Stock> {
        let mut registry = self.registry.lock();
        let mut stock = magazine.stock.lock();
        if stock.ready.is_empty() {
            self.renew(&mut registry, &mut stock);
        } else {
            self.free_ended(&mut registry, &mut stock);
        }
        stock
    }

    /// Gives ended slots new keys.
    fn renew(&self, registry: &mut Registry, stock: &mut Stock) {
        for (index, next) in &stock.ended {
            self.end_key(registry, *index, *next);
        }
        let (mut ended, domain) = (std::mem::take(&mut stock.ended), stock.domain);
        for (index, generation) in ended.drain(..) {
            match self.give_key(registry, index, generation) {
                Some(key) => stock.ready.push(ReadySlot {
                    index,
                    generation,
                    key,
                }),
                None => self.free(registry, domain, index, generation),
            }
        }
        // Reuses the vector's memory.
        stock.ended = ended;
    }

    fn free_ended(&self, registry: &mut Registry, stock: &mut Stock) {
        let domain = stock.domain;
        for (index, next) in stock.ended.drain(..) {
            self.end_key(registry, index, next);
            self.free(registry, domain, index, next);
        }
    }

    /// Marks the key of a slot's generation before `next` as stale.
    #[inline]
    fn end_key(&self, registry: &Registry, index: u32, next: u32) {
        let key = registry.pool.remote_key(index);
        self.keys.remote.end(key.0, index, next - 1);
    }

    /// Frees a claimed slot that counts as a region of a domain and has no key.
    fn free(&self, registry: &mut Registry, domain: DomainId, index: u32, generation: u32) {
        if let Some(claimed) = self.slots.claimed(index, generation) {
            claimed.release_to(&mut registry.pool.free);
        }
        registry.regions -= 1;
        registry.domains.region_went(domain, 0);
    }

    /// Moves a magazine's contents back to the table.
    fn empty(&self, registry: &mut Registry, stock: &mut Stock) {
        self.free_ended(registry, stock);
        for ready in stock.ready.drain(..) {
            registry.pool.ready.push(ready);
            registry.regions -= 1;
            registry.domains.region_went(stock.domain, 0);
        }
        registry.bytes -= stock.bytes;
        stock.bytes = 0;
    }

    /// Frees the slot of an ended region whose domain is not the magazine's, and updates the counts.
    #[cold]
    fn count_ended(&self, domain: DomainId, rights: u32, slot: Claimed<'_, Entry>) {
        let mut registry = self.registry.lock();
        registry.bytes -= slot.len.load(Ordering::Relaxed);
        registry.regions -= 1;
        registry.domains.region_went(domain, rights);
        self.end_key(&registry, slot.index(), slot.generation());
        slot.release_to(&mut registry.pool.free);
    }
}

impl Registry {
    /// Moves the count of a magazine's slots to another domain.
    fn recount(&mut self, stock: &Stock, domain: DomainId) {
        let regions = stock.regions();
        if stock.domain != domain && regions > 0 {
            for (which, come, go) in [(stock.domain, 0, regions), (domain, regions, 0)] {
                if let Ok(children) = self.domains.children(which) {
                    children.regions = children.regions + come - go;
                }
            }
        }
    }

    /// What the magazines have prepaid.
    pub(crate) fn prepaid(&self) -> Prepaid {
        let mut prepaid = Prepaid::default();
        for stock in BiasedLock::lock_all(&self.magazines) {
            *prepaid.regions.entry(stock.domain).or_default() += stock.regions();
            prepaid.bytes += stock.bytes;
        }
        prepaid
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Access, Accessor, Limits, Operation, RKey, Reason, Secrets};

    /// A key that was drawn in advance is refused like one that was never issued, so that it counts as a guess.
    #[test]
    fn a_key_is_unknown_until_a_region_has_it() {
        let table = Arc::new(Protection::new(Limits::default(), Secrets([1, 2, 3, 4])));
        let domain = table.create_domain().unwrap();
        let magazine = table.magazine();
        let bytes = [VaRange::new(0x1000, 8).unwrap()];
        let spec = RegionSpec::new(domain, &bytes, Access::all());
        let who = Accessor {
            domain,
            qp: 1,
            peer: None,
        };
        let reason = |key| {
            let answer = table.check_remote(&who, RKey::Device(key), 0x1000, 1, Operation::Read);
            answer.err().map(|denial| denial.reason)
        };
        for _ in 0..3 {
            let first = table.register_from(&magazine, &spec).unwrap();
            let ready: Vec<crate::Key> = magazine
                .stock
                .lock()
                .ready
                .iter()
                .map(|it| it.key)
                .collect();
            assert_eq!(ready.len(), ROOM - 1);
            for key in &ready {
                assert_eq!(reason(*key), Some(Reason::UnknownKey));
            }
            let all: Vec<Region> = ready
                .iter()
                .map(|_| table.register_from(&magazine, &spec).unwrap())
                .collect();
            for region in all.iter().chain([&first]) {
                assert_eq!(reason(region.key), None);
                drop(table.deregister_into(&magazine, region.id).unwrap());
                assert!(matches!(reason(region.key), Some(Reason::StaleKey { .. })));
            }
        }
    }
}
