//! Refused accesses in the log.
//!
//! The engine keeps the last reports, for people and for completions that name them. Each refusal is
//! also logged, one sentence at level `warn`. A peer can cause any number of them, so the log is limited
//! to a burst and then a few a second; what was left out is counted and told.
//!
//! A program that is watched (`rkey run --explain` sets `RKEY_REPORT`) writes the first [`KEPT`] refusals,
//! with the advice that belongs to them, to the end of a file instead. So does a front end with what it refuses
//! by rules that the device does not know ([`refused`]).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use rkey_base::limit::Limit;
use rkey_core::{Denial, WIRE_LEN};
pub use rkey_engine::report::KEPT;
use rkey_engine::{DenialReport, Guesser, Reports, Side};
use rkey_link::NodeId;

use crate::config::Config;
use crate::inspect::command;

/// What is left out here.
const REFUSALS: &str = "refusals";

/// Tells of a call that a front end refuses before a device hears of it, for which the front end has its own rules:
/// whoever watches the program, or the log.
pub fn refused(what: &str) {
    static WATCHER: OnceLock<Option<Mutex<Watcher>>> = OnceLock::new();
    static LIMIT: Limit = Limit::new();
    let watcher = WATCHER.get_or_init(|| {
        let config = Config::from_env().ok()?;
        Watcher::open(config.report.as_deref()?).map(Mutex::new)
    });
    match watcher {
        Some(watcher) => watcher.lock().tell(what),
        None => limited(&LIMIT, REFUSALS, || tracing::warn!("{what}")),
    }
}

/// Says something that a peer can cause any number of times, if not too much was said of late. What was left out is
/// counted, and told as so many of `kind`.
pub fn limited(limit: &Limit, kind: &str, say: impl FnOnce()) {
    let Some(left_out) = limit.take(Instant::now()) else {
        return;
    };
    if left_out > 0 {
        tracing::warn!(
            left_out,
            "{kind} were not logged because there were too many"
        );
    }
    say();
}

/// The refused accesses of a device: the last reports, and the log, to which not too many are written.
#[derive(Debug)]
pub(crate) struct Denials {
    /// The engine keeps its own reports here, before anybody can hear of them.
    reports: Arc<Reports>,
    /// Where a watcher wants them.
    watcher: Option<Mutex<Watcher>>,
    limit: Limit,
    /// The program tells of its own requests by itself.
    peers_only: AtomicBool,
}

/// The numbers of denials, which all devices of this process share: each number means one denial.
pub(crate) fn ids() -> Arc<AtomicU32> {
    static IDS: OnceLock<Arc<AtomicU32>> = OnceLock::new();
    Arc::clone(IDS.get_or_init(Arc::default))
}

impl Denials {
    /// The reports of an engine, and an empty log, which writes to the end of `file` where there is one.
    pub(crate) fn new(reports: Arc<Reports>, file: Option<&Path>) -> Self {
        Self {
            reports,
            watcher: file.and_then(Watcher::open).map(Mutex::new),
            limit: Limit::new(),
            peers_only: AtomicBool::new(false),
        }
    }

    /// The last reports, oldest first, and how many there ever were.
    pub(crate) fn reports(&self) -> &Reports {
        &self.reports
    }

    /// Keeps and logs a refusal that the engine has nothing to do with.
    /// Returns the id under which it is kept: the report's own, or a new one if that is 0.
    pub(crate) fn note(&self, report: DenialReport) -> u32 {
        let id = match report.id {
            0 => self.reports.new_id(),
            id => id,
        };
        let report = Arc::new(DenialReport { id, ..report });
        self.write(&report);
        self.reports.add(report);
        id
    }

    /// From now on only refusals of peers' requests are logged.
    pub(crate) fn log_peers_only(&self) {
        self.peers_only.store(true, Ordering::Relaxed);
    }

    /// Logs a report. One denial is one, also when both sides are in this process: the side that denied tells.
    pub(crate) fn write(&self, report: &DenialReport) {
        if report.echo {
            return;
        }
        if let Some(watcher) = &self.watcher {
            let advice = report.denial.advice();
            watcher.lock().tell(&format!("{report}\n  {advice}"));
        } else if report.side != Side::Target && self.peers_only.load(Ordering::Relaxed) {
            // Somebody else does.
        } else {
            limited(&self.limit, REFUSALS, || {
                tracing::warn!("{report}. {}", report.denial.advice());
            });
        }
    }

    /// Logs what a process has tried.
    pub(crate) fn write_guesser(&self, guesser: &Guesser) {
        limited(&self.limit, REFUSALS, || tracing::warn!("{guesser}"));
    }

    /// The program's own words for a refusal of one of its requests. A watcher has been told of it already.
    pub(crate) fn write_own(&self, words: &str) {
        if self.watcher.is_none() {
            limited(&self.limit, REFUSALS, || tracing::warn!("{words}"));
        }
    }

    /// Records a lease that this device denied a peer. Returns the bytes that the peer may read, and the id of the record, 0 if
    /// the peer is not told the reason. `qpns` are the queue pairs here and there.
    pub(crate) fn deny_lease(
        &self,
        peer: NodeId,
        (qpn, peer_qpn): (u32, u32),
        denial: Denial,
        may_explain: bool,
    ) -> ([u8; WIRE_LEN], u32) {
        let wire = if may_explain {
            denial.to_wire()
        } else {
            denial.without_reason().to_wire()
        };
        let id = self.note(DenialReport {
            id: 0,
            echo: false,
            side: Side::Target,
            qpn,
            peer_qpn,
            peer,
            work_id: None,
            denial,
        });
        (wire, if may_explain { id } else { 0 })
    }

    /// Records a lease that a peer denied us, under the peer's id `report` if the peer `is_here`, in this process.
    pub(crate) fn lease_was_denied(
        &self,
        peer: NodeId,
        (qpn, peer_qpn): (u32, u32),
        denial: &Denial,
        report: u32,
        is_here: bool,
    ) {
        let echo = report > 0 && is_here;
        self.note(DenialReport {
            id: if echo { report } else { 0 },
            echo,
            side: Side::Initiator,
            qpn,
            peer_qpn,
            peer,
            work_id: None,
            denial: denial.clone(),
        });
    }
}

/// Where a watcher wants refusals, and how many there were.
#[derive(Debug)]
struct Watcher {
    file: File,
    count: usize,
}

impl Watcher {
    /// The file is not created: it is somebody else's, and he may be gone. An empty line in it says that somebody who
    /// could refuse something was there.
    fn open(path: &Path) -> Option<Self> {
        let opened = OpenOptions::new().append(true).open(path);
        match opened.and_then(|mut file| file.write_all(b"\n").map(|()| file)) {
            Ok(file) => Some(Self { file, count: 0 }),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "refusals cannot be reported there");
                None
            }
        }
    }

    /// Tells the watcher. In one write, so that the texts of several processes do not mix.
    fn tell(&mut self, what: &str) {
        self.count += 1;
        if self.count > KEPT + 1 {
            return;
        }
        let who = format!("process {} ({})", std::process::id(), command());
        let text = if self.count > KEPT {
            format!("{who}: further refusals are not listed\n")
        } else {
            format!("{who}: {what}\n")
        };
        if let Err(error) = self.file.write_all(text.as_bytes()) {
            tracing::warn!(%error, "a refusal could not be reported");
        }
    }
}
