//! Compares the instructions, loads and stores of the short paths with those recorded in `benches/counts.json`; `--record`
//! updates them.
//!
//! They depend on the compiler: with a compiler other than the recorded one, they are shown but not compared.

use super::steps::{MINUTE, succeeds};
use super::{Report, Session};
use crate::process;
use anyhow::{Context, Result};
use rkey_harness::in_target;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The recorded counts, in the repository.
const RECORD: &str = "benches/counts.json";
/// The increase over the recorded count that fails, in percent.
const TOLERANCE: f64 = 2.0;
/// The increase that never fails: a register more that is saved in a short path is not a trend.
const SLACK: f64 = 3.0;

/// The output of `rkey bench --count --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Count {
    path: String,
    side: String,
    instructions: f64,
    loads: f64,
    stores: f64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    compiler: String,
    counts: Vec<Count>,
}

/// The stage; `program` is the release build of `rkey`.
pub(super) fn tests(session: &Session<'_>, program: &Path) -> Result<Report> {
    let found = in_target(session, "counts")?.join("counts.json");
    fs::create_dir_all(found.parent().context("counts.json has no directory")?)?;
    let mut command = Command::new(program);
    command
        .args(["bench", "--count", "--json"])
        .arg(&found)
        .current_dir(session.root);
    if let Err(failure) = succeeds(command, 15 * MINUTE)? {
        return Ok(Report::check(Err(failure), "rkey bench --count"));
    }
    let counts: Vec<Count> = serde_json::from_str(&fs::read_to_string(&found)?)?;
    let compiler = process::capture(Command::new("rustc").arg("--version"))?;
    let compiler = compiler.trim().to_owned();
    let path = session.root.join(RECORD);
    if session.record {
        let record = serde_json::to_string_pretty(&Record { compiler, counts })?;
        fs::write(&path, record + "\n")?;
        return Ok(Report::check(Ok(()), format!("recorded in {RECORD}")));
    }
    let record: Record = serde_json::from_str(&fs::read_to_string(&path)?)
        .with_context(|| format!("cannot read {RECORD}"))?;
    if record.compiler != compiler {
        return Ok(Report::skip(format!(
            "{RECORD} was recorded with {}, but this compiler is {compiler}",
            record.compiler
        )));
    }
    let failures = judge(&record.counts, &counts);
    Ok(Report {
        passed: counts.len().saturating_sub(failures.len()),
        failures,
        note: format!("at most {TOLERANCE} % more instructions, loads or stores than in {RECORD}"),
        skipped: false,
    })
}

impl Count {
    fn events(&self) -> [(&'static str, f64); 3] {
        [
            ("instructions", self.instructions),
            ("loads", self.loads),
            ("stores", self.stores),
        ]
    }
}

/// Returns a line for each count that is higher than recorded, and for each path that is no longer counted.
fn judge(recorded: &[Count], found: &[Count]) -> Vec<String> {
    let mut failures = Vec::new();
    for old in recorded {
        let (path, side) = (&old.path, &old.side);
        let same = |new: &&Count| new.path == *path && new.side == *side;
        let Some(new) = found.iter().find(same) else {
            failures.push(format!("{path}, {side}: recorded, but no longer counted"));
            continue;
        };
        for ((what, old), (_, new)) in old.events().into_iter().zip(new.events()) {
            let more = (new / old - 1.0) * 100.0;
            if more > TOLERANCE && new - old > SLACK {
                failures.push(format!(
                    "{path}, {side}: {new:.0} {what}, {old:.0} recorded ({more:+.1} %); if the increase is intended, record \
                     it: cargo xtask test --only counts --record"
                ));
            }
        }
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, [instructions, loads, stores]: [f64; 3]) -> Count {
        Count {
            path: path.into(),
            side: "initiator".into(),
            instructions,
            loads,
            stores,
        }
    }

    #[test]
    fn a_count_above_the_tolerance_fails() {
        let usual = [1000.0, 300.0, 200.0];
        let recorded = ["a", "b", "c", "d"].map(|path| count(path, usual));
        let found = [
            count("a", [1019.0, 303.0, 203.0]),
            count("b", [1021.0, 300.0, 200.0]),
            count("c", [500.0, 300.0, 205.0]),
            count("d", [1000.0, 307.0, 200.0]),
        ];
        let failures = judge(&recorded, &found);
        let begins = [
            "b, initiator: 1021 instructions, 1000 recorded (+2.1 %)",
            "c, initiator: 205 stores, 200 recorded (+2.5 %)",
            "d, initiator: 307 loads, 300 recorded (+2.3 %)",
        ];
        assert_eq!(failures.len(), begins.len(), "{failures:?}");
        for (failure, begin) in failures.iter().zip(begins) {
            assert!(failure.starts_with(begin), "{failure}");
        }
        assert_eq!(judge(&recorded, &found[1..]).len(), 4, "a is missing");
    }
}
