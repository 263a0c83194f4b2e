//! Refused accesses in the log.
//!
//! The engine keeps the most recent reports, for inspections and for completions that refer to them. Each refusal is also logged,
//! as one sentence at level `warn`. A peer can cause any number of them, so the log is limited to a burst and then a few per
//! second; a later line says how many were left out.
//!
//! The thread that drove the engine logs its refusals once it has unlocked the engine. Their completions can be polled by then,
//! and a program that ends when it polls an error would lose the line that explains it. A thread that polls such a completion
//! therefore logs the refusal itself, or waits for the thread that is about to have logged it ([`log_now`]).
//!
//! A program with a watcher (`rkey run --explain` sets `RKEY_REPORT`) appends the first [`KEPT`] refusals with their advice to a
//! file instead. Binds that fail after they were posted, and calls that a front end refuses by its own rules ([`refused`]), are
//! reported in the same places.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::{Mutex, ReentrantMutex};
use rkey_base::limit::Limit;
use rkey_core::{BindError, DENIAL_LEN, Denial};
pub use rkey_engine::report::KEPT;
use rkey_engine::{Completion, DenialReport, Guesser, Reports, Side};
use rkey_link::NodeId;

use crate::config::Config;
use crate::objects::QpTable;
use crate::peers::process::own_command;

/// The `kind` of message that this module passes to [`limited`].
const REFUSALS: &str = "refusals";

/// Reports a call that a front end refuses by its own rules, to the watcher or to the log.
pub fn refused(what: &str) {
    static LIMIT: Limit = Limit::new();
    match watcher() {
        Some(watcher) => watcher.lock().tell(what),
        None => limited(&LIMIT, REFUSALS, || tracing::warn!("{what}")),
    }
}

/// Reports a connection that was refused, to the watcher or to the log. The program also learns of the refusal in other ways and
/// may expect it, so the log has it at level `info`.
pub(crate) fn refused_connection(what: &str) {
    match watcher() {
        Some(watcher) => watcher.lock().tell(what),
        None => tracing::info!("{what}"),
    }
}

/// The watcher of the process.
fn watcher() -> Option<&'static Mutex<Watcher>> {
    static WATCHER: OnceLock<Option<Mutex<Watcher>>> = OnceLock::new();
    let watcher = WATCHER.get_or_init(|| {
        let config = Config::from_env().ok()?;
        Watcher::open(config.report.as_deref()?).map(Mutex::new)
    });
    watcher.as_ref()
}

/// Logs a message that a peer can cause any number of times, unless too many were logged just before. Messages that are left out
/// are counted, and a later line says how many of this `kind` there were.
pub fn limited(limit: &Limit, kind: &str, say: impl FnOnce()) {
    let Some(left_out) = limit.take(Instant::now()) else {
        return;
    };
    if left_out > 0 {
        tracing::warn!("too many {kind}: {left_out} were not logged");
    }
    say();
}

/// The refused accesses of a device: the last reports, and the rate-limited log.
#[derive(Debug)]
pub(crate) struct Denials {
    /// The engine adds its own reports here before their completions and NAKs are visible.
    reports: Arc<Reports>,
    /// The watcher's file, if any.
    watcher: Option<Mutex<Watcher>>,
    limit: Limit,
    /// The ids of the last refusals that were logged. A thread holds the lock while it logs one, so that another thread that
    /// finds its id here knows that it is in the log. Reentrant: a program that handles log events may poll while it does so.
    logged: ReentrantMutex<RefCell<VecDeque<u32>>>,
    /// Which queue pairs have a front end that logs the refusals of its own requests.
    qps: Arc<QpTable>,
}

/// The devices of this process.
static ALL: Mutex<Vec<Weak<Denials>>> = Mutex::new(Vec::new());

/// Logs the refusals that these completions name, unless they are in the log. If the memory belongs to another device of this
/// process, that device logs the refusal.
#[cold]
#[inline(never)]
pub(crate) fn log_now<'a>(completions: impl IntoIterator<Item = &'a Completion>) {
    for completion in completions {
        if completion.vendor == 0 {
            continue;
        }
        let all: Vec<_> = ALL.lock().iter().filter_map(Weak::upgrade).collect();
        for denials in all {
            if let Some(report) = denials.reports.find(completion.vendor) {
                denials.write(&report);
            }
        }
    }
}

/// The source of denial ids for all devices of this process: each id means one denial.
pub(crate) fn ids() -> Arc<AtomicU32> {
    static IDS: OnceLock<Arc<AtomicU32>> = OnceLock::new();
    Arc::clone(IDS.get_or_init(Arc::default))
}

