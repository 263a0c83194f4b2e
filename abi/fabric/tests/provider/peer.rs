//! A side in another process: a test runs its own program again, with only this test, in another role.

use crate::harness::*;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "RKEY_TEST_ROLE";
/// Begins a line for the other process.
const MARK: &str = "rkey: ";

/// Whether this process is the peer of its test.
pub(crate) fn is_peer() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// In the peer, sends a line to the test.
pub(crate) fn say(what: &str) {
    // The test's own program prints to the same place; the mark distinguishes our lines.
    println!("\n{MARK}{what}");
}

/// In the peer, waits for a word from the test; `None` when the test has ended.
pub(crate) fn hear() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).unwrap();
    (read > 0).then(|| line.trim().to_owned())
}

/// The name of an endpoint in hexadecimal.
pub(crate) fn word_of_name(side: &Side) -> String {
    word_of(&name_of(side.ep))
}

/// Encodes a name in hexadecimal.
pub(crate) fn word_of(name: &[u8]) -> String {
    name.iter().map(|b| format!("{b:02x}")).collect()
}

/// The name that a hexadecimal word stands for.
pub(crate) fn name_in(word: &str) -> Vec<u8> {
    let pairs = word.as_bytes().chunks_exact(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// In the peer, sends the name of an endpoint.
pub(crate) fn say_name(side: &Side) {
    say(&word_of_name(side));
}

/// This program, running only `test`, as the peer.
pub(crate) fn rerun(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, "peer");
    command
}

/// Runs the rest of a test in strict mode, in another process, because the mode is that of a process. `test` is
/// the full name of the calling test.
pub(crate) fn strictly(test: &str, body: impl FnOnce()) {
    apart(test, ("FI_RKEY_STRICT", "1"), body);
}

/// Runs the rest of a test in another process, with this in its environment. `test` is the full name of the calling test.
pub(crate) fn apart(test: &str, (name, value): (&str, &str), body: impl FnOnce()) {
    if is_peer() {
        return body();
    }
    let run = rerun(test).env(name, value).output().unwrap();
    let said = [run.stdout, run.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(run.status.success(), "{}", said.concat());
    assert!(said[0].contains("1 passed"), "no test ran: {}", said[0]);
}

/// The other process, killed on drop.
pub(crate) struct Peer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts the peer. `test` is the full name of the calling test.
    pub(crate) fn start(test: &str, environment: &[(&str, &str)]) -> Self {
        let mut child = rerun(test)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self {
            child,
            to,
            from: BufReader::new(from),
        }
    }

    /// Its next line.
    pub(crate) fn heard(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(
                self.from.read_line(&mut line).unwrap() > 0,
                "the peer ended"
            );
            if let Some(said) = line.trim().strip_prefix(MARK) {
                return said.to_owned();
            }
        }
    }

    /// The name of its endpoint.
    pub(crate) fn name(&mut self) -> Vec<u8> {
        name_in(&self.heard())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn tell(&mut self, what: &str) {
        writeln!(self.to, "{what}").unwrap();
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: kill touches none of our memory; the process is our child and has not been reaped.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Stops it, and waits until all of its threads have stopped.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        until("the peer to stop", || has_stopped(self.pid()));
    }

    pub(crate) fn goes_on(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Ends the test in the peer and waits for its success.
    pub(crate) fn finish(mut self) {
        self.tell("end");
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the peer failed: {status}");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether every thread of a process is stopped.
fn has_stopped(pid: u32) -> bool {
    let fields = |place: std::path::PathBuf| {
        let stat = std::fs::read_to_string(place.join("stat")).ok()?;
        let (_, after_name) = stat.rsplit_once(')')?;
        Some(
            after_name
                .split_ascii_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    };
    let process = std::path::Path::new("/proc").join(pid.to_string());
    let tasks = std::fs::read_dir(process.join("task")).unwrap();
    // A thread that exits in the meantime no longer has a state, and is skipped.
    let states: Vec<_> = tasks.filter_map(|task| fields(task.ok()?.path())).collect();
    let threads = fields(process).unwrap()[17].parse();
    threads == Ok(states.len()) && states.iter().all(|fields| fields[0] == "T")
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}
