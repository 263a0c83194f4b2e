//! Registrations, and how they become entries.
//!
//! First the monitor watches the memory, then the entry becomes pending, then the monitor confirms that all of the
//! memory is watched, and only then is the memory registered. So a change after the registration ends the entry, even
//! if the entry is not valid yet.

// UNSAFETY: stores the value of an entry that this module has claimed, and passes the pin to a guard.
#![allow(unsafe_code)]

use super::guard::Guard;
use super::lookup::Hit;
use super::shelf::Gone;
use super::stats::add;
use super::{Cache, Value};
use crate::maps::Backing;
use crate::monitor::Verdict;
use crate::registrar::{Follows, Registrar, Request};
use crate::request::{Class, Rights};
use crate::why::{Cause, Refusal, Why};
use crossbeam_utils::Backoff;
use rkey_base::range::VaRange;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How many times a lookup registers if changes overtake it.
const TRIES: usize = 3;

/// How many times a lookup registers if the registrar is exhausted, while other threads use up or make room.
const TRIES_IF_EXHAUSTED: usize = 5000;
/// How long each of the later attempts waits for another thread's deregistration.
const PAUSE_IF_EXHAUSTED: Duration = Duration::from_millis(1);

/// The result of searching under the lock.
enum Reserved<'a, R: Registrar> {
    /// A new entry for this range, claimed and pinned.
    Slot(u32, VaRange),
    /// There is an entry.
    Hit(Guard<'a, R>),
    /// There may be an entry, but memory is changing.
    Busy,
    /// Every slot is in use.
    Full,
}

/// The result of trying to make an entry.
enum Made {
    /// The registration is that of the memory that is mapped now, unless a change has ended the entry.
    Fresh,
    /// Memory changed while it was being registered.
    Overtaken,
    /// The registration cannot become an entry, for this reason.
    Refused(Why),
}

/// What a miss saw of the other entries in its range.
#[derive(Default)]
struct Seen {
    /// An entry of the same class contains the new one.
    raced: bool,
    /// The rights of an entry that contains the wanted range.
    rights: Option<Rights>,
    /// The part of the wanted range that an entry contains.
    part: Option<VaRange>,
}

impl Seen {
    fn note(&mut self, wanted: &VaRange, want: Class, entry: &VaRange, class: Class) {
        if class.kind() != want.kind() {
            return;
        }
        if entry.contains(wanted) {
            self.rights = Some(class.rights());
        }
        self.part = self.part.or(entry.intersection(wanted));
    }

    /// Why the lookup was no hit; `ended` is the reason why an earlier entry ended.
    fn why(&self, ended: Option<Cause>) -> Why {
        match *self {
            Self {
                rights: Some(rights),
                ..
            } => Why::OtherRights(rights),
            Self { part, .. } => match (ended, part) {
                (Some(cause), _) => Why::Ended(cause),
                (None, Some(part)) => Why::Partly(part),
                (None, None) => Why::Absent,
            },
        }
    }
}

