//! Guards: what lookups return.

// UNSAFETY: the guard reads the value of the entry that it has pinned.
#![allow(unsafe_code)]

use super::{Cache, Value};
use crate::registrar::Registrar;
use crate::why::Why;
use rkey_base::range::VaRange;
use std::fmt;
use std::ops::Deref;

/// A registration, valid until the guard is dropped. Dropping the guard does not deregister an entry, which stays for the next
/// lookup.
///
/// If the memory changes while a guard exists, the guard keeps its registration. No further lookup gets the entry,
/// which is deregistered when its last guard is dropped.
#[must_use = "dropping the guard ends the use of the registration"]
pub struct Guard<'a, R: Registrar> {
    cache: &'a Cache<R>,
    held: Held<R::Registration>,
    why: Why,
}

pub(super) enum Held<T> {
    /// A pinned entry that has a value.
    Entry(u32),
    /// A registration for this lookup only, until it is dropped.
    Own(VaRange, Option<Value<T>>),
}

impl<'a, R: Registrar> Guard<'a, R> {
    /// A guard for an entry.
    ///
    /// # Safety
    /// The value of the entry in `slot` is stored. The caller has pinned the entry, and passes the pin to the
    /// guard.
    pub(super) unsafe fn of_entry(cache: &'a Cache<R>, slot: u32, why: Why) -> Self {
        Self {
            cache,
            held: Held::Entry(slot),
            why,
        }
    }

    pub(super) fn own(
        cache: &'a Cache<R>,
        value: Value<R::Registration>,
        range: VaRange,
        why: Why,
    ) -> Self {
        Self {
            cache,
            held: Held::Own(range, Some(value)),
            why,
        }
    }

    /// Why the lookup was a hit or a miss.
    #[must_use]
    #[inline]
    pub fn why(&self) -> Why {
        self.why
    }

    /// The registered memory, which contains the range that was looked up.
    #[must_use]
    pub fn range(&self) -> VaRange {
        match self.held {
            Held::Entry(slot) => self.cache.entries.slot(slot).range(),
            Held::Own(range, _) => range,
        }
    }

    /// The registration.
    #[must_use]
    #[inline]
    pub fn registration(&self) -> &R::Registration {
        let value = match &self.held {
            // SAFETY: this guard has pinned the entry (`of_entry`), and the reference borrows from the guard.
            Held::Entry(slot) => unsafe { self.cache.values.get(*slot) },
            Held::Own(_, value) => value.as_ref(),
        };
        &value
            .expect("a guarded entry has a value, and a guard's own value is taken only on drop")
            .registration
    }
}

impl<R: Registrar> Deref for Guard<'_, R> {
    type Target = R::Registration;

    fn deref(&self) -> &R::Registration {
        self.registration()
    }
}

impl<R: Registrar> fmt::Debug for Guard<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("range", &self.range())
            .field("why", &self.why)
            .finish_non_exhaustive()
    }
}

impl<R: Registrar> Drop for Guard<'_, R> {
    #[inline]
    fn drop(&mut self) {
        match &mut self.held {
            Held::Entry(slot) => self.cache.unpin(*slot),
            Held::Own(range, value) => {
                if let Some(value) = value.take() {
                    self.cache.end(*range, value);
                }
            }
        }
    }
}
