//! Who notices that memory changes.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`subscribers`] | the caches that a monitor tells |
//! | [`imported`] | the program, or another library, tells |
//! | [`disabled`] | nobody tells: no cache |
//! | [`userfaultfd`] | the kernel tells |
//! | [`memhooks`] | calls of the C library are intercepted |

pub(crate) mod disabled;
pub(crate) mod imported;
pub(crate) mod memhooks;
pub(crate) mod subscribers;
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
    VaRange::new(start, end - start).expect("the end is a number")
}

/// What a monitor sees of the changes of watched memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sees {
    /// Every change that takes a page from an address, but for what `docs/registration-cache.md` lists.
    All,
    /// Not every change. A registrar that pins gets no cache, unless the options accept that.
    Some,
    /// Nothing: there is no cache.
    Nothing,
}

/// Whether an entry may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every change that this thread can know of has ended the entries that it concerns.
    Fresh,
    /// The memory is not what was watched.
    Changed,
    /// A change is under way somewhere; nothing can be said.
    Busy,
}

/// The caches of a monitor are full: 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("16 caches use this monitor already")]
pub struct TooManyCaches;

/// Notices changes of memory, and ends the entries that they concern ([`Entries::invalidate`]).
///
/// The caches call it without holding a lock. A cache whose registrar follows addresses or objects never calls `watch` and
/// `check`, except of a monitor that [asks for it](Monitor::watches_all).
pub trait Monitor: Send + Sync {
    /// The name, as in `FI_MR_CACHE_MONITOR`.
    fn name(&self) -> &'static str;

    /// What it sees.
    fn sees(&self) -> Sees;

    /// From now on, it tells these entries of changes.
    ///
    /// # Errors
    /// It has too many already.
    fn attach(&self, entries: &Arc<Entries>) -> Result<(), TooManyCaches>;

    /// It no longer refers to these entries when this returns.
    fn detach(&self, entries: &Arc<Entries>);

    /// Watches memory, before it is registered. If the memory is not what was watched there before, the monitor first ends the
    /// entries that it concerns.
    ///
    /// # Errors
    /// Why the memory cannot be watched. It is not cached then.
    fn watch(&self, range: VaRange) -> Result<(), Refusal>;

    /// Whether all of the memory is watched: asked after `watch`, when the entry has become pending, and before the memory is
    /// registered.
    fn confirm(&self, range: VaRange) -> Verdict {
        let _ = range;
        Verdict::Fresh
    }

    /// An entry for which `watch` was called ended. Other entries may have bytes in the same range.
    fn unwatch(&self, range: VaRange) {
        let _ = range;
    }

    /// Whether a registration that has just been made may become an entry. The entry is pending: changes end it.
    fn check(&self, range: VaRange) -> Verdict;

    /// The same at a hit. The cache reads the entry's state afterwards, so that what this waited for has its effect.
    fn validate(&self, range: VaRange) -> Verdict;

    /// Whether it wants `watch` to be called for registrars that do not pin, too.
    fn watches_all(&self) -> bool {
        false
    }
}
