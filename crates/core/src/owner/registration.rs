//! The owner's operations on regions: register, deregister.

use crate::objects::state::{RegionEvent, RegionState};
use crate::owner::geometry::Geometry;
use crate::protection::entry::{Entry, NONE, flag};
use crate::protection::grant::Deregistering;
use crate::protection::hold::Held;
use crate::protection::stock::ReadySlot;
use crate::protection::table::{Protection, Registry, reached};
use crate::sync::Ordering;
use crate::{Access, CoreError, DomainId, Limit, MemoryKind, Region, RegionId, RegionSpec, Rules};
use rkey_base::slab::State;

/// The contents of a region's slot.
pub(crate) struct Filling {
    pub(crate) geometry: Geometry,
    pub(crate) domain: DomainId,
    pub(crate) rights: u32,
    pub(crate) requested: Option<u64>,
    pub(crate) endpoint: Option<u32>,
    pub(crate) peer: Option<u32>,
    pub(crate) counter: Option<u32>,
    pub(crate) memory: MemoryKind,
}

impl Protection {
    /// Registers memory. The caller is responsible for what the ranges point to; the memory need not be mapped (FI-030).
    ///
    /// # Errors
    /// See [`CoreError`]; on an error, nothing is registered.
    #[inline]
    pub fn register(&self, spec: &RegionSpec<'_>) -> Result<Region, CoreError> {
        let geometry = self.geometry(spec.ranges, spec.addressing)?;
        self.enter_as(spec, geometry, spec.memory)
    }

    /// Enters a new region of this geometry and kind of memory.
    #[inline]
    pub(crate) fn enter_as(
        &self,
        spec: &RegionSpec<'_>,
        geometry: Geometry,
        memory: MemoryKind,
    ) -> Result<Region, CoreError> {
        let access = allowed(spec.access, spec.rules)?;
        let rights = rights(spec, access);
        self.enter(Filling {
            domain: spec.domain,
            rights: rights | geometry.flags,
            geometry,
            requested: spec.requested_key.filter(|_| access.is_remote()),
            endpoint: None,
            peer: spec.peer,
            counter: None,
            memory,
        })
    }

    /// Enters a new region.
    #[inline]
    pub(crate) fn enter(&self, filling: Filling) -> Result<Region, CoreError> {
        let mut registry = self.registry.lock();
        let max = self.limits.max_regions;
        if registry.regions >= max {
            self.empty_all_magazines(&mut registry);
        }
        if registry.regions >= max {
            return Err(reached(Limit::Regions, u64::from(max)));
        }
        registry.domains.children(filling.domain)?;
        self.claim_and_fill(&mut registry, filling, None)
    }

