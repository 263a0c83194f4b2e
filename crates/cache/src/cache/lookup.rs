//! Hits. They take no lock, and write only to the entry that they use and to its hint.

// UNSAFETY: reads the value of an entry that this module has pinned, and passes the pin to a guard.
#![allow(unsafe_code)]

use super::guard::Guard;
use super::stats::add;
use super::{Cache, Value};
use crate::maps::Backing;
use crate::monitor::Verdict;
use crate::registrar::{Follows, Registrar};
use crate::request::Class;
use crate::table::slots::{NONE, Slot};
use crate::why::Why;
use crossbeam_utils::Backoff;
use rkey_base::range::VaRange;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many times a lookup tries to hit while memory is changing.
const TRIES: usize = 6;

/// The result of trying to hit.
pub(super) enum Hit<'a, R: Registrar> {
    Found(Guard<'a, R>),
    /// No entry serves the lookup.
    None,
    /// Memory was changing during each try.
    Busy,
}

impl<R: Registrar> Cache<R> {
    /// Tries the entry that served such a lookup before. If the cache does not hold such memory, there is no such entry.
    #[inline]
    pub(super) fn quick_hit(&self, range: &VaRange, want: Class) -> Option<Guard<'_, R>> {
        if range.is_empty() || self.fork.is_child() {
            return None;
        }
        let hinted = self.hint(range, want).load(Ordering::Acquire);
        if hinted == NONE {
            return None;
        }
        let exact = self.options.exact_rights;
        let slot = self.entries.pin(hinted, range, want, exact)?;
        let verdict = self.verdict(hinted, range);
        if verdict != Verdict::Fresh {
            self.refuse(hinted, verdict);
            return None;
        }
        self.touch(slot);
        // SAFETY: the entry is pinned, and was valid, so its value is stored.
        Some(unsafe { Guard::of_entry(self, hinted, Why::Hit) })
    }

    /// Looks for an entry that serves the lookup, and validates it.
    pub(super) fn hit(&self, range: &VaRange, want: Class) -> Hit<'_, R> {
        self.hit_by(range, want, || self.find(range, want))
    }

    /// Like `hit`, with `find` to find and pin an entry.
    pub(super) fn hit_by(
        &self,
        range: &VaRange,
        want: Class,
        find: impl Fn() -> Option<u32>,
    ) -> Hit<'_, R> {
        let backoff = Backoff::new();
        for _ in 0..TRIES {
            let Some(slot) = find() else {
                return Hit::None;
            };
            debug_assert!(self.entries.slot(slot).class().serves(want, false));
            match self.verdict(slot, range) {
                Verdict::Fresh => {
                    self.touch(self.entries.slot(slot));
                    // SAFETY: `find` pinned the entry, which was valid, so its value is stored.
                    return Hit::Found(unsafe { Guard::of_entry(self, slot, Why::Hit) });
                }
                verdict => {
                    self.refuse(slot, verdict);
                    if verdict == Verdict::Busy {
                        backoff.snooze();
                    }
                }
            }
        }
        Hit::Busy
    }

    /// The hint for a lookup. Lookups of one class whose ranges begin in the same 64 bytes share one.
    #[inline]
    fn hint(&self, range: &VaRange, want: Class) -> &AtomicU32 {
        let hash = ((range.start() >> 6) ^ want.bits()).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.hints[(hash >> 48) as usize & (self.hints.len() - 1)]
    }

    /// Finds an entry that serves the lookup and pins it.
    pub(super) fn find(&self, range: &VaRange, want: Class) -> Option<u32> {
        let found = self.entries.find(range, want, self.options.exact_rights)?;
        // A thread that reads the hint also sees that the slot exists.
        self.hint(range, want).store(found, Ordering::Release);
        Some(found)
    }

    /// Whether a pinned entry may be used. For registrars that pin, the order of the checks matters: the monitor first,
    /// then the entry's state.
    #[inline]
    fn verdict(&self, slot: u32, range: &VaRange) -> Verdict {
        let verdict = match self.follows {
            Follows::Addresses if !self.watches => return Verdict::Fresh,
            Follows::Object => self.same_object(slot, range),
            Follows::Allocation => self.same_allocation(slot, range),
            Follows::Addresses | Follows::Pages => Verdict::Fresh,
        };
        let verdict = match verdict {
            Verdict::Fresh if self.watches => self.monitor.validate(*range),
            verdict => verdict,
        };
        match verdict {
            Verdict::Fresh if !self.entries.slot(slot).word.is_valid() => Verdict::Changed,
            verdict => verdict,
        }
    }

    /// Whether the range is still mapped to the part of the object that was registered.
    fn same_object(&self, slot: u32, range: &VaRange) -> Verdict {
        // SAFETY: the caller pinned the entry, which was valid, and unpins it after this returns.
        let value: Option<&Value<R::Registration>> = unsafe { self.values.get(slot) };
        let start = self.entries.slot(slot).range().start();
        let registered = value.and_then(|value| value.backing);
        let now = self.maps.as_ref().map(|maps| maps.backing(range));
        match (registered, now) {
            (Some(registered), Some(Ok(now))) if now == part(&registered, range, start) => {
                Verdict::Fresh
            }
            _ => Verdict::Changed,
        }
    }

    /// Whether the range still belongs to the allocation that was registered.
    fn same_allocation(&self, slot: u32, range: &VaRange) -> Verdict {
        // SAFETY: as in `same_object`.
        let value: Option<&Value<R::Registration>> = unsafe { self.values.get(slot) };
        let current = value.is_some_and(|it| self.registrar.is_current(&it.registration, range));
        match current {
            true => Verdict::Fresh,
            false => Verdict::Changed,
        }
    }

    /// Unpins an entry that must not be used, and ends it if its memory has changed.
    #[cold]
    fn refuse(&self, slot: u32, verdict: Verdict) {
        self.entries.slot(slot).no_hit();
        match verdict {
            Verdict::Changed => self.entries.end_replaced(slot),
            _ => add(&self.counters.busy, 1),
        }
        self.unpin(slot);
    }

    /// Records the time of a use.
    #[inline]
    pub(super) fn touch(&self, slot: &Slot) {
        let now = self.clock.load(Ordering::Relaxed);
        if slot.used.load(Ordering::Relaxed) != now {
            slot.used.store(now, Ordering::Relaxed);
        }
    }
}

/// The backing of `range`, which is inside an entry that begins at `start` and has the backing `entry`.
fn part(entry: &Backing, range: &VaRange, start: u64) -> Backing {
    Backing {
        offset: entry.offset.wrapping_add(range.start() - start),
        ..*entry
    }
}
