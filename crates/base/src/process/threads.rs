//! Checks whether a process is copying at this moment.

use std::fs;
use std::io;
use std::path::Path;

/// Whether every thread of the process has been seen outside a system call that copies between processes: stopped (by
/// a signal or a debugger), frozen (by a control group), asleep in another call, or ended. False if some thread was in such
/// a call, or if that cannot be determined for every thread.
///
/// A thread that is stopped or frozen is on its way back to the program, or has not started. The thread may continue at any
/// time, and begin a call. The threads need not all have been seen at the same moment.
///
/// The PID must refer to the same process before and after the call: compare with a [`PidFd`](super::PidFd).
///
/// # Errors
///
/// There is no such process (in our namespace), or `/proc` does not show it.
pub fn no_thread_copies(pid: u32) -> io::Result<bool> {
    let mut seen = 0u64;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        let Ok(stat) = fs::read_to_string(task.join("stat")) else {
            // The thread has ended since it was listed, and others may have started; or the whole process has ended.
            fs::metadata(format!("/proc/{pid}"))?;
            return Ok(false);
        };
        if !is_elsewhere(&task, &stat) {
            return Ok(false);
        }
        seen += 1;
    }
    // If threads end while the list is read, it may lack some that are still alive.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let threads = stat_field(&stat, 20).and_then(|count| count.parse::<u64>().ok());
    Ok(threads == Some(seen))
}

/// Whether a thread with this `stat` is outside any call that copies.
pub(super) fn is_elsewhere(task: &Path, stat: &str) -> bool {
    match stat_field(stat, 3) {
        // Stopped, traced, dead, a zombie.
        Some("T" | "t" | "X" | "Z") => true,
        Some("S" | "D" | "I") => sleeps_elsewhere(task),
        _ => false,
    }
}

/// Whether a thread sleeps where the kernel stops or freezes threads, or inside a call that does not copy between
/// processes. The kernel discloses this only to processes that may trace the thread.
fn sleeps_elsewhere(task: &Path) -> bool {
    // The first is the kernel function in which threads of a version 2 control group are frozen; the others are its
    // counterparts in other kernels.
    const AT_THE_DOOR: [&str; 4] = [
        "get_signal",
        "do_freezer_trap",
        "do_jobctl_trap",
        "__refrigerator",
    ];
    let tell = |name| fs::read_to_string(task.join(name)).unwrap_or_default();
    // For a thread that is frozen on its way out of a call, `syscall` still shows that call, so this check comes
    // first.
    if AT_THE_DOOR.contains(&tell("wchan").trim()) {
        return true;
    }
    // "running", or -1 for none, or the number of the call.
    let call = tell("syscall");
    let number = call.split_ascii_whitespace().next();
    let number = number.and_then(|number| number.parse::<i64>().ok());
    number.is_some_and(|number| {
        number != libc::SYS_process_vm_readv && number != libc::SYS_process_vm_writev
    })
}

