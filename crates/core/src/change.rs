//! Re-registration: a region gets another domain, other memory or other rights.
//!
//! Either under new keys ([`Protection::reregister`]), as a registration and a close in one; or under the keys it has
//! ([`Protection::change_region`]), as drivers of verbs devices do it: all checks refuse until the leases of before
//! are back, then the region lives again, changed.

use crate::entry::{Entry, flag};
use crate::lease::Closing;
use crate::registry::{Filling, Geometry, allowed};
use crate::sync::Ordering;
use crate::table::{Books, Protection, reached};
use crate::{Access, Change, CoreError, Limit, MemoryKind, Region, RegionId};
use rkey_base::slab::Retired;

impl Protection {
    /// Changes a region's domain, memory or rights: it gets another handle and other keys, and the old ones end as if
    /// closed. The memory of before is the owner's again when the second value is drained.
    ///
    /// # Errors
    /// [`CoreError::RegionBusy`] while windows are bound to it, and all errors of [`Self::register`]. The region is
    /// as it was then.
    pub fn reregister(
        &self,
        region: RegionId,
        change: &Change<'_>,
    ) -> Result<(Region, Closing<'_>), CoreError> {
        let (geometry, access) = self.changed(change)?;
        let mut books = self.books.lock();
        let entry = self.region(region)?;
        let filling = self.refill(&mut books, region, entry, change, geometry, access)?;
        // The old region leaves the table of requested keys first, so that its key is free for the new one.
        let requested = self.forget_requested(region, entry);
        let placed = self.place(&mut books, filling, entry.len.load(Ordering::Relaxed));
        if placed.is_err() {
            self.restore_requested(region, entry, requested);
        }
        let new = placed?;
        if let Some(endpoint) = books.endpoints.remove(&region) {
            books.endpoints.insert(new.id, endpoint);
        }
        Ok((new, self.end(&mut books, region, entry)))
    }

    /// Changes a region's domain, memory or rights under the handle and the keys that it has. From the moment this
    /// returns every check refuses; when the answer is drained, [`Changing::finish`] makes the region live again.
    ///
    /// # Errors
    /// As [`Self::reregister`].
    pub fn change_region(
        &self,
        region: RegionId,
        change: &Change<'_>,
    ) -> Result<Changing<'_>, CoreError> {
        let (geometry, access) = self.changed(change)?;
        let mut books = self.books.lock();
        let entry = self.region(region)?;
        let mut new = self.refill(&mut books, region, entry, change, geometry, access)?;
        let old_len = entry.len.load(Ordering::Relaxed);
        let bytes = books
            .bytes
            .wrapping_sub(old_len)
            .checked_add(new.geometry.len);
        let max = self.limits.max_total_bytes;
        let bytes = bytes
            .filter(|bytes| *bytes <= max)
            .ok_or(reached(Limit::TotalBytes, max))?;
        // A requested key that stays is found throughout, so that who uses it meanwhile hears of the change, not of a key
        // that nobody has.
        let asked = entry.requested();
        let stays = asked.is_some() && asked == new.requested && new.domain == entry.domain();
        if stays {
            new.rights |= flag::REQUESTED;
        } else {
            let requested = self.forget_requested(region, entry);
            if let Some(key) = new.requested {
                match self.may_request(new.domain, key) {
                    Ok(room) => room.fill(region),
                    Err(error) => {
                        self.restore_requested(region, entry, requested);
                        return Err(error);
                    }
                }
                new.rights |= flag::REQUESTED;
            }
        }
        let Some(retired) = self.slots.retire(region.index, region.generation) else {
            return Err(CoreError::NoSuchRegion(region)); // cannot be: it is live, and the books are locked
        };
        retired.begin_change();
        if new.memory == MemoryKind::User {
            books.shared.remove(&region.index);
        } else {
            new.rights |= flag::SHARED;
        }
        books.bytes = bytes;
        books.region_went(entry.domain(), entry.rights());
        books.region_came(new.domain, new.rights)?;
        Ok(Changing {
            table: self,
            region,
            waiting: Some((retired, Box::new(new))),
        })
    }

    /// Gives a region the key back that was taken from it just now.
    fn restore_requested(&self, region: RegionId, entry: &Entry, key: Option<u64>) {
        // There is room: the place that was emptied is still there.
        if let Some(key) = key
            && let Ok(room) = self.may_request(entry.domain(), key)
        {
            room.fill(region);
        }
    }

    /// What a change asks for, checked by itself.
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

    /// What is in the region's slot after the change.
    fn refill(
        &self,
        books: &mut Books,
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
        books.children(domain)?;
        let memory = match books.shared.get(&region.index) {
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
            endpoint: Entry::tied(&entry.endpoint),
            peer: entry.peer(),
            counter: Entry::tied(&entry.counter),
            memory,
            geometry,
        })
    }
}

/// A region that is being changed: it refuses everything until the change is finished.
///
/// Dropping it before that closes the region.
#[must_use = "the region is closed if the change is not finished"]
pub struct Changing<'a> {
    table: &'a Protection,
    region: RegionId,
    waiting: Option<(Retired<'a, Entry>, Box<Filling>)>,
}

impl Changing<'_> {
    /// True when no lease holds the region any more. It stays so.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.waiting
            .as_ref()
            .is_none_or(|(retired, _)| retired.is_drained())
    }

    /// Makes the region live again, changed. The memory of before is the owner's now. Where sections are in use, their
    /// lock has to be passed through before this (see [`Protection::section`]).
    ///
    /// # Errors
    /// Itself, while a lease still holds the region.
    pub fn finish(mut self) -> Result<Region, Self> {
        if !self.is_drained() {
            return Err(self);
        }
        let RegionId { index, generation } = self.region;
        let mut region = Region {
            id: self.region,
            local_key: self.table.keys.local(index, generation),
            key: self.table.books.lock().remote_key(index),
            requested: None,
        };
        if let Some((retired, new)) = self.waiting.take() {
            let _books = self.table.books.lock();
            region.requested = new.requested;
            if retired.rights() & flag::SCATTER != 0 {
                self.table
                    .scatter
                    .remove(retired.start.load(Ordering::Relaxed) as u32);
            }
            let rights = new.rights;
            self.table.fill(&retired, *new, rights);
            let revived = retired.revive();
            debug_assert!(revived.is_ok(), "it is drained, and that does not change");
        }
        Ok(region)
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let Some((retired, new)) = self.waiting.take() else {
            return;
        };
        let mut books = self.table.books.lock();
        if let Some(key) = new.requested {
            self.table.requested.remove(new.domain, key, self.region);
        }
        books.shared.remove(&self.region.index);
        books.endpoints.remove(&self.region);
        books.bytes = books.bytes.wrapping_sub(new.geometry.len);
        books.regions -= 1;
        books.region_went(new.domain, new.rights);
        let RegionId { index, generation } = self.region;
        let key = books.remote_key(index);
        self.table.keys.remote.end(key.0, index, generation);
        self.table.put_back(&mut books, false, retired);
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
