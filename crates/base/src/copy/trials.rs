//! Which instructions copy long runs of bytes from another processor's cache.
//!
//! Vector moves are up to 1.4 times as fast as `rep movsb` between processors that share a cache, and take up to 1.6 times as long between
//! others (EPYC of the fourth generation). A process may move, so both are measured all the time: most copies use the method that was
//! faster lately, and some the other one.

use std::sync::atomic::{AtomicU32, Ordering};

/// How to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// Vector moves.
    Vector,
    /// `rep movsb`.
    String,
}

/// One of this many copies tries the slower method. A prime, so that a regular sequence of lengths does not always try the same one.
const PERIOD: u32 = 61;
/// More than any copy takes, in 16ths of a tick for a KiB: the thread was interrupted, or has moved to a processor with another time.
const TIME_MAX: u32 = 16 * 4096;
/// A measurement counts for at most this many times the current average: the thread may have been interrupted.
const OUTLIER: u32 = 4;
/// The weight of a measurement in the average: a quarter.
const WEIGHT: u32 = 4;

/// The times of both methods. Threads may lose each other's measurements.
#[derive(Debug)]
pub(super) struct Trials {
    /// Counts the copies.
    copies: AtomicU32,
    /// The average time of a KiB by each method, in 16ths of a tick of the time stamp counter; 0: not measured.
    times: [AtomicU32; 2],
}

impl Trials {
    pub(super) const fn new() -> Self {
        Self {
            copies: AtomicU32::new(0),
            times: [const { AtomicU32::new(0) }; 2],
        }
    }

    /// Copies `len` bytes, at least 1 KiB, with `copy`.
    #[inline]
    pub(super) fn run<T>(&self, len: usize, copy: impl FnOnce(Method) -> T) -> T {
        let method = self.next();
        let begun = ticks();
        let result = copy(method);
        self.record(method, len, ticks().wrapping_sub(begun));
        result
    }

    fn next(&self) -> Method {
        let count = self.copies.load(Ordering::Relaxed).wrapping_add(1);
        self.copies.store(count, Ordering::Relaxed);
        let [vector, string] = [0, 1].map(|at: usize| self.times[at].load(Ordering::Relaxed));
        // A method that was not measured counts as the faster one.
        let vector_is_faster = vector <= string;
        match vector_is_faster != count.is_multiple_of(PERIOD) {
            true => Method::Vector,
            false => Method::String,
        }
    }

    fn record(&self, method: Method, len: usize, ticks: u64) {
        let kib = (len as u64 / 1024).max(1);
        let time = (ticks.saturating_mul(16) / kib).min(TIME_MAX.into()) as u32;
        let average = &self.times[method as usize];
        let new = match average.load(Ordering::Relaxed) {
            0 => time.max(1),
            old => {
                let time = time.min(old.saturating_mul(OUTLIER));
                (old - old / WEIGHT).saturating_add(time / WEIGHT).max(1)
            }
        };
        average.store(new, Ordering::Relaxed);
    }
}

fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the time stamp counter. A program that forbids its use (`PR_SET_TSC`) has no clock, either.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `next` returns this many times, while a KiB takes these times.
    fn choices(trials: &Trials, times: [u64; 2], count: usize) -> [usize; 2] {
        let mut chosen = [0; 2];
        for _ in 0..count {
            let method = trials.next();
            trials.record(method, 16 << 10, times[method as usize] * 16);
            chosen[method as usize] += 1;
        }
        chosen
    }

    #[test]
    fn the_faster_method_is_used_and_the_other_one_tried() {
        let trials = Trials::new();
        let [vector, string] = choices(&trials, [100, 160], 1280);
        assert!(string <= 21 && vector >= 1259, "{vector} {string}");
        // The process has moved.
        let [vector, string] = choices(&trials, [200, 120], 1280);
        assert!(vector < 130 && string > 1150, "{vector} {string}");
        let [vector, string] = choices(&trials, [100, 160], 1280);
        assert!(string < 400 && vector > 880, "{vector} {string}");
    }

    #[test]
    fn an_interruption_decides_nothing_for_long() {
        let trials = Trials::new();
        trials.record(Method::Vector, 16 << 10, u64::MAX);
        let [_, string] = choices(&trials, [100, 160], 12_800);
        assert!(string < 1600, "{string}");
        trials.record(Method::Vector, 16 << 10, u64::MAX);
        let [_, string] = choices(&trials, [100, 160], 1280);
        assert!(string < 400, "{string}");
    }

    /// Fragments of 16 and 8 KiB in turn: a KiB of the shorter ones takes less time.
    #[test]
    fn messages_of_alternating_lengths_use_the_faster_method() {
        let trials = Trials::new();
        let mut chosen = [0; 2];
        for number in 0..4000u64 {
            let method = trials.next();
            let each = [[100, 80], [120, 96]][method as usize][(number % 2) as usize];
            let kib = [16, 8][(number % 2) as usize];
            trials.record(method, kib << 10, each * kib as u64);
            chosen[method as usize] += 1;
        }
        assert!(chosen[0] > 3000, "{chosen:?}");
    }
}
