//! Intercepts calls to the C library (`FI_MR_CACHE_MONITOR=memhooks`) at the level of the ELF linker: each loaded
//! object calls other objects through slots that the linker fills in, and this monitor stores the addresses of its
//! hooks there. No code is patched, so no thread can be executing a half-changed function.
//!
//! A hook ends the entries, then calls the function. While a hook runs, no registration becomes an entry. So a lookup
//! needs no check: when the function takes effect, no valid entry is left.
//!
//! The monitor does not see calls that bypass the slots: system calls made without the C library (Go), and calls inside
//! the C library, such as the `munmap` of a thread's stack. The hooks of `free` and `realloc` cover the allocator's own
//! calls: an entry ends when its buffer is freed, and the allocator does not return pages that have a live buffer. So
//! this monitor [sees only some](Sees::Some) changes, and [`Memhooks::sees_paths`] tests which.
//!
//! Hooks are never removed, because another thread may be in one. So the object that contains this code must stay
//! loaded.

mod calls;
mod slots;

use super::subscribers::Subscribers;
use super::{Monitor, Sees, TooManyCaches, Verdict};
use crate::table::entries::Entries;
use crate::why::{Cause, Refusal};
use parking_lot::Mutex;
use rkey_base::range::VaRange;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The caches that the hooks notify. There is only one set of hooks, so there is one list for all caches.
static STATE: State = State {
    subscribers: Subscribers::new(),
    changing: AtomicUsize::new(0),
    calls: AtomicU64::new(0),
};

/// How many objects had been loaded when the slots were last set; `None` if they never were, or if the linker had not
/// filled in all of them. Locked while slots are set.
static LOADED: Mutex<Option<u64>> = Mutex::new(None);

struct State {
    subscribers: Subscribers,
    /// How many hooked calls are in progress.
    changing: AtomicUsize,
    /// How many hooked calls have announced a change.
    calls: AtomicU64,
}

impl State {
    /// Called by a hook that is about to change this memory (`None`: any memory). Ends the entries there. The call is in
    /// progress until the guard is dropped.
    fn change(&self, range: Option<VaRange>, cause: Cause) -> Change<'_> {
        self.changing.fetch_add(1, Ordering::SeqCst);
        self.calls.fetch_add(1, Ordering::Relaxed);
        match range {
            Some(range) => self.subscribers.tell(range, cause),
            None => self.subscribers.tell_all(cause),
        };
        Change(&self.changing)
    }
}

struct Change<'a>(&'a AtomicUsize);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Why calls cannot be intercepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotHooked {
    /// The C library lacks a function.
    #[error("the C library has no function `{0}`")]
    Missing(&'static str),
    /// The program has the `free` of one allocator and the `malloc_usable_size` of another.
    #[error(
        "`free` and `malloc_usable_size` come from different allocators, so the size of freed memory is unknown"
    )]
    Sizes,
    /// No slot could be set: the program is linked statically, or the tables of its objects have an unexpected format.
    #[error("no loaded object calls `munmap` through a slot of its global offset table")]
    NoSlots,
}

/// A way in which memory changes, for [`Memhooks::sees_paths`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Path {
    /// `munmap`, called by the object that contains this code.
    Munmap,
    /// `mmap` over mapped memory.
    MapOver,
    /// `mremap`.
    Mremap,
    /// `madvise(MADV_DONTNEED)`.
    Madvise,
    /// `free` of memory that has a separate mapping.
    Free,
    /// `realloc` of memory that has a separate mapping.
    Realloc,
    /// A pointer that `dlsym` returns.
    Dlsym,
    /// A system call made without the C library.
    SystemCall,
}

impl Path {
    /// All kinds of calls.
    pub const ALL: [Self; 8] = [
        Self::Munmap,
        Self::MapOver,
        Self::Mremap,
        Self::Madvise,
        Self::Free,
        Self::Realloc,
        Self::Dlsym,
        Self::SystemCall,
    ];
}

/// The monitor that intercepts calls.
#[derive(Clone, Copy, Debug)]
pub struct Memhooks(());

impl Memhooks {
    /// Sets the slots of all loaded objects. Objects that are loaded later get theirs at the next registration.
    ///
    /// # Errors
    /// See [`NotHooked`].
    pub fn install() -> Result<Self, NotHooked> {
        let mut loaded = LOADED.lock();
        if loaded.is_none() {
            calls::find_originals()?;
            let now = slots::loaded();
            let count = slots::set_all();
            if count.hooked == 0 {
                return Err(NotHooked::NoSlots);
            }
            *loaded = (count.unfilled == 0).then_some(now);
        }
        Ok(Self(()))
    }

