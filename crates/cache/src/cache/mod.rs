//! The cache.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`options`] | limits and policies |
//! | [`lookup`] | hits, without a lock |
//! | [`miss`] | registrations, and how they become entries |
//! | [`shelf`] | free slots and eviction |
//! | [`guard`] | what a lookup returns |
//! | [`stats`] | counters and the trace |

pub(crate) mod guard;
mod lookup;
mod miss;
pub(crate) mod options;
mod shelf;
pub(crate) mod stats;

use crate::maps::{Backing, Maps};
use crate::monitor::{Monitor, Sees, TooManyCaches};
use crate::registrar::{Follows, Registrar};
use crate::request::{Class, Kind, Rights};
use crate::table::entries::Entries;
use crate::table::slots::{MOST, NONE};
use crate::table::values::Values;
use crate::why::{Off, Why};
use guard::Guard;
use lookup::Hit;
use options::{Invalid, Options};
use parking_lot::{Condvar, Mutex};
use rkey_base::process::ForkMark;
use rkey_base::range::VaRange;
use shelf::{Gone, Parts, Shelf};
use stats::{Counters, Event, Stats, add};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A registration, and what the cache needs to check it and to end it.
pub(crate) struct Value<T> {
    registration: T,
    backing: Option<Backing>,
    watched: bool,
}

