//! What is measured: the operations by name, and the figures of each.

use super::crowd::{Many, Work};
use super::pages::PAGE;
use super::result::Subject;
use super::rig::Kind;
use std::time::Duration;

/// Operations and their descriptions.
pub(crate) const OPERATIONS: &[(&str, &str)] = &[
    // `check` is first because it measures the memory per region as the growth of the process, which must not have freed any
    // memory yet.
    ("check", "the key check alone, by number of live regions"),
    ("write", "RDMA write: stream, one way, single"),
    ("read", "RDMA read: stream, single"),
    ("send", "messages: one way"),
    ("atomic", "fetch-and-add: stream, single"),
    (
        "direct",
        "writes, reads and atomics on memory from rkey's allocator, mapped under a lease",
    ),
    (
        "register",
        "registering and deregistering memory, by size and by number of live regions",
    ),
    (
        "sleep",
        "writes to a target whose program sleeps, and the cost of an idle target",
    ),
    (
        GROWTH,
        "a check, a registration and a poll with many regions, queue pairs and links (only if named)",
    ),
];

/// The operation that is measured only if it is named.
pub(crate) const GROWTH: &str = "growth";

/// Modes of measuring, as in `benches/README.md`.
pub(crate) const MODES: &[&str] = &["stream", "oneway", "single"];

/// The effort: how long and how often to measure.
#[derive(Debug, Clone)]
pub(crate) struct Effort {
    pub(crate) repetitions: u32,
    /// Approximate seconds of one repetition.
    pub(crate) seconds: f64,
    /// How many times a contestant may repeat a repetition of a step because the distance between the cores changed.
    pub(crate) repeats: u32,
    /// Divides [`Pace::first`] and [`Pace::least`].
    pub(crate) fewer: u64,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// The kind, the size in bytes, and whether the operations rotate over several buffers.
    Stream(Kind, u64, bool),
    OneWay(u64),
    Single(Kind, u64, bool),
    Messages(u64),
    DirectStream(Kind, u64, bool),
    DirectOneWay(u64),
    DirectSingle(Kind, u64, bool),
    /// The size of the region in bytes, and the number of live regions.
    Register(u64, u64),
    /// The protection table alone: live regions.
    TablePair(u64),
    /// Live regions; whether keys far apart are used in turn.
    Check(u64, bool),
    /// What there is many of, how many, and what is measured.
    Poll(Many, u64, Work),
    /// The pause between two writes.
    Sleeper(Duration),
    Idle,
}

/// The steps for these operations, modes and sizes.
pub(crate) fn steps(
    operations: &[String],
    modes: &[String],
    sizes: &[u64],
    live: &[u64],
) -> Vec<Step> {
    let wants = |mode: &str| modes.iter().any(|m| m == mode);
    let mut steps = Vec::new();
    for operation in operations {
        match operation.as_str() {
            "write" => moving(&mut steps, Kind::Write, sizes, &wants),
            "read" => moving(&mut steps, Kind::Read, sizes, &wants),
            "atomic" => moving(&mut steps, Kind::Atomic, &[8], &wants),
            "send" if wants("oneway") => {
                steps.extend(sizes.iter().map(|&size| Step::Messages(size)))
            }
            "direct" => direct_steps(&mut steps, sizes, &wants),
            "register" => {
                let sizes = [PAGE as u64, 1 << 20];
                steps.extend(
                    live.iter()
                        .flat_map(|&live| sizes.map(|size| Step::Register(size, live))),
                );
            }
            GROWTH => growth(&mut steps),
            "check" => {
                for live in [1_000_000, 1_000, 1] {
                    steps.push(Step::Check(live, false));
                    steps.push(Step::Check(live, true));
                }
                steps.extend([0, 100_000].map(Step::TablePair));
            }
            "sleep" => {
                let pauses = [
                    Duration::ZERO,
                    Duration::from_millis(1),
                    Duration::from_millis(20),
                ];
                steps.extend(pauses.map(Step::Sleeper));
                steps.push(Step::Idle);
            }
            _ => {}
        }
    }
    // Operations may share steps.
    let mut seen: Vec<Step> = Vec::new();
    steps.retain(|step| {
        !seen.contains(step) && {
            seen.push(step.clone());
            true
        }
    });
    steps
}

