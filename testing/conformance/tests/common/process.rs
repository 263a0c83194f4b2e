//! Child processes, and a process's resources: descriptors, mappings, memory, names, processor time.
#![allow(unsafe_code)] // UNSAFETY: kill(2) and sysconf(3) have no safe wrapper in the standard library.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::{LONG, until};

const ROLE: &str = "RKEY_TEST_ROLE";
const ADDRESS: &str = "RKEY_TEST_ADDRESS";

/// The role in which this process was started; `None` in the test itself.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The address at which the test listens, or this process must listen.
pub fn address() -> SocketAddr {
    std::env::var(ADDRESS).unwrap().parse().unwrap()
}

/// This binary, running only `test`, in a role.
pub fn command(test: &str, role: &str, address: SocketAddr) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(ADDRESS, address.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    command
}

/// Whether this process runs only `test`, so that no other test uses descriptors, threads or memory in it. If not,
/// runs the test in such a process, and the caller has nothing left to do.
pub fn alone(test: &str) -> bool {
    if role().as_deref() == Some("alone") {
        return true;
    }
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let output = command(test, "alone", nowhere)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}", output.status);
    false
}

/// A child, killed on drop.
pub struct Peer(pub Child);

impl Peer {
    pub fn start(test: &str, role: &str, address: SocketAddr) -> Self {
        Self(command(test, role, address).spawn().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Sends a signal. The child has not been reaped, so the number is still its own.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill touches none of our memory.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }

    /// Stops the child, and waits until all of its threads have stopped.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        until("all threads of the peer to stop", || {
            // Threads that exit in the meantime shorten the list.
            let states = states(self.pid());
            states.len() == thread_count(self.pid()) && states.iter().all(|s| *s == 'T')
        });
    }

    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Closes the process's standard input and waits until it exits successfully.
    pub fn finish(mut self) {
        drop(self.0.stdin.take());
        let status = self.wait();
        assert!(status.success(), "the peer failed: {status}");
    }

    /// Waits until the child exits, for a limited time.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the peer did not exit in time");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits like a program that is doing other work, until the end of standard input.
pub fn sleep_in_read() {
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).unwrap() > 0 {}
}

/// The states of a process's threads, as letters.
pub fn states(pid: u32) -> Vec<char> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks
        .filter_map(|task| {
            let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
            stat.rsplit(')').next()?.trim_start().chars().next()
        })
        .collect()
}

/// The fields of `/proc/PID/stat` after the name; the first here is the state, field 3.
fn stat(pid: u32) -> Vec<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    after_name
        .split_ascii_whitespace()
        .map(str::to_owned)
        .collect()
}

fn thread_count(pid: u32) -> usize {
    stat(pid)[17].parse().unwrap()
}

/// The processor time of all threads of a process so far.
pub fn cpu_time(pid: u32) -> Duration {
    let fields = stat(pid);
    // utime and stime are fields 14 and 15.
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    // SAFETY: sysconf touches none of our memory.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as u64;
    Duration::from_millis(ticks * 1000 / per_second)
}

/// The least processor time that the processes used together during any interval of `time`. Settling takes
/// longer on a busy machine, so the quietest of several intervals counts: a process that spins or keeps waking
/// up does so in each of them.
pub fn quietest(pids: &[u32], time: Duration, enough: Duration) -> Duration {
    let used = || pids.iter().map(|&pid| cpu_time(pid)).sum::<Duration>();
    let mut least = Duration::MAX;
    for _ in 0..10 {
        let before = used();
        std::thread::sleep(time);
        least = least.min(used() - before);
        if least <= enough {
            break;
        }
    }
    least
}

/// The resources that this process holds, except those of warrants: peers may get some at any time.
/// [`Warrants`] has those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    pub descriptors: usize,
    /// Mappings of shared segments and of memory from the device's allocator.
    pub mappings: usize,
    pub threads: usize,
}

