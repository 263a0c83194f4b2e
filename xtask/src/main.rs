//! `cargo xtask`: the project's own tasks. `test` runs everything that must pass, `lint` checks the layers, `conform`
//! writes the conformance table, `mutants` searches for changes that no test notices.

mod bindings;
mod conform;
mod lint;
mod mutants;
mod packages;
mod source;
mod test;

use clap::{Parser, Subcommand};
use rkey_harness::{process, testbin};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own tasks")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Runs every check and every test; ends with a table and `N passed, N failed`.
    Test(test::Args),
    /// Checks the rules that the compiler does not: layers, words, unsafety, sizes, documents.
    Lint,
    /// Writes docs/conformance.md from docs/spec/clauses.md and the tests that cite clause ids.
    Conform(conform::Args),
    /// Generates the C layouts of the front ends from installed headers; needs libclang.
    Bindings(bindings::Args),
    /// Changes the code that protects memory, one expression at a time, and reports the changes that no test notices.
    Mutants(mutants::Args),
}

/// The repository's root: the parent of this crate.
fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiled = manifest.parent().unwrap_or(manifest);
    // Prefer the directory in which cargo runs xtask: the checkout may have moved since xtask was built.
    match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(now) => Path::new(&now)
            .parent()
            .map_or_else(|| compiled.to_owned(), Path::to_owned),
        None => compiled.to_owned(),
    }
}

fn main() -> ExitCode {
    // The stage `networks` starts this program as the network.
    rkey_harness::network::serve();
    let result = match Cli::parse().task {
        Task::Test(args) => test::run(&root(), &args),
        Task::Lint => lint::run(&root()),
        Task::Conform(args) => conform::run(&root(), &args),
        Task::Bindings(args) => bindings::run(&root(), &args),
        Task::Mutants(args) => mutants::run(&root(), &args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