/// Steps with more and more live regions, queue pairs and links. The largest table is the first, because its memory is measured.
fn growth(steps: &mut Vec<Step>) {
    for live in [1_000_000, 100_000, 10_000, 1_000, 1] {
        steps.extend([false, true].map(|scattered| Step::Check(live, scattered)));
        steps.push(Step::TablePair(live));
    }
    for live in [0, 1_000, 100_000, 1_000_000] {
        steps.push(Step::Register(PAGE as u64, live));
    }
    for (many, counts) in [
        (Many::QueuePairs, &[1, 10, 100, 1_000, 10_000][..]),
        // A device remembers at most 256 devices of one process.
        (Many::Links, &[1, 10, 30, 100]),
    ] {
        for &count in counts {
            steps.extend([Work::EmptyPoll, Work::Write].map(|work| Step::Poll(many, count, work)));
        }
    }
}

/// Copies under a lease, in the modes of posted operations.
fn direct_steps(steps: &mut Vec<Step>, sizes: &[u64], wants: &dyn Fn(&str) -> bool) {
    for kind in [Kind::Write, Kind::Read, Kind::Atomic] {
        for &size in if kind == Kind::Atomic {
            &[8][..]
        } else {
            sizes
        } {
            if wants("stream") {
                steps.push(Step::DirectStream(kind, size, false));
                if size > 64 {
                    steps.push(Step::DirectStream(kind, size, true));
                }
            }
            if wants("oneway") && kind == Kind::Write {
                steps.push(Step::DirectOneWay(size));
            }
            if wants("single") && size > 64 {
                steps.push(Step::DirectSingle(kind, size, false));
                steps.push(Step::DirectSingle(kind, size, true));
            }
        }
    }
}

fn moving(steps: &mut Vec<Step>, kind: Kind, sizes: &[u64], wants: &dyn Fn(&str) -> bool) {
    for &size in sizes {
        if wants("stream") {
            steps.push(Step::Stream(kind, size, false));
            if size > 64 {
                steps.push(Step::Stream(kind, size, true));
            }
        }
        if wants("oneway") && kind == Kind::Write {
            steps.push(Step::OneWay(size));
        }
        if wants("single") {
            steps.push(Step::Single(kind, size, false));
            if size > 64 {
                steps.push(Step::Single(kind, size, true));
            }
        }
    }
}

impl Step {
    /// The step's name in the progress bar.
    pub(crate) fn name(&self) -> String {
        let (op, mode, size, ..) = self.parts();
        match size {
            0 => format!("{op}, {mode}"),
            size => format!("{op} {mode} {}", super::table::bytes(size)),
        }
    }

    /// Operation, mode, size, condition, live regions (for polls: queue pairs or links).
    fn parts(&self) -> (&'static str, String, u64, &'static str, u64) {
        let op = |kind: &Kind| match kind {
            Kind::Write => "write",
            Kind::Read => "read",
            Kind::Atomic => "atomic",
        };
        match self {
            Self::Stream(kind, size, rotating) | Self::DirectStream(kind, size, rotating) => {
                let condition = if *rotating { "rotating" } else { "static" };
                (op(kind), "stream".into(), *size, condition, 0)
            }
            Self::OneWay(size) => ("write", "oneway".into(), *size, "static", 0),
            Self::Single(kind, size, touched) => (
                op(kind),
                "single".into(),
                *size,
                if *touched { "touched" } else { "static" },
                0,
            ),
            Self::DirectOneWay(size) => ("write", "oneway".into(), *size, "static", 0),
            Self::DirectSingle(kind, size, touched) => (
                op(kind),
                "single".into(),
                *size,
                if *touched { "touched" } else { "static" },
                0,
            ),
            Self::Messages(size) => ("send", "oneway".into(), *size, "static", 0),
            Self::Register(size, live) => ("register", "pair".into(), *size, "static", *live),
            Self::TablePair(live) => (
                "check",
                "table alone: register and deregister".into(),
                PAGE as u64,
                "static",
                *live,
            ),
            Self::Check(live, scattered) => {
                let mode = if *scattered {
                    "keys far apart"
                } else {
                    "one key"
                };
                ("check", mode.into(), 8, "static", *live)
            }
            Self::Poll(many, count, work) => {
                let by = match many {
                    Many::QueuePairs => "by queue pairs",
                    Many::Links => "by links",
                };
                let mode = match work {
                    Work::EmptyPoll => format!("empty, {by}"),
                    Work::Write => format!("write and its completion, {by}"),
                };
                ("poll", mode, 8, "static", *count)
            }
            Self::Sleeper(pause) if pause.is_zero() => {
                ("sleep", "write at once".into(), 8, "static", 0)
            }
            Self::Sleeper(pause) => (
                "sleep",
                format!("write after {} ms", pause.as_millis()),
                8,
                "static",
                0,
            ),
            Self::Idle => (
                "sleep",
                "processor time per idle second".into(),
                0,
                "static",
                0,
            ),
        }
    }

