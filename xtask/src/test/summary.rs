//! The end of a run: a table of the stages and one closing line; and reading the counts out of what
//! cargo and nextest print.

use super::Row;
use std::time::Duration;

/// Prints the table and the closing line; true when nothing failed.
pub(super) fn print(rows: &[Row], took: Duration) -> bool {
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
            row.report.failed,
            row.took.as_secs_f64(),
            row.report.note
        );
    }
    let passed: usize = rows.iter().map(|row| row.report.passed).sum();
    let failed: usize = rows.iter().map(|row| row.report.failed).sum();
    let skipped = rows.iter().filter(|row| row.report.skipped).count();
    let minutes = took.as_secs_f64() / 60.0;
    println!(
        "\n{} stages in {minutes:.1} minutes, {skipped} skipped",
        rows.len()
    );
    println!("{passed} passed, {failed} failed");
    failed == 0
}

/// Passed and failed tests in the output of `cargo test` or `cargo nextest run`.
pub(super) fn count(output: &str) -> (usize, usize) {
    let mut total = (0, 0);
    for line in output.lines().map(str::trim) {
        let words = line.strip_prefix("test result:").or_else(|| {
            let summary = line.strip_prefix("Summary [")?;
            summary.split_once("run:").map(|(_, rest)| rest)
        });
        let Some(words) = words else { continue };
        total.0 += number_before(words, "passed");
        total.1 += number_before(words, "failed") + number_before(words, "timed out");
    }
    total
}

/// The number that stands before `word`, 0 when it does not occur.
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
    fn counts_of_both_runners_are_read() {
        let cargo = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured\n\
                     test result: FAILED. 3 passed; 2 failed; 0 ignored";
        assert_eq!(count(cargo), (15, 2));
        let nextest = "     Summary [   1.234s] 20 tests run: 17 passed (1 slow), 2 failed, 1 timed out, 4 skipped";
        assert_eq!(count(nextest), (17, 3));
        assert_eq!(count("nothing was run"), (0, 0));
    }
}
