//! `rkey explain`: why accesses were denied, and what to do about it.

use crate::ls::find;
use crate::reasons::examples;
use clap::Args;
use rkey_device::denial_view::SCHEMA;
use rkey_device::{DenialView, GuesserView, Inspection};
use serde::Serialize;

/// Arguments of `rkey explain`.
#[derive(Args, Debug, Clone)]
pub(crate) struct ExplainArgs {
    /// Show only the denials that this process recorded.
    #[arg(value_name = "PID", conflicts_with = "reasons")]
    pid: Option<u32>,
    /// Explain every reason by example.
    #[arg(long)]
    reasons: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Answer<T> {
    /// The version of the fields.
    schema: u32,
    #[serde(flatten)]
    content: T,
}

#[derive(Serialize)]
struct Processes {
    processes: Vec<Denials>,
}

/// The denials of one process, of all its devices.
#[derive(Serialize)]
struct Denials {
    pid: u32,
    uid: u32,
    command: String,
    /// How many denials there were since its devices were opened.
    denied: u64,
    /// The last denials, oldest first.
    denials: Vec<DenialView>,
    /// The processes that have tried keys without access.
    guessers: Vec<GuesserView>,
}

#[derive(Serialize)]
struct Reasons {
    reasons: Vec<Example>,
}

/// A reason by example.
#[derive(Serialize)]
struct Example {
    reason: &'static str,
    sentence: String,
    advice: String,
}

/// Runs `rkey explain`.
pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    if args.reasons {
        return reasons(args.json);
    }
    let processes = by_process(find(args.pid)?);
    if args.json {
        return print_json(Processes { processes });
    }
    let mut silent = true;
    for process in &processes {
        silent &= !print(process);
    }
    if silent {
        println!(
            "No live device of this user has denied an access. For a program that exits, use `rkey run --explain -- PROGRAM`."
        );
    }
    println!(
        "`rkey explain --reasons` explains each reason by example. Both sides of an access record its denial."
    );
    Ok(())
}

/// Merges the devices of each process. Each denial is listed once.
fn by_process(devices: Vec<Inspection>) -> Vec<Denials> {
    let mut all: Vec<Denials> = Vec::new();
    for device in devices {
        let known = all.iter().position(|process| process.pid == device.pid);
        let index = known.unwrap_or_else(|| {
            all.push(Denials {
                pid: device.pid,
                uid: device.uid,
                command: device.command.clone(),
                denied: 0,
                denials: Vec::new(),
                guessers: Vec::new(),
            });
            all.len() - 1
        });
        let process = &mut all[index];
        process.denied += device.denied;
        process.denials.extend(device.denials);
        process.guessers.extend(device.guessers);
    }
    for process in &mut all {
        process.denials.sort_by_key(|denial| denial.id);
    }
    all
}

/// Prints the denials of a process. Returns `false` if there are none.
fn print(process: &Denials) -> bool {
    if process.denied == 0 && process.guessers.is_empty() {
        return false;
    }
    println!(
        "process {} ({}): {} denied",
        process.pid, process.command, process.denied
    );
    let left_out = process.denied.saturating_sub(process.denials.len() as u64);
    if left_out > 0 {
        println!("  ({left_out} older denials are not kept)");
    }
    for denial in &process.denials {
        println!("  {denial}");
    }
    for guesser in &process.guessers {
        println!("  {}", guesser.sentence);
    }
    true
}

fn print_json<T: Serialize>(content: T) -> anyhow::Result<()> {
    let schema = SCHEMA;
    println!(
        "{}",
        serde_json::to_string_pretty(&Answer { schema, content })?
    );
    Ok(())
}

/// Prints the examples of all reasons.
fn reasons(json: bool) -> anyhow::Result<()> {
    let examples = examples()?;
    if json {
        let example = |denial: &rkey::Denial| Example {
            reason: denial.reason.name(),
            sentence: denial.to_string(),
            advice: denial.advice(),
        };
        let reasons = examples.iter().map(example).collect();
        return print_json(Reasons { reasons });
    }
    for example in examples {
        println!("{}\n", example.explain());
    }
    Ok(())
}
