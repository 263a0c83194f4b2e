//! A contestant is something to measure: the device, a peer's program, or a peer's own benchmark. All live during the
//! whole run, and each sleeps while another one is measured.

use super::measure::enough;
use super::plan::{Effort, Step};
use super::result::Measurement;
use super::stop::Stop;
use anyhow::Result;
use hdrhistogram::Histogram;

/// The common properties of a contestant's figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label {
    /// `rkey`, `libfabric`, `ucx`, `ucx_perftest`.
    pub(crate) peer: String,
    pub(crate) version: String,
    /// The link, provider or transports.
    pub(crate) provider: String,
    /// When the contestant's operations complete: `delivery` or `default`.
    pub(crate) completion: String,
}

/// One repetition.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// Nanoseconds of one operation.
    pub(crate) ns: f64,
    /// The single operations, if they were timed one by one.
    pub(crate) operations: Option<Histogram<u64>>,
}

impl Sample {
    /// A repetition that was timed as a whole.
    pub(crate) fn of(ns: f64) -> Self {
        Self {
            ns,
            operations: None,
        }
    }

    /// A repetition whose operations were timed one by one; its figure is their median.
    pub(crate) fn each(operations: Histogram<u64>) -> Self {
        Self {
            ns: operations.value_at_quantile(0.5) as f64,
            operations: Some(operations),
        }
    }
}

/// A participant of a benchmark.
pub(crate) trait Contestant {
    /// The contestant's name in the progress bar and in errors.
    fn name(&self) -> String;

    /// Whether the contestant can measure this step.
    fn takes(&self, step: &Step) -> bool;

    /// The label of its figure for a step.
    fn label(&self, step: &Step) -> Label;

    /// Runs `count` operations of a step, then sleeps again.
    fn run(&mut self, step: &Step, count: u64, stop: &Stop) -> Result<Sample>;

    /// Finds how many operations make a repetition, and warms up.
    fn prepare(&mut self, step: &Step, effort: &Effort, stop: &Stop) -> Result<u64> {
        let pace = step.pace();
        let fewer = |count: u64| count.div_ceil(effort.fewer);
        let guess = self.run(step, fewer(pace.first), stop)?.ns;
        let each = guess * pace.weight + pace.between_ns;
        let count = enough(each, effort.seconds, fewer(pace.least)).min(pace.most);
        if pace.warm_up {
            self.run(step, count / 4 + 1, stop)?;
        }
        Ok(count)
    }

    /// The maximum number of repetitions, for contestants whose repetitions take long.
    fn most_repetitions(&self, _step: &Step) -> u32 {
        u32::MAX
    }

    /// Releases the resources of the step that has ended.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }

    /// Notes on the results.
    fn notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}

impl Label {
    /// A figure without values.
    pub(crate) fn figure(self, step: &Step) -> Measurement {
        let subject = step.subject();
        Measurement {
            peer: self.peer,
            version: self.version,
            provider: self.provider,
            memory: subject.memory,
            completion: self.completion,
            op: subject.op,
            mode: subject.mode,
            size: subject.size,
            condition: subject.condition,
            live: subject.live,
            median_ns: 0.0,
            min_ns: 0.0,
            max_ns: 0.0,
            reps: 0,
            p99_ns: None,
            turns: Vec::new(),
        }
    }
}
