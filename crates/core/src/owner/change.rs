//! Re-registration: changes a region's domain, memory or rights.
//!
//! [`Protection::reregister`] gives the region new keys: it registers and deregisters in one step.
//! [`Protection::change_region`] keeps the keys, as verbs drivers do: every check refuses the region until the earlier
//! grants are dropped; then the changed region becomes live.

use crate::owner::geometry::Geometry;
use crate::owner::registration::{Filling, allowed};
use crate::protection::drained::{Awaited, SectionDrained};
use crate::protection::entry::{Entry, flag};
use crate::protection::grant::Deregistering;
use crate::protection::table::{Protection, Registry};
use crate::sync::Ordering;
use crate::{Access, Change, CoreError, MemoryKind, Region, RegionId};
use rkey_base::slab::Retired;

impl Protection {
    /// Changes a region's domain, memory or rights under a new handle and new keys; the old keys become stale as if the
    /// region were deregistered. The old memory belongs to the owner again when the second returned value is
    /// drained.
    ///
    /// # Errors
    /// [`CoreError::NoSuchRegion`], [`CoreError::RegionBusy`] while windows are bound to it, [`CoreError::Null`], and
    /// all errors of [`Self::register`]. On an error, the region is unchanged.
    pub fn reregister(
        &self,
        region: RegionId,
        change: &Change<'_>,
    ) -> Result<(Region, Deregistering<'_>), CoreError> {
        let (geometry, access) = self.changed(change)?;
        let mut registry = self.registry.lock();
        let entry = self.hold(region)?;
        let filling = self.refill(&mut registry, region, &entry, change, geometry, access)?;
        let new = self.claim_and_fill(&mut registry, filling, Some(&entry))?;
        if let Some(endpoint) = registry.endpoints.remove(&region) {
            registry.endpoints.insert(new.id, endpoint);
        }
        let deregistering = self.end(&mut registry, region, &entry)?;
        Ok((new, deregistering))
    }

    /// Changes a region's domain, memory or rights under its current handle and keys. Once this returns, every check
    /// refuses the region; when the returned value is drained, [`Changing::finish`] makes the region live again.
    ///
    /// # Errors
    /// Same as [`Self::reregister`].
    pub fn change_region(
        &self,
        region: RegionId,
        change: &Change<'_>,
    ) -> Result<Changing<'_>, CoreError> {
        let (geometry, access) = self.changed(change)?;
        let mut registry = self.registry.lock();
        let entry = self.hold(region)?;
        let mut new = self.refill(&mut registry, region, &entry, change, geometry, access)?;
        let old_len = entry.len.load(Ordering::Relaxed);
        let bytes = self.room_for(&mut registry, new.geometry.len, old_len)?;
        // A requested key that does not change can be found throughout, so a request during the change is
        // denied with `Reason::Deregistering` and not as an unknown key.
        let asked = entry.requested();
        let stays = asked.is_some() && asked == new.requested && new.domain == entry.domain();
        if stays {
            new.rights |= flag::REQUESTED;
        } else {
            self.replace_requested(&new, Some(&entry), Ok(region))?;
            if new.requested.is_some() {
                new.rights |= flag::REQUESTED;
            }
        }
        let Some(retired) = self.slots.retire(region.index, region.generation) else {
            return Err(CoreError::NoSuchRegion(region)); // cannot happen: the region is held
        };
        retired.begin_change();
        if new.memory == MemoryKind::User {
            registry.shared.remove(&region.index);
        } else {
            new.rights |= flag::SHARED;
        }
        registry.bytes = bytes;
        registry.domains.region_went(entry.domain(), entry.rights());
        registry.domains.region_came(new.domain, new.rights)?;
        Ok(Changing {
            table: self,
            region,
            section: Awaited::new(self),
            waiting: Some((retired, Box::new(new))),
        })
    }

    /// Checks the new attributes as far as they do not depend on the region.
    fn changed(
        &self,
        change: &Change<'_>,
    ) -> Result<(Option<Geometry>, Option<Access>), CoreError> {
        let geometry = match change.ranges {
            Some((ranges, addressing)) => Some(self.geometry(ranges, addressing)?),
            None => None,
        };
        let access = match change.access {
            Some(access) => Some(allowed(access, change.rules)?),
            None => None,
        };
        Ok((geometry, access))
    }

    /// The contents of the region's slot after the change.
    fn refill(
        &self,
        registry: &mut Registry,
        region: RegionId,
        entry: &Entry,
        change: &Change<'_>,
        geometry: Option<Geometry>,
        access: Option<Access>,
    ) -> Result<Filling, CoreError> {
        let windows = entry.link.load(Ordering::Relaxed);
        if windows > 0 {
            return Err(CoreError::RegionBusy {
                region,
                windows,
                bindings: 0,
            });
        }
        if entry.rights() & flag::NULL != 0 {
            return Err(CoreError::Null(region));
        }
        let domain = change.domain.unwrap_or(entry.domain());
        registry.domains.children(domain)?;
        let memory = match registry.shared.get(&region.index) {
            Some(memory) if geometry.is_none() => *memory,
            _ => MemoryKind::User,
        };
        let geometry = geometry.unwrap_or_else(|| self.geometry_of(entry));
        let access = access.unwrap_or(entry.access());
        let kept = flag::DISABLED | flag::ENDPOINT | flag::ENABLED | flag::PEER | flag::INTERNAL;
        let requested = entry.requested();
        Ok(Filling {
            domain,
            rights: access.bits() | geometry.flags | entry.rights() & kept,
            requested: requested.filter(|_| access.is_remote()),
            endpoint: Entry::bound(&entry.endpoint),
            peer: entry.peer(),
            counter: Entry::bound(&entry.counter),
            memory,
            geometry,
        })
    }
}

