//! Registration caches of a front end, for inspections.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// A registration cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheView {
    /// The domain of the cache's regions.
    pub domain: u32,
    /// What detects changes of memory: "userfaultfd", "memhooks", "imported", "disabled" (no cache), or "none" (not needed).
    pub monitor: String,
    /// Why `monitor` is not the one that the environment names.
    pub monitor_reason: Option<String>,
    /// Why each lookup registers memory again, if it does.
    pub off: Option<String>,
    /// The number of regions in the cache.
    pub entries: u64,
    /// The total size of these regions, in bytes.
    pub bytes: u64,
    /// Lookups that found a region.
    pub hits: u64,
    /// Lookups that registered a region, which the cache kept.
    pub misses: u64,
    /// Lookups that registered a region for themselves only.
    pub uncached: u64,
    /// Regions that ended because a limit was reached.
    pub evictions: u64,
    /// Regions that ended because their memory changed.
    pub invalidations: u64,
}

pub(super) type Describe = dyn Fn() -> CacheView + Send;

/// The registered descriptions of caches.
#[derive(Default)]
pub(crate) struct Caches(Mutex<KnownCaches>);

#[derive(Default)]
struct KnownCaches {
    next: u64,
    by_number: BTreeMap<u64, Box<Describe>>,
}

/// The maximum number of described caches.
const CACHES: usize = 256;

impl Caches {
    /// Adds a description; returns the number that removes it.
    pub(super) fn add(&self, describe: Box<Describe>) -> u64 {
        let mut known = self.0.lock();
        known.next += 1;
        let number = known.next;
        known.by_number.insert(number, describe);
        number
    }

    /// When this returns, the function is not running and will not be called again.
    pub(super) fn remove(&self, number: u64) {
        let removed = self.0.lock().by_number.remove(&number);
        // Dropped when the lock is free: the function may own the last reference to something large.
        drop(removed);
    }

    /// Views of the first [`CACHES`] caches.
    pub(crate) fn collect(&self) -> Vec<CacheView> {
        let known = self.0.lock();
        let described = known.by_number.values().take(CACHES);
        described.map(|describe| describe()).collect()
    }
}
