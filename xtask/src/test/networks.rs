//! Runs the tests between two hosts again over bad networks.

use super::{Report, Session, steps};
use crate::testbin;
use anyhow::{Context, Result};
use rkey_harness::hosts::Hosts;
use rkey_harness::network::{self, Conditions, Counts};
use std::fmt::Write;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// The networks by name. Each has one fault, so that a failure tells which.
const NETWORKS: [(&str, Conditions); 9] = [
    ("perfect", Conditions::PERFECT),
    ("loss 0.1 %", losing(1000)),
    ("loss 1 %", losing(Conditions::percent(1))),
    ("loss 10 %", losing(Conditions::percent(10))),
    (
        "reorder 5 %",
        Conditions {
            reorder: Conditions::percent(5),
            ..Conditions::PERFECT
        },
    ),
    (
        "duplicate 5 %",
        Conditions {
            duplicate: Conditions::percent(5),
            ..Conditions::PERFECT
        },
    ),
    (
        "corrupt 1 %",
        Conditions {
            corrupt: Conditions::percent(1),
            ..Conditions::PERFECT
        },
    ),
    (
        // Only the invariant checksum finds it.
        "corrupt behind the UDP checksum 1 %",
        Conditions {
            corrupt: Conditions::percent(1),
            mends_checksum: true,
            ..Conditions::PERFECT
        },
    ),
    (
        "50 ms",
        Conditions {
            delay: Duration::from_millis(25),
            ..Conditions::PERFECT
        },
    ),
];

const fn losing(loss: u32) -> Conditions {
    Conditions {
        loss,
        ..Conditions::PERFECT
    }
}

/// The test programs with tests between two hosts: package, target, and the beginning of the tests' names.
const PROGRAMS: [(&str, &str, &str); 5] = [
    ("rkey-verbs", "programs", "hosts::"),
    ("rkey-rdmacm", "programs", "hosts::"),
    ("rkey-fabric", "programs", "hosts::"),
    ("rkey-udapl", "programs", "hosts::"),
    ("rkey", "hosts", ""),
];

/// Parts of the names of tests that have a network of their own, make one side fail, or expect a refusal.
const LEFT_OUT: [&str; 9] = [
    "network",
    "failures",
    "faults",
    "hosts::absent",
    "by_default",
    "refused",
    "stopped",
    "without_the_wire",
    "gid_indexes",
];

/// How long one program's tests may take on one network.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Addresses for hosts that only show whether the machine permits them.
const ADDRESSES: [[&str; 2]; 2] = [["10.9.9.1", "fd09:9::1"], ["10.9.9.2", "fd09:9::2"]];

/// The networks with these names, separated by commas; all without names.
fn selected(names: Option<&str>) -> Result<Vec<&'static (&'static str, Conditions)>> {
    let Some(names) = names else {
        return Ok(NETWORKS.iter().collect());
    };
    let one = |name: &str| {
        let found = NETWORKS.iter().find(|(known, _)| *known == name.trim());
        let known = NETWORKS.map(|(known, _)| known).join(", ");
        found.with_context(|| format!("no network is named {name:?}; there are: {known}"))
    };
    names.split(',').map(one).collect()
}

/// Runs all tests on each network.
pub(super) fn tests(session: &Session<'_>) -> Result<Report> {
    let networks = selected(std::env::var("RKEY_NETWORKS").ok().as_deref())?;
    if Hosts::over(&Conditions::PERFECT.both_ways(), &[], 1500, &ADDRESSES).is_none() {
        let why = "this machine does not permit network namespaces, or has no /dev/net/tun";
        return Ok(Report::skip(why));
    }
    let itself = std::env::current_exe().context("xtask has no path")?;
    let built = testbin::build_tests(session.root)?;
    // Tests start these.
    testbin::build_all(session.root)?;
    fs::create_dir_all(&session.scratch).context("cannot make the directory of the counts")?;
    let mut total = Report {
        passed: 0,
        failures: Vec::new(),
        note: String::new(),
        skipped: false,
    };
    for (number, (name, conditions)) in networks.into_iter().enumerate() {
        let counts = session.scratch.join(format!("network-{number}"));
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
            network::put_everywhere(&mut command, &itself, conditions, &counts);
            let report = steps::suite(command, LIMIT, "")?;
            passed += report.passed;
            let failures = report.failures.into_iter();
            total
                .failures
                .extend(failures.map(|it| format!("{name}: {it}")));
        }
        total.passed += passed;
        let counted = network::counted(&counts).map_err(|error| error.to_string());
        let happened = counted.and_then(|counts| happened(conditions, &counts));
        total.add(happened.map_err(|why| format!("{name}: {why}")));
        let _ = write!(
            total.note,
            "{}{name}: {passed}",
            if total.note.is_empty() { "" } else { ", " }
        );
    }
    Ok(total)
}

/// Whether each fault has happened to packets. The error says what has happened.
fn happened(conditions: &Conditions, counts: &Counts) -> Result<(), String> {
    let pairs = [
        (conditions.loss, counts.lost),
        (conditions.duplicate, counts.duplicated),
        (conditions.reorder, counts.reordered),
        (conditions.corrupt, counts.corrupted),
        (0, counts.overflowed),
    ];
    match counts.sent > 0
        && pairs
            .iter()
            .all(|(share, count)| (*share > 0) == (*count > 0))
    {
        true => Ok(()),
        false => Err(format!("other faults should have happened than {counts:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_networks_are_an_error() {
        let names = |text| selected(text).map(|all| all.iter().map(|it| it.0).collect::<Vec<_>>());
        assert_eq!(names(None).unwrap().len(), NETWORKS.len());
        let two = names(Some("50 ms, loss 10 %")).unwrap();
        assert_eq!(two, ["50 ms", "loss 10 %"]);
        assert!(names(Some("50 ms,loss 11 %")).is_err());
        assert!(names(Some("")).is_err());
    }

    #[test]
    fn faults_must_happen_and_no_others() {
        let counts = Counts {
            sent: 100,
            lost: 1,
            ..Counts::default()
        };
        assert_eq!(happened(&losing(1000), &counts), Ok(()));
        assert!(happened(&losing(1000), &Counts::default()).is_err());
        assert!(happened(&Conditions::PERFECT, &counts).is_err());
    }
}
