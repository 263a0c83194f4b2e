//! Counters of peers' accesses to the regions that are bound to them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Weak;

use parking_lot::{Mutex, RwLock};

/// Peers' accesses to the regions that are bound to one counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// The number of writes and atomics by peers.
    pub writes: u64,
    /// The number of reads by peers.
    pub reads: u64,
    /// The number of bytes that these accesses moved.
    pub bytes: u64,
}

/// Notified of counted accesses ([`Device::listen_to_counts`](crate::Device::listen_to_counts)).
pub trait CountListener: Send + Sync {
    /// Called after an access was counted, in a counter of the device or of an endpoint. The thread that drives the engine (a
    /// program thread or the engine thread) makes this call, and may hold locks of a front end: return quickly, call the device
    /// only for its counters, and drop no device.
    fn counted(&self);
}

impl Counter {
    fn add(&mut self, bytes: u32, write: bool) {
        *(if write {
            &mut self.writes
        } else {
            &mut self.reads
        }) += 1;
        self.bytes += u64::from(bytes);
    }
}

/// The counters of a device.
#[derive(Default)]
pub(crate) struct AccessCounters {
    by_number: Mutex<HashMap<u32, Counter>>,
    /// The counters of the endpoints of [`Device::count_endpoint`](crate::Device::count_endpoint).
    by_endpoint: Mutex<HashMap<u32, Counter>>,
    listeners: RwLock<Vec<Weak<dyn CountListener>>>,
}

impl AccessCounters {
    /// Counts one access by a peer, and calls the listeners.
    pub(crate) fn count(&self, counter: u32, endpoint: u32, bytes: u32, write: bool) {
        let mut counters = self.by_number.lock();
        counters.entry(counter).or_default().add(bytes, write);
        drop(counters);
        if let Some(entry) = self.by_endpoint.lock().get_mut(&endpoint) {
            entry.add(bytes, write);
        }
        let listeners = self.listeners.read();
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            listener.counted();
        }
    }

    /// All counters that have ever counted an access.
    pub(crate) fn all(&self) -> BTreeMap<u32, Counter> {
        self.by_number
            .lock()
            .iter()
            .map(|(&n, &c)| (n, c))
            .collect()
    }

    pub(super) fn of(&self, counter: u32) -> Counter {
        let counters = self.by_number.lock();
        counters.get(&counter).copied().unwrap_or_default()
    }

    pub(super) fn count_endpoint(&self, endpoint: u32) {
        self.by_endpoint.lock().entry(endpoint).or_default();
    }

    pub(super) fn of_endpoint(&self, endpoint: u32) -> Counter {
        let counters = self.by_endpoint.lock();
        counters.get(&endpoint).copied().unwrap_or_default()
    }

    pub(super) fn forget_endpoint(&self, endpoint: u32) -> Counter {
        let removed = self.by_endpoint.lock().remove(&endpoint);
        removed.unwrap_or_default()
    }

    pub(super) fn listen(&self, listener: Weak<dyn CountListener>) {
        let mut listeners = self.listeners.write();
        listeners.retain(|it| it.strong_count() > 0);
        listeners.push(listener);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Calls(AtomicU32);

    impl CountListener for Calls {
        fn counted(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn accesses_of_an_endpoint_are_counted_only_while_requested() {
        let counters = AccessCounters::default();
        counters.count(7, 1, 8, true);
        counters.count_endpoint(1);
        counters.count(7, 1, 16, false);
        let all = Counter {
            writes: 1,
            reads: 1,
            bytes: 24,
        };
        let one_read = Counter {
            writes: 0,
            reads: 1,
            bytes: 16,
        };
        assert_eq!(counters.of(7), all);
        assert_eq!(counters.of_endpoint(1), one_read);
        assert_eq!(counters.forget_endpoint(1), one_read);
        counters.count(7, 1, 1, true);
        assert_eq!(counters.of_endpoint(1), Counter::default());
        assert_eq!(counters.all().keys().copied().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn count_listeners_are_called_until_they_are_dropped() {
        let counters = AccessCounters::default();
        let (one, two) = (
            Arc::new(Calls(AtomicU32::new(0))),
            Arc::new(Calls(AtomicU32::new(0))),
        );
        for listener in [&one, &two] {
            let listener: Arc<dyn CountListener> = Arc::<Calls>::clone(listener);
            counters.listen(Arc::downgrade(&listener));
        }
        counters.count(1, 0, 4, true);
        drop(two);
        counters.count(1, 0, 4, true);
        assert_eq!(one.0.load(Ordering::Relaxed), 2);
        let three: Arc<dyn CountListener> = Arc::new(Calls(AtomicU32::new(0)));
        counters.listen(Arc::downgrade(&three));
        assert_eq!(
            counters.listeners.read().len(),
            2,
            "the dropped one is forgotten"
        );
    }
}
