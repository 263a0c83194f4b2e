//! Regions that must be found when a counter or an endpoint is bound or closed.

#![allow(unsafe_code)]
// UNSAFETY: a list of regions without reference counts.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::ptr::NonNull;

/// A region in the list.
pub(crate) trait Watched: Sync {
    /// Stops counting for a counter that is being closed, if it is the region's counter (FI-267, FI-I06).
    fn counter_closes(&self, counter: u32);

    /// Unbinds the region from an endpoint that is being closed, if it is the region's endpoint (FI-267).
    fn endpoint_closes(&self, endpoint: u32);

    /// Starts counting if the region has no counter: an endpoint now has a counter of remote accesses.
    fn count_for_endpoints(&self);
}

/// The watched regions of a domain, by their addresses.
#[derive(Default)]
pub(crate) struct WatchedRegions(Mutex<HashMap<usize, Entry>>);

struct Entry(NonNull<dyn Watched>);

// SAFETY: stands for a reference, and threads share regions (`Watched` is `Sync`).
unsafe impl Send for Entry {}

fn address(region: &dyn Watched) -> usize {
    std::ptr::from_ref(region).addr()
}

impl WatchedRegions {
    /// Adds a region. Adding it again has no effect.
    ///
    /// # Safety
    /// The region is removed before it moves or is freed.
    pub(crate) unsafe fn add(&self, region: &(dyn Watched + 'static)) {
        let entry = Entry(NonNull::from(region));
        self.0.lock().insert(address(region), entry);
    }

    /// Undoes [`WatchedRegions::add`]. When this returns, no [`WatchedRegions::for_each`] uses the region.
    pub(crate) fn remove(&self, region: &(dyn Watched + 'static)) {
        self.0.lock().remove(&address(region));
    }

    /// Calls `then` for each region. `then` must not add or remove regions.
    pub(crate) fn for_each(&self, then: impl Fn(&dyn Watched)) {
        for region in self.0.lock().values() {
            // SAFETY: a region is removed before it is freed, under the lock that is held here.
            then(unsafe { region.0.as_ref() });
        }
    }
}
