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

use parking_lot::Mutex;
use rkey_base::limit::Limit;
pub use rkey_engine::report::KEPT;
use rkey_engine::{DenialReport, Side};

use crate::inspect::command;

/// Writes refusals of a device to the log, not too many.
#[derive(Debug, Default)]
pub(crate) struct DenialLog {
    /// Where a watcher wants them, and how many there were.
    file: Mutex<Option<(File, usize)>>,
    limit: Limit,
    /// The program tells of its own requests by itself.
    peers_only: AtomicBool,
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
        *log.file.lock() = file.and_then(open);
        log
    }

    /// From now on only refusals of peers' requests are logged.
    pub(crate) fn log_peers_only(&self) {
        self.peers_only.store(true, Ordering::Relaxed);
    }

    /// Logs a report.
    pub(crate) fn write(&self, report: &DenialReport) {
        if let Some((file, count)) = &mut *self.file.lock() {
            *count += 1;
            tell_watcher(file, *count, report);
        } else if report.side != Side::Target && self.peers_only.load(Ordering::Relaxed) {
            // Somebody else does.
        } else if let Some(left_out) = self.limit.take() {
            if left_out > 0 {
                tracing::warn!(
                    left_out,
                    "refusals were not logged because there were too many"
                );
            }
            tracing::warn!(id = report.id, "{report}. {}", report.denial.advice());
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
