//! Feeds hostile bytes to all code that reads a peer's bytes: on stable Rust in every run, and guided by coverage
//! if cargo-fuzz is installed. Both start from `fuzz/seeds`, which `--record` replaces with the inputs that
//! coverage found.

use super::steps::{MINUTE, nightly, succeeds, suite};
use super::{Report, Session};
use crate::process;
use anyhow::{Context, Result, ensure};
use rkey_harness::in_target;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Seconds for each entry in every run, unless `RKEY_FUZZ_SECONDS` is set. With more, the whole suite would take over 40 minutes.
const SECONDS: u64 = 3;

/// Seconds for each coverage-guided target, unless `RKEY_FUZZ_SECONDS` is set.
const GUIDED_SECONDS: u64 = 60;

/// The longest input that a coverage-guided run may try, in bytes.
const LONGEST: usize = 4096;

/// How many bytes of seeds are kept for a target.
const KEPT: usize = 24 << 10;

/// The first line of a file of seeds.
const HEAD: &str = "# Inputs that a coverage-guided run found, one per line, in hexadecimal. Written by \
    `cargo xtask test --only libfuzzer --record`.\n";

/// What `RKEY_FUZZ_SECONDS` says, or `default`.
fn seconds(default: u64) -> u64 {
    let set = std::env::var("RKEY_FUZZ_SECONDS").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs each entry on mutated samples and seeds, on stable Rust. The build is that of the other tests, which checks for overflows; a
/// release build would try one to two times as many inputs, but takes longer to compile than that saves.
pub(super) fn mutated(session: &Session<'_>) -> Result<Report> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut command = process::cargo(session.root);
    command.args(["test", "--workspace", "--test", "fuzz_smoke"]);
    command.args(["--", "--test-threads"]);
    command.arg(threads.to_string());
    let seconds = seconds(SECONDS);
    command.env("RKEY_FUZZ_SECONDS", seconds.to_string());
    let limit = 15 * MINUTE + 8 * Duration::from_secs(seconds);
    let note = format!("{seconds} s for each entry, mutated samples and seeds");
    suite(command, limit, &note)
}

/// Runs each target under libFuzzer, from a corpus that is kept in `fuzz/corpus`.
pub(super) fn by_coverage(session: &Session<'_>) -> Result<Report> {
    let cargo_fuzz = || nightly(session.root);
    if process::capture(cargo_fuzz().args(["fuzz", "--version"])).is_err() {
        return Ok(Report::skip(
            "no nightly toolchain, or no cargo-fuzz (cargo install cargo-fuzz)",
        ));
    }
    let corpus = session.root.join("fuzz/corpus");
    let mut seeds = process::cargo(session.root);
    seeds.args([
        "run",
        "-q",
        "-p",
        "rkey-conformance",
        "--example",
        "write_seeds",
    ]);
    seeds.arg("--").arg(&corpus);
    ensure!(
        process::run(seeds, 15 * MINUTE)?.ok,
        "the example write_seeds of rkey-conformance failed"
    );
    let list = process::capture(cargo_fuzz().args(["fuzz", "list"]))?;
    let seconds = seconds(GUIDED_SECONDS);
    let mut report = Report {
        passed: 0,
        failures: Vec::new(),
        note: format!("{seconds} s for each target"),
        skipped: false,
    };
    for target in list.lines() {
        let mut command = cargo_fuzz();
        command.args(["fuzz", "run", target, "--"]);
        command.arg(format!("-max_total_time={seconds}"));
        command.arg(format!("-max_len={LONGEST}"));
        // The first run builds the targets.
        let limit = 30 * MINUTE + Duration::from_secs(seconds);
        report.add(succeeds(command, limit)?);
        if session.record && report.failures.is_empty() {
            record(session, target, &corpus.join(target))?;
        }
    }
    ensure!(!list.is_empty(), "`cargo fuzz list` names no targets");
    Ok(report)
}

/// Replaces a target's seeds with the smallest set of inputs that covers the same code as `corpus`.
fn record(session: &Session<'_>, target: &str, corpus: &Path) -> Result<()> {
    let few = in_target(session, "fuzz-seeds")?.join(target);
    let _ = fs::remove_dir_all(&few);
    fs::create_dir_all(&few)?;
    let mut command = nightly(session.root);
    command.args(["fuzz", "run", target]);
    command
        .args([&few, corpus])
        .args(["--", "-set_cover_merge=1"]);
    ensure!(
        process::run(command, 30 * MINUTE)?.ok,
        "cargo-fuzz failed to merge the corpus of {target}"
    );
    let mut inputs = Vec::new();
    for file in fs::read_dir(&few)? {
        inputs.push(fs::read(file?.path())?);
    }
    let place = session.root.join(format!("fuzz/seeds/{target}.hex"));
    fs::write(&place, lines(inputs)).with_context(|| format!("cannot write {}", place.display()))
}

/// A seed file with the inputs that are kept, the shortest first.
fn lines(mut inputs: Vec<Vec<u8>>) -> String {
    inputs.retain(|input| !input.is_empty());
    inputs.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    let mut text = String::from(HEAD);
    let mut kept = 0;
    for input in inputs {
        kept += input.len();
        if kept > KEPT {
            break;
        }
        for byte in input {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_sorted_and_limited_in_their_total_size() {
        let text = lines(vec![
            vec![0xab; 3],
            vec![2],
            Vec::new(),
            vec![1],
            vec![0; KEPT],
        ]);
        assert_eq!(text, format!("{HEAD}01\n02\nababab\n"));
    }
}
