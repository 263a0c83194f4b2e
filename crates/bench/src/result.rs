//! One measured figure, ours or a peer's, as `--json` writes it.

use super::probe::median;
use super::stats::Repetitions;
use serde::Serialize;

/// Our own name among the contestants.
pub(crate) const OURS: &str = "rkey";

/// A figure with everything that it depends on.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Measurement {
    /// The contestant: `rkey`, `libfabric`, `ucx`, `ucx_perftest`.
    pub(crate) peer: String,
    /// The version of the peer.
    pub(crate) version: String,
    /// The link, provider or transports.
    pub(crate) provider: String,
    /// `ordinary` memory of the program, or the peer's `own` shared memory.
    pub(crate) memory: String,
    /// When an operation completes: at `delivery` (the data arrived) or by the peer's `default`.
    pub(crate) completion: String,
    /// `write`, `read`, `send`, `atomic`, `register`, `check`, `poll`, `sleep`.
    pub(crate) op: String,
    /// `stream`, `oneway`, `single`, `pair`; for `check`, `poll` and `sleep`, what was measured, in words.
    pub(crate) mode: String,
    /// The size of one operation, in bytes.
    pub(crate) size: u64,
    /// `static`, `rotating` or `touched`.
    pub(crate) condition: String,
    /// Live regions besides the one in use; for `poll`, queue pairs or links.
    pub(crate) live: u64,
    /// Median of the repetitions, nanoseconds for one operation.
    pub(crate) median_ns: f64,
    /// The best repetition.
    pub(crate) min_ns: f64,
    /// The worst repetition.
    pub(crate) max_ns: f64,
    /// The number of repetitions.
    pub(crate) reps: u32,
    /// 99th percentile of single operations, if they were timed one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_ns: Option<f64>,
    /// The repetitions in their order.
    pub(crate) turns: Vec<Turn>,
}

/// One repetition, with the distance between the cores during it: the mean of before and after.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Turn {
    /// The round, from 0: in each round the contestants' repetitions directly follow each other.
    pub(crate) round: u32,
    /// Nanoseconds of one operation.
    pub(crate) ns: f64,
    /// Nanoseconds of a cache line's round trip to the other core.
    pub(crate) round_trip_ns: Option<f64>,
    /// Gigabytes per second from one core's cache to the other's.
    pub(crate) gigabytes_per_second: Option<f64>,
    /// Whether the distance was the same before and after, within 15 %.
    pub(crate) steady: Option<bool>,
}

/// The subject of a figure: figures with equal subjects may be compared.
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
    /// The subject of this figure.
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

    /// Stores the median, the best and the worst of the repetitions.
    pub(crate) fn summarise(&mut self, repetitions: &Repetitions) {
        (self.median_ns, self.min_ns, self.max_ns) = repetitions.summary();
        self.reps = repetitions.count();
        self.p99_ns = repetitions.p99();
    }

    /// How much longer a message takes than a cache line's one-way trip to the other core, as the median of the
    /// repetitions. Only for one-way figures.
    pub(crate) fn above_floor_ns(&self) -> Option<f64> {
        if self.mode != "oneway" {
            return None;
        }
        let above = |turn: &Turn| Some(turn.ns - turn.round_trip_ns? / 2.0);
        // `None` if any repetition lacks a distance: leaving some out would make the figures
        // incomparable.
        let mut all: Vec<f64> = self.turns.iter().map(above).collect::<Option<_>>()?;
        median(&mut all)
    }

    /// The column that this figure belongs to.
    pub(crate) fn column(&self) -> &str {
        match (self.peer.as_str(), self.provider.as_str()) {
            ("ucx_perftest", _) => "ucx",
            ("libfabric", "tcp") => "libfabric tcp",
            (other, _) => other,
        }
    }

    /// Gigabytes per second, for operations that move enough bytes.
    pub(crate) fn gigabytes_per_second(&self) -> Option<f64> {
        let moves = matches!(self.op.as_str(), "write" | "read" | "send");
        (moves && self.size >= 1024).then(|| self.size as f64 / self.median_ns)
    }
}
