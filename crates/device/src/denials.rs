//! Refused accesses in the log.
//!
//! The engine keeps the last reports, for people and for completions that name them. Each refusal is
//! also logged, one sentence at level `warn`. A peer can cause any number of them, so the log is limited
//! to a burst and then a few a second; what was left out is counted and told.
//!
//! A program that is watched (`rkey run --explain` sets `RKEY_REPORT`) writes the first [`KEPT`] refusals,
//! with the advice that belongs to them, to the end of a file instead.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
pub use rkey_engine::report::KEPT;
use rkey_engine::{DenialReport, Side};

use crate::inspect::command;

/// Log lines that may come at once, and how fast new ones are granted.
const BURST: u32 = 32;
const REFILL: Duration = Duration::from_millis(250);

/// Writes refusals of a device to the log, not too many.
#[derive(Debug, Default)]
pub(crate) struct DenialLog {
    inner: Mutex<Inner>,
    /// The program tells of its own requests by itself.
    peers_only: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    /// Where a watcher wants them, and how many there were.
    file: Option<(File, usize)>,
    used: u32,
    silent: u64,
    refilled: Option<Instant>,
}

impl DenialLog {
    /// An empty log, which writes to the end of `file` where there is one. It is not created: it is
    /// somebody else's, and he may be gone.
    pub(crate) fn new(file: Option<&Path>) -> Self {
        let open = |path: &Path| match OpenOptions::new().append(true).open(path) {
            Ok(file) => Some((file, 0)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "refusals cannot be reported there");
                None
            }
        };
        let log = Self::default();
        log.inner.lock().file = file.and_then(open);
        log
    }

    /// From now on only refusals of peers' requests are logged.
    pub(crate) fn log_peers_only(&self) {
        self.peers_only.store(true, Ordering::Relaxed);
    }

    /// Logs a report.
    pub(crate) fn write(&self, report: &DenialReport) {
        let mut inner = self.inner.lock();
        if let Some((file, count)) = &mut inner.file {
            *count += 1;
            tell_watcher(file, *count, report);
        } else if report.side != Side::Target && self.peers_only.load(Ordering::Relaxed) {
            // Somebody else does.
        } else if inner.may_log(Instant::now()) {
            let left_out = std::mem::take(&mut inner.silent);
            if left_out > 0 {
                tracing::warn!(
                    left_out,
                    "refusals were not logged because there were too many"
                );
            }
            tracing::warn!(id = report.id, "{report}. {}", report.denial.advice());
        } else {
            inner.silent += 1;
        }
    }
}

/// Tells the watcher. In one write, so that the texts of several processes do not mix.
fn tell_watcher(file: &mut File, count: usize, report: &DenialReport) {
    if count > KEPT + 1 {
        return;
    }
    let who = format!("process {} ({})", std::process::id(), command());
    let text = if count > KEPT {
        format!("{who}: further refusals are not listed\n")
    } else {
        format!("{who}: {report}\n  {}\n", report.denial.advice())
    };
    if let Err(error) = file.write_all(text.as_bytes()) {
        tracing::warn!(%error, "a refusal could not be reported");
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
