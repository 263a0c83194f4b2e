//! Whether a process stands still.

use std::fs;
use std::io;

/// Whether every thread of the process has been seen stopped (by a signal or a debugger), or ended. False if some thread
/// was not, or if that cannot be told for all of them.
///
/// A thread that is stopped is not inside of a system call that copies: it is stopped on its way back to the program, or
/// has not begun. It may go on at any time. Not all threads need have been stopped at the same moment.
///
/// The number must mean the same process before and after the call: compare with a [`PidFd`](super::PidFd).
///
/// # Errors
///
/// There is no such process (in our namespace), or `/proc` does not tell.
pub fn all_threads_stopped(pid: u32) -> io::Result<bool> {
    let mut seen = 0u64;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = fs::read_to_string(task?.path().join("stat"))?;
        match field(&stat, 3) {
            // Stopped, traced, dead, a zombie.
            Some("T" | "t" | "X" | "Z") => seen += 1,
            _ => return Ok(false),
        }
    }
    // A list that is read while threads end may lack some that have not.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let threads = field(&stat, 20).and_then(|count| count.parse::<u64>().ok());
    Ok(threads == Some(seen))
}

/// A field of `/proc/*/stat`, counted from 1 as in proc(5). The second one is a name, which may contain anything.
fn field(stat: &str, number: usize) -> Option<&str> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name
        .split_ascii_whitespace()
        .nth(number.checked_sub(3)?)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn a_process_stops_and_goes_on() {
        assert!(!all_threads_stopped(std::process::id()).unwrap());
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let signal = |signal| {
            let id = rustix::process::Pid::from_raw(pid as i32).unwrap();
            rustix::process::kill_process(id, signal).unwrap();
        };
        let until = |stopped: bool| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while all_threads_stopped(pid).unwrap() != stopped {
                assert!(Instant::now() < deadline);
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        assert!(!all_threads_stopped(pid).unwrap());
        signal(rustix::process::Signal::STOP);
        until(true);
        signal(rustix::process::Signal::CONT);
        until(false);
        child.kill().unwrap();
        // A zombie does nothing any more.
        until(true);
        child.wait().unwrap();
        assert!(all_threads_stopped(pid).is_err());
    }

    #[test]
    fn names_with_anything_in_them() {
        let stat = "12 (a) b (c) T 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18";
        assert_eq!(field(stat, 3), Some("T"));
        assert_eq!(field(stat, 20), Some("17"));
        assert_eq!(field(stat, 1), None);
        assert_eq!(field("nonsense", 3), None);
    }
}
