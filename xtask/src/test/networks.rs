//! Runs the tests between two hosts again over bad networks.

use super::{Report, Session, steps};
use crate::testbin;
use anyhow::{Context, Result};
use rkey_harness::network::{self, Conditions};
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

/// The networks by name. Each has one fault, so that a failure tells which.
const NETWORKS: [(&str, Conditions); 8] = [
    ("perfect", PERFECT),
    ("loss 0.1 %", losing(1000)),
    ("loss 1 %", losing(Conditions::percent(1))),
    ("loss 10 %", losing(Conditions::percent(10))),
    (
        "reorder 5 %",
        Conditions {
            reorder: Conditions::percent(5),
            ..PERFECT
        },
    ),
    (
        "duplicate 5 %",
        Conditions {
            duplicate: Conditions::percent(5),
            ..PERFECT
        },
    ),
    (
        "corrupt 1 %",
        Conditions {
            corrupt: Conditions::percent(1),
            ..PERFECT
        },
    ),
    (
        "50 ms",
        Conditions {
            delay: Duration::from_millis(25),
            ..PERFECT
        },
    ),
];

const PERFECT: Conditions = Conditions::PERFECT;

const fn losing(loss: u32) -> Conditions {
    Conditions { loss, ..PERFECT }
}

/// The test programs with tests between two hosts: package, target, and the beginning of the tests' names.
const PROGRAMS: [(&str, &str, &str); 5] = [
    ("rkey-verbs", "programs", "hosts::"),
    ("rkey-rdmacm", "programs", "hosts::"),
    ("rkey-fabric", "programs", "hosts::"),
    ("rkey-udapl", "programs", "hosts::"),
    ("rkey", "hosts", ""),
];

/// Parts of the names of tests that have a network of their own, or whose hosts exchange nothing.
const LEFT_OUT: [&str; 9] = [
    "network",
    "faults",
    "hosts::absent",
    "by_default",
    "refused",
    "stopped",
    "without_the_wire",
    "gid_indexes",
    "unplugged",
];

/// How long one program's tests may take on one network.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Runs all tests on each network.
pub(super) fn tests(session: &Session<'_>) -> Result<Report> {
    let itself = std::env::current_exe().context("xtask has no path")?;
    let built = testbin::build_tests(session.root)?;
    // Tests start these.
    testbin::build_all(session.root)?;
    let wanted = std::env::var("RKEY_NETWORKS").ok();
    let is_wanted = |name: &str| {
        wanted
            .as_ref()
            .is_none_or(|it| it.split(',').any(|one| one == name))
    };
    let mut total = Report {
        passed: 0,
        failures: Vec::new(),
        note: String::new(),
        skipped: false,
    };
    for (name, conditions) in NETWORKS.iter().filter(|(name, _)| is_wanted(name)) {
        let mut passed = 0;
        for (package, target, tests) in PROGRAMS {
            let binary = (built.tests.iter())
                .find(|it| it.package == package && it.target == target)
                .with_context(|| format!("{package} has no test program {target}"))?;
            let mut command = Command::new(&binary.executable);
            // Programs that poll need a processor each.
            command.args(["--test-threads", "1"]).arg(tests);
            command.current_dir(&binary.directory);
            for part in LEFT_OUT {
                command.args(["--skip", part]);
            }
            network::put_everywhere(&mut command, &itself, conditions);
            let report = steps::suite(command, LIMIT, "")?;
            passed += report.passed;
            let failures = report.failures.into_iter();
            total
                .failures
                .extend(failures.map(|it| format!("{name}: {it}")));
        }
        total.passed += passed;
        let _ = write!(
            total.note,
            "{}{name}: {passed}",
            if total.note.is_empty() { "" } else { ", " }
        );
    }
    Ok(total)
}
