//! The contest: all contestants take turns, repetition by repetition, so that all run under the same conditions.
//!
//! The distance between the cores is measured between repetitions. A repetition during which the distance changed is
//! repeated, at most [`Effort::repeats`] times for each contestant and step. After that, an unsteady repetition is kept
//! and marked. The order rotates from round to round, because a contestant leaves the caches changed for the next one.

use super::contestant::{Contestant, Sample};
use super::plan::{Effort, Step};
use super::probe::Distance;
use super::result::{Measurement, OURS, Turn};
use super::stats::Repetitions;
use super::stop::{Ended, Reason, Stop};
use indicatif::ProgressBar;

/// The inputs of a contest.
pub(crate) struct Contest<'a> {
    pub(crate) contestants: Vec<Box<dyn Contestant>>,
    /// Measures the distance between the cores; `None` if it cannot be measured.
    pub(crate) probe: Box<dyn FnMut() -> Option<Distance>>,
    pub(crate) effort: Effort,
    pub(crate) stop: &'a Stop,
    pub(crate) bar: ProgressBar,
}

/// The results of a contest.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) figures: Vec<Measurement>,
    /// Notes on the figures.
    pub(crate) notes: Vec<String>,
    /// The steps that were not measured, and why.
    pub(crate) trouble: Vec<String>,
    /// Steps in which the device itself failed.
    pub(crate) failed: Vec<String>,
    /// Why the contest ended early.
    pub(crate) stopped: Option<Reason>,
}

/// One contestant in one step.
struct Entry {
    /// The index of the contestant.
    who: usize,
    count: u64,
    repetitions: Repetitions,
    turns: Vec<Turn>,
    /// Repetitions that may still be repeated.
    spare: u32,
    failed: bool,
}

impl Contest<'_> {
    /// Runs all steps. A failure is named in the outcome and does not end the contest.
    pub(crate) fn run(&mut self, steps: &[Step]) -> Outcome {
        let mut outcome = Outcome::default();
        let turns = steps.iter().map(|step| self.turns_of(step)).sum();
        self.bar.set_length(turns);
        let mut finished = 0;
        for step in steps {
            outcome.stopped = outcome.stopped.or_else(|| self.stop.reason());
            if outcome.stopped.is_some() {
                break;
            }
            self.step(step, &mut outcome);
            finished += usize::from(outcome.stopped.is_none());
        }
        if let Some(reason) = outcome.stopped {
            outcome.trouble.push(format!(
                "{}: {} of {} measurements did not complete",
                reason.words(),
                steps.len() - finished,
                steps.len()
            ));
        }
        self.bar.finish_and_clear();
        for contestant in &mut self.contestants {
            outcome.notes.extend(contestant.notes());
        }
        let all = || outcome.figures.iter().flat_map(|figure| &figure.turns);
        let unsteady = all().filter(|turn| turn.steady == Some(false)).count();
        if unsteady > 0 {
            outcome.notes.push(format!(
                "the distance between the cores changed by more than 15 % during {unsteady} of {} repetitions",
                all().count()
            ));
        }
        outcome
    }

    /// The length of the progress bar: a preparation and the repetitions of every contestant.
    fn turns_of(&self, step: &Step) -> u64 {
        let all = self.contestants.iter().filter(|one| one.takes(step));
        all.map(|one| 1 + u64::from(self.repetitions(&**one, step)))
            .sum()
    }

    fn repetitions(&self, one: &dyn Contestant, step: &Step) -> u32 {
        self.effort.repetitions.min(one.most_repetitions(step))
    }

    fn step(&mut self, step: &Step, outcome: &mut Outcome) {
        let mut entries = self.prepare(step, outcome);
        let mut before = self.measure_distance();
        for round in 0..self.effort.repetitions as usize {
            for place in 0..entries.len() {
                outcome.stopped = outcome.stopped.or_else(|| self.stop.reason());
                if outcome.stopped.is_some() {
                    break;
                }
                let number = entries.len();
                let entry = &mut entries[(round + place) % number];
                let limit = self.repetitions(&*self.contestants[entry.who], step);
                if !entry.failed && round < limit as usize {
                    before = self.turn(step, round, before, entry, outcome);
                }
            }
        }
        for entry in entries {
            if let Err(error) = self.contestants[entry.who].end() {
                self.give_up(entry.who, step, &error, outcome);
            }
            if entry.turns.is_empty() {
                continue;
            }
            let mut figure = self.contestants[entry.who].label(step).figure(step);
            figure.summarise(&entry.repetitions);
            figure.turns = entry.turns;
            outcome.figures.push(figure);
        }
    }

    /// The contestants of this step, warmed up.
    fn prepare(&mut self, step: &Step, outcome: &mut Outcome) -> Vec<Entry> {
        let mut entries = Vec::new();
        for who in 0..self.contestants.len() {
            outcome.stopped = outcome.stopped.or_else(|| self.stop.reason());
            if !self.contestants[who].takes(step) || outcome.stopped.is_some() {
                continue;
            }
            let name = self.contestants[who].name();
            self.bar.set_message(format!("{}, {name}", step.name()));
            self.bar.tick();
            match self.contestants[who].prepare(step, &self.effort, self.stop) {
                Ok(count) => entries.push(Entry {
                    who,
                    count,
                    repetitions: Repetitions::default(),
                    turns: Vec::new(),
                    spare: self.effort.repeats,
                    failed: false,
                }),
                Err(error) => self.give_up(who, step, &error, outcome),
            }
            self.bar.inc(1);
        }
        entries
    }

    /// One repetition, repeated if the distance between the cores changed during it. Returns the distance after it.
    fn turn(
        &mut self,
        step: &Step,
        round: usize,
        mut before: Option<Distance>,
        entry: &mut Entry,
        outcome: &mut Outcome,
    ) -> Option<Distance> {
        let name = self.contestants[entry.who].name();
        self.bar.set_message(format!("{}, {name}", step.name()));
        self.bar.tick();
        loop {
            let sample = match self.contestants[entry.who].run(step, entry.count, self.stop) {
                Ok(sample) => sample,
                Err(error) => {
                    entry.failed = true;
                    self.give_up(entry.who, step, &error, outcome);
                    return self.measure_distance();
                }
            };
            let after = self.measure_distance();
            let steady = before
                .zip(after)
                .map(|(before, after)| before.is_like(&after));
            if steady == Some(false) && entry.spare > 0 && self.stop.reason().is_none() {
                entry.spare -= 1;
                before = after;
                continue;
            }
            entry.push(round, &sample, [before, after], steady);
            self.bar.inc(1);
            return after;
        }
    }

    fn give_up(&self, who: usize, step: &Step, error: &anyhow::Error, outcome: &mut Outcome) {
        if error.is::<Ended>() {
            return;
        }
        let (what, contestant) = (step.name(), &self.contestants[who]);
        let name = contestant.name();
        outcome.trouble.push(format!("{what}, {name}: {error:#}"));
        if contestant.label(step).peer == OURS && outcome.failed.last() != Some(&what) {
            outcome.failed.push(what);
        }
    }

    fn measure_distance(&mut self) -> Option<Distance> {
        (self.probe)()
    }
}

