//! Refused accesses in the log.
//!
//! The engine keeps the last reports, for people and for completions that name them. Each refusal is
//! also logged, one sentence at level `warn`. A peer can cause any number of them, so the log is limited
//! to a burst and then a few a second; what was left out is counted and told.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_engine::DenialReport;
pub use rkey_engine::report::KEPT;

/// Log lines that may come at once, and how fast new ones are granted.
const BURST: u32 = 32;
const REFILL: Duration = Duration::from_millis(250);

/// Writes refusals of a device to the log, not too many.
#[derive(Debug, Default)]
pub(crate) struct DenialLog {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    used: u32,
    silent: u64,
    refilled: Option<Instant>,
}

impl DenialLog {
    /// Logs a report.
    pub(crate) fn write(&self, report: &DenialReport) {
        let mut inner = self.inner.lock();
        if inner.may_log(Instant::now()) {
            let left_out = std::mem::take(&mut inner.silent);
            if left_out > 0 {
                tracing::warn!(
                    left_out,
                    "refusals were not logged because there were too many"
                );
            }
            tracing::warn!(id = report.id, "{report}");
        } else {
            inner.silent += 1;
        }
    }
}

impl Inner {
    fn may_log(&mut self, now: Instant) -> bool {
        let since = *self.refilled.get_or_insert(now);
        let granted = now.duration_since(since).as_millis() / REFILL.as_millis();
        if granted > 0 {
            self.used = self
                .used
                .saturating_sub(granted.try_into().unwrap_or(u32::MAX));
            self.refilled = Some(now);
        }
        if self.used >= BURST {
            return false;
        }
        self.used += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logging_is_limited_and_recovers() {
        let mut inner = Inner::default();
        let start = Instant::now();
        assert_eq!(
            (0..1000).filter(|_| inner.may_log(start)).count(),
            BURST as usize
        );
        let later = start + REFILL * 3;
        assert_eq!((0..1000).filter(|_| inner.may_log(later)).count(), 3);
    }
}
