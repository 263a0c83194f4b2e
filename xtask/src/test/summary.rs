//! The end of a run: a table of the stages, a closing line, and the counts in the output of cargo and nextest.

use super::Row;
use std::time::Duration;

/// The maximum number of characters of a failure's line at the end of a run.
const REASON: usize = 400;

/// Prints the failures, the table, a line for each failure and the closing line; returns true if nothing failed.
/// Failures are printed twice because many readers see only the end of a run, and some only its last lines.
pub(super) fn print(rows: &[Row], took: Duration) -> bool {
    for row in rows {
        for said in &row.report.failures {
            println!("\nfailed in stage {}: {said}", row.name);
        }
    }
    println!(
        "\n{:<14} {:>7} {:>7} {:>8}  note",
        "stage", "passed", "failed", "seconds"
    );
    for row in rows {
        let state = if row.report.skipped { "SKIP: " } else { "" };
        println!(
            "{:<14} {:>7} {:>7} {:>8.1}  {state}{}",
            row.name,
            row.report.passed,
            row.report.failures.len(),
            row.took.as_secs_f64(),
            row.report.note
        );
    }
    let passed: usize = rows.iter().map(|row| row.report.passed).sum();
    let failed: usize = rows.iter().map(|row| row.report.failures.len()).sum();
    let skipped = rows.iter().filter(|row| row.report.skipped).count();
    let minutes = took.as_secs_f64() / 60.0;
    println!(
        "\n{} stages in {minutes:.1} minutes, {skipped} skipped",
        rows.len()
    );
    for row in rows {
        for said in &row.report.failures {
            println!("failed: {}: {}", row.name, in_a_line(said));
        }
    }
    println!("{passed} passed, {failed} failed");
    failed == 0
}

/// Passed tests in the output of `cargo test` or `cargo nextest run`. nextest repeats the output of failed test
/// programs, so only its summary counts if there is one.
pub(super) fn passed(output: &str) -> usize {
    let lines = || output.lines().map(str::trim);
    let nextest: Vec<&str> = lines()
        .filter_map(|line| line.strip_prefix("Summary [")?.split_once("run:"))
        .map(|(_, counts)| counts)
        .collect();
    let counts: Vec<&str> = match nextest.is_empty() {
        false => nextest,
        true => lines()
            .filter_map(|line| line.strip_prefix("test result:"))
            .collect(),
    };
    counts
        .into_iter()
        .map(|words| number_before(words, "passed"))
        .sum()
}

/// Why tests did not run, each reason once. Such a test prints the reason and returns, so it counts as passed. nextest shows
/// what passed tests print only for the tests that `.config/nextest.toml` names.
pub(super) fn skips(output: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in output.lines().map(str::trim) {
        let why = line.strip_prefix("skipped: ");
        let why = why.or_else(|| line.strip_prefix("SKIP: "));
        if let Some(why) = why.filter(|why| !found.contains(why)) {
            found.push(why);
        }
    }
    found
}

/// The name of a failure, and its panic or error.
fn in_a_line(failure: &str) -> String {
    let mut lines = failure.lines().map(str::trim);
    let name = lines.next().unwrap_or_default();
    let said: Vec<&str> = lines.collect();
    let panic = said.iter().position(|line| line.contains("panicked at"));
    let reason = match panic {
        Some(at) => said[at..]
            .iter()
            .take(3)
            .copied()
            .collect::<Vec<_>>()
            .join(" "),
        None => said.last().copied().unwrap_or_default().to_owned(),
    };
    let text = format!("{name}: {reason}");
    text.chars().take(REASON).collect()
}

/// The number before `word`, or 0 if it does not occur.
fn number_before(text: &str, word: &str) -> usize {
    let Some(at) = text.find(word) else { return 0 };
    text[..at]
        .split_whitespace()
        .next_back()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_for_skipped_tests_are_listed_once() {
        let output = "running 1 test\n    skipped: no driver\ntest a ... ok\nSKIP: not root\n skipped: no driver\n1 skipped";
        assert_eq!(skips(output), ["no driver", "not root"]);
    }

    #[test]
    fn a_failure_fits_on_a_line() {
        let panic = "FAIL rkey t::bad\n    thread 't::bad' panicked at src/lib.rs:1:1:\n    left: 1\n    right: 2\n    note: x";
        assert_eq!(
            in_a_line(panic),
            "FAIL rkey t::bad: thread 't::bad' panicked at src/lib.rs:1:1: left: 1 right: 2"
        );
        assert_eq!(
            in_a_line("cargo fmt\n    Diff in\n    error: last"),
            "cargo fmt: error: last"
        );
        assert_eq!(in_a_line(&"x".repeat(999)).len(), REASON);
    }

    #[test]
    fn test_counts_of_cargo_and_nextest_are_parsed() {
        let cargo = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured\n\
                     test result: FAILED. 3 passed; 2 failed; 0 ignored";
        assert_eq!(passed(cargo), 15);
        let nextest = "     Summary [   1.234s] 20 tests run: 17 passed (1 slow), 2 failed, 1 timed out, 4 skipped";
        assert_eq!(passed(nextest), 17);
        let repeated = format!("test result: FAILED. 1 passed; 1 failed; 0 ignored\n{nextest}");
        assert_eq!(passed(&repeated), 17);
        assert_eq!(passed("nothing was run"), 0);
    }
}
