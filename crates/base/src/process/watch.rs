//! Checks, thread by thread, whether calls that began before some moment have ended.
//!
//! [`no_thread_copies`](super::no_thread_copies) checks where all threads are now, so one thread that always runs keeps
//! the result at "no". If no *new* call can begin, less is enough: a thread has left its call once it has been seen
//! elsewhere, or has used more processor time than any such call takes. A thread that started later was never in one.

use super::threads::{is_elsewhere, stat_field};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// More processor time than one copying call takes. Links copy 256 KiB per call, which takes about 50 µs; the rest
/// allows for page faults on both sides, including clearing huge pages.
pub const LONGEST_CALL: Duration = Duration::from_millis(250);

/// Watches a process whose threads can no longer begin a copying call.
#[derive(Debug)]
pub struct CallWatch {
    /// When the watch began, in clock ticks since boot, as the start times of threads are.
    began: u64,
    threads: HashMap<u32, Thread>,
}

/// A thread that existed when the watch began.
#[derive(Clone, Copy, Debug)]
enum Thread {
    /// May be in a copying call. `start`: its start time; `ran`: the processor time that it had used when it was first seen.
    Unknown { start: u64, ran: Duration },
    /// Cannot be in a copying call.
    Clear,
}

impl CallWatch {
    /// Starts watching. From now on, no thread may be able to begin a copying call.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "the start times of threads are on this clock"
    )]
    pub fn begin() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let ticks = rustix::param::clock_ticks_per_second();
        let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
        Self {
            began: seconds * ticks + nanos * ticks / 1_000_000_000,
            threads: HashMap::new(),
        }
    }

    /// Checks the threads of the process; returns whether none of them is in a call that began before the watch did.
    /// Returns `false` if that is not known yet, or if `deadline` passes during the check.
    ///
    /// The PID must refer to the same process during all checks: compare with a [`PidFd`](super::PidFd).
    ///
    /// # Errors
    ///
    /// There is no such process (in our namespace), or `/proc` does not show it.
    #[expect(clippy::disallowed_methods, reason = "a list of threads has no bound")]
    pub fn all_clear(&mut self, pid: u32, deadline: Instant) -> io::Result<bool> {
        let (mut seen, mut clear) = (0u64, true);
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let task = task?;
            let Some(tid) = task.file_name().to_str().and_then(|tid| tid.parse().ok()) else {
                continue;
            };
            seen += 1;
            // A thread id that has been reused since is clear as well: the new thread is younger.
            if !matches!(self.threads.get(&tid), Some(Thread::Clear)) {
                clear &= self.look(tid, &task.path());
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
        }
        // If threads end while the list is read, it may lack some that are still alive.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let threads = stat_field(&stat, 20).and_then(|count| count.parse::<u64>().ok());
        Ok(clear && threads == Some(seen))
    }

    /// Checks one thread; returns whether it is clear.
    fn look(&mut self, tid: u32, task: &Path) -> bool {
        let stat = match fs::read_to_string(task.join("stat")) {
            Ok(stat) => stat,
            Err(error) if has_ended(&error) => {
                // A thread that gets this id later did not exist when the watch began.
                self.threads.insert(tid, Thread::Clear);
                return true;
            }
            // For example, we may be out of descriptors, which says nothing about the thread.
            Err(_) => return false,
        };
        let number = |index| stat_field(&stat, index).and_then(|field| field.parse::<u64>().ok());
        let (Some(start), Some(ran)) = (number(22), processor_time(task, &stat)) else {
            return false;
        };
        let known = *self
            .threads
            .entry(tid)
            .or_insert(Thread::Unknown { start, ran });
        let clear = match known {
            Thread::Clear => true,
            Thread::Unknown {
                start: first_start,
                ran: first_ran,
            } => {
                start > self.began
                    || start != first_start
                    || ran.saturating_sub(first_ran) > LONGEST_CALL
                    || is_elsewhere(task, &stat)
            }
        };
        if clear {
            self.threads.insert(tid, Thread::Clear);
        }
        clear
    }
}

