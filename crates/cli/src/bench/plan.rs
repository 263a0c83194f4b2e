//! What is measured: the operations by name, and for each the figures that it gives.

use super::check;
use super::control::Command;
use super::direct;
use super::measure::{self, enough};
use super::pages::{PAGE, Pages};
use super::pair::Pair;
use super::result::{Measurement, OURS};
use super::rig::Kind;
use super::stats::Repetitions;
use anyhow::{Context, Result};
use rkey::Access;
use std::time::{Duration, Instant};

/// Operations and what they are.
pub(crate) const OPERATIONS: &[(&str, &str)] = &[
    // First: its memory per region is the growth of a process that has freed nothing yet.
    (
        "check",
        "the key check by itself, by number of live regions",
    ),
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
        "registration and close of memory, by size and by number of live regions",
    ),
    (
        "sleep",
        "writes to a target whose program sleeps, and what it costs when idle",
    ),
];

/// Ways of measuring, as in `benches/README.md`.
pub(crate) const MODES: &[&str] = &["stream", "oneway", "single"];

/// How thorough to be.
#[derive(Debug, Clone)]
pub(crate) struct Effort {
    pub(crate) repetitions: u32,
    /// About how long one repetition runs.
    pub(crate) seconds: f64,
}

/// One thing to measure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// Rotating over several buffers or not.
    Stream(Kind, u64, bool),
    OneWay(u64),
    Single(Kind, u64, bool),
    Messages(u64),
    DirectStream(Kind, u64, bool),
    DirectOneWay(u64),
    DirectSingle(Kind, u64, bool),
    /// Bytes of the region, live regions.
    Register(u64, u64),
    /// The protection table alone: live regions.
    TablePair(u64),
    /// Live regions; whether keys far apart are used in turn.
    Check(u64, bool),
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
    steps
}

/// Copies under a lease; the modes are those of posted operations.
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
    /// For the progress bar.
    pub(crate) fn name(&self) -> String {
        let subject = self.subject();
        format!(
            "{} {} {}",
            subject.0,
            subject.1,
            super::table::bytes(subject.2)
        )
    }

    /// Operation, mode, size, condition, live regions.
    fn subject(&self) -> (&'static str, String, u64, &'static str, u64) {
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
                "table alone: register and close".into(),
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

    fn is_direct(&self) -> bool {
        matches!(
            self,
            Self::DirectStream(..) | Self::DirectOneWay(_) | Self::DirectSingle(..)
        )
    }

    /// Runs the step. Figures that are no times become sentences in `notes`.
    pub(crate) fn run(
        &self,
        pair: &mut Pair,
        effort: &Effort,
        notes: &mut Vec<String>,
    ) -> Result<Measurement> {
        let mut repetitions = Repetitions::default();
        match self {
            Self::Stream(kind, size, rotating) => {
                let slots = if *rotating {
                    measure::slots_of(*size)
                } else {
                    1
                };
                stream(effort, &mut repetitions, |count| {
                    measure::stream(&mut pair.rig, *kind, *size, count, slots)
                })?;
            }
            Self::OneWay(size) => {
                let guess = measure::one_way(&mut pair.rig, *size, 200)?;
                let count = enough(2.0 * guess, effort.seconds, 100);
                for _ in 0..effort.repetitions {
                    repetitions.push(measure::one_way(&mut pair.rig, *size, count)?);
                }
            }
            Self::Single(kind, size, touched) => {
                let guess = measure::single(&mut pair.rig, *kind, *size, 100, *touched)?
                    .value_at_quantile(0.5);
                let each = guess as f64 * if *touched { 3.0 } else { 1.0 };
                let count = enough(each, effort.seconds, 100).min(20_001);
                for _ in 0..effort.repetitions {
                    repetitions.push_samples(&measure::single(
                        &mut pair.rig,
                        *kind,
                        *size,
                        count,
                        *touched,
                    )?);
                }
            }
            Self::DirectStream(kind, size, rotating) => {
                let slots = if *rotating {
                    measure::slots_of(*size)
                } else {
                    1
                };
                stream(effort, &mut repetitions, |count| {
                    direct::stream(&mut pair.rig, *kind, *size, count, slots)
                })?;
            }
            Self::DirectOneWay(size) => direct_one_way(pair, *size, effort, &mut repetitions)?,
            Self::DirectSingle(kind, size, touched) => {
                let rig = &mut pair.rig;
                let guess =
                    direct::single(rig, *kind, *size, 100, *touched)?.value_at_quantile(0.5);
                let each = guess as f64 * if *touched { 3.0 } else { 1.0 };
                let count = enough(each, effort.seconds, 100).min(20_001);
                for _ in 0..effort.repetitions {
                    repetitions.push_samples(&direct::single(rig, *kind, *size, count, *touched)?);
                }
            }
            Self::Messages(size) => messages(pair, *size, effort, &mut repetitions)?,
            Self::Register(size, live) => register(pair, *size, *live, effort, &mut repetitions)?,
            Self::TablePair(live) => check::pair(*live, effort, &mut repetitions)?,
            Self::Check(live, scattered) => {
                let bytes = check::check(*live, *scattered, effort, &mut repetitions)?;
                if *live >= 100_000 && !*scattered {
                    notes.push(format!(
                        "{live} live regions take {bytes:.0} B of memory each in the table"
                    ));
                }
            }
            Self::Sleeper(pause) => sleeper(pair, *pause, effort, &mut repetitions)?,
            Self::Idle => idle(pair, &mut repetitions)?,
        }
        Ok(self.figure(&repetitions))
    }

    fn figure(&self, repetitions: &Repetitions) -> Measurement {
        let (op, mode, size, condition, live) = self.subject();
        let (median_ns, min_ns, max_ns) = repetitions.summary();
        Measurement {
            peer: OURS.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            provider: if self.is_direct() { "lease" } else { "shm" }.into(),
            memory: if self.is_direct() { "own" } else { "ordinary" }.into(),
            completion: "delivery".into(),
            op: op.into(),
            mode,
            size,
            condition: condition.into(),
            live,
            median_ns,
            min_ns,
            max_ns,
            reps: repetitions.count(),
            p99_ns: repetitions.p99(),
        }
    }
}

