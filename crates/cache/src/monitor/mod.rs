//! Monitors: they notice that memory changes.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`subscribers`] | the caches that a monitor notifies |
//! | [`imported`] | the program, or another library, announces changes |
//! | [`disabled`] | no monitor, and so no cache |
//! | [`unneeded`] | no monitor, for registrars that need none |
//! | [`userfaultfd`] | the kernel reports changes |
//! | [`memhooks`] | calls of the C library are intercepted |

pub(crate) mod disabled;
pub(crate) mod imported;
pub(crate) mod memhooks;
pub(crate) mod subscribers;
pub(crate) mod unneeded;
pub(crate) mod userfaultfd;

use crate::table::entries::Entries;
use crate::why::Refusal;
use rkey_base::process::page_size;
use rkey_base::range::VaRange;
use std::sync::Arc;

/// The pages that contain a range: memory changes in whole pages.
pub(crate) fn pages(range: &VaRange) -> VaRange {
    let page = page_size() as u64;
    let start = range.start() & !(page - 1);
    let end = range
        .end()
        .checked_next_multiple_of(page)
        .unwrap_or(u64::MAX);
    VaRange::new(start, end - start).expect("the end fits in 64 bits")
}

/// Which changes of watched memory a monitor sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sees {
    /// Every change that takes a page from an address, except those that `docs/registration-cache.md` lists.
    All,
    /// Not every change. A registrar that pins cannot use the cache, unless the options accept that.
    Some,
    /// Nothing: there is no cache.
    Nothing,
}

/// Whether an entry may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every change that this thread can know of has ended the entries that it affects.
    Fresh,
    /// The memory there is no longer the memory that was watched.
    Changed,
    /// A change is in progress somewhere, so the answer is not known.
    Busy,
}

/// The monitor already serves 16 caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("16 caches already use this monitor, which is the maximum")]
pub struct TooManyCaches;

/// Notices changes of memory, and ends the affected entries ([`Entries::invalidate`]).
///
/// The caches call the monitor without holding a lock. A cache whose registrar follows addresses or objects calls `watch` and
/// `check` only if the monitor [requires it](Monitor::watches_all).
pub trait Monitor: Send + Sync {
    /// The name, as in `FI_MR_CACHE_MONITOR`.
    fn name(&self) -> &'static str;

    /// The changes of watched memory that the monitor sees.
    fn sees(&self) -> Sees;

    /// Attaches these entries: from now on, changes end them.
    ///
    /// # Errors
    /// The monitor already serves the maximum number of caches.
    fn attach(&self, entries: &Arc<Entries>) -> Result<(), TooManyCaches>;

    /// Detaches these entries: when the call returns, the monitor no longer refers to them.
    fn detach(&self, entries: &Arc<Entries>);

    /// Watches memory before it is registered. If other memory was watched at these addresses before, the monitor first
    /// ends the entries there.
    ///
    /// # Errors
    /// Why the memory cannot be watched; it is then not cached.
    fn watch(&self, range: VaRange) -> Result<(), Refusal>;

    /// Whether all of the memory is watched. Called after `watch`, once the entry is pending, before the memory is
    /// registered.
    fn confirm(&self, range: VaRange) -> Verdict {
        let _ = range;
        Verdict::Fresh
    }

    /// Called when memory for which `watch` was called is no longer registered, or never was. Other entries may have bytes in the
    /// same range.
    fn unwatch(&self, range: VaRange) {
        let _ = range;
    }

    /// Whether a registration that has just been made may become an entry. The entry is pending: changes end it.
    fn check(&self, range: VaRange) -> Verdict;

    /// Like `check`, but called at a hit. The cache reads the entry's state afterwards, and so sees the effect of every change
    /// that this call waited for.
    fn validate(&self, range: VaRange) -> Verdict;

    /// Whether caches call `watch` also for registrars that do not pin.
    fn watches_all(&self) -> bool {
        false
    }
}
