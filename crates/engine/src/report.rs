//! A denied access, reported on both sides.

use core::net::IpAddr;
use rkey_base::lock::{Mutex, MutexGuard};
use rkey_core::{Api, Denial};
use rkey_link::NodeId;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How many reports are kept.
pub const KEPT: usize = 256;

/// The side that this engine was on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Side {
    /// This engine denied a peer's request.
    Target,
    /// The peer denied this engine's request and sent its reason.
    Initiator,
    /// A local key, range or right was denied; no peer was involved.
    Local,
}

/// Everything known about one denied access.
#[derive(Clone, Debug)]
pub struct DenialReport {
    /// The number of the report: counts from 1 within a process, at most `i32::MAX`. Completions carry the number as their
    /// vendor code, and every message about the denial names it.
    pub id: u32,
    /// Whether the target is in this process, too, and has recorded the same denial under the same id. This report is for
    /// the completion that names it; the target's report is counted and logged.
    pub echo: bool,
    /// The side of the access that this engine was on.
    pub side: Side,
    /// The queue pair here.
    pub qpn: u32,
    /// The queue pair of the peer.
    pub peer_qpn: u32,
    /// The peer's device.
    pub peer: NodeId,
    /// The address of the peer, if it is on another host. `peer` is the default value then.
    pub host: Option<IpAddr>,
    /// The id of the work request (initiator and local).
    pub work_id: Option<u64>,
    /// What was refused and why.
    pub denial: Denial,
}

impl std::fmt::Display for DenialReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (denial {}: ", self.denial, self.id)?;
        let end = match self.denial.api {
            Api::Udapl => "EP",
            Api::Native | Api::Verbs | Api::Libfabric => "QP",
        };
        let (verb, relation) = match self.side {
            Side::Target => ("requested", "on"),
            Side::Initiator => ("denied", "for"),
            Side::Local => return write!(f, "local, {end} {:#x})", self.qpn),
        };
        match self.host {
            Some(host) => write!(f, "{verb} by host {host}")?,
            None => write!(f, "{verb} by PID {}", self.peer.pid)?,
        }
        let (theirs, ours) = (self.peer_qpn, self.qpn);
        write!(f, ", {end} {theirs:#x}, {relation} local {end} {ours:#x})")
    }
}

/// The recent reports of an engine, readable from any thread without the engine.
///
/// A report is added before the completion that names it can be polled, before the peer can see the NAK, and before its
/// event is raised.
#[derive(Debug, Default)]
pub struct Reports {
    ids: Arc<AtomicU32>,
    /// Whether a report was ever added.
    any: AtomicBool,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    reports: VecDeque<Arc<DenialReport>>,
    total: u64,
}

impl Reports {
    /// An empty list. Engines that share `ids` use one sequence of ids.
    #[must_use]
    pub fn with_ids(ids: Arc<AtomicU32>) -> Self {
        Self {
            ids,
            any: AtomicBool::new(false),
            last: Mutex::default(),
        }
    }

    /// An id for a report; never 0.
    pub fn new_id(&self) -> u32 {
        self.ids.fetch_add(1, Ordering::Relaxed) % i32::MAX.unsigned_abs() + 1
    }

    /// Adds the work request's id to the report with this id, as this engine posted the denied request; false if the
    /// report is no longer kept.
    pub(crate) fn add_work_id(&self, id: u32, work_id: Option<u64>) -> bool {
        let mut last = self.last();
        let found = last.reports.iter_mut().rev().find(|r| r.id == id);
        found.is_some_and(|report| {
            *report = Arc::new(DenialReport {
                work_id,
                ..DenialReport::clone(report)
            });
            true
        })
    }

    /// Adds a report; drops the oldest beyond [`KEPT`].
    pub fn add(&self, report: Arc<DenialReport>) {
        let mut last = self.last();
        self.any.store(true, Ordering::Relaxed);
        last.total += u64::from(!report.echo);
        if last.reports.len() == KEPT {
            last.reports.pop_front();
        }
        last.reports.push_back(report);
    }

    /// Whether a report was ever added. A thread that has polled a completion with a vendor code sees its report here.
    #[inline]
    #[must_use]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// The report with this id (the vendor code of a completion), if it is still kept.
    #[must_use]
    pub fn find(&self, id: u32) -> Option<Arc<DenialReport>> {
        let last = self.last();
        last.reports.iter().rev().find(|r| r.id == id).cloned()
    }

    /// All kept reports, oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<DenialReport>> {
        self.last().reports.iter().cloned().collect()
    }

    /// The number of reports that were ever added, excluding echoes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.last().total
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock()
    }
}