impl<R: Registrar> Cache<R> {
    /// Registers memory for a lookup that found no entry.
    #[cold]
    pub(super) fn miss(&self, range: VaRange, want: Class) -> Result<Guard<'_, R>, R::Error> {
        let backoff = Backoff::new();
        for _ in 0..TRIES {
            let (slot, rounded) = match self.reserve(&range, want) {
                Reserved::Slot(slot, rounded) => (slot, rounded),
                Reserved::Hit(guard) => return Ok(guard),
                Reserved::Busy => return self.own(range, want, Why::Busy),
                Reserved::Full => return self.own(range, want, Why::Full),
            };
            let made = self.make(slot, rounded, want);
            let published = match &made {
                Ok(Made::Fresh) => self.publish(slot, &range, want),
                _ => None,
            };
            if let Some(why) = published {
                self.touch(self.entries.slot(slot));
                let misses = &self.counters.misses;
                let uncached = &self.counters.uncached;
                add(if why == Why::Raced { uncached } else { misses }, 1);
                // SAFETY: `reserve` pinned the entry, and `make` stored its value.
                return Ok(unsafe { Guard::of_entry(self, slot, why) });
            }
            match made {
                Ok(Made::Fresh | Made::Overtaken) => {
                    add(&self.counters.busy, 1);
                    self.abandon(slot);
                    backoff.snooze();
                }
                Ok(Made::Refused(why)) => {
                    self.abandon(slot);
                    return self.own(range, want, why);
                }
                Err(error) => {
                    self.abandon(slot);
                    // Perhaps only the memory added by rounding cannot be registered: try the exact range.
                    return if rounded == range {
                        Err(error)
                    } else {
                        self.own(range, want, Why::Absent)
                    };
                }
            }
        }
        self.own(range, want, Why::Overtaken)
    }

    /// A registration for one lookup.
    #[cold]
    pub(super) fn own(
        &self,
        range: VaRange,
        want: Class,
        why: Why,
    ) -> Result<Guard<'_, R>, R::Error> {
        add(&self.counters.uncached, 1);
        let maps = self.maps.as_ref().filter(|_| !self.fork.is_child());
        let value = Value {
            registration: self.register(&Request {
                range,
                rights: want.rights(),
                kind: want.kind(),
                backing: maps.and_then(|maps| maps.backing(&range).ok()),
            })?,
            backing: None,
            watched: false,
        };
        Ok(Guard::own(self, value, range, why))
    }

    /// Takes a slot for a new entry, unless an entry exists by now.
    fn reserve(&self, range: &VaRange, want: Class) -> Reserved<'_, R> {
        let mut gone = Gone::new();
        let mut shelf = self.shelf.lock();
        shelf.reap(&self.parts(), &mut gone);
        let found = self.find(range, want);
        let reserved = if let Some(found) = found {
            drop(shelf);
            let first = std::cell::Cell::new(Some(found));
            let find = || first.take().or_else(|| self.find(range, want));
            match self.hit_by(range, want, find) {
                Hit::Found(guard) => Reserved::Hit(guard),
                Hit::Busy => Reserved::Busy,
                Hit::None => {
                    self.end_all(gone);
                    return self.reserve(range, want);
                }
            }
        } else {
            let rounded = self.options.rounding.round(*range);
            self.shrink(&mut shelf, rounded.len(), &mut gone);
            let mut slot = shelf.take(rounded.len());
            if slot.is_none() && shelf.evict(&self.parts(), &mut gone) {
                add(&self.counters.evictions, 1);
                slot = shelf.take(rounded.len());
            }
            let reserved = match slot {
                Some(slot) => {
                    self.clock.fetch_add(1, Ordering::Relaxed);
                    self.entries.claim(slot, rounded, want);
                    Reserved::Slot(slot, rounded)
                }
                None => Reserved::Full,
            };
            drop(shelf);
            reserved
        };
        self.end_all(gone);
        reserved
    }

    /// Watches and registers the memory of a claimed entry, and makes it valid.
    fn make(&self, slot: u32, range: VaRange, want: Class) -> Result<Made, R::Error> {
        if self.watches
            && let Err(refusal) = self.monitor.watch(range)
        {
            return Ok(Made::Refused(Why::Unwatched(refusal)));
        }
        self.entries.arm(slot);
        if self.watches && self.monitor.confirm(range) != Verdict::Fresh {
            self.unwatch(range);
            return Ok(Made::Overtaken);
        }
        let backing = match self.object(&range) {
            Ok(backing) => backing,
            Err(refusal) => {
                self.unwatch(range);
                return Ok(Made::Refused(Why::Unwatched(refusal)));
            }
        };
        let registration = self.register(&Request {
            range,
            rights: want.rights(),
            kind: want.kind(),
            backing,
        });
        let registration = registration.inspect_err(|_| self.unwatch(range))?;
        let value = Value {
            registration,
            backing,
            watched: self.watches,
        };
        // SAFETY: the caller claimed the slot, and the entry is published only below.
        unsafe { self.values.put(slot, value) };
        let same = self.object(&range) == Ok(backing);
        let fresh = !self.watches || self.monitor.check(range) == Verdict::Fresh;
        if same && fresh {
            Ok(Made::Fresh)
        } else {
            Ok(Made::Overtaken)
        }
    }

    fn unwatch(&self, range: VaRange) {
        if self.watches {
            self.monitor.unwatch(range);
        }
    }

    /// The shared object behind a range, if the registrar follows objects.
    fn object(&self, range: &VaRange) -> Result<Option<Backing>, Refusal> {
        let Some(maps) = self
            .maps
            .as_ref()
            .filter(|_| self.follows == Follows::Object)
        else {
            return Ok(None);
        };
        match maps.backing(range) {
            Ok(backing) if backing.shared && backing.inode != 0 => Ok(Some(backing)),
            Ok(_) => Err(Refusal::NoObject),
            Err(errno) => Err(Refusal::System(errno)),
        }
    }

    /// Registers memory. If the registrar is exhausted, evicts all idle entries and tries again, as long as entries can be evicted, or other
    /// threads are deregistering those that they have evicted.
    fn register(&self, request: &Request) -> Result<R::Registration, R::Error> {
        let exhausted = |error: &R::Error| self.registrar.is_exhausted(error);
        let backoff = Backoff::new();
        let mut result = self.registrar.register(request);
        for _ in 0..TRIES_IF_EXHAUSTED {
            if !result.as_ref().is_err_and(exhausted) {
                break;
            }
            let evicted = self.evict_all() > 0;
            // In a forked child, the threads that were deregistering do not exist.
            let others_evict = self.leaving.load(Ordering::Acquire) > 0 && !self.fork.is_child();
            let may_change = evicted || others_evict;
            result = self.registrar.register(request);
            if !may_change {
                break;
            }
            // In a forked child, the lock may stay locked.
            if backoff.is_completed()
                && let Some(mut waiting) = self.waiting.try_lock()
            {
                self.has_left.wait_for(&mut waiting, PAUSE_IF_EXHAUSTED);
            } else {
                backoff.snooze();
            }
        }
        result
    }

    /// Gives up an entry that never became valid and that only the caller uses. Deregisters its value, if it has one.
    fn abandon(&self, slot: u32) {
        self.entries.clear(slot);
        self.unpin(slot);
    }

    /// Makes the entry that was made for a lookup valid, and ends the entries of its class that it contains. If an entry of its class
    /// contains it, it ends instead, and is deregistered when its guard is dropped. Returns why the lookup was no
    /// hit; `None` if a change has ended the entry.
    fn publish(&self, slot: u32, wanted: &VaRange, want: Class) -> Option<Why> {
        let range = self.entries.slot(slot).range();
        let mut seen = Seen::default();
        let _shelf = self.shelf.lock();
        self.entries.each_overlapping(range, |number, other| {
            if !other.word.is_valid() {
                return;
            }
            let (it, class) = (other.range(), other.class());
            if class == want && it.contains(&range) {
                seen.raced = true;
                return;
            }
            seen.note(wanted, want, &it, class);
            if class == want && range.contains(&it) {
                add(
                    &self.counters.replaced,
                    u64::from(self.entries.clear(number)),
                );
            }
        });
        if seen.raced {
            self.entries.clear(slot);
            return Some(Why::Raced);
        }
        let why = seen.why(self.entries.end_of(wanted));
        self.entries.slot(slot).word.publish().then_some(why)
    }
}
