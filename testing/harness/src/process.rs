//! Runs other programs: passes their output through and keeps it, and kills programs that exceed their deadline.

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The outcome of a program.
pub struct Outcome {
    /// The program exited with status 0 before its deadline.
    pub ok: bool,
    /// The program was killed because its deadline had passed.
    pub timed_out: bool,
    /// Standard output and standard error, interleaved by lines.
    pub output: String,
}

/// How long to wait for the end of the output of a killed program.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long a captured program may take: those run here take minutes at most.
const HANG: Duration = Duration::from_secs(3600);
/// The pause between two polls.
const PAUSE: Duration = Duration::from_millis(10);

/// Runs `command` with its output shown and kept; kills it and its children after `limit`.
pub fn run(command: Command, limit: Duration) -> Result<Outcome> {
    run_for(command, limit, true)
}

/// Like [`run`], but hides the output, for programs with known failures that would look like failures of the suite.
pub fn run_unseen(command: Command, limit: Duration) -> Result<Outcome> {
    run_for(command, limit, false)
}

fn run_for(command: Command, limit: Duration, shown: bool) -> Result<Outcome> {
    let described = describe(&command);
    let end = Instant::now() + limit;
    let outcome = run_while(command, shown, move |_| Instant::now() < end)?;
    if outcome.timed_out {
        eprintln!("error: {described} was killed after {} s", limit.as_secs());
    }
    Ok(outcome)
}

/// Runs `command` until `may_go_on` returns false for its output so far; passes the output through if `shown`.
pub fn run_while(
    mut command: Command,
    shown: bool,
    may_go_on: impl Fn(&str) -> bool + Send + 'static,
) -> Result<Outcome> {
    let described = describe(&command);
    eprintln!("$ {described}");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {described}"))?;
    let output = Arc::new(Mutex::new(String::new()));
    let through = |stream| shown.then_some(stream);
    let readers = [
        child
            .stdout
            .take()
            .map(|pipe| tee(pipe, Arc::clone(&output), through(Stream::Out))),
        child
            .stderr
            .take()
            .map(|pipe| tee(pipe, Arc::clone(&output), through(Stream::Error))),
    ];
    let finished = Arc::new(AtomicBool::new(false));
    let pid = child.id();
    let guard = std::thread::spawn({
        let (finished, output) = (Arc::clone(&finished), Arc::clone(&output));
        let stays = move || may_go_on(&output.lock());
        move || watch(pid, &finished, stays)
    });
    let status = child.wait()?;
    // The readers end when every process with the pipe has ended, so this also kills forgotten grandchildren. It does
    // not wait for one that has left the process group.
    let mut killed = None;
    while !readers.iter().flatten().all(|reader| reader.is_finished()) {
        if guard.is_finished() && killed.get_or_insert_with(Instant::now).elapsed() > LAST_WORDS {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    finished.store(true, Ordering::Release);
    let timed_out = guard.join().unwrap_or(true);
    let output = output.lock().clone();
    Ok(Outcome {
        ok: status.success() && !timed_out,
        timed_out,
        output,
    })
}

/// One of our standard streams.
#[derive(Clone, Copy)]
enum Stream {
    Out,
    Error,
}

fn tee(
    pipe: impl std::io::Read + Send + 'static,
    kept: Arc<Mutex<String>>,
    through: Option<Stream>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut lines = BufReader::new(pipe);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line).into_owned();
            let _ = match through {
                Some(Stream::Out) => std::io::stdout().write_all(&line),
                Some(Stream::Error) => std::io::stderr().write_all(&line),
                None => Ok(()),
            };
            kept.lock().push_str(&text);
            line.clear();
        }
    })
}

/// Kills the process group `pid` if `stays` turns false before `finished`; returns whether it did.
fn watch(pid: u32, finished: &AtomicBool, stays: impl Fn() -> bool) -> bool {
    while !finished.load(Ordering::Acquire) {
        if !stays() {
            kill_group(pid);
            return true;
        }
        std::thread::sleep(PAUSE);
    }
    false
}

fn kill_group(pid: u32) {
    if let Some(group) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// The command as typed in a shell.
pub fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(
        command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    words.join(" ")
}

/// Runs `command` silently and returns its standard output if it succeeds. Kills it and its children if it hangs.
pub fn capture(command: &mut Command) -> Result<String> {
    capture_within(command, HANG)
}

fn capture_within(command: &mut Command, limit: Duration) -> Result<String> {
    let described = describe(command);
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {described}"))?;
    let pid = child.id();
    let (ended, end) = mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        let hangs = end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
        if hangs {
            kill_group(pid);
        }
        hangs
    });
    let output = child.wait_with_output();
    drop(ended);
    anyhow::ensure!(
        !guard.join().unwrap_or(true),
        "{described} was killed after {} s",
        limit.as_secs()
    );
    let output = output?;
    anyhow::ensure!(
        output.status.success(),
        "{described} failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program of this name can be started.
pub fn exists(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Whether we are root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A cargo command in `root`, with the same cargo that runs us.
pub fn cargo(root: &std::path::Path) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root);
    // `cargo run` set these for xtask; they would confuse an inner cargo.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// The directory in which cargo builds.
pub fn target_folder(root: &std::path::Path) -> Result<std::path::PathBuf> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .current_dir(root)
        .no_deps()
        .exec();
    let metadata = metadata.context("cargo metadata failed")?;
    Ok(metadata.target_directory.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::kill_process;

    #[test]
    fn a_program_that_hangs_is_stopped() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo begun; sleep 100"]);
        let outcome = run_while(command, true, |said| !said.contains("begun")).expect("sh starts");
        assert!(outcome.timed_out && !outcome.ok);
        assert!(outcome.output.contains("begun"));
    }

    #[test]
    fn a_captured_program_that_hangs_is_stopped() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 100"]);
        let error = capture_within(&mut command, Duration::from_millis(1)).unwrap_err();
        assert!(error.to_string().contains("was killed"), "{error}");
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2"]);
        assert_eq!(capture(&mut command).expect("it succeeds"), "out\n");
    }

    /// A grandchild that left the process group keeps the pipe open, and is not killed with the others.
    #[test]
    fn a_process_that_left_the_group_is_not_awaited() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "setsid sh -c 'echo begun $$; exec sleep 100' & sleep 100",
        ]);
        let outcome = run_while(command, true, |said| !said.contains("begun")).expect("sh starts");
        assert!(outcome.timed_out && !outcome.ok);
        let pid = outcome.output.trim().trim_start_matches("begun ");
        let pid = pid.parse().ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a number"), Signal::KILL).expect("it has not ended");
    }

    #[test]
    fn a_program_that_exits_with_an_error_is_a_failure() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let outcome = run(command, Duration::from_secs(20)).expect("sh starts");
        assert!(!outcome.ok && !outcome.timed_out);
        assert!(outcome.output.contains("out") && outcome.output.contains("err"));
    }
}
