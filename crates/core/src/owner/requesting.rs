//! Regions with requested keys: what a region's registration, replacement and end change in the map of these keys.

use crate::keys::requested::{Adding, Room, Vacancy};
use crate::owner::registration::Filling;
use crate::protection::entry::Entry;
use crate::protection::hold::Held;
use crate::protection::table::{Protection, reached};
use crate::{CoreError, DomainId, Limit, RegionId};

impl Protection {
    /// Gives a new region its requested key, if it has one, after the region that it replaces has lost its own. If this
    /// fails (for example, because there is no slot for the new region), the old region keeps its key.
    pub(crate) fn replace_requested(
        &self,
        it: &Filling,
        replaced: Option<&Held<'_>>,
        new: Result<RegionId, CoreError>,
    ) -> Result<(), CoreError> {
        let adding = self.requested.adding();
        let old = replaced.and_then(|old| self.forget_requested(old.id, old));
        let room = match it.requested {
            Some(key) => self.may_request(&adding, it.domain, key).map(Some),
            None => Ok(None),
        };
        match room.and_then(|room| Ok((room, new?))) {
            Ok((Some(room), id)) => room.fill(id),
            Ok((None, _)) => {}
            Err(error) => {
                if let Some(replaced) = replaced {
                    self.restore_requested(&adding, replaced, old);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns to a region the requested key that it has just lost, under the same lock.
    pub(crate) fn restore_requested(
        &self,
        adding: &Adding<'_>,
        region: &Held<'_>,
        key: Option<u64>,
    ) {
        // This cannot fail: the cell that was just emptied is still free.
        if let Some(key) = key
            && let Ok(room) = self.may_request(adding, region.domain(), key)
        {
            room.fill(region.id);
        }
    }

    /// A free cell for a requested key.
    #[inline]
    pub(crate) fn may_request<'a>(
        &self,
        adding: &'a Adding<'_>,
        domain: DomainId,
        key: u64,
    ) -> Result<Room<'a>, CoreError> {
        if key == u64::MAX {
            return Err(CoreError::KeyReserved(key));
        }
        match adding.vacancy(domain, key) {
            Vacancy::Room(room) => Ok(room),
            Vacancy::Taken => Err(CoreError::KeyTaken(key)),
            Vacancy::Full => Err(reached(Limit::KeySlots, u64::from(self.slots.capacity()))),
        }
    }

    /// Removes a region's requested key, and returns it.
    #[inline]
    pub(crate) fn forget_requested(&self, region: RegionId, entry: &Entry) -> Option<u64> {
        let key = entry.requested()?;
        self.requested.remove(entry.domain(), key, region);
        Some(key)
    }
}