/// A guess, a warm-up, then the repetitions of a stream of `count` operations.
fn stream(
    effort: &Effort,
    repetitions: &mut Repetitions,
    mut run: impl FnMut(u64) -> Result<f64>,
) -> Result<()> {
    let count = enough(run(200)?, effort.seconds, 100);
    run(count / 4 + 1)?;
    for _ in 0..effort.repetitions {
        repetitions.push(run(count)?);
    }
    Ok(())
}

fn messages(
    pair: &mut Pair,
    size: u64,
    effort: &Effort,
    repetitions: &mut Repetitions,
) -> Result<()> {
    let mut run = |count: u64| {
        let number = pair.rig.control.command(Command::Messages, size, count);
        let ns = measure::messages(&mut pair.rig, number, size, count)?;
        pair.rig.await_done(number)?;
        anyhow::Ok(ns)
    };
    let count = enough(2.0 * run(200)?, effort.seconds, 100);
    for _ in 0..effort.repetitions {
        repetitions.push(run(count)?);
    }
    Ok(())
}

fn direct_one_way(
    pair: &mut Pair,
    size: u64,
    effort: &Effort,
    repetitions: &mut Repetitions,
) -> Result<()> {
    pair.rig.direct()?;
    let mut run = |count: u64| {
        let number = pair
            .rig
            .control
            .command(Command::PingPongDirect, size, count);
        let ns = direct::one_way(&mut pair.rig, number, size, count)?;
        pair.rig.await_done(number)?;
        anyhow::Ok(ns)
    };
    let count = enough(2.0 * run(200)?, effort.seconds, 100);
    for _ in 0..effort.repetitions {
        repetitions.push(run(count)?);
    }
    Ok(())
}

/// Registers and closes one region again and again while `live` others are registered.
fn register(
    pair: &mut Pair,
    size: u64,
    live: u64,
    effort: &Effort,
    repetitions: &mut Repetitions,
) -> Result<()> {
    let access =
        Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let domain = pair.rig.domain.clone();
    let arena = Pages::map((live as usize).max(1) * PAGE, false)?;
    let others = arena.split().take(live as usize);
    let others = others
        .map(|page| Ok(domain.register(page, access)?))
        .collect::<Result<Vec<_>>>()?;
    let mut spare = Some(Pages::map(size as usize, false)?);
    let mut run = |count: u64| {
        let start = Instant::now();
        for _ in 0..count {
            let pages = spare.take().context("the pages of the round before")?;
            spare = Some(domain.register(pages, access)?.deregister()?);
        }
        anyhow::Ok(start.elapsed().as_nanos() as f64 / count as f64)
    };
    let count = enough(run(100)?, effort.seconds, 1000);
    for _ in 0..effort.repetitions {
        repetitions.push(run(count)?);
    }
    for region in others {
        region.deregister()?;
    }
    Ok(())
}

fn sleeper(
    pair: &mut Pair,
    pause: Duration,
    effort: &Effort,
    repetitions: &mut Repetitions,
) -> Result<()> {
    let number = pair.rig.control.command(Command::Sleep, 0, 0);
    pair.rig.await_done(number)?;
    // The target stops polling now; its engine takes over within its tick.
    std::thread::sleep(Duration::from_millis(50));
    let each = pause.as_secs_f64() * 1e9 + 5_000.0;
    let count = enough(each, effort.seconds.max(0.05), 20);
    for _ in 0..effort.repetitions {
        repetitions.push_samples(&measure::to_sleeper(&mut pair.rig, count, pause)?);
    }
    wake(pair)
}

/// Processor time that the whole target process uses in a second in which nothing happens.
fn idle(pair: &mut Pair, repetitions: &mut Repetitions) -> Result<()> {
    let number = pair.rig.control.command(Command::Sleep, 0, 0);
    pair.rig.await_done(number)?;
    std::thread::sleep(Duration::from_millis(500));
    for _ in 0..3 {
        let (before, start) = (pair.target_cpu_ns()?, Instant::now());
        std::thread::sleep(Duration::from_secs(1));
        let used = pair.target_cpu_ns()?.saturating_sub(before);
        repetitions.push(used as f64 / start.elapsed().as_secs_f64());
    }
    wake(pair)
}

fn wake(pair: &mut Pair) -> Result<()> {
    let number = pair.rig.control.command(Command::None, 0, 0);
    pair.rig.await_done(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_plan_has_what_was_asked_for() {
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