    /// Deregisters a region: once this returns, every check refuses it. Earlier grants may still be in use; the memory
    /// belongs to the owner when the returned value is drained.
    ///
    /// # Errors
    /// [`CoreError::NoSuchRegion`]; [`CoreError::RegionBusy`] while windows, an endpoint or a counter are bound to the
    /// region, which is then unchanged.
    #[inline]
    pub fn deregister(&self, region: RegionId) -> Result<Deregistering<'_>, CoreError> {
        let mut registry = self.registry.lock();
        let entry = self.region(region)?;
        // If the region ends in the meantime (into a magazine), these values are another region's, and `end` fails.
        let windows = entry.link.load(Ordering::Relaxed);
        let bindings =
            [&entry.endpoint, &entry.counter].map(|number| Entry::bound(number).is_some());
        if windows > 0 || bindings != [false; 2] {
            let bindings = bindings.into_iter().map(u32::from).sum();
            return Err(CoreError::RegionBusy {
                region,
                windows,
                bindings,
            });
        }
        self.end(&mut registry, region, entry)
    }

    /// Unbinds every window of a region, removes its endpoint and counter, and deregisters it.
    ///
    /// # Errors
    /// [`CoreError::NoSuchRegion`].
    pub fn revoke_and_deregister(&self, region: RegionId) -> Result<Deregistering<'_>, CoreError> {
        let mut registry = self.registry.lock();
        let entry = self.hold(region)?;
        if entry.link.load(Ordering::Relaxed) > 0 {
            self.unbind_windows(&mut registry, |bound| bound.region == region);
        }
        entry.endpoint.store(NONE, Ordering::Release);
        entry.counter.store(NONE, Ordering::Release);
        if !registry.endpoints.is_empty() {
            registry.endpoints.remove(&region);
        }
        self.end(&mut registry, region, &entry)
    }

    /// Where a region's memory comes from.
    ///
    /// # Errors
    /// [`CoreError::NoSuchRegion`].
    pub fn region_memory(&self, region: RegionId) -> Result<MemoryKind, CoreError> {
        let registry = self.registry.lock();
        self.region(region)?;
        Ok(registry
            .shared
            .get(&region.index)
            .copied()
            .unwrap_or_default())
    }

    /// The slot of a region that is live at this moment.
    #[inline]
    pub(crate) fn region(&self, region: RegionId) -> Result<&Entry, CoreError> {
        if self.slots.peek(region.index) == Some((region.generation, State::Live))
            && let Some(entry) = self.slots.get(region.index)
            && entry.rights() & flag::WINDOW == 0
        {
            return Ok(entry);
        }
        Err(CoreError::NoSuchRegion(region))
    }

    /// Fills a slot with a region, whose domain must be open. The caller holds the region `replaced` and ends it next:
    /// its bytes do not count against the limit, and it loses its requested key here.
    #[inline]
    pub(crate) fn claim_and_fill(
        &self,
        registry: &mut Registry,
        it: Filling,
        replaced: Option<&Held<'_>>,
    ) -> Result<Region, CoreError> {
        let released = replaced.map_or(0, |old| old.len.load(Ordering::Relaxed));
        let bytes = self.room_for(registry, it.geometry.len, released)?;
        // Get the slot first: that may empty magazines, whose locks are taken before that of the requested keys.
        let ready = self.ready_slot_of_all(registry);
        let full = || reached(Limit::KeySlots, u64::from(self.slots.capacity()));
        if it.requested.is_some() || replaced.is_some_and(|old| old.requested().is_some()) {
            let id = ready.as_ref().map(ReadySlot::id).ok_or_else(full);
            if let Err(error) = self.replace_requested(&it, replaced, id) {
                registry.pool.ready.extend(ready);
                return Err(error);
            }
        }
        let ready = ready.ok_or_else(full)?;
        let claimed = self.take_up(&ready).ok_or_else(full)?;
        let (id, key) = (ready.id(), ready.key);
        let mut rights = it.rights;
        if it.requested.is_some() {
            rights |= flag::REQUESTED;
        }
        if it.memory != MemoryKind::User {
            registry.shared.insert(id.index, it.memory);
            rights |= flag::SHARED;
        }
        let (domain, requested) = (it.domain, it.requested);
        self.fill(&claimed, it, rights);
        match claimed.must_be_held() {
            true => claimed.publish_held(),
            false => claimed.publish(),
        }
        registry.bytes = bytes.wrapping_add(released); // `end` subtracts `released`
        registry.regions += 1;
        registry.domains.region_came(domain, rights)?;
        Ok(Region {
            id,
            local_key: self.keys.local(id.index, id.generation),
            key,
            requested,
        })
    }

    /// Writes a region into its slot, which is not published yet.
    #[inline(always)]
    pub(crate) fn fill(&self, slot: &Entry, it: Filling, rights: u32) {
        let start = match it.geometry.segments {
            Some(segments) => u64::from(self.scatter.add(segments)),
            None => it.geometry.start,
        };
        slot.start.store(start, Ordering::Relaxed);
        slot.len.store(it.geometry.len, Ordering::Relaxed);
        slot.base.store(it.geometry.base, Ordering::Relaxed);
        slot.domain.store(it.domain.0, Ordering::Relaxed);
        slot.endpoint
            .store(it.endpoint.unwrap_or(NONE), Ordering::Relaxed);
        slot.counter
            .store(it.counter.unwrap_or(NONE), Ordering::Relaxed);
        slot.link.store(0, Ordering::Relaxed);
        if let Some(peer) = it.peer {
            slot.link_generation.store(peer, Ordering::Relaxed);
        }
        if let Some(key) = it.requested {
            slot.note_requested(key);
        }
        // Last: see `Entry::begin_change`.
        slot.rights.store(rights, Ordering::Release);
    }

    /// The bytes of all regions after releasing `released` and adding `len`.
    #[inline]
    pub(crate) fn room_for(
        &self,
        registry: &mut Registry,
        len: u64,
        released: u64,
    ) -> Result<u64, CoreError> {
        let max = self.limits.max_total_bytes;
        let sum = |bytes: u64| (bytes - released).checked_add(len);
        let fits = |bytes: &u64| *bytes <= max;
        if let Some(bytes) = sum(registry.bytes).filter(fits) {
            return Ok(bytes);
        }
        self.empty_all_magazines(registry);
        let bytes = sum(registry.bytes).filter(fits);
        bytes.ok_or(reached(Limit::TotalBytes, max))
    }

    /// Ends a live region that nothing is bound to.
    ///
    /// # Errors
    /// [`CoreError::NoSuchRegion`] if it has already ended, which cannot happen while the caller holds it.
    #[inline]
    pub(crate) fn end(
        &self,
        registry: &mut Registry,
        region: RegionId,
        entry: &Entry,
    ) -> Result<Deregistering<'_>, CoreError> {
        let RegionId { index, generation } = region;
        let Some(retired) = self.slots.retire(index, generation) else {
            return Err(CoreError::NoSuchRegion(region));
        };
        debug_assert!(
            state(entry).step(RegionEvent::Deregister) == Some(RegionState::Deregistering)
        );
        let rights = entry.rights();
        if rights & flag::REQUESTED != 0 {
            self.forget_requested(region, entry);
        }
        if rights & flag::SHARED != 0 {
            registry.shared.remove(&region.index);
        }
        registry.bytes = registry
            .bytes
            .wrapping_sub(entry.len.load(Ordering::Relaxed));
        registry.regions -= 1;
        registry.domains.region_went(entry.domain(), rights);
        let key = registry.pool.remote_key(index);
        self.keys.remote.end(key.0, index, generation);
        let busy = self.try_put_back(registry, false, retired).err();
        Ok(Deregistering::new(self, busy, rights & flag::SHARED != 0))
    }
}

/// The rights and flags of a new region, except for those of its geometry.
#[inline]
pub(crate) fn rights(spec: &RegionSpec<'_>, access: Access) -> u32 {
    let mut rights = access.bits();
    if spec.needs_endpoint {
        rights |= flag::ENDPOINT | flag::DISABLED;
    } else if spec.disabled {
        rights |= flag::DISABLED;
    }
    if spec.peer.is_some() {
        rights |= flag::PEER;
    }
    if spec.internal {
        rights |= flag::INTERNAL;
    }
    rights
}

/// The state of a live region's slot.
#[inline]
pub(crate) fn state(entry: &Entry) -> RegionState {
    let rights = entry.rights();
    if rights & flag::DISABLED != 0 {
        RegionState::Disabled
    } else if rights & flag::ENABLED != 0 {
        RegionState::Enabled
    } else {
        RegionState::Live
    }
}

#[inline]
pub(crate) fn allowed(asked: Access, rules: Rules) -> Result<Access, CoreError> {
    let unknown = asked.bits() & !Access::all().bits();
    if unknown != 0 {
        return Err(CoreError::UnknownAccess(unknown));
    }
    rules
        .apply(asked)
        .map_err(|missing| CoreError::AccessNeeds { asked, missing })
}
