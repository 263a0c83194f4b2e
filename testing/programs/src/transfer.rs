//! The Mooncake transfer engine, a program that moves the memory of language models, over our `libibverbs.so.1`: the
//! build from the Python package index that needs no GPU, between two processes, as root and as an ordinary user, and
//! between two hosts.

use crate::folder::once;
use crate::folder::{copy, open_up, run_as, verbs_into};
use crate::python::pip;
use anyhow::Result;
use rkey_harness::hosts::Hosts;
use rkey_harness::{Report, Session, UID, in_target, process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PROGRAM: &str = "abi/verbs/tests/transfer/transfer.py";
const PACKAGE: &str = "mooncake-transfer-engine-non-cuda==0.3.13.post1";
/// The addresses of two hosts.
const ADDRESSES: [[&str; 2]; 2] = [["10.9.6.1", "fd09:6::1"], ["10.9.6.2", "fd09:6::2"]];
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
        let who = user.map_or("as this user".to_owned(), |uid| format!("as uid {uid}"));
        report.add(run(program(&folder, user)?, &who)?);
    }
    if let Some(hosts) = Hosts::new(1500, &ADDRESSES) {
        let command = between(&hosts, program(&folder, None)?);
        report.add(run(command, "between two hosts")?);
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

/// The program, which starts both sides.
fn program(folder: &Path, user: Option<u32>) -> Result<Command> {
    let library = folder.join("lib/libibverbs.so.1");
    let mut command = Command::new(folder.join("venv/bin/python3"));
    run_as(&mut command, user, folder)?;
    command
        .arg(folder.join("transfer.py"))
        .env("LD_LIBRARY_PATH", folder.join("lib"))
        .env("LD_PRELOAD", library);
    Ok(command)
}

/// Makes the program start its sides on two hosts, as an ordinary user.
fn between(hosts: &Hosts, mut command: Command) -> Command {
    let enter = [0, 1].map(|at| {
        let enter = hosts.enter_unprivileged(at, Command::new("nsenter"));
        process::describe(&enter)
    });
    command
        .env("TRANSFER_ADDRESSES", ADDRESSES.map(|it| it[0]).join(" "))
        .env("TRANSFER_COMMANDS", enter.join("\n"))
        .env("RKEY_WIRE", "auto");
    command
}

/// Runs the program.
fn run(command: Command, how: &str) -> Result<Result<(), String>> {
    let outcome = process::run(command, LIMIT)?;
    let good = outcome.ok && outcome.output.lines().any(|line| line == "done");
    let said = format!("transfer.py, {how}\n{}", outcome.output);
    Ok(if good { Ok(()) } else { Err(said) })
}
