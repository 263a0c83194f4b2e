//! The Mooncake transfer engine, a program that moves the memory of language models, over our `libibverbs.so.1`: the
//! build from the Python package index that needs no GPU, between two processes, as root and as an ordinary user.

use crate::folder::once;
use crate::folder::{copy, open_up, run_as, verbs_into};
use crate::python::pip;
use anyhow::Result;
use rkey_harness::{Report, Session, UID, in_target, process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PROGRAM: &str = "abi/verbs/tests/transfer/transfer.py";
const PACKAGE: &str = "mooncake-transfer-engine-non-cuda==0.3.13.post1";
/// How long a run may take. It takes seconds, but longer on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// The stage.
///
/// # Errors
/// The Python package index cannot be reached, or the program does not start.
pub fn tests(session: &Session<'_>) -> Result<Report> {
    let folder = place(session)?;
    let mut users = vec![None];
    if process::is_root() {
        users.push(Some(UID));
    }
    let mut report = Report {
        passed: 0,
        failures: Vec::new(),
        note: PACKAGE.to_owned(),
        skipped: false,
    };
    for user in users {
        match run(&folder, user)? {
            None => report.passed += 1,
            Some(said) => {
                let who = user.map_or("as this user".to_owned(), |uid| format!("as uid {uid}"));
                report.failures.push(format!("transfer.py, {who}\n{said}"));
            }
        }
    }
    Ok(report)
}

/// A directory that all users can read, with the package, the program and the library.
fn place(session: &Session<'_>) -> Result<PathBuf> {
    let kept = in_target(session, "transfer")?;
    install(&kept)?;
    let folder = session.scratch.join("transfer");
    verbs_into(session, &folder.join("lib"))?;
    fs::copy(session.root.join(PROGRAM), folder.join("transfer.py"))?;
    copy(&kept.join("venv"), &folder)?;
    for open in [&session.scratch, &folder] {
        open_up(open)?;
    }
    Ok(folder)
}

/// Downloads the package, once for a target directory.
fn install(kept: &Path) -> Result<()> {
    let words = ["install", "-q", "--only-binary", ":all:", PACKAGE];
    once(kept, PACKAGE, || pip(kept, "venv", &words))
}

/// Runs the program; returns its output if it failed.
fn run(folder: &Path, user: Option<u32>) -> Result<Option<String>> {
    let library = folder.join("lib/libibverbs.so.1");
    let mut command = Command::new(folder.join("venv/bin/python3"));
    run_as(&mut command, user, folder)?;
    command
        .arg(folder.join("transfer.py"))
        .env("LD_LIBRARY_PATH", folder.join("lib"))
        .env("LD_PRELOAD", library);
    let outcome = process::run(command, LIMIT)?;
    let good = outcome.ok && outcome.output.lines().any(|line| line == "done");
    Ok((!good).then_some(outcome.output))
}
