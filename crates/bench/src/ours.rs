//! Our own device as a contestant: the pair of processes, and the state of a step between its repetitions.

use super::check::{self, Table};
use super::contestant::{Contestant, Label, Sample};
use super::control::Command;
use super::crowd::{Crowd, Many};
use super::direct;
use super::measure;
use super::pages::{PAGE, Pages};
use super::pair::Pair;
use super::plan::Step;
use super::result::OURS;
use super::stop::Stop;
use anyhow::{Context, Result};
use rkey::{Access, Region};
use std::time::{Duration, Instant};

/// How long the engine thread needs to take over from a target that no longer polls.
const TAKE_OVER: Duration = Duration::from_millis(50);
/// How long the target's threads need to fall asleep.
const COME_TO_REST: Duration = Duration::from_millis(500);

/// The device through its Rust API.
pub(crate) struct Ours {
    pair: Pair,
    shared: Shared,
    notes: Vec<String>,
    /// Whether the target has exited, so that nothing more can be measured.
    over: bool,
}

/// The state that the repetitions of one step share.
enum Shared {
    Nothing,
    /// The live regions, and the memory for the one that is registered and deregistered.
    Regions {
        others: Vec<Region<Pages>>,
        spare: Option<Pages>,
    },
    Table(Box<Table>),
    Crowd(Box<Crowd>),
}

impl Ours {
    /// Starts the target.
    pub(crate) fn start(cores: (usize, usize), length: u64) -> Result<Self> {
        let mut ours = Self {
            pair: Pair::start(cores, length)?,
            shared: Shared::Nothing,
            notes: Vec::new(),
            over: false,
        };
        ours.rest()?;
        Ok(ours)
    }

    /// Puts the target to sleep in the kernel.
    fn rest(&mut self) -> Result<()> {
        self.order(Command::Sleep)
    }

    /// Makes the target poll.
    fn wake(&mut self) -> Result<()> {
        self.order(Command::None)
    }

    /// Runs one repetition. The target sleeps before and after it.
    fn once(&mut self, step: &Step, count: u64) -> Result<Sample> {
        // These steps measure a sleeping target.
        if matches!(step, Step::Sleeper(_) | Step::Idle) {
            return self.measure(step, count);
        }
        self.wake()?;
        let sample = self.measure(step, count);
        let rest = self.rest();
        let sample = sample?;
        rest.map(|()| sample)
    }

    fn order(&mut self, command: Command) -> Result<()> {
        let number = self.pair.rig.control.command(command, 0, 0);
        self.pair.rig.await_done(number)
    }

    fn measure(&mut self, step: &Step, count: u64) -> Result<Sample> {
        let rig = &mut self.pair.rig;
        let slots = |size: u64, rotating: bool| {
            if rotating { measure::slots_of(size) } else { 1 }
        };
        Ok(match *step {
            Step::Stream(kind, size, rotating) => {
                let slots = slots(size, rotating);
                Sample::of(measure::stream(rig, kind, size, count, slots)?)
            }
            Step::OneWay(size) => Sample::of(measure::one_way(rig, size, count)?),
            Step::Single(kind, size, touched) => {
                Sample::each(measure::single(rig, kind, size, count, touched)?)
            }
            Step::Messages(size) => {
                let number = rig.control.command(Command::Messages, size, count);
                let ns = measure::messages(rig, number, size, count)?;
                rig.await_done(number)?;
                Sample::of(ns)
            }
            Step::DirectStream(kind, size, rotating) => {
                let slots = slots(size, rotating);
                Sample::of(direct::stream(rig, kind, size, count, slots)?)
            }
            Step::DirectOneWay(size) => {
                rig.direct()?;
                let number = rig.control.command(Command::PingPongDirect, size, count);
                let ns = direct::one_way(rig, number, size, count)?;
                rig.await_done(number)?;
                Sample::of(ns)
            }
            Step::DirectSingle(kind, size, touched) => {
                Sample::each(direct::single(rig, kind, size, count, touched)?)
            }
            Step::Register(size, live) => Sample::of(self.register(size, live, count)?),
            Step::TablePair(live) => Sample::of(check::pair(self.table(live)?, count)?),
            Step::Check(live, scattered) => {
                Sample::of(check::check(self.table(live)?, scattered, count)?)
            }
            Step::Poll(many, count_of, work) => {
                Sample::of(self.crowd(many, count_of)?.measure(work, count)?)
            }
            Step::Sleeper(pause) => {
                std::thread::sleep(TAKE_OVER);
                Sample::each(measure::to_sleeper(rig, count, pause)?)
            }
            Step::Idle => Sample::of(self.idle(count)?),
        })
    }

