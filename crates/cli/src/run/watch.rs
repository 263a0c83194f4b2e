//! Runs a program as a child, and prints what was refused when it exits.
//!
//! The devices of the program and of its children append refusals to our file. Signals that are sent only to this
//! process are forwarded to the program.

use super::folder;
use super::tidy::{REPORT, lock};
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{
    SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::Signals;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};

/// Signals that a terminal sends to the program as well.
const FROM_TERMINAL: &[i32] = &[SIGINT, SIGQUIT, SIGWINCH];
const OTHERS: &[i32] = &[SIGHUP, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT];

/// Runs a command until it exits, and prints the refusals. The inner error means that it could not be started.
pub(super) fn run(command: &mut Command) -> Result<io::Result<ExitCode>> {
    let report = Report::new()?;
    command.env("RKEY_REPORT", &report.path);
    let mut signals =
        Signals::new(FROM_TERMINAL.iter().chain(OTHERS)).context("cannot watch signals")?;
    let handle = signals.handle();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(Err(error)),
    };
    let pid = Pid::from_child(&child);
    let terminal = io::stdin().is_terminal();
    let forwarder = std::thread::spawn(move || {
        for number in signals.forever() {
            let has_got_it = terminal && FROM_TERMINAL.contains(&number);
            if !has_got_it && let Some(signal) = Signal::from_named_raw(number) {
                let _ = kill_process(pid, signal);
            }
        }
    });
    let status = child.wait();
    handle.close();
    let _ = forwarder.join();
    let status = status.context("cannot wait for the program to exit")?;
    report.print();
    drop(report); // `end_as` may not return
    Ok(Ok(end_as(status)))
}

/// Exits as the program did: by the same signal if that terminates us, otherwise with the exit code that a shell would use.
fn end_as(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        let _ = signal_hook::low_level::emulate_default_handler(signal);
        return ExitCode::from((128 + signal).to_le_bytes()[0]);
    }
    ExitCode::from(status.code().unwrap_or(1).to_le_bytes()[0])
}

/// The file to which refusals are appended. Dropping the value removes it.
struct Report {
    path: PathBuf,
    /// Locked while this watcher runs.
    _file: File,
}

impl Report {
    fn new() -> Result<Self> {
        let path = folder::private()?.join(format!("{REPORT}{}", std::process::id()));
        let _ = fs::remove_file(&path); // left by an earlier process with our PID
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let file = made.with_context(|| format!("cannot create {}", path.display()))?;
        lock(&file);
        Ok(Self { path, _file: file })
    }

    fn print(&self) {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        if text.is_empty() {
            eprintln!(
                "rkey: no process opened a device: the program did not use RDMA, or used another device; for MPI see `rkey run --help`"
            );
        } else if text.trim().is_empty() {
            eprintln!(
                "rkey: no access, registration call or connection was refused; RKEY_LOG=info shows why other calls failed"
            );
        } else {
            eprintln!("rkey: refused accesses, calls and connections:");
            text.lines()
                .filter(|line| !line.is_empty())
                .for_each(|line| eprintln!("{line}"));
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
