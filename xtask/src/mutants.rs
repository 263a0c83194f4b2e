//! `cargo xtask mutants`: cargo-mutants with the settings of `.cargo/mutants.toml`. It changes one expression at a time
//! in the code that decides accesses and maps flags, and runs the crate's tests. A change that no test notices is a
//! gap.

use crate::process;
use anyhow::{Result, ensure};
use std::path::Path;
use std::time::Duration;

/// Options of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Arguments for cargo-mutants, for example `-p rkey-core --re src/checks`, `--list` or `--shard 1/8`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    more: Vec<String>,
}

/// A full run takes most of a day on two processors.
const LIMIT: Duration = Duration::from_secs(48 * 3600);

/// Runs cargo-mutants; returns true if tests noticed every change.
pub(crate) fn run(root: &Path, args: &Args) -> Result<bool> {
    ensure!(
        process::capture(process::cargo(root).args(["mutants", "--version"])).is_ok(),
        "cargo-mutants is not installed; run: cargo install --locked cargo-mutants"
    );
    let mut command = process::cargo(root);
    command.args(["mutants", "--no-shuffle", "--output"]);
    command.arg(process::target_folder(root)?);
    let chosen = |word: &String| word.starts_with("-p") || word.starts_with("--package");
    if !args.more.iter().any(chosen) {
        // cargo-mutants would test the default members only.
        command.arg("--workspace");
    }
    command.args(&args.more);
    Ok(process::run(command, LIMIT)?.ok)
}
