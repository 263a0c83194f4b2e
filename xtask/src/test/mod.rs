//! `cargo xtask test`: everything that must pass, in one command, with a table at the end.

mod counts;
mod failures;
mod fresh;
mod fuzz;
mod networks;
mod stages;
mod steps;
mod summary;
mod unprivileged;

use anyhow::{Result, bail};
use rkey_harness::{Report, Session};
use std::path::Path;
use std::time::{Duration, Instant};

/// Options of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Runs only these stages (see --list): a list with commas, or one option for each stage.
    #[arg(long, value_delimiter = ',', value_name = "STAGE")]
    only: Vec<String>,
    /// Skips these stages.
    #[arg(long, value_delimiter = ',', value_name = "STAGE")]
    skip: Vec<String>,
    /// Lists the stages.
    #[arg(long)]
    list: bool,
    /// Reports missing Debian packages instead of installing them.
    #[arg(long)]
    no_install: bool,
    /// Records new results in the stages that compare with recorded ones.
    #[arg(long)]
    record: bool,
}

/// One row of the final table.
struct Row {
    name: &'static str,
    report: Report,
    took: Duration,
}

/// Runs the stages; returns true if nothing failed.
pub(crate) fn run(root: &Path, args: &Args) -> Result<bool> {
    if args.list {
        for stage in stages::ALL {
            println!("{:<14} {}", stage.name, stage.what);
        }
        return Ok(true);
    }
    let known = |name: &str| stages::ALL.iter().any(|stage| stage.name == name);
    if let Some(name) = args.only.iter().chain(&args.skip).find(|name| !known(name)) {
        bail!("no stage named '{name}'; `cargo xtask test --list` lists them");
    }
    let scratch = std::env::temp_dir().join(format!("rkey-test-{}", std::process::id()));
    // An earlier process with our PID, which was killed, may have left this directory.
    let _ = std::fs::remove_dir_all(&scratch);
    let session = Session {
        root,
        install: !args.no_install,
        record: args.record,
        scratch,
    };
    let began = Instant::now();
    let mut rows = Vec::new();
    for stage in stages::ALL {
        let wanted = if args.only.is_empty() {
            true
        } else {
            args.only.iter().any(|n| n == stage.name)
        };
        if !wanted || args.skip.iter().any(|name| name == stage.name) {
            continue;
        }
        if args.only.is_empty() && stages::ON_REQUEST.contains(&stage.name) {
            let report = Report::skip(format!(
                "on request: cargo xtask test --only {}",
                stage.name
            ));
            rows.push(Row {
                name: stage.name,
                report,
                took: Duration::ZERO,
            });
            continue;
        }
        println!("\n=== {}: {}", stage.name, stage.what);
        let start = Instant::now();
        let report = (stage.run)(&session).unwrap_or_else(|error| {
            let why = format!("{error:#}");
            Report::check(Err(why.clone()), why.replace('\n', " "))
        });
        if !report.failures.is_empty() {
            println!("error: stage {} failed: {}", stage.name, report.note);
        }
        rows.push(Row {
            name: stage.name,
            report,
            took: start.elapsed(),
        });
    }
    Ok(summary::print(&rows, began.elapsed()))
}