/// A region that is being changed: it refuses everything until the change is finished.
///
/// Dropping this without finishing deregisters the region.
#[must_use = "the region is deregistered if the change is not finished"]
pub struct Changing<'a> {
    table: &'a Protection,
    region: RegionId,
    section: Awaited<'a>,
    waiting: Option<(Retired<'a, Entry>, Box<Filling>)>,
}

impl Changing<'_> {
    /// Whether no grant still holds the region and the section's grants are known to have ended. Once true, it stays
    /// true.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let of_pins = |(retired, _): &(Retired<'_, Entry>, _)| retired.is_drained();
        self.section.is_over() && self.waiting.as_ref().is_none_or(of_pins)
    }

    /// Makes the changed region live. Its old memory now belongs to the owner.
    ///
    /// # Errors
    /// Returns itself while it is not drained.
    pub fn finish(mut self) -> Result<Region, Self> {
        if !self.is_drained() {
            return Err(self);
        }
        let RegionId { index, generation } = self.region;
        let mut region = Region {
            id: self.region,
            local_key: self.table.keys.local(index, generation),
            key: self.table.registry.lock().pool.remote_key(index),
            requested: None,
        };
        if let Some((retired, new)) = self.waiting.take() {
            let _registry = self.table.registry.lock();
            region.requested = new.requested;
            if retired.rights() & flag::SCATTER != 0 {
                self.table
                    .scatter
                    .remove(retired.start.load(Ordering::Relaxed) as u32);
            }
            let rights = new.rights;
            self.table.fill(&retired, *new, rights);
            let held = retired.must_be_held();
            let revived = retired.revive(held);
            debug_assert!(revived.is_ok(), "a drained region stays drained");
        }
        Ok(region)
    }
}

impl SectionDrained for Changing<'_> {
    fn section_drained(&mut self, table: &Protection) {
        self.section.section_drained(table);
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let Some((retired, new)) = self.waiting.take() else {
            return;
        };
        let mut registry = self.table.registry.lock();
        if let Some(key) = new.requested {
            self.table.requested.remove(new.domain, key, self.region);
        }
        registry.shared.remove(&self.region.index);
        registry.endpoints.remove(&self.region);
        registry.bytes = registry.bytes.wrapping_sub(new.geometry.len);
        registry.regions -= 1;
        registry.domains.region_went(new.domain, new.rights);
        let RegionId { index, generation } = self.region;
        let key = registry.pool.remote_key(index);
        self.table.keys.remote.end(key.0, index, generation);
        self.table.put_back(&mut registry, false, retired);
    }
}

impl std::fmt::Debug for Changing<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "Changing({}, drained: {})",
            self.region,
            self.is_drained()
        )
    }
}
