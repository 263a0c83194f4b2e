//! The current distance between the two cores: the round trip of a cache line, and the bandwidth from one core's cache
//! to the other's.
//!
//! On a virtual machine the two processors move between real cores, and this distance changes by a factor of
//! four within minutes. Figures cannot be compared without it. So it is measured before and after every
//! repetition, in about a millisecond.

use super::machine;
use anyhow::{Context, Result};
use crossbeam_utils::CachePadded;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many round trips are timed together.
const BATCH: u64 = 100;
/// How many batches are timed.
const BATCHES: usize = 20;
/// How many bytes cross from cache to cache at a time.
const BYTES: usize = 256 << 10;
/// How many times these bytes cross.
const CROSSINGS: usize = 8;
/// How long a measurement may take: a core that is busy with other programs must not hold up the benchmark.
const PATIENCE: Duration = Duration::from_millis(100);
/// Two distances that differ by more than this fraction of the smaller one are different.
const STEADY: f64 = 0.15;

/// The distance at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Distance {
    /// Nanoseconds of a cache line's round trip to the other core.
    pub(crate) round_trip_ns: f64,
    /// Gigabytes per second at which one core reads what the other has just written.
    pub(crate) gigabytes_per_second: f64,
}

impl Distance {
    /// Whether two distances are the same, judged by the round trip.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let (a, b) = (self.round_trip_ns, other.round_trip_ns);
        (a - b).abs() <= STEADY * a.min(b)
    }
}

/// A word with its own cache lines.
type Line = CachePadded<AtomicU64>;

/// One cache line of the payload; only its first word is written and read.
#[repr(align(64))]
#[derive(Default)]
struct Payload(AtomicU64);

/// The state that the two threads share.
struct Shared {
    ping: Line,
    pong: Line,
    /// Set once the first thread has given up waiting.
    abandoned: AtomicBool,
    payload: Vec<Payload>,
}

/// A task of the second thread.
enum Job {
    /// Responds to pings: the number of the first one, and how many.
    Answer(u64, u64),
    /// Reads the payload after this ping.
    Read(u64),
}

/// The calling thread on the first core, and a sleeping one on the second.
pub(crate) struct Probe {
    shared: Arc<Shared>,
    jobs: Option<mpsc::Sender<Job>>,
    helper: Option<JoinHandle<()>>,
    /// The last ping.
    turn: u64,
}

impl Probe {
    /// Starts the thread on the second core. `None` if both cores are the same and so have no distance. The calling
    /// thread must be pinned to the first core.
    pub(crate) fn start(cores: (usize, usize)) -> Result<Option<Self>> {
        if cores.0 == cores.1 {
            return Ok(None);
        }
        let shared = Arc::new(Shared {
            ping: Line::default(),
            pong: Line::default(),
            abandoned: AtomicBool::new(false),
            payload: (0..BYTES / size_of::<Payload>())
                .map(|_| Payload::default())
                .collect(),
        });
        let (jobs, todo) = mpsc::channel();
        let theirs = shared.clone();
        let helper = std::thread::Builder::new()
            .name("rkey-probe".into())
            .spawn(move || {
                machine::pin(cores.1);
                for job in todo {
                    theirs.help(&job);
                }
            })
            .context("cannot start the thread that measures the distance between the cores")?;
        Ok(Some(Self {
            shared,
            jobs: Some(jobs),
            helper: Some(helper),
            turn: 0,
        }))
    }

    /// Measures. `None` if other programs kept the cores busy too long for a result.
    pub(crate) fn measure(&mut self) -> Option<Distance> {
        self.shared.abandoned.store(false, Ordering::Relaxed);
        let until = Instant::now() + PATIENCE;
        let round_trip_ns = self.round_trips(until)?;
        let gigabytes_per_second = self.crossings(until)?;
        Some(Distance {
            round_trip_ns,
            gigabytes_per_second,
        })
    }