/// Why a cache could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotMade {
    /// The options contradict each other, or the registrar.
    #[error(transparent)]
    Options(#[from] Invalid),
    /// The monitor already serves the maximum number of caches.
    #[error(transparent)]
    Monitor(#[from] TooManyCaches),
    /// The kernel cannot wipe a page when this process forks (before Linux 4.14), or memory is exhausted.
    #[error("cannot detect forks: {0}")]
    Fork(io::Error),
    /// The registrar follows objects, and the kernel cannot be asked what is mapped at an address.
    #[error("a registrar that follows objects needs PROCMAP_QUERY (Linux 6.11 or later)")]
    NoMaps,
}

/// A cache of registrations.
///
/// Any number of threads may use it at once. Dropping the cache deregisters all entries, except those whose guard was
/// leaked (`std::mem::forget`).
pub struct Cache<R: Registrar> {
    registrar: R,
    follows: Follows,
    monitor: Arc<dyn Monitor>,
    /// Whether the monitor watches the memory of entries.
    watches: bool,
    options: Options,
    off: Option<Off>,
    fork: ForkMark,
    maps: Option<Maps>,
    entries: Arc<Entries>,
    values: Values<Value<R::Registration>>,
    /// Indexed by a hash of a range's first address and class: the slot that last served it. Only a hint.
    hints: Box<[AtomicU32]>,
    /// Counts new entries: the clock by which the least recently used entry is found.
    clock: AtomicU64,
    /// Whether entries in use exceed the limit of bytes, so that they must be evicted when they are idle.
    over: AtomicBool,
    shelf: Mutex<Shelf>,
    /// How many values have left the table and are not deregistered yet.
    leaving: AtomicUsize,
    /// Notified when `leaving` falls. Lookups wait for it if the registrar is exhausted.
    has_left: Condvar,
    /// What the waiting lookups lock. It protects nothing: a lookup that misses a notification waits for a moment.
    waiting: Mutex<()>,
    counters: Counters,
    trace: Option<Mutex<VecDeque<Event>>>,
}

impl<R: Registrar> Cache<R> {
    /// Creates an empty cache.
    ///
    /// # Errors
    /// See [`NotMade`]. A monitor that sees too little for the registrar is not an error, but the cache is then [off](Self::off).
    pub fn new(registrar: R, monitor: Arc<dyn Monitor>, options: Options) -> Result<Self, NotMade> {
        let follows = registrar.follows();
        options.rounding.validate(follows)?;
        let maps = match follows {
            Follows::Object => Some(
                Maps::open()
                    .ok()
                    .filter(Maps::answers)
                    .ok_or(NotMade::NoMaps)?,
            ),
            _ => None,
        };
        let off = off(follows, monitor.sees(), &options);
        let capacity = if off.is_some() {
            0
        } else {
            options.max_count.min(MOST)
        };
        let entries = Arc::new(Entries::new(capacity));
        let fork = ForkMark::new().map_err(NotMade::Fork)?;
        monitor.attach(&entries)?;
        let hints = (capacity * 2).next_power_of_two().clamp(64, 1 << 16);
        Ok(Self {
            watches: follows == Follows::Pages || monitor.watches_all() || options.watch,
            registrar,
            follows,
            monitor,
            off,
            fork,
            maps,
            entries,
            values: Values::new(capacity),
            hints: (0..hints).map(|_| AtomicU32::new(NONE)).collect(),
            clock: AtomicU64::new(0),
            over: AtomicBool::new(false),
            shelf: Mutex::new(Shelf::new(capacity)),
            leaving: AtomicUsize::new(0),
            has_left: Condvar::new(),
            waiting: Mutex::new(()),
            counters: Counters::default(),
            trace: (options.trace > 0).then(|| Mutex::new(VecDeque::new())),
            options,
        })
    }

    /// Returns a registration of memory with (at least) these rights: that of an entry, or a new one. The registration is
    /// valid until the guard is dropped.
    ///
    /// An entry is never returned if it is older than a change of its memory that the calling thread can know of.
    /// [`Follows`] and the monitor say which changes are noticed, and how.
    ///
    /// # Errors
    /// The registrar's error, if there is no entry and the registration fails.
    #[inline]
    pub fn get(
        &self,
        range: VaRange,
        rights: Rights,
        kind: Kind,
    ) -> Result<Guard<'_, R>, R::Error> {
        let want = Class::new(rights, kind);
        if self.trace.is_none()
            && let Some(guard) = self.quick_hit(&range, want)
        {
            return Ok(guard);
        }
        let guard = self.hit_or_miss(range, want)?;
        self.record(range, &guard, want);
        Ok(guard)
    }

    /// A lookup that was no hit at the first try.
    #[cold]
    fn hit_or_miss(&self, range: VaRange, want: Class) -> Result<Guard<'_, R>, R::Error> {
        if let Some(why) = self.refuses(&range, want.kind()) {
            return self.own(range, want, why);
        }
        match self.hit(&range, want) {
            Hit::Found(guard) => Ok(guard),
            Hit::Busy => self.own(range, want, Why::Busy),
            Hit::None => self.miss(range, want),
        }
    }

    /// Records a lookup for the trace.
    fn record(&self, range: VaRange, guard: &Guard<'_, R>, want: Class) {
        let Some(trace) = self.trace.as_ref().filter(|_| !self.fork.is_child()) else {
            return;
        };
        let mut trace = trace.lock();
        if trace.len() == self.options.trace {
            trace.pop_front();
        }
        trace.push_back(Event {
            range,
            rights: want.rights(),
            kind: want.kind(),
            why: guard.why(),
        });
    }

    /// Registers memory for this call alone: the registration neither uses nor becomes an entry.
    ///
    /// # Errors
    /// The registrar's error.
    pub fn register_once(
        &self,
        range: VaRange,
        rights: Rights,
        kind: Kind,
    ) -> Result<Guard<'_, R>, R::Error> {
        self.own(range, Class::new(rights, kind), Why::Once)
    }

    /// Why this lookup does not go through the cache.
    fn refuses(&self, range: &VaRange, kind: Kind) -> Option<Why> {
        if self.fork.is_child() {
            Some(Why::Off(Off::Forked))
        } else if let Some(off) = self.off {
            Some(Why::Off(off))
        } else if range.is_empty() {
            Some(Why::Empty)
        } else if kind != Kind::HOST && !self.options.unified_addresses {
            Some(Why::OtherKind)
        } else {
            None
        }
    }

    /// Why every lookup makes its own registration; `None` if lookups can use entries.
    #[must_use]
    pub fn off(&self) -> Option<Off> {
        if self.fork.is_child() {
            Some(Off::Forked)
        } else {
            self.off
        }
    }

    /// The registrar.
    #[must_use]
    pub fn registrar(&self) -> &R {
        &self.registrar
    }

    /// The monitor.
    #[must_use]
    pub fn monitor(&self) -> &dyn Monitor {
        &*self.monitor
    }

    /// Ends the entries that have a byte in the range, as a monitor does. Returns how many ended.
    pub fn invalidate(&self, range: VaRange) -> usize {
        self.entries.invalidate(range, crate::why::Cause::Told)
    }

    /// Deregisters unused entries that have ended. Every miss does this, and so does dropping the last guard of such an
    /// entry. A program that changes memory and then makes no lookup for a long time should call this, to unpin pages.
    pub fn reap(&self) {
        if self.entries.has_dead() && !self.fork.is_child() {
            let mut gone = Gone::new();
            self.shelf.lock().reap(&self.parts(), &mut gone);
            self.end_all(gone);
        }
    }

    /// Evicts all idle entries.
    pub fn flush(&self) {
        self.evict_all();
    }

    /// Evicts all idle entries. Returns how many entries were evicted or had ended before.
    fn evict_all(&self) -> usize {
        if self.fork.is_child() {
            return 0;
        }
        let mut gone = Gone::new();
        {
            let mut shelf = self.shelf.lock();
            shelf.reap(&self.parts(), &mut gone);
            while shelf.evict(&self.parts(), &mut gone) {
                add(&self.counters.evictions, 1);
            }
        }
        let count = gone.len();
        self.end_all(gone);
        count
    }

    /// The counters. A forked child has no entries.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (entries, bytes) = if self.fork.is_child() {
            (0, 0)
        } else {
            let shelf = self.shelf.lock();
            (shelf.count() as u64, shelf.bytes)
        };
        let counter = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            hits: self.entries.hits(),
            misses: counter(&self.counters.misses),
            uncached: counter(&self.counters.uncached),
            busy: counter(&self.counters.busy),
            evictions: counter(&self.counters.evictions),
            invalidations: self.entries.invalidated(),
            replaced: counter(&self.counters.replaced),
            entries,
            bytes,
        }
    }

    /// The last lookups, oldest first; at most [`Options::trace`] of them, and none in a forked child.
    #[must_use]
    pub fn trace(&self) -> Vec<Event> {
        let trace = self.trace.as_ref().filter(|_| !self.fork.is_child());
        trace.map_or_else(Vec::new, |trace| trace.lock().iter().copied().collect())
    }

    fn parts(&self) -> Parts<'_, Value<R::Registration>> {
        Parts {
            entries: &self.entries,
            values: &self.values,
            leaving: &self.leaving,
        }
    }

    /// Unpins an entry, and deregisters what has ended.
    #[inline]
    fn unpin(&self, slot: u32) {
        let orphaned = self.entries.unpin(slot);
        if orphaned || self.over.load(Ordering::Relaxed) {
            self.tidy();
        }
    }

    /// Deregisters entries that have ended, and evicts idle ones while the limit of bytes is exceeded.
    #[cold]
    fn tidy(&self) {
        if self.fork.is_child() {
            return;
        }
        let mut gone = Gone::new();
        {
            let mut shelf = self.shelf.lock();
            shelf.reap(&self.parts(), &mut gone);
            self.shrink(&mut shelf, 0, &mut gone);
        }
        self.end_all(gone);
    }

    /// Evicts idle entries until `more` bytes fit, or none is idle.
    fn shrink(&self, shelf: &mut Shelf, more: u64, gone: &mut Gone<Value<R::Registration>>) {
        let Some(max) = self.options.max_size else {
            return;
        };
        let exceeds = |shelf: &Shelf| shelf.bytes.saturating_add(more) > max;
        while exceeds(shelf) && shelf.evict(&self.parts(), gone) {
            add(&self.counters.evictions, 1);
        }
        self.over.store(exceeds(shelf), Ordering::Relaxed);
    }

    /// Deregisters these values. The caller must hold no lock.
    fn end_all(&self, gone: Gone<Value<R::Registration>>) {
        for (range, value) in gone {
            self.end(range, value);
            self.leaving.fetch_sub(1, Ordering::Release);
            self.has_left.notify_all();
        }
    }

    fn end(&self, range: VaRange, value: Value<R::Registration>) {
        self.registrar.deregister(value.registration);
        if value.watched {
            self.monitor.unwatch(range);
        }
    }
}

