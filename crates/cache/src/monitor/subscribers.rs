//! The caches that a monitor notifies of changes. Notifying them takes no lock and allocates nothing. A cache that
//! leaves waits until no notification is in progress.

// UNSAFETY: holds raw pointers from `Arc`s, which several threads read and one replaces without a lock.
#![allow(unsafe_code)]

use super::TooManyCaches;
use crate::table::entries::Entries;
use crate::why::Cause;
use rkey_base::range::VaRange;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The maximum number of caches that one monitor serves.
const MOST: usize = 16;

/// Up to 16 tables of entries.
#[derive(Debug)]
pub(crate) struct Subscribers {
    /// Each is null, or from `Arc::into_raw` and owns one reference count.
    entries: [AtomicPtr<Entries>; MOST],
    /// How many threads are in `tell`.
    telling: AtomicUsize,
}

impl Subscribers {
    pub(crate) const fn new() -> Self {
        Self {
            entries: [const { AtomicPtr::new(ptr::null_mut()) }; MOST],
            telling: AtomicUsize::new(0),
        }
    }

    pub(crate) fn add(&self, entries: &Arc<Entries>) -> Result<(), TooManyCaches> {
        let raw = Arc::into_raw(Arc::clone(entries)).cast_mut();
        for place in &self.entries {
            let added =
                place.compare_exchange(ptr::null_mut(), raw, Ordering::SeqCst, Ordering::Relaxed);
            if added.is_ok() {
                return Ok(());
            }
        }
        // SAFETY: `raw` is from `Arc::into_raw` above, and no other code owns it.
        drop(unsafe { Arc::from_raw(raw) });
        Err(TooManyCaches)
    }

    /// Removes entries, and waits until no thread is in `tell`. Must not be called from `tell`: it would wait for itself.
    pub(crate) fn remove(&self, entries: &Arc<Entries>) {
        let raw = Arc::as_ptr(entries).cast_mut();
        for place in &self.entries {
            let removed =
                place.compare_exchange(raw, ptr::null_mut(), Ordering::SeqCst, Ordering::Relaxed);
            if removed.is_err() {
                continue;
            }
            let backoff = crossbeam_utils::Backoff::new();
            while self.telling.load(Ordering::SeqCst) != 0 {
                backoff.snooze();
            }
            // SAFETY: the pointer is from `Arc::into_raw` in `add`. This thread took it out of its slot, so no other thread
            // drops it; threads that read it before were in `tell`, and each has left since (`telling` was 0 after the
            // pointer was removed, in the single total order of SeqCst operations).
            drop(unsafe { Arc::from_raw(raw) });
            return;
        }
    }

    /// Ends all entries that have a byte in the range. Returns how many ended.
    pub(crate) fn tell(&self, range: VaRange, cause: Cause) -> usize {
        self.telling.fetch_add(1, Ordering::SeqCst);
        let mut count = 0;
        for place in &self.entries {
            let raw = place.load(Ordering::SeqCst);
            if !raw.is_null() {
                // SAFETY: the pointer was in its slot while `telling` counted this thread; `remove` and `drop` release it
                // only afterwards.
                count += unsafe { &*raw }.invalidate(range, cause);
            }
        }
        self.telling.fetch_sub(1, Ordering::SeqCst);
        count
    }

    /// Ends all entries.
    pub(crate) fn tell_all(&self, cause: Cause) -> usize {
        let everything = VaRange::new(0, u64::MAX).expect("the whole address space is a range");
        self.tell(everything, cause)
    }
}

impl Drop for Subscribers {
    fn drop(&mut self) {
        for place in &mut self.entries {
            let raw = *place.get_mut();
            if !raw.is_null() {
                // SAFETY: as in `remove`; `&mut self` says that no thread is in `tell`.
                drop(unsafe { Arc::from_raw(raw) });
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::request::{Class, Kind, Rights};

    #[test]
    fn caches_are_added_and_removed_during_notifications() {
        let subscribers = Subscribers::new();
        let range = VaRange::new(0x1000, 0x1000).unwrap();
        let stop = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    subscribers.tell(range, Cause::Told);
                }
            });
            for _ in 0..if cfg!(miri) { 5 } else { 200 } {
                let entries = Arc::new(Entries::new(64));
                subscribers.add(&entries).unwrap();
                entries.claim(0, range, Class::new(Rights(1), Kind::HOST));
                entries.arm(0);
                subscribers.tell(range, Cause::Told);
                assert!(!entries.slot(0).word.publish());
                subscribers.remove(&entries);
                assert_eq!(Arc::strong_count(&entries), 1);
            }
            stop.store(1, Ordering::Relaxed);
        });
    }

    #[test]
    fn one_monitor_serves_sixteen_caches() {
        let subscribers = Subscribers::new();
        let entries = Arc::new(Entries::new(64));
        for _ in 0..MOST {
            subscribers.add(&entries).unwrap();
        }
        assert_eq!(subscribers.add(&entries), Err(TooManyCaches));
        drop(subscribers);
        assert_eq!(Arc::strong_count(&entries), 1);
    }
}
