//! Runs the process tests again as an unprivileged user, who cannot read the checkout, so the programs are copied to a
//! directory that every user can read.

use super::steps::{self, MINUTE};
use super::{Report, Session};
use crate::{process, testbin};
use anyhow::{Context, Result};
use rkey_harness::UID;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crates whose tests start processes or query the kernel about them.
const CRATES: &[&str] = &[
    "rkey-base",
    "rkey-link",
    "rkey-cache",
    "rkey-kinds",
    "rkey-device",
    "rkey",
    "rkey-bench",
    "rkey-cli",
    "rkey-conformance",
    "rkey-verbs",
    "rkey-fabric",
    "rkey-rdmacm",
    "rkey-udapl",
    "rkey-dat1",
    "rkey-libfabric",
    "rkey-all",
];

/// Targets that are not process tests: they need cargo or the checkout, or feed arbitrary bytes to parsers.
const LEFT_OUT: &[&str] = &["compile_fail", "fuzz_smoke"];

/// Tests that take long, and for which the user makes no difference: they try many inputs, copy much memory, or wait for outages, absent
/// hosts or lost packets. Other tests between hosts run again.
const SAME_FOR_ALL_USERS: &[&str] = &[
    "hostile::arbitrary_messages_from_a_peer_do_no_harm",
    "hosts::failures",
    "hosts::networks",
    "hosts::absent",
    "bad_network",
    "injected_faults",
    "on_a_network_that_loses_packets",
    "on_a_congested_network",
    "stopped::no_stopped_peer",
];

/// Shared libraries that tests load into other programs.
const FRONT_ENDS: &[&str] = &["librkey_all.so", "libdat.so", "libfabric.so"];

/// Runs the process tests as `UID`.
pub(super) fn tests(session: &Session<'_>) -> Result<Report> {
    if !process::is_root() {
        return Ok(Report::skip(
            "not root: the tests have already run as an ordinary user",
        ));
    }
    let built = testbin::build_tests(session.root)?;
    let mut total = Report {
        passed: 0,
        failures: Vec::new(),
        note: format!("as uid {UID}"),
        skipped: false,
    };
    let wanted = |b: &&testbin::TestBinary| {
        CRATES.contains(&b.package.as_str()) && !LEFT_OUT.contains(&b.target.as_str())
    };
    let programs = testbin::build_all(session.root)?.programs;
    let rkey = programs
        .get("rkey")
        .map(|program| copy(session, &program.executable))
        .transpose()?;
    // The front ends are copied next to the programs, which search their own directory for them. The filter skips procedural
    // macros, which are libraries, too.
    for front_end in built
        .libraries
        .iter()
        .filter(|(name, _)| FRONT_ENDS.contains(&name.as_str()))
    {
        copy(session, front_end.1)?;
    }
    for example in programs.values().filter(|program| program.is_example) {
        copy_to(session, &example.executable, "bin/examples")?;
    }
    for binary in built.tests.iter().filter(wanted) {
        let mut command = command(session, &binary.executable)?;
        command.args(["--test-threads", "2"]);
        for name in SAME_FOR_ALL_USERS {
            command.args(["--skip", name]);
        }
        if let Some(rkey) = &rkey {
            command.env("RKEY_BIN", rkey);
        }
        let report = steps::counted(command, 30 * MINUTE, "")?;
        total.passed += report.passed;
        total.failures.extend(report.failures);
    }
    Ok(total)
}

/// A command that runs a copy of `program` as `UID` in its own directory.
pub(super) fn command(session: &Session<'_>, program: &Path) -> Result<Command> {
    let copied = copy(session, program)?;
    let own = session.scratch.join("own");
    fs::create_dir_all(&own)?;
    chown(&own, Some(UID), Some(UID)).context("cannot chown the directory of a test")?;
    let mut command = Command::new(copied);
    command.uid(UID).gid(UID).current_dir(&own);
    command
        .env("HOME", &own)
        .env("TMPDIR", &own)
        .env_remove("CARGO_TARGET_DIR");
    Ok(command)
}

/// Copies `program` to a directory in which every user may run it.
fn copy(session: &Session<'_>, program: &Path) -> Result<PathBuf> {
    copy_to(session, program, "bin")
}

fn copy_to(session: &Session<'_>, program: &Path, folder: &str) -> Result<PathBuf> {
    let programs = session.scratch.join(folder);
    fs::create_dir_all(&programs)?;
    for folder in [&session.scratch, &programs] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    }
    let name = program
        .file_name()
        .with_context(|| format!("{} has no file name", program.display()))?;
    let to = programs.join(name);
    // An earlier copy may still be running and cannot be written to, so it is replaced.
    let new = programs.join(format!("{}.new", name.to_string_lossy()));
    fs::copy(program, &new).with_context(|| format!("cannot copy {}", program.display()))?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
    fs::rename(&new, &to)?;
    Ok(to)
}