impl Denials {
    /// The denials of an engine with these reports. They are appended to `file` if there is one, and logged otherwise.
    pub(crate) fn new(reports: Arc<Reports>, file: Option<&Path>, qps: &Arc<QpTable>) -> Arc<Self> {
        let denials = Arc::new(Self {
            reports,
            watcher: file.and_then(Watcher::open).map(Mutex::new),
            limit: Limit::new(),
            logged: ReentrantMutex::default(),
            qps: Arc::clone(qps),
        });
        let mut all = ALL.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&denials));
        denials
    }

    /// The last reports, oldest first, and the total count.
    pub(crate) fn reports(&self) -> &Reports {
        &self.reports
    }

    /// Keeps and logs a refusal that did not come from the engine. Returns its id: the report's own, or a new one if that is 0.
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

    /// Logs a report, unless it is in the log. If both sides are in this process, only the side that denied logs it.
    pub(crate) fn write(&self, report: &DenialReport) {
        if report.echo {
            return;
        }
        let logged = self.logged.lock();
        if !remember(&mut logged.borrow_mut(), report.id) {
            return;
        }
        if let Some(watcher) = &self.watcher {
            let advice = report.denial.advice();
            watcher.lock().tell(&format!("{report}\n  {advice}"));
        } else if report.side != Side::Target && self.qps.logs_denials(report.qpn) {
            // The front end logs this refusal.
        } else {
            limited(&self.limit, REFUSALS, || {
                tracing::warn!("{report}. {}", report.denial.advice());
            });
        }
    }

    /// Logs why a bind failed after it was posted.
    pub(crate) fn write_bind(&self, qpn: u32, work_id: u64, error: &BindError) {
        let what = format!(
            "bind of a window (work request {work_id:#x}, queue pair {qpn:#x}) failed: {error}"
        );
        match &self.watcher {
            Some(watcher) => watcher.lock().tell(&what),
            None => limited(&self.limit, REFUSALS, || tracing::warn!("{what}")),
        }
    }

    /// Logs that a process tries keys that give it no access.
    pub(crate) fn write_guesser(&self, guesser: &Guesser) {
        limited(&self.limit, REFUSALS, || tracing::warn!("{guesser}"));
    }

    /// Logs a front end's message about a denial of one of its requests. With a watcher, does nothing: the watcher already
    /// has the device's report.
    pub(crate) fn write_own(&self, words: &str) {
        if self.watcher.is_none() {
            limited(&self.limit, REFUSALS, || tracing::warn!("{words}"));
        }
    }

    /// Records a lease that this device denied a peer. Returns the bytes that the peer may read, and the id of the record (0
    /// if the peer must not learn the reason). `qpns` are the queue pairs here and there.
    pub(crate) fn deny_lease(
        &self,
        peer: NodeId,
        (qpn, peer_qpn): (u32, u32),
        denial: Denial,
        may_explain: bool,
    ) -> ([u8; DENIAL_LEN], u32) {
        let wire = if may_explain {
            denial.encode()
        } else {
            denial.without_reason().encode()
        };
        let id = self.note(DenialReport {
            id: 0,
            echo: false,
            side: Side::Target,
            qpn,
            peer_qpn,
            peer,
            host: None,
            work_id: None,
            denial,
        });
        (wire, if may_explain { id } else { 0 })
    }

    /// Records a lease that a peer denied us, under the peer's id `report` if the peer `is_here` (in this process).
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
            host: None,
            work_id: None,
            denial: denial.clone(),
        });
    }
}

/// Adds an id to the last [`KEPT`] ones. Returns whether it is new.
fn remember(last: &mut VecDeque<u32>, id: u32) -> bool {
    if last.contains(&id) {
        return false;
    }
    if last.len() == KEPT {
        last.pop_front();
    }
    last.push_back(id);
    true
}

/// The file of a watcher, and how many refusals were written to it.
#[derive(Debug)]
struct Watcher {
    file: File,
    count: usize,
}

impl Watcher {
    /// Opens the file, but does not create it: the watcher created it, and may have ended. The empty line shows the watcher that
    /// a device was opened.
    fn open(path: &Path) -> Option<Self> {
        let opened = OpenOptions::new().append(true).open(path);
        match opened.and_then(|mut file| file.write_all(b"\n").map(|()| file)) {
            Ok(file) => Some(Self { file, count: 0 }),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot open the file that RKEY_REPORT names");
                None
            }
        }
    }

    /// Appends a refusal, in one write, so that the lines of several processes do not mix.
    fn tell(&mut self, what: &str) {
        self.count += 1;
        if self.count > KEPT + 1 {
            return;
        }
        let who = format!("process {} ({})", std::process::id(), own_command());
        let text = if self.count > KEPT {
            format!("{who}: further refusals are not listed\n")
        } else {
            format!("{who}: {what}\n")
        };
        if let Err(error) = self.file.write_all(text.as_bytes()) {
            tracing::warn!(%error, "cannot append a refusal to the file that RKEY_REPORT names");
        }
    }
}
