//! Failed accesses in the log. A peer can cause any number of them, and this crate has no clock for a rate limit. So only failures
//! number 1, 2, 4, 8 and so on of each memory are logged.

use std::fmt::Arguments;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the failures of one memory.
#[derive(Debug, Default)]
pub(crate) struct Complaints(AtomicU64);

impl Complaints {
    /// Counts a failure, and logs it if its number is a power of two.
    pub(crate) fn log(&self, what: Arguments<'_>) {
        let number = self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if number == 1 {
            tracing::warn!("{what}");
        } else if number.is_power_of_two() {
            tracing::warn!("{what} (failure {number}; most failures are not logged)");
        }
    }
}