/// A field of `/proc/*/stat`, counted from 1 as in proc(5). The second field is a name, which may contain any
/// characters.
#[must_use]
pub fn stat_field(stat: &str, number: usize) -> Option<&str> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name
        .split_ascii_whitespace()
        .nth(number.checked_sub(3)?)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A process that is always busy: this test program, running one of the tests below.
    struct Busy(Child);

    impl Busy {
        fn start(test: &str) -> Self {
            let mut command = Command::new(std::env::current_exe().unwrap());
            let only = format!("process::threads::tests::{test}");
            command.args(["--exact", &only, "--nocapture", "--test-threads=1"]);
            command.env(BUSY, "1").stdout(Stdio::null());
            Self(command.spawn().unwrap())
        }

        fn pid(&self) -> u32 {
            self.0.id()
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    const BUSY: &str = "RKEY_TEST_BUSY";

    /// What a [`Busy`] process runs until it is killed, for a minute at most; does nothing when the suite runs it as
    /// a test.
    fn busy(mut work: impl FnMut()) {
        if std::env::var_os(BUSY).is_none() {
            return;
        }
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            work();
        }
    }

    #[test]
    fn code_of_a_process_that_copies_forever() {
        let source = vec![1u8; 1 << 20];
        let mut target = vec![0u8; 1 << 20];
        let from = source.as_ptr().expose_provenance() as u64;
        busy(|| {
            #[expect(unsafe_code, reason = "a copy to a raw address")]
            // SAFETY: the length is that of the buffer.
            let copied = unsafe {
                crate::process::cma_read(std::process::id(), target.as_mut_ptr(), from, 1 << 20)
            };
            copied.unwrap();
        });
    }

    #[test]
    fn code_of_a_process_that_starts_threads_forever() {
        busy(|| {
            let threads = std::array::from_fn::<_, 4, _>(|_| std::thread::spawn(|| {}));
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    /// A thread that ends while the list is read is not an error: the process exists.
    #[test]
    fn a_thread_that_ends_during_the_check_is_not_an_error() {
        let busy = Busy::start("code_of_a_process_that_starts_threads_forever");
        for _ in 0..5000 {
            no_thread_copies(busy.pid()).unwrap();
        }
    }

    /// Checks that at least one of many samples sees the process in the middle of a copy.
    fn is_seen_copying(pid: u32) {
        until("it copies", || !no_thread_copies(pid).unwrap());
    }

    #[test]
    fn a_stopped_process_is_seen_not_to_copy() {
        assert!(!no_thread_copies(std::process::id()).unwrap());
        let mut busy = Busy::start("code_of_a_process_that_copies_forever");
        let pid = busy.pid();
        let signal = |signal| {
            let id = rustix::process::Pid::from_raw(pid as i32).unwrap();
            rustix::process::kill_process(id, signal).unwrap();
        };
        for _ in 0..20 {
            is_seen_copying(pid);
            signal(rustix::process::Signal::STOP);
            until("it stops", || no_thread_copies(pid).unwrap());
            for _ in 0..20 {
                assert!(no_thread_copies(pid).unwrap());
            }
            signal(rustix::process::Signal::CONT);
        }
        busy.0.kill().unwrap();
        // A zombie does nothing.
        until("it ends", || no_thread_copies(pid).unwrap());
        busy.0.wait().unwrap();
        assert!(no_thread_copies(pid).is_err());
    }

    /// Frozen by a control group, as containers are when they are paused.
    #[test]
    fn a_frozen_process_is_seen_not_to_copy() {
        let name = format!("rkey-test-{}", std::process::id());
        let groups = [
            ("/sys/fs/cgroup", "cgroup.freeze", "1", "0"),
            ("/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"),
            (
                "/sys/fs/cgroup/freezer",
                "freezer.state",
                "FROZEN",
                "THAWED",
            ),
        ];
        let mut tried = 0;
        for (root, file, freeze, thaw) in groups {
            let group = Path::new(root).join(&name);
            let usable = Path::new(root).join("cgroup.procs").exists();
            if !usable || fs::create_dir(&group).is_err() {
                continue;
            }
            let busy = Busy::start("code_of_a_process_that_copies_forever");
            let pid = busy.pid();
            fs::write(group.join("cgroup.procs"), pid.to_string()).unwrap();
            for _ in 0..5 {
                is_seen_copying(pid);
                fs::write(group.join(file), freeze).unwrap();
                until("it is frozen", || no_thread_copies(pid).unwrap());
                for _ in 0..20 {
                    assert!(no_thread_copies(pid).unwrap());
                }
                fs::write(group.join(file), thaw).unwrap();
            }
            drop(busy);
            until("the group is empty", || fs::remove_dir(&group).is_ok());
            tried += 1;
        }
        if tried == 0 {
            eprintln!("SKIP: cannot create a control group here");
        }
    }

    #[test]
    fn a_sleeping_process_is_seen_not_to_copy() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let told = fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok();
        if told {
            until("it sleeps", || no_thread_copies(pid).unwrap());
        } else {
            eprintln!("SKIP: the kernel does not show the system calls of other processes");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn stat_fields_are_found_after_any_program_name() {
        let stat = "12 (a) b (c) T 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18";
        assert_eq!(stat_field(stat, 3), Some("T"));
        assert_eq!(stat_field(stat, 20), Some("17"));
        assert_eq!(stat_field(stat, 1), None);
        assert_eq!(stat_field("nonsense", 3), None);
    }
}
