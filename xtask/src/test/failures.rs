//! Failures in the output of cargo, nextest or another program: the name of each failed test with the end of its
//! output. The end of a run repeats them, for logs that are truncated.

/// How many lines of a failed test are kept.
const LINES: usize = 25;

/// How many characters of a line are kept.
const COLUMNS: usize = 300;

/// nextest's words for tests that did not pass, besides the names of signals.
const VERDICTS: &[&str] = &["FAIL", "TIMEOUT", "ABORT", "LEAK-FAIL", "XFAIL"];

/// The failed tests in `output`: a text for each, whose first line is the name.
pub(super) fn of_tests(output: &str) -> Vec<String> {
    let mut found: Vec<(String, Vec<&str>)> = Vec::new();
    let mut inside = false;
    // nextest repeats what failed test programs printed, so only one of the two forms is parsed.
    let nextest = output
        .lines()
        .any(|line| line.trim_start().starts_with("Nextest run ID"));
    for line in output.lines() {
        let (name, ends) = match nextest {
            true => (
                verdict_of_nextest(line),
                line.trim_start().starts_with("Summary ["),
            ),
            false => (name_of_cargo(line), line == "failures:"),
        };
        if nextest && ends {
            break; // the list after it repeats the same names
        }
        inside = name.is_some() || (inside && !ends);
        match (name, found.last_mut()) {
            (Some(name), _) => found.push((name, Vec::new())),
            (None, Some((_, said))) if inside => said.push(line),
            _ => {}
        }
    }
    found
        .into_iter()
        .map(|(name, said)| format!("{name}\n{}", end_of(said)))
        .collect()
}

/// The end of the output of a program that failed as a whole.
pub(super) fn of_program(described: &str, output: &str) -> String {
    format!("{described}\n{}", end_of(output.lines().collect()))
}

/// `FAIL [   0.166s] (1/5) crate::tests name`.
fn verdict_of_nextest(line: &str) -> Option<String> {
    let (verdict, rest) = line.trim().split_once(" [")?;
    // One test can have several verdicts: "FAIL + LEAK".
    let first = verdict.split(' ').next()?;
    let signal = first.starts_with("SIG");
    let (_, name) = rest.split_once(") ")?;
    (signal || VERDICTS.contains(&first)).then(|| format!("{verdict} {name}"))
}

/// `---- tests::name stdout ----`.
fn name_of_cargo(line: &str) -> Option<String> {
    let name = line.strip_prefix("---- ")?.strip_suffix(" stdout ----")?;
    Some(format!("FAIL {name}"))
}

/// The last lines, without the frames of backtraces.
fn end_of(lines: Vec<&str>) -> String {
    let frame = |line: &str| {
        let line = line.trim_start();
        let numbered = line.split_once(": ").is_some_and(|(number, _)| {
            !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
        });
        numbered || line.starts_with("at /") || line.starts_with("at ./")
    };
    let said: Vec<String> = lines
        .into_iter()
        .filter(|line| !line.trim().is_empty() && !frame(line))
        .map(|line| {
            let cut: String = line.chars().take(COLUMNS).collect();
            format!("    {}", cut.trim_end())
        })
        .collect();
    said[said.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_found_in_nextests_output() {
        let output = " Nextest run ID 17 with nextest profile: default
        FAIL [   0.166s] (1/5) nx t::bad
  stderr
    thread 't::bad' (17078) panicked at src/lib.rs:1:100:
    assertion failed: because
    stack backtrace:
       0: __rustc::rust_begin_unwind
                 at /rustc/library/std/src/panicking.rs:689:5
     SIGABRT [   0.009s] (3/5) nx t::dies
    (test aborted with signal 6: SIGABRT)
 TERMINATING [>  2.000s] (---) nx t::slow
     TIMEOUT [   2.004s] (5/5) nx t::slow
    (test timed out)
 FAIL + LEAK [   0.104s] (5/6) nx t::leaks
     Summary [   2.181s] 5 tests run: 1 passed, 3 failed, 1 timed out, 0 skipped
        FAIL [   0.166s] (1/5) nx t::bad";
        let found = of_tests(output);
        assert_eq!(found.len(), 4, "{found:#?}");
        assert!(found[0].starts_with("FAIL nx t::bad\n"));
        assert!(found[0].contains("because") && !found[0].contains("unwind"));
        assert!(found[1].starts_with("SIGABRT nx t::dies\n"));
        assert!(found[2].starts_with("TIMEOUT nx t::slow\n"));
        assert!(found[3].starts_with("FAIL + LEAK nx t::leaks"));
    }

    #[test]
    fn failed_tests_are_found_in_cargos_output() {
        let output = "test a ... FAILED
test b ... ok

failures:

---- a stdout ----
thread 'a' panicked at src/lib.rs:1:1:
because

failures:
    a

test result: FAILED. 1 passed; 1 failed; 0 ignored";
        let found = of_tests(output);
        assert_eq!(
            found,
            ["FAIL a\n    thread 'a' panicked at src/lib.rs:1:1:\n    because"]
        );
        assert!(of_tests("test b ... ok").is_empty());
    }

    #[test]
    fn the_end_of_long_output_is_kept() {
        let text = "line\n".repeat(100) + "error: last";
        let kept = of_program("cargo clippy", &text);
        assert_eq!(kept.lines().count(), 1 + LINES);
        assert!(kept.starts_with("cargo clippy\n") && kept.ends_with("error: last"));
    }
}