impl Holdings {
    pub fn now() -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let ours = maps.lines().filter(|l| l.contains("memfd:rkey"));
        let warrants = Warrants::now();
        Self {
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count() - warrants.descriptors,
            mappings: ours.filter(|l| !l.contains(WARRANT)).count(),
            threads: std::fs::read_dir("/proc/self/task").unwrap().count(),
        }
    }

    /// The resources once they no longer change: the device's threads may still be creating or freeing something, and
    /// may have to wait for a processor.
    pub fn settled() -> Self {
        let (mut last, mut same) = (Self::now(), 0);
        until("the resources of this process to settle", || {
            std::thread::sleep(Duration::from_millis(5));
            let now = Self::now();
            same = if now == last { same + 1 } else { 0 };
            last = now;
            same == 40
        });
        last
    }

    /// Waits until the resources are the same again.
    pub fn wait_for(self, when: &str) {
        let deadline = Instant::now() + LONG;
        loop {
            let now = Self::now();
            if now == self {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{when}: this process holds {now:?} instead of {self:?}; open files: {:?}",
                open_files(std::process::id())
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The name of the memory of a warrant.
const WARRANT: &str = "memfd:rkey-warrant";

/// What this process holds for warrants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warrants {
    /// For those that it has issued.
    pub descriptors: usize,
    /// For those that it has got.
    pub mappings: usize,
}

impl Warrants {
    pub fn now() -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let files = open_files(std::process::id());
        let of_warrants = files
            .iter()
            .filter(|file| file.to_string_lossy().contains(WARRANT));
        Self {
            descriptors: of_warrants.count(),
            mappings: maps.lines().filter(|l| l.contains(WARRANT)).count(),
        }
    }

    /// Waits until there is nothing but what peers have now (one descriptor for each warrant), and what queue pairs may have got
    /// (4 warrants each).
    pub fn settle(device: &rkey_device::Device, when: &str) {
        let deadline = Instant::now() + LONG;
        loop {
            let snapshot = device.inspect().unwrap();
            let issued: u32 = snapshot.links.iter().map(|link| link.warrants).sum();
            let now = Self::now();
            if now.descriptors == issued as usize && now.mappings <= 4 * snapshot.qps.len() {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{when}: this process holds {now:?}, but its peers have {issued} warrants"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The targets of a process's descriptors.
pub fn open_files(pid: u32) -> Vec<PathBuf> {
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    files
        .filter_map(|file| std::fs::read_link(file.ok()?.path()).ok())
        .collect()
}

/// Whether the abstract name (without the leading zero) is in use in our network namespace.
pub fn name_is_taken(name: &str) -> bool {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let name = format!("@{name}");
    table
        .lines()
        .any(|l| l.split_ascii_whitespace().last() == Some(&name))
}

/// The files in a directory whose names suggest that rkey made them.
pub fn litter(directory: &Path) -> BTreeSet<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return BTreeSet::new();
    };
    entries
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.contains("rkey")
        })
        .collect()
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The command for a role as another user, with a copy of this binary that all users may read. Dropping it
/// removes the copy.
pub struct OtherUser {
    pub command: Command,
    copy: PathBuf,
}

impl OtherUser {
    pub fn new(uid: u32, test: &str, role: &str, address: SocketAddr) -> Option<Self> {
        use std::os::unix::process::CommandExt;
        let own = std::env::current_exe().unwrap();
        let name = format!("rkey-test-{}-{test}-{role}", std::process::id());
        let copy = std::env::temp_dir().join(name);
        // Another process makes the copy: a program that is open for writing cannot be run, and a descriptor that is
        // open here is briefly also open in every process that another test starts.
        let mut install = Command::new("install");
        install.args(["-m", "755"]).arg(own).arg(&copy);
        install.status().ok()?.success().then_some(())?;
        let plain = super::process::command(test, role, address);
        let mut command = Command::new(&copy);
        command.args(plain.get_args());
        for (name, value) in plain.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command
            .env_remove("HOME")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .uid(uid)
            .gid(uid);
        Some(Self { command, copy })
    }
}

impl Drop for OtherUser {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.copy);
    }
}