/// Whether reading a file of a thread failed because the thread has ended.
fn has_ended(error: &io::Error) -> bool {
    let search = rustix::io::Errno::SRCH.raw_os_error();
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(search)
}

/// The processor time of a thread, as exactly as the kernel reports it.
fn processor_time(task: &Path, stat: &str) -> Option<Duration> {
    let exact = fs::read_to_string(task.join("schedstat")).ok();
    let exact = exact.and_then(|times| times.split_ascii_whitespace().next()?.parse().ok());
    if let Some(nanos) = exact.filter(|nanos| *nanos > 0) {
        return Some(Duration::from_nanos(nanos));
    }
    let ticks =
        stat_field(stat, 14)?.parse::<u64>().ok()? + stat_field(stat, 15)?.parse::<u64>().ok()?;
    let millis = ticks.checked_mul(1000)? / rustix::param::clock_ticks_per_second();
    Some(Duration::from_millis(millis))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    /// A generous limit, for busy machines.
    const LONG: Duration = Duration::from_secs(60);

    fn is_clear_in_time(watch: &mut CallWatch) -> bool {
        let deadline = Instant::now() + LONG;
        while Instant::now() < deadline {
            if watch.all_clear(std::process::id(), deadline).unwrap() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    /// Threads that always run are never seen asleep, so they are cleared by the processor time that they use.
    #[test]
    fn threads_that_always_run_are_cleared_by_their_processor_time() {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let spin = || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            let spinners = [scope.spawn(spin), scope.spawn(spin)];
            let mut watch = CallWatch::begin();
            let before: Vec<Duration> = spun();
            assert!(is_clear_in_time(&mut watch), "they are never cleared");
            // No thread was cleared by its processor time before it had used that much.
            let used = spun().iter().sum::<Duration>() - before.iter().sum::<Duration>();
            assert!(used > LONGEST_CALL, "cleared too early: {used:?}");
            over.store(true, Ordering::Relaxed);
            for spinner in spinners {
                spinner.join().unwrap();
            }
        });
    }

    /// The processor time of each thread of this process.
    fn spun() -> Vec<Duration> {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        tasks
            .filter_map(|task| {
                let task = task.ok()?.path();
                processor_time(&task, &fs::read_to_string(task.join("stat")).ok()?)
            })
            .collect()
    }

    /// A thread that was once seen outside a copying call stays clear, regardless of its processor time.
    #[test]
    fn a_thread_seen_asleep_once_stays_clear() {
        let (over, tid) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let own = rustix::thread::gettid().as_raw_nonzero().get();
                tid.store(own.unsigned_abs(), Ordering::Relaxed);
                while !over.load(Ordering::Relaxed) {
                    std::thread::park();
                }
            });
            let mut watch = CallWatch::begin();
            let deadline = Instant::now() + LONG;
            let is_clear = |watch: &CallWatch| {
                let thread = watch.threads.get(&tid.load(Ordering::Relaxed));
                matches!(thread, Some(Thread::Clear))
            };
            while !is_clear(&watch) && Instant::now() < deadline {
                watch.all_clear(std::process::id(), deadline).unwrap();
            }
            let was_clear = is_clear(&watch);
            over.store(true, Ordering::Relaxed);
            sleeper.thread().unpark();
            assert!(was_clear);
        });
    }

    /// A file that cannot be read says nothing, unless there is no such file.
    #[test]
    fn a_thread_whose_state_cannot_be_read_is_not_clear() {
        let mut watch = CallWatch::begin();
        // Here a file replaces the thread's directory: the error for `stat` below it does not mean that the thread has
        // ended.
        assert!(!watch.look(1, Path::new("/proc/self/status")));
        assert!(watch.threads.is_empty());
        assert!(watch.look(1, Path::new("/proc/self/task/none")));
    }

    #[test]
    fn a_missing_process_is_an_error() {
        let deadline = Instant::now() + LONG;
        assert!(CallWatch::begin().all_clear(u32::MAX, deadline).is_err());
    }
}