impl Entry {
    fn push(
        &mut self,
        round: usize,
        sample: &Sample,
        around: [Option<Distance>; 2],
        steady: Option<bool>,
    ) {
        match &sample.operations {
            Some(operations) => self.repetitions.push_samples(operations),
            None => self.repetitions.push(sample.ns),
        }
        let known: Vec<Distance> = around.into_iter().flatten().collect();
        let mean = |value: fn(&Distance) -> f64| {
            (!known.is_empty()).then(|| known.iter().map(value).sum::<f64>() / known.len() as f64)
        };
        self.turns.push(Turn {
            round: u32::try_from(round).unwrap_or(u32::MAX),
            ns: sample.ns,
            round_trip_ns: mean(|distance| distance.round_trip_ns),
            gigabytes_per_second: mean(|distance| distance.gigabytes_per_second),
            steady,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::contestant::Label;
    use super::super::rig::Kind;
    use super::*;
    use anyhow::{Result, bail};
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// A contestant that records its turns.
    struct Fake {
        name: &'static str,
        log: Rc<RefCell<Vec<&'static str>>>,
        /// The call at which it fails.
        fails_at: usize,
        /// The call at which it interrupts the contest.
        interrupts_at: usize,
        mark: Arc<AtomicBool>,
        calls: usize,
    }

    impl Contestant for Fake {
        fn name(&self) -> String {
            self.name.into()
        }

        fn takes(&self, step: &Step) -> bool {
            matches!(step, Step::OneWay(_))
        }

        fn label(&self, _: &Step) -> Label {
            Label {
                peer: self.name.into(),
                version: "1".into(),
                provider: "none".into(),
                completion: "default".into(),
            }
        }

        fn run(&mut self, _: &Step, _: u64, _: &Stop) -> Result<Sample> {
            self.calls += 1;
            if self.calls == self.fails_at {
                bail!("it fails");
            }
            if self.calls == self.interrupts_at {
                self.mark.store(true, Ordering::Relaxed);
            }
            self.log.borrow_mut().push(self.name);
            Ok(Sample::of(self.calls as f64))
        }
    }

    fn contest(limit: Duration, fails_at: usize) -> (Outcome, Vec<&'static str>) {
        let stop = Stop::after(limit).unwrap();
        contest_with(&stop, &Arc::default(), [fails_at, 0], Box::new(|| None))
    }

    fn contest_with(
        stop: &Stop,
        mark: &Arc<AtomicBool>,
        [fails_at, interrupts_at]: [usize; 2],
        probe: Box<dyn FnMut() -> Option<Distance>>,
    ) -> (Outcome, Vec<&'static str>) {
        let log = Rc::new(RefCell::new(Vec::new()));
        let fake = |name, fails_at, interrupts_at| -> Box<dyn Contestant> {
            Box::new(Fake {
                name,
                log: log.clone(),
                fails_at,
                interrupts_at,
                mark: mark.clone(),
                calls: 0,
            })
        };
        let mut contest = Contest {
            contestants: vec![
                fake("a", 0, 0),
                fake("b", fails_at, interrupts_at),
                fake("c", 0, 0),
            ],
            probe,
            effort: Effort {
                repetitions: 3,
                seconds: 0.1,
                repeats: 3,
                fewer: 1,
            },
            stop,
            bar: ProgressBar::hidden(),
        };
        let steps = [Step::OneWay(8), Step::Single(Kind::Write, 8, false)];
        let outcome = contest.run(&steps);
        drop(contest);
        (outcome, log.take())
    }

    #[test]
    fn contestants_take_turns_in_rotating_order() {
        let (outcome, log) = contest(Duration::MAX, 0);
        // One run each to prepare, then three rounds.
        let order = "abc abc bca cab".replace(' ', "");
        assert_eq!(log.concat(), order);
        assert_eq!(outcome.figures.len(), 3);
        assert_eq!(outcome.figures[0].reps, 3);
        let rounds: Vec<u32> = outcome.figures[1].turns.iter().map(|t| t.round).collect();
        assert_eq!(rounds, [0, 1, 2]);
        assert!(outcome.trouble.is_empty() && outcome.stopped.is_none());
    }

    #[test]
    fn a_failing_contestant_is_named_and_the_others_continue() {
        let (outcome, log) = contest(Duration::MAX, 3);
        assert_eq!(log.concat(), "abc abc ca ca".replace(' ', ""));
        assert_eq!(outcome.trouble, ["write oneway 8 B, b: it fails"]);
        assert!(outcome.failed.is_empty());
        // Its first repetition counts.
        let reps: Vec<u32> = outcome.figures.iter().map(|figure| figure.reps).collect();
        assert_eq!(reps, [3, 1, 3]);
    }

    fn never() -> Stop {
        Stop::at(Arc::default())
    }

    #[test]
    fn figures_before_an_interruption_are_kept() {
        let mark: Arc<AtomicBool> = Arc::default();
        let stop = Stop::at(mark.clone());
        let (outcome, log) = contest_with(&stop, &mark, [0, 3], Box::new(|| None));
        assert_eq!(log.concat(), "abc abc b".replace(' ', ""));
        let reps: Vec<u32> = outcome.figures.iter().map(|figure| figure.reps).collect();
        assert_eq!(reps, [1, 2, 1]);
        assert_eq!(outcome.stopped, Some(Reason::Interrupted));
        assert!(outcome.trouble[0].starts_with("interrupted: "));
    }

    /// The machine changes during the second and third runs of the contest.
    #[test]
    fn a_repetition_during_which_the_distance_changed_is_repeated() {
        let mut distances = [50.0, 51.0, 200.0, 50.0, 52.0].into_iter();
        let mut last = 50.0;
        let probe = move || {
            last = distances.next().unwrap_or(last);
            Some(Distance {
                round_trip_ns: last,
                gigabytes_per_second: 8.0,
            })
        };
        let (outcome, log) = contest_with(&never(), &Arc::default(), [0, 0], Box::new(probe));
        assert_eq!(log.concat(), "abc abbbc bca cab".replace(' ', ""));
        assert!(outcome.figures.iter().all(|figure| figure.reps == 3));
        let turns = || outcome.figures.iter().flat_map(|figure| &figure.turns);
        assert!(turns().all(|turn| turn.steady == Some(true)));
        assert!(turns().all(|turn| turn.round_trip_ns.is_some_and(|ns| ns < 60.0)));
        assert!(outcome.notes.is_empty());

        // The distance never settles: the last repetition is kept and marked.
        let mut near = false;
        let restless = move || {
            near = !near;
            Some(Distance {
                round_trip_ns: if near { 50.0 } else { 200.0 },
                gigabytes_per_second: 8.0,
            })
        };
        let (outcome, log) = contest_with(&never(), &Arc::default(), [0, 0], Box::new(restless));
        assert_eq!(log.len(), 3 + 3 * (3 + 3));
        assert!(
            outcome.notes[0].contains("9 of 9 repetitions"),
            "{:?}",
            outcome.notes
        );
    }

    #[test]
    fn the_time_limit_ends_the_contest_and_missing_figures_are_listed() {
        let (outcome, log) = contest(Duration::ZERO, 0);
        assert!(log.is_empty() && outcome.figures.is_empty());
        assert_eq!(outcome.stopped, Some(Reason::Limit));
        assert!(outcome.trouble[0].contains("2 of 2 measurements"));
    }
}
