//! Regions that cannot end while they are being changed.
//!
//! A thread ends an idle region into its magazine without the table's lock ([`crate::Magazine`]). So a thread that
//! binds something to a region, or changes it otherwise, under the table's lock, first *holds* its slot: it sets a bit
//! in the slot's word that prevents the slot from being ended without the lock. The hold ends with the change, unless
//! something is bound to the region or its slot must be held for another reason (`Entry::must_be_held`).

use crate::protection::entry::Entry;
use crate::protection::table::Protection;
use crate::{CoreError, RegionId};

/// A live region that stays live while the caller has this value and the table's lock, unless the caller ends it.
pub(crate) struct Held<'a> {
    pub(crate) id: RegionId,
    table: &'a Protection,
    entry: &'a Entry,
}

impl Protection {
    /// Holds a live region; the caller has the table's lock.
    pub(crate) fn hold(&self, id: RegionId) -> Result<Held<'_>, CoreError> {
        let entry = self.region(id)?;
        if !self.slots.hold(id.index, id.generation) {
            return Err(CoreError::NoSuchRegion(id));
        }
        let table = self;
        Ok(Held { id, table, entry })
    }

    /// Releases the hold on a region, unless its slot must be held. The caller has the table's lock.
    pub(crate) fn end_hold(&self, id: RegionId) {
        if self
            .slots
            .get(id.index)
            .is_some_and(|entry| !entry.must_be_held())
        {
            self.slots.unhold(id.index, id.generation);
        }
    }
}

impl std::ops::Deref for Held<'_> {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        self.entry
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.table.end_hold(self.id);
    }
}