    fn give(&self, job: Job) {
        // The thread ends only when this value is dropped, so it takes every job.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }

    fn round_trips(&mut self, until: Instant) -> Option<f64> {
        let pings = BATCH * (BATCHES as u64 + 1);
        self.give(Job::Answer(self.turn + 1, pings));
        let mut times = Vec::with_capacity(BATCHES);
        for batch in 0..=BATCHES {
            let start = Instant::now();
            for _ in 0..BATCH {
                self.ping(until)?;
            }
            // The first batch includes waking the other thread.
            if batch > 0 {
                times.push(start.elapsed().as_nanos() as f64 / BATCH as f64);
            }
        }
        median(&mut times)
    }

    fn crossings(&mut self, until: Instant) -> Option<f64> {
        let mut rates = Vec::with_capacity(CROSSINGS);
        for round in 0..CROSSINGS {
            for line in &self.shared.payload {
                line.0.store(round as u64, Ordering::Relaxed);
            }
            self.give(Job::Read(self.turn + 1));
            self.ping(until)?;
            let ns = self.shared.payload[0].0.load(Ordering::Relaxed);
            rates.push(BYTES as f64 / ns.max(1) as f64);
        }
        median(&mut rates)
    }

    /// One ping and its response.
    fn ping(&mut self, until: Instant) -> Option<()> {
        self.turn += 1;
        self.shared.ping.store(self.turn, Ordering::Release);
        let mut looks = 0_u32;
        while self.shared.pong.load(Ordering::Acquire) != self.turn {
            std::hint::spin_loop();
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 12) && Instant::now() > until {
                self.shared.abandoned.store(true, Ordering::Relaxed);
                return None;
            }
        }
        Some(())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.shared.abandoned.store(true, Ordering::Relaxed);
        self.jobs = None;
        if let Some(helper) = self.helper.take() {
            let _ = helper.join();
        }
    }
}

impl Shared {
    fn help(&self, job: &Job) {
        match *job {
            Job::Answer(first, count) => {
                for turn in first..first + count {
                    if !self.await_ping(turn) {
                        return;
                    }
                    self.pong.store(turn, Ordering::Release);
                }
            }
            Job::Read(turn) => {
                if !self.await_ping(turn) {
                    return;
                }
                let start = Instant::now();
                let sum = self
                    .payload
                    .iter()
                    .map(|line| line.0.load(Ordering::Relaxed))
                    .fold(0, u64::wrapping_add);
                std::hint::black_box(sum);
                let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.payload[0].0.store(ns, Ordering::Relaxed);
                self.pong.store(turn, Ordering::Release);
            }
        }
    }

    fn await_ping(&self, turn: u64) -> bool {
        while self.ping.load(Ordering::Acquire) < turn {
            if self.abandoned.load(Ordering::Relaxed) {
                return false;
            }
            std::hint::spin_loop();
        }
        true
    }
}

/// The median of some values, if there are any.
pub(crate) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_no_distance_between_a_core_and_itself() {
        assert!(Probe::start((0, 0)).unwrap().is_none());
    }

    /// A busy machine may produce no result at first, but produces one later.
    #[test]
    fn a_distance_can_be_measured_repeatedly() {
        let (first, second) = (0..1024).fold((None, None), |(first, second), core| {
            match (machine::may_use(core), first) {
                (true, None) => (Some(core), second),
                (true, Some(_)) if second.is_none() => (first, Some(core)),
                _ => (first, second),
            }
        });
        let (Some(first), Some(second)) = (first, second) else {
            println!("skipped: this process may use only one core");
            return;
        };
        machine::pin(first);
        let mut probe = Probe::start((first, second)).unwrap().unwrap();
        for _ in 0..3 {
            let distance = loop {
                if let Some(distance) = probe.measure() {
                    break distance;
                }
            };
            assert!(distance.round_trip_ns > 1.0 && distance.gigabytes_per_second > 0.0);
        }
    }

    #[test]
    fn distances_that_differ_by_more_than_15_percent_are_different() {
        let of = |round_trip_ns| Distance {
            round_trip_ns,
            gigabytes_per_second: 1.0,
        };
        assert!(of(100.0).is_like(&of(115.0)) && of(115.0).is_like(&of(100.0)));
        assert!(!of(100.0).is_like(&of(116.0)) && !of(200.0).is_like(&of(50.0)));
    }
}