    pub(crate) fn is_direct(&self) -> bool {
        matches!(
            self,
            Self::DirectStream(..) | Self::DirectOneWay(_) | Self::DirectSingle(..)
        )
    }

    /// The subject of this step's figure.
    pub(crate) fn subject(&self) -> Subject {
        let (op, mode, size, condition, live) = self.parts();
        Subject {
            op: op.into(),
            memory: if self.is_direct() { "own" } else { "ordinary" }.into(),
            mode,
            condition: condition.into(),
            live,
            size,
        }
    }

    /// How to find the number of operations of a repetition.
    pub(crate) fn pace(&self) -> Pace {
        let plain = Pace {
            first: 200,
            least: 100,
            most: u64::MAX,
            weight: 1.0,
            between_ns: 0.0,
            warm_up: false,
        };
        match self {
            Self::Stream(..) | Self::DirectStream(..) => Pace {
                warm_up: true,
                ..plain
            },
            Self::OneWay(_) | Self::DirectOneWay(_) | Self::Messages(_) => Pace {
                weight: 2.0,
                ..plain
            },
            Self::Single(_, _, touched) | Self::DirectSingle(_, _, touched) => Pace {
                first: 100,
                most: 20_001,
                weight: if *touched { 3.0 } else { 1.0 },
                ..plain
            },
            Self::Register(..) | Self::TablePair(_) | Self::Check(..) | Self::Poll(..) => Pace {
                first: 1000,
                least: 1000,
                ..plain
            },
            Self::Sleeper(pause) => Pace {
                first: 3,
                least: 20,
                between_ns: pause.as_secs_f64() * 1e9,
                ..plain
            },
            Self::Idle => Pace {
                first: 0,
                most: 1,
                ..plain
            },
        }
    }
}

/// How many operations make a repetition of a given length; the first few are timed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// The operations that are timed first.
    pub(crate) first: u64,
    /// The minimum number of operations of a repetition.
    pub(crate) least: u64,
    /// The maximum number of operations of a repetition.
    pub(crate) most: u64,
    /// The duration of an operation, as a multiple of its figure.
    pub(crate) weight: f64,
    /// The time between two operations, which does not count.
    pub(crate) between_ns: f64,
    /// Whether a quarter of a repetition runs first, to warm up.
    pub(crate) warm_up: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_plan_contains_the_requested_steps() {
        let steps = steps(
            &words(&["write", "register"]),
            &words(&["single"]),
            &[8, 4096],
            &[0],
        );
        let expected = [
            Step::Single(Kind::Write, 8, false),
            Step::Single(Kind::Write, 4096, false),
            Step::Single(Kind::Write, 4096, true),
            Step::Register(4096, 0),
            Step::Register(1 << 20, 0),
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn every_operation_has_steps() {
        for (operation, _) in OPERATIONS {
            assert!(
                !steps(&words(&[operation]), &words(MODES), &[8], &[0]).is_empty(),
                "{operation}"
            );
        }
    }
}