fn off(follows: Follows, sees: Sees, options: &Options) -> Option<Off> {
    match sees {
        _ if options.max_count == 0 => Some(Off::NoEntries),
        Sees::Nothing => Some(Off::Disabled),
        Sees::Some if follows == Follows::Pages && !options.accept_partial => Some(Off::Partial),
        _ => None,
    }
}

impl<R: Registrar> std::fmt::Debug for Cache<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache")
            .field("follows", &self.follows)
            .field("monitor", &self.monitor.name())
            .field("options", &self.options)
            .field("off", &self.off)
            .finish_non_exhaustive()
    }
}

impl<R: Registrar> Drop for Cache<R> {
    fn drop(&mut self) {
        // In a forked child, the entries are the parent's. Another thread of the parent may have been in the monitor, or held a
        // lock, at the fork; in the child it never leaves or releases it.
        if self.fork.is_child() {
            return;
        }
        self.monitor.detach(&self.entries);
        // Guards borrow the cache, so only leaked ones can exist: all other entries are idle or dead.
        self.flush();
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    // UNSAFETY: forks.
    #![allow(unsafe_code)]

    use super::*;
    use crate::monitor::Verdict;
    use crate::registrar::Request;
    use crate::why::Refusal;
    use std::convert::Infallible;

    struct Nothing;

    impl Registrar for Nothing {
        type Registration = ();
        type Error = Infallible;

        fn follows(&self) -> Follows {
            Follows::Addresses
        }
        fn register(&self, _: &Request) -> Result<(), Infallible> {
            Ok(())
        }
        fn deregister(&self, (): ()) {}
    }

    /// A monitor whose `detach` waits for a thread that a forked child does not have.
    struct Waits(ForkMark);

    impl Monitor for Waits {
        fn name(&self) -> &'static str {
            "waits"
        }
        fn sees(&self) -> Sees {
            Sees::All
        }
        fn attach(&self, _: &Arc<Entries>) -> Result<(), TooManyCaches> {
            Ok(())
        }
        fn detach(&self, _: &Arc<Entries>) {
            while self.0.is_child() {
                std::thread::yield_now();
            }
        }
        fn watch(&self, _: VaRange) -> Result<(), Refusal> {
            Ok(())
        }
        fn check(&self, _: VaRange) -> Verdict {
            Verdict::Fresh
        }
        fn validate(&self, _: VaRange) -> Verdict {
            Verdict::Fresh
        }
    }

