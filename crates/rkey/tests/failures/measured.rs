//! What a process holds, and how much of the processor it uses.

use crate::common::LONG;
use rustix::param::clock_ticks_per_second;
use std::time::{Duration, Instant};

/// The resources that this process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    descriptors: usize,
    threads: usize,
    /// Mappings of files and of shared memory. The heap has others, which come and go.
    mappings: usize,
}

impl Holdings {
    fn now() -> Self {
        let count = |folder| std::fs::read_dir(folder).unwrap().count();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            mappings: maps.lines().filter(|line| line.contains('/')).count(),
        }
    }

    /// The resources once they no longer change: threads may still be creating or freeing something.
    pub(crate) fn settled() -> Self {
        let (mut last, mut same) = (Self::now(), 0);
        let limit = Instant::now() + LONG;
        while same < 40 {
            assert!(Instant::now() < limit, "the resources keep changing");
            std::thread::sleep(Duration::from_millis(5));
            let now = Self::now();
            same = if now == last { same + 1 } else { 0 };
            last = now;
        }
        last
    }

    /// Waits until this process holds no more than before.
    pub(crate) fn wait_until_back(self) {
        let limit = Instant::now() + LONG;
        loop {
            let now = Self::now();
            let is_back = now.descriptors <= self.descriptors
                && now.threads <= self.threads
                && now.mappings <= self.mappings;
            if is_back {
                return;
            }
            assert!(Instant::now() < limit, "{now:?}, {self:?} before");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The processor time that a process has used.
fn processor_time(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
    // Fields 14 and 15 of all: utime and stime.
    let ticks = [11, 12].map(|at: usize| fields[at].parse::<u64>().unwrap());
    Duration::from_millis(ticks.iter().sum::<u64>() * 1000 / clock_ticks_per_second())
}

/// Checks that a process is idle: of several intervals of 300 ms, it uses the processor for at most 50 ms in one. A process that spins
/// does so in each of them, even if others also want the processor.
pub(crate) fn assert_idle(process: u32, when: &str) {
    let mut least = Duration::MAX;
    for _ in 0..10 {
        let before = processor_time(process);
        std::thread::sleep(Duration::from_millis(300));
        least = least.min(processor_time(process) - before);
        if least <= Duration::from_millis(50) {
            return;
        }
    }
    panic!("{when}: process {process} uses the processor for {least:?} in 300 ms");
}