    /// Registers and deregisters one region repeatedly while `live` others are registered.
    fn register(&mut self, size: u64, live: u64, count: u64) -> Result<f64> {
        let access =
            Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let domain = self.pair.rig.domain.clone();
        if !matches!(self.shared, Shared::Regions { .. }) {
            let arena = Pages::map((live as usize).max(1) * PAGE, false)?;
            let others = arena.split().take(live as usize);
            self.shared = Shared::Regions {
                others: others
                    .map(|page| Ok(domain.register(page, access)?))
                    .collect::<Result<_>>()?,
                spare: Some(Pages::map(size as usize, false)?),
            };
        }
        let Shared::Regions { spare, .. } = &mut self.shared else {
            anyhow::bail!("the regions of this step are already dropped");
        };
        let start = Instant::now();
        for _ in 0..count {
            let pages = spare.take().context("the previous round lost its pages")?;
            *spare = Some(domain.register(pages, access)?.deregister()?);
        }
        Ok(measure::each(start.elapsed(), count))
    }

    /// The step's table with `live` regions.
    fn table(&mut self, live: u64) -> Result<&Table> {
        if !matches!(self.shared, Shared::Table(_)) {
            let table = Table::with(live.max(1))?;
            if live >= 1_000_000 && self.notes.is_empty() {
                self.notes.push(format!(
                    "{live} live regions take {:.0} B of memory each in the table",
                    table.bytes_each
                ));
            }
            self.shared = Shared::Table(Box::new(table));
        }
        match &self.shared {
            Shared::Table(table) => Ok(table),
            _ => anyhow::bail!("the table of this step is already dropped"),
        }
    }

    /// The step's connected devices.
    fn crowd(&mut self, many: Many, count: u64) -> Result<&mut Crowd> {
        if !matches!(self.shared, Shared::Crowd(_)) {
            self.shared = Shared::Crowd(Box::new(Crowd::with(many, count)?));
        }
        match &mut self.shared {
            Shared::Crowd(crowd) => Ok(crowd),
            _ => anyhow::bail!("the devices of this step are already closed"),
        }
    }

    /// Processor time that the whole target process uses in an idle second.
    fn idle(&mut self, count: u64) -> Result<f64> {
        if count == 0 {
            return Ok(0.0);
        }
        std::thread::sleep(COME_TO_REST);
        let (before, start) = (self.pair.target_cpu_ns()?, Instant::now());
        std::thread::sleep(Duration::from_secs(1));
        let used = self.pair.target_cpu_ns()?.saturating_sub(before);
        Ok(used as f64 / start.elapsed().as_secs_f64())
    }
}

impl Contestant for Ours {
    fn name(&self) -> String {
        OURS.into()
    }

    fn takes(&self, _: &Step) -> bool {
        !self.over
    }

    fn label(&self, step: &Step) -> Label {
        Label {
            peer: OURS.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            provider: if step.is_direct() { "lease" } else { "shm" }.into(),
            completion: "delivery".into(),
        }
    }

    fn run(&mut self, step: &Step, count: u64, _: &Stop) -> Result<Sample> {
        let sample = self.once(step, count);
        match self.pair.ended() {
            Some(status) if sample.is_err() => {
                self.over = true;
                sample.with_context(|| {
                    format!("the target process has exited ({status}), so nothing more is measured")
                })
            }
            _ => sample,
        }
    }

    fn most_repetitions(&self, step: &Step) -> u32 {
        if *step == Step::Idle { 3 } else { u32::MAX }
    }

    fn end(&mut self) -> Result<()> {
        if let Shared::Regions { others, .. } = std::mem::replace(&mut self.shared, Shared::Nothing)
        {
            for region in others {
                region.deregister()?;
            }
        }
        Ok(())
    }

    fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}