    /// How many intercepted calls could change watched memory.
    #[must_use]
    pub fn calls(&self) -> u64 {
        STATE.calls.load(Ordering::Relaxed)
    }

    /// Changes some memory in each way, and returns for each way whether a hook saw a call in that time, which may have been
    /// another thread's.
    #[must_use]
    pub fn sees_paths(&self) -> [(Path, bool); 8] {
        Path::ALL.map(|path| {
            let before = self.calls();
            calls::exercise(path);
            (path, self.calls() > before)
        })
    }
}

impl Monitor for Memhooks {
    fn name(&self) -> &'static str {
        "memhooks"
    }

    fn sees(&self) -> Sees {
        Sees::Some
    }

    fn attach(&self, entries: &Arc<Entries>) -> Result<(), TooManyCaches> {
        STATE.subscribers.add(entries)
    }

    fn detach(&self, entries: &Arc<Entries>) {
        STATE.subscribers.remove(entries);
    }

    /// Hooks the shared objects that were loaded since the last call, or that another thread is loading, by setting their
    /// slots. The range does not matter: the hooks see changes of all memory.
    fn watch(&self, _: VaRange) -> Result<(), Refusal> {
        let now = slots::loaded();
        let mut loaded = LOADED.lock();
        if *loaded != Some(now) {
            *loaded = (slots::set_all().unfilled == 0).then_some(now);
        }
        Ok(())
    }

    /// Busy while a change is in progress: the change may have begun before the entry became pending. Such a change does not
    /// end the entry, and the memory could be registered before the change takes effect.
    fn confirm(&self, _: VaRange) -> Verdict {
        if STATE.changing.load(Ordering::SeqCst) == 0 {
            Verdict::Fresh
        } else {
            Verdict::Busy
        }
    }

    /// The entry became pending before this method reads the count, and a hook increments the count before it looks for
    /// entries. So either this method sees the hooked call, or the hook ends the entry.
    fn check(&self, range: VaRange) -> Verdict {
        self.confirm(range)
    }

    fn validate(&self, _: VaRange) -> Verdict {
        Verdict::Fresh
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use super::*;
    use crate::why::Why;
    use crate::{Cache, Follows, Kind, Options, Registrar, Request, Rights};
    use std::convert::Infallible;

    /// Pins a page, and then completes the change that is in progress.
    struct Slow {
        /// The page that is mapped.
        page: AtomicU64,
        change: Mutex<Option<Change<'static>>>,
    }

    impl Registrar for Slow {
        type Registration = u64;
        type Error = Infallible;

        fn follows(&self) -> Follows {
            Follows::Pages
        }
        fn register(&self, _: &Request) -> Result<u64, Infallible> {
            let pinned = self.page.load(Ordering::SeqCst);
            if let Some(change) = self.change.lock().take() {
                self.page.store(2, Ordering::SeqCst);
                drop(change);
            }
            Ok(pinned)
        }
        fn deregister(&self, _: u64) {}
    }

    /// A hooked call that begins before the entry is pending, and takes effect after the page was pinned, does not find the
    /// entry. So the registration must not become an entry.
    #[test]
    fn a_call_that_spans_the_registration_leaves_no_entry() {
        // Not in the C library's heap: other threads' calls do not end the entry.
        let range = VaRange::new(0x1000, 0x1000).unwrap();
        let slow = Slow {
            page: AtomicU64::new(1),
            change: Mutex::new(Some(STATE.change(Some(range), Cause::Unmapped))),
        };
        let options = Options {
            accept_partial: true,
            ..Options::default()
        };
        let monitor = Arc::new(Memhooks::install().unwrap());
        let cache = Cache::new(slow, monitor, options).unwrap();
        let get = || cache.get(range, Rights(1), Kind::HOST).unwrap();
        assert_eq!(get().why(), Why::Overtaken);
        assert_eq!(cache.registrar().page.load(Ordering::SeqCst), 2);
        // The test harness's threads also free memory, so the first lookups may come too early.
        let hit = loop {
            let guard = get();
            if guard.why().is_hit() {
                break guard;
            }
        };
        assert_eq!(*hit, 2, "the entry has the page from before the change");
    }
}
