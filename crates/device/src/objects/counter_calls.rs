//! The calls of a device for its counters of accesses.

use std::sync::Weak;

use super::counters::{CountListener, Counter};
use crate::device::Device;

impl Device {
    /// Peers' accesses to the regions that are bound to a counter.
    #[must_use]
    pub fn counter(&self, counter: u32) -> Counter {
        if self.is_forked() {
            return Counter::default();
        }
        self.shared().counters.of(counter)
    }

    /// Starts to count peers' accesses through an endpoint ([`QpOptions::endpoint`](crate::QpOptions::endpoint)) to regions that
    /// are bound to a counter.
    pub fn count_endpoint(&self, endpoint: u32) {
        if !self.is_forked() {
            self.shared().counters.count_endpoint(endpoint);
        }
    }

    /// The counted accesses through an endpoint ([`Device::count_endpoint`]).
    #[must_use]
    pub fn endpoint_counter(&self, endpoint: u32) -> Counter {
        if self.is_forked() {
            return Counter::default();
        }
        self.shared().counters.of_endpoint(endpoint)
    }

    /// Stops counting for an endpoint, and returns the counts.
    pub fn forget_endpoint_counter(&self, endpoint: u32) -> Counter {
        if self.is_forked() {
            return Counter::default();
        }
        self.shared().counters.forget_endpoint(endpoint)
    }

    /// Adds a listener that is called for each access counted from now on ([`Device::counter`], [`Device::endpoint_counter`]),
    /// until the program drops it.
    pub fn listen_to_counts(&self, listener: Weak<dyn CountListener>) {
        if !self.is_forked() {
            self.shared().counters.listen(listener);
        }
    }
}
