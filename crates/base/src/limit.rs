//! Log lines that a peer can cause: a burst, and then a few per second; suppressed lines are counted.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// The burst; after it, one more line per `REFILL`.
const BURST: u32 = 32;
const REFILL: Duration = Duration::from_millis(250);

/// Decides which lines may be written.
#[derive(Debug)]
pub struct Limit(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    used: u32,
    silent: u64,
    refilled: Option<Instant>,
}

impl Default for Limit {
    fn default() -> Self {
        Self::new()
    }
}

impl Limit {
    /// An unused limit.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(Inner {
            used: 0,
            silent: 0,
            refilled: None,
        }))
    }

    /// If a line may be written `now`, returns the number of lines suppressed since the last one.
    pub fn take(&self, now: Instant) -> Option<u64> {
        let mut inner = self.0.lock();
        let since = *inner.refilled.get_or_insert(now);
        let granted = now.duration_since(since).as_millis() / REFILL.as_millis();
        if granted > 0 {
            let granted = granted.try_into().unwrap_or(u32::MAX);
            inner.used = inner.used.saturating_sub(granted);
            inner.refilled = Some(now);
        }
        if inner.used >= BURST {
            inner.silent += 1;
            return None;
        }
        inner.used += 1;
        Some(std::mem::take(&mut inner.silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_after_a_burst_are_limited_and_omitted_ones_are_counted() {
        let limit = Limit::new();
        let start = Instant::now();
        let written = |at| (0..1000).filter_map(|_| limit.take(at)).collect::<Vec<_>>();
        assert_eq!(written(start), [0; BURST as usize]);
        let left_out = 1000 - u64::from(BURST);
        assert_eq!(written(start + REFILL * 3), [left_out, 0, 0]);
    }
}
