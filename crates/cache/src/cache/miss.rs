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
use crate::request::Class;
use crate::why::{Refusal, Why};
use crossbeam_utils::Backoff;
use rkey_base::range::VaRange;
use std::sync::atomic::Ordering;

/// How many times a lookup registers if changes overtake it.
const TRIES: usize = 3;

/// The result of searching under the lock.
enum Reserved<'a, R: Registrar> {
    /// A new entry for this range, claimed and pinned, and the reason for the miss.
    Slot(u32, VaRange, Why),
    /// There is an entry.
    Hit(Guard<'a, R>),
    /// There may be an entry, but memory is changing.
    Busy,
    /// Every slot is in use.
    Full,
}

/// The result of trying to make an entry.
enum Made {
    /// The entry is valid.
    Entry,
    /// Memory changed while it was being registered.
    Overtaken,
    /// The registration cannot become an entry, for this reason.
    Refused(Why),
}

impl<R: Registrar> Cache<R> {
    /// Registers memory for a lookup that found no entry.
    #[cold]
    pub(super) fn miss(&self, range: VaRange, want: Class) -> Result<Guard<'_, R>, R::Error> {
        let backoff = Backoff::new();
        for _ in 0..TRIES {
            let (slot, rounded, why) = match self.reserve(&range, want) {
                Reserved::Slot(slot, rounded, why) => (slot, rounded, why),
                Reserved::Hit(guard) => return Ok(guard),
                Reserved::Busy => return self.own(range, want, Why::Busy),
                Reserved::Full => return self.own(range, want, Why::Full),
            };
            match self.make(slot, rounded, want) {
                Ok(Made::Entry) => {
                    let why = self.list(slot, rounded, want, why);
                    self.touch(slot);
                    let misses = &self.counters.misses;
                    let uncached = &self.counters.uncached;
                    add(if why == Why::Raced { uncached } else { misses }, 1);
                    // SAFETY: `reserve` pinned the entry, and `make` stored its value.
                    return Ok(unsafe { Guard::of_entry(self, slot, why) });
                }
                Ok(Made::Overtaken) => {
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
        self.index.unhide(
            range.start(),
            want,
            self.options.exact_rights,
            |slot| self.entries.slot(slot).word.is_valid(),
            |slot| self.entries.slot(slot).range().start(),
        );
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
            let why = self.explain(range, want);
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
                    Reserved::Slot(slot, rounded, why)
                }
                None => Reserved::Full,
            };
            drop(shelf);
            reserved
        };
        self.end_all(gone);
        reserved
    }

    /// Why no entry serves the lookup.
    fn explain(&self, range: &VaRange, want: Class) -> Why {
        let mut partly = None;
        for number in self.index.neighbours(range.start()) {
            let slot = self.entries.slot(number);
            let (entry, class) = (slot.range(), slot.class());
            if !slot.word.is_valid() || class.kind() != want.kind() {
                continue;
            }
            if entry.contains(range) {
                return Why::OtherRights(class.rights());
            }
            partly = partly.or(entry.intersection(range));
        }
        match (partly, self.entries.end_of(range)) {
            (_, Some(cause)) => Why::Ended(cause),
            (Some(part), None) => Why::Partly(part),
            (None, None) => Why::Absent,
        }
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
        if same && fresh && self.entries.slot(slot).word.publish() {
            Ok(Made::Entry)
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

    fn register(&self, request: &Request) -> Result<R::Registration, R::Error> {
        match self.registrar.register(request) {
            Err(error) if self.registrar.is_exhausted(&error) => {
                self.flush();
                self.registrar.register(request)
            }
            result => result,
        }
    }

    /// Gives up an entry that never became valid and that only the caller uses. Deregisters its value, if it has one.
    fn abandon(&self, slot: u32) {
        self.entries.clear(slot);
        self.unpin(slot);
    }

    /// Puts a valid entry on the list of its class, where lookups find it, and ends the listed entries that it contains. If
    /// a valid listed entry contains the new one, or there are too many classes, the new one ends instead: it is not
    /// listed, and is deregistered when its guard is dropped. Returns `why`, or why the entry is not listed.
    fn list(&self, slot: u32, range: VaRange, class: Class, why: Why) -> Why {
        let shelf = self.shelf.lock();
        while let Some(other) = self.index.before(class, range.start()) {
            let it = self.entries.slot(other);
            if !it.range().contains(&range) {
                break;
            }
            if it.word.is_valid() {
                self.entries.clear(slot);
                return Why::Raced;
            }
            self.index.remove(class, it.range().start(), other);
        }
        let inside = |other: u32| range.contains(&self.entries.slot(other).range());
        for (start, other) in self.index.contained(class, range.start(), inside) {
            self.index.remove(class, start, other);
            if self.entries.clear(other) {
                add(&self.counters.replaced, 1);
            }
        }
        let listed = self.index.insert(class, range.start(), slot);
        drop(shelf);
        if listed {
            why
        } else {
            self.entries.clear(slot);
            Why::Full
        }
    }
}
