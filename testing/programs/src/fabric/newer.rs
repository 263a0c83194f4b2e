//! Runs libfabric's own programs and our C programs over a newer libfabric than the system's: the one in MPICH's
//! package.

use anyhow::{Context, Result, ensure};
use rkey_harness::process;
use rkey_harness::testbin::{self, TestBinary};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The oldest acceptable version: the newest in a package of the Python index (`mpich` and `openmpi`, both 2.5.1).
const AT_LEAST: (u32, u32) = (2, 5);
/// How long the programs may take. They take seconds; each of their tests has its own limits.
const LIMIT: Duration = Duration::from_secs(1800);

/// The version of the system's libfabric, or of the one in a directory, as `fi_info` prints it: `2.5.1`.
pub(super) fn version(folder: Option<&Path>) -> Result<String> {
    let mut command = Command::new("fi_info");
    command.arg("--version");
    if let Some(folder) = folder {
        command.env("LD_LIBRARY_PATH", folder);
    }
    let text = process::capture(&mut command)?;
    parse(&text).with_context(|| format!("fi_info names no version of libfabric: {text}"))
}

fn parse(text: &str) -> Option<String> {
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("libfabric: "))?;
    Some(version.trim().to_owned())
}

/// Whether a version is new enough for the runs with a newer libfabric.
fn suffices(version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|word| word.parse().ok());
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (major, minor) >= AT_LEAST
}

/// Checks that programs load the library in the directory and that it is new enough. Returns its version.
pub(super) fn check(folder: &Path) -> Result<String> {
    let version = version(Some(folder))?;
    ensure!(
        suffices(&version),
        "libfabric {version} in {} is too old: {AT_LEAST:?} is needed",
        folder.display()
    );
    Ok(version)
}

/// Runs the tests of `abi/fabric/tests/programs` with the library of the directory. Returns how many passed, and
/// adds failures to `wrong`.
pub(super) fn programs(root: &Path, folder: &Path, wrong: &mut Vec<String>) -> Result<usize> {
    let built = testbin::build_tests(root)?;
    let mut passed = 0;
    let wanted = |test: &&TestBinary| test.package == "rkey-fabric" && test.target == "programs";
    for test in built.tests.iter().filter(wanted) {
        let mut command = Command::new(&test.executable);
        command
            .args(["--test-threads", "2"])
            .current_dir(&test.directory)
            .env("LD_LIBRARY_PATH", folder);
        let outcome = process::run(command, LIMIT)?;
        let lines = outcome.output.lines();
        for line in lines.filter(|line| line.starts_with("test ")) {
            match line.strip_suffix(" ... ok") {
                Some(_) => passed += 1,
                None if line.ends_with(" FAILED") => wrong.push(format!("newer libfabric: {line}")),
                None => {}
            }
        }
        if !outcome.ok && wrong.is_empty() {
            wrong.push("newer libfabric: the test program `programs` failed".to_owned());
        }
    }
    ensure!(
        passed > 0 || !wrong.is_empty(),
        "no test ran with the newer libfabric"
    );
    Ok(passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_librarys_not_the_programs() {
        let text = "fi_info: 1.17.0\nlibfabric: 2.5.1\nlibfabric api: 1.17\n";
        assert_eq!(parse(text).as_deref(), Some("2.5.1"));
        assert_eq!(parse("fi_info: 1.17.0\n"), None);
    }

    #[test]
    fn an_older_library_is_refused() {
        assert!(["2.5.1", "2.5.0", "2.10.0", "3.0.0a1"].map(suffices) == [true; 4]);
        assert!(["1.17.0", "2.4.9", "", "banana"].map(suffices) == [false; 4]);
    }
}
