//! Running other programs: output passes through and is kept, a deadline ends what hangs, and a
//! program can be run as somebody else.

use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a program left.
pub(crate) struct Outcome {
    /// It exited with status 0 before its deadline.
    pub(crate) ok: bool,
    /// It was killed because its deadline had passed.
    pub(crate) timed_out: bool,
    /// Standard output and standard error, line by line as they came.
    pub(crate) output: String,
}

/// Runs `command` with its output shown and kept; kills it and its children after `limit`.
pub(crate) fn run(mut command: Command, limit: Duration) -> Result<Outcome> {
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
    let readers = [
        child
            .stdout
            .take()
            .map(|pipe| tee(pipe, Arc::clone(&output), false)),
        child
            .stderr
            .take()
            .map(|pipe| tee(pipe, Arc::clone(&output), true)),
    ];
    let finished = Arc::new(AtomicBool::new(false));
    let timed_out = Arc::new(AtomicBool::new(false));
    let guard = watch(
        child.id(),
        limit,
        Arc::clone(&finished),
        Arc::clone(&timed_out),
    );
    let status = child.wait()?;
    for reader in readers.into_iter().flatten() {
        let _ = reader.join();
    }
    finished.store(true, Ordering::Release);
    let _ = guard.join();
    let timed_out = timed_out.load(Ordering::Acquire);
    if timed_out {
        eprintln!("error: {described} was stopped after {} s", limit.as_secs());
    }
    let output = output.lock().map(|text| text.clone()).unwrap_or_default();
    Ok(Outcome {
        ok: status.success() && !timed_out,
        timed_out,
        output,
    })
}

fn tee(
    pipe: impl std::io::Read + Send + 'static,
    kept: Arc<Mutex<String>>,
    to_stderr: bool,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut lines = BufReader::new(pipe);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line).into_owned();
            let _ = if to_stderr {
                std::io::stderr().write_all(&line)
            } else {
                std::io::stdout().write_all(&line)
            };
            if let Ok(mut kept) = kept.lock() {
                kept.push_str(&text);
            }
            line.clear();
        }
    })
}

/// Kills the process group `pid` when `limit` passes before `finished` is set. The readers above end
/// only when every holder of the pipe is gone, so a forgotten grandchild is caught here as well.
fn watch(
    pid: u32,
    limit: Duration,
    finished: Arc<AtomicBool>,
    timed_out: Arc<AtomicBool>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let end = Instant::now() + limit;
        while !finished.load(Ordering::Acquire) {
            if Instant::now() >= end {
                timed_out.store(true, Ordering::Release);
                let group = format!("-{pid}");
                let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    })
}

/// The command as one would type it.
pub(crate) fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(
        command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    words.join(" ")
}

/// Runs `command` silently and returns its standard output when it succeeds.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let described = describe(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {described}"))?;
    anyhow::ensure!(
        output.status.success(),
        "{described} failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program of this name can be started.
pub(crate) fn exists(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Whether we are root.
pub(crate) fn is_root() -> bool {
    capture(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

/// A cargo command in `root`; the same cargo that runs us.
pub(crate) fn cargo(root: &std::path::Path) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root);
    // Variables that `cargo run` set for xtask itself and that would confuse an inner cargo.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_stopped() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo begun; sleep 100"]);
        let outcome = run(command, Duration::from_millis(300)).expect("sh starts");
        assert!(outcome.timed_out && !outcome.ok);
        assert!(outcome.output.contains("begun"));
    }

    #[test]
    fn a_failure_is_a_failure() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let outcome = run(command, Duration::from_secs(20)).expect("sh starts");
        assert!(!outcome.ok && !outcome.timed_out);
        assert!(outcome.output.contains("out") && outcome.output.contains("err"));
    }
}
