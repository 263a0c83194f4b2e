//! The steps of stages: runs of programs that are checked or whose tests are counted.

use super::{Report, failures, summary};
use crate::process;
use anyhow::Result;
use std::process::Command;
use std::time::Duration;

pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// Runs a program as one check.
pub(super) fn succeeds(command: Command, limit: Duration) -> Result<Result<(), String>> {
    let described = process::describe(&command);
    let outcome = process::run(command, limit)?;
    Ok(match outcome.ok {
        true => Ok(()),
        false => Err(failures::of_program(&described, &outcome.output)),
    })
}

/// A cargo of the nightly toolchain, in `root`.
pub(super) fn nightly(root: &std::path::Path) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root).arg("+nightly");
    // These variables would select the toolchain that runs xtask.
    for name in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC"] {
        command.env_remove(name);
    }
    command
}

/// Runs a test command and counts its tests; a run that fails without a failed test counts as one failure.
pub(super) fn counted(command: Command, limit: Duration, note: &str) -> Result<Report> {
    let described = process::describe(&command);
    let outcome = process::run(command, limit)?;
    let mut report = Report {
        passed: summary::passed(&outcome.output),
        failures: failures::of_tests(&outcome.output),
        note: note.into(),
        skipped: false,
    };
    for why in summary::skips(&outcome.output) {
        report.note.push_str("; skipped: ");
        report.note.push_str(why);
    }
    if outcome.timed_out {
        report.note.push_str("; stopped at its time limit");
    }
    if !outcome.ok && report.failures.is_empty() {
        let said = failures::of_program(&described, &outcome.output);
        report.failures.push(said);
    }
    Ok(report)
}

/// Like `counted`, for a whole suite: a suite that runs no test fails.
pub(super) fn suite(command: Command, limit: Duration, note: &str) -> Result<Report> {
    let mut report = counted(command, limit, note)?;
    if report.passed == 0 && report.failures.is_empty() {
        report.failures.push("no test was run".into());
    }
    Ok(report)
}
