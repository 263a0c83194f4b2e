//! One measured figure, ours or a peer's, in the form that the peer programs print as JSON lines.

use serde::{Deserialize, Serialize};

/// Who we are among those who are measured.
pub(crate) const OURS: &str = "rkey";

/// A figure with everything that it depends on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Measurement {
    /// Who was measured: `rkey`, `libfabric`, `ucx`, `ucx_perftest`.
    pub(crate) peer: String,
    /// Its version.
    pub(crate) version: String,
    /// Which part of it: link, provider or transports.
    pub(crate) provider: String,
    /// `ordinary` memory of the program, or the peer's `own` shared memory.
    pub(crate) memory: String,
    /// What a completion means: `delivery` (the data arrived) or the peer's `default`.
    pub(crate) completion: String,
    /// `write`, `read`, `send`, `atomic`, `register`, `check`, `sleep`.
    pub(crate) op: String,
    /// `stream`, `oneway`, `single`, `pair`.
    pub(crate) mode: String,
    /// Bytes of one operation.
    pub(crate) size: u64,
    /// `static` or `touched`.
    pub(crate) condition: String,
    /// Live regions beside the one that is used.
    pub(crate) live: u64,
    /// Median of the repetitions, nanoseconds for one operation.
    pub(crate) median_ns: f64,
    /// The best repetition.
    pub(crate) min_ns: f64,
    /// The worst repetition.
    pub(crate) max_ns: f64,
    /// How many repetitions.
    pub(crate) reps: u32,
    /// 99th percentile of single operations, where they were timed one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) p99_ns: Option<f64>,
}

/// What a figure is about: figures with equal subjects may be compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Subject {
    pub(crate) op: String,
    pub(crate) memory: String,
    pub(crate) mode: String,
    pub(crate) condition: String,
    pub(crate) live: u64,
    pub(crate) size: u64,
}

impl Measurement {
    /// What this figure is about.
    pub(crate) fn subject(&self) -> Subject {
        Subject {
            op: self.op.clone(),
            memory: self.memory.clone(),
            mode: self.mode.clone(),
            condition: self.condition.clone(),
            live: self.live,
            size: self.size,
        }
    }

    /// Whether this figure is ours.
    pub(crate) fn is_ours(&self) -> bool {
        self.peer == OURS
    }

    /// The column that this figure belongs to.
    pub(crate) fn column(&self) -> &str {
        match (self.peer.as_str(), self.provider.as_str()) {
            ("ucx_perftest", _) => "ucx",
            ("libfabric", "tcp") => "libfabric tcp",
            (other, _) => other,
        }
    }

    /// Gigabytes a second, for operations that move enough for that to mean something.
    pub(crate) fn gigabytes_per_second(&self) -> Option<f64> {
        let moves = matches!(self.op.as_str(), "write" | "read" | "send");
        (moves && self.size >= 1024).then(|| self.size as f64 / self.median_ns)
    }
}
