//! Counters and the trace: what a cache has done.

use crate::request::{Kind, Rights};
use crate::why::Why;
use rkey_base::range::VaRange;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of a cache, and its current contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Lookups that an entry served.
    pub hits: u64,
    /// Lookups that registered memory, which became an entry.
    pub misses: u64,
    /// Lookups whose registration did not become an entry, for any reason.
    pub uncached: u64,
    /// Attempts that failed because memory was changing, at a hit or during a registration.
    pub busy: u64,
    /// Entries that were evicted: because a limit was reached, because the registrar was exhausted, or by
    /// [`Cache::flush`](super::Cache::flush).
    pub evictions: u64,
    /// Entries that ended because their memory changed.
    pub invalidations: u64,
    /// Entries that a larger entry replaced.
    pub replaced: u64,
    /// Current entries, including those in use and those that ended while in use.
    pub entries: u64,
    /// The bytes of the current entries.
    pub bytes: u64,
}

/// The counters of lookups without a hit. Hits are counted in their entries.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) misses: AtomicU64,
    pub(super) uncached: AtomicU64,
    pub(super) busy: AtomicU64,
    pub(super) evictions: AtomicU64,
    pub(super) replaced: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// One lookup, as [`Cache::trace`](super::Cache::trace) returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The range that was looked up.
    pub range: VaRange,
    /// The rights that the lookup requested.
    pub rights: Rights,
    /// The kind of memory.
    pub kind: Kind,
    /// The outcome of the lookup.
    pub why: Why,
}

impl fmt::Display for Event {
    /// `0x1000..0x2000, rights 0x1, host: hit`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            range,
            rights,
            kind,
            why,
        } = self;
        write!(f, "{range}, rights {rights}, {kind}: {why}")
    }
}
