//! A monitor whose changes are announced by the program or another library (FI-248).

use super::subscribers::Subscribers;
use super::{Monitor, Sees, TooManyCaches, Verdict, pages};
use crate::table::entries::Entries;
use crate::why::{Cause, Refusal};
use rkey_base::range::VaRange;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Notices changes. Several threads may call the methods at the same time; the caches hold no lock during the calls.
pub trait Source: Send + Sync {
    /// Starts watching memory: from now on, the source announces changes to it. Returns `false` to refuse; the memory is then not
    /// cached.
    fn subscribe(&self, range: VaRange) -> bool {
        let _ = range;
        true
    }

    /// Ends one subscription of this range. Other entries may contain the same bytes.
    fn unsubscribe(&self, range: VaRange) {
        let _ = range;
    }

    /// Returns whether the memory is still the memory that was subscribed. Called after each registration and at each hit.
    fn valid(&self, range: VaRange) -> bool {
        let _ = range;
        true
    }
}

/// The source of a program that only announces changes.
impl Source for () {}

/// When a source announces changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// Before every change takes effect, with a [`Change`] that lasts until the change is complete. A registrar that
    /// pins can use the cache.
    Around,
    /// At some other time, or not for every change. A registrar that pins can use the cache only if
    /// [`Options::accept_partial`](crate::Options::accept_partial) is set.
    Loose,
}

/// A monitor that relies on the program to announce changes.
///
/// ```
/// use rkey_base::range::VaRange;
/// use rkey_cache::{Imported, Timing};
///
/// let monitor = Imported::new((), Timing::Around);
/// # let (address, len) = (0x1000, 0x1000);
/// let range = VaRange::new(address, len).unwrap();
/// let change = monitor.change(range);
/// // ... munmap(address, len) ...
/// drop(change);
/// ```
#[derive(Debug)]
pub struct Imported<S> {
    source: S,
    timing: Timing,
    subscribers: Subscribers,
    /// How many changes are in progress.
    changing: AtomicUsize,
}

impl<S: Source> Imported<S> {
    /// Creates a monitor for this source.
    #[must_use]
    pub fn new(source: S, timing: Timing) -> Self {
        Self {
            source,
            timing,
            subscribers: Subscribers::new(),
            changing: AtomicUsize::new(0),
        }
    }

    /// The source.
    #[must_use]
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Announces that memory has changed or is about to. Ends every entry, of any cache, that has a byte in the pages of
    /// the range. Takes no lock and allocates nothing. Returns how many entries ended.
    pub fn notify(&self, range: VaRange) -> usize {
        self.subscribers.tell(pages(&range), Cause::Told)
    }

    /// Announces that memory is about to change, as [`Imported::notify`] does. Drop the result after the change. Until
    /// then no registration becomes an entry: otherwise another thread could register the old pages in between.
    pub fn change(&self, range: VaRange) -> Change<'_> {
        self.changing.fetch_add(1, Ordering::SeqCst);
        let change = Change(&self.changing);
        self.notify(range);
        change
    }
}

/// A change in progress.
#[derive(Debug)]
#[must_use = "the change is in progress until this is dropped"]
pub struct Change<'a>(&'a AtomicUsize);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<S: Source> Monitor for Imported<S> {
    fn name(&self) -> &'static str {
        "imported"
    }

    fn sees(&self) -> Sees {
        match self.timing {
            Timing::Around => Sees::All,
            Timing::Loose => Sees::Some,
        }
    }

    fn attach(&self, entries: &Arc<Entries>) -> Result<(), TooManyCaches> {
        self.subscribers.add(entries)
    }

    fn detach(&self, entries: &Arc<Entries>) {
        self.subscribers.remove(entries);
    }

    fn watch(&self, range: VaRange) -> Result<(), Refusal> {
        if self.source.subscribe(range) {
            Ok(())
        } else {
            Err(Refusal::Source)
        }
    }

    fn unwatch(&self, range: VaRange) {
        self.source.unsubscribe(range);
    }

    /// Busy while a change is in progress: the change may have begun before the entry became pending. Such a change does not
    /// end the entry, and the memory could be registered before the change takes effect.
    fn confirm(&self, _: VaRange) -> Verdict {
        if self.changing.load(Ordering::SeqCst) == 0 {
            Verdict::Fresh
        } else {
            Verdict::Busy
        }
    }

    /// The entry became pending before this method reads the count, and `change` increments the count before it looks for
    /// entries. So either this method sees the change, or the change ends the entry.
    fn check(&self, range: VaRange) -> Verdict {
        match self.confirm(range) {
            Verdict::Fresh => self.validate(range),
            verdict => verdict,
        }
    }

    fn validate(&self, range: VaRange) -> Verdict {
        if self.source.valid(range) {
            Verdict::Fresh
        } else {
            Verdict::Changed
        }
    }

    fn watches_all(&self) -> bool {
        true
    }
}