    /// The locks are held when the process forks, as if other threads had them.
    #[test]
    fn a_forked_child_does_not_wait_for_the_parents_threads() {
        let options = Options {
            trace: 4,
            ..Options::default()
        };
        let monitor = Arc::new(Waits(ForkMark::new().unwrap()));
        let cache = Cache::new(Nothing, monitor, options).unwrap();
        let buffer = VaRange::new(0x1000, 0x1000).unwrap();
        let look_up = || cache.get(buffer, Rights(1), Kind::HOST).unwrap().why();
        assert!(!look_up().is_hit());
        assert_eq!(cache.stats().entries, 1);
        let trace = cache.trace.as_ref().unwrap().lock();
        let shelf = cache.shelf.lock();
        // SAFETY: the child allocates nothing that another thread may have locked, and ends with `_exit`. The alarm ends it if it waits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: sets a timer.
            unsafe { libc::alarm(60) };
            let off = look_up() == Why::Off(Off::Forked);
            let right = off && cache.stats().entries == 0 && cache.trace().is_empty();
            cache.reap();
            cache.flush();
            // SAFETY: the parent drops its own copy; this one is not used again.
            drop(unsafe { std::ptr::read(&raw const cache) });
            // SAFETY: ends the child without running any of the parent's code.
            unsafe { libc::_exit(if right { 7 } else { 8 }) };
        }
        drop((trace, shelf));
        let mut status = 0;
        // SAFETY: waits for the child; `status` is ours.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status), "the child waited: {status:#x}");
        assert_eq!(libc::WEXITSTATUS(status), 7);
        assert_eq!(look_up(), Why::Hit);
    }
}
