//! Python environments with packages from the Python package index.

use anyhow::{Result, bail};
use rkey_harness::process;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The interpreter of Debian's packages, such as python3-pyverbs.
pub(crate) const PYTHON: &str = "/usr/bin/python3";
/// The program that records the results of Python tests.
pub(crate) const RECORDER: &str = "testing/recorder.py";

/// Runs the installer of a Python environment in the directory, which is made if it does not exist.
pub(crate) fn pip(kept: &Path, environment: &str, words: &[&str]) -> Result<()> {
    let environment = kept.join(environment);
    if !environment.exists() {
        let mut create = Command::new(PYTHON);
        create.args(["-m", "venv", "--copies"]).arg(&environment);
        process::capture(&mut create)?;
    }
    let mut command = Command::new(environment.join("bin/python3"));
    command.args(["-m", "pip", "--disable-pip-version-check"]);
    command
        .args(words)
        .args(["--retries", "10", "--timeout", "60"]);
    command.current_dir(kept);
    let described = process::describe(&command);
    if !process::run(command, Duration::from_secs(600))?.ok {
        bail!("{described} failed: this stage needs the Python package index");
    }
    Ok(())
}
