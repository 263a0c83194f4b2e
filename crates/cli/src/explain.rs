//! `rkey explain`: why accesses were denied and connections refused, and what to do about it.

use crate::ls::{connection_managers, find};
use crate::reasons::examples;
use clap::Args;
use rkey_device::cm::{CmView, RefusalView, Why};
use rkey_device::denial_view::SCHEMA;
use rkey_device::{DenialView, GuesserView, Inspection};
use serde::Serialize;

/// Arguments of `rkey explain`.
#[derive(Args, Debug, Clone)]
pub(crate) struct ExplainArgs {
    /// Show only the denials and refusals that this process recorded.
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

/// What one process recorded: the denials of all its devices, and the refusals of its connection managers.
#[derive(Default, Serialize)]
struct Denials {
    pid: u32,
    uid: u32,
    command: String,
    /// How many accesses the process's devices have denied since they were opened.
    denied: u64,
    /// The last denials, oldest first.
    denials: Vec<DenialView>,
    /// The processes that have tried keys that give them no access.
    guessers: Vec<GuesserView>,
    /// How many connections were refused.
    connections_refused: u64,
    /// The last refusals, oldest first.
    refusals: Vec<RefusalView>,
}

#[derive(Serialize)]
struct Reasons {
    reasons: Vec<Example>,
    /// Why connections are refused.
    connection_reasons: Vec<Example>,
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
    let managers = connection_managers(args.pid)?;
    let devices = find(args.pid, !managers.is_empty())?;
    let processes = by_process(devices, managers);
    if args.json {
        return print_json(Processes { processes });
    }
    let mut silent = true;
    for process in &processes {
        silent &= !print(process);
    }
    if silent {
        println!(
            "No running process of this user has denied an access or recorded a refused connection. \
             For a program that exits, run it with `rkey run --explain -- PROGRAM`."
        );
    }
    println!(
        "`rkey explain --reasons` explains each reason by example. Both sides of an access record its denial."
    );
    Ok(())
}

/// Merges the devices and connection managers of each process. Each denial is listed once.
fn by_process(devices: Vec<Inspection>, managers: Vec<CmView>) -> Vec<Denials> {
    let mut all: Vec<Denials> = Vec::new();
    for device in devices {
        let process = of(&mut all, device.pid, device.uid, &device.command);
        process.denied += device.denied;
        process.denials.extend(device.denials);
        process.guessers.extend(device.guessers);
    }
    for manager in managers {
        let process = of(&mut all, manager.pid, manager.uid, &manager.command);
        process.connections_refused += manager.refused;
        process.refusals.extend(manager.refusals);
    }
    for process in &mut all {
        process.denials.sort_by_key(|denial| denial.id);
    }
    all
}

/// The entry of process `pid` in `all`; adds it if it is missing.
fn of<'a>(all: &'a mut Vec<Denials>, pid: u32, uid: u32, command: &str) -> &'a mut Denials {
    let known = all.iter().position(|process| process.pid == pid);
    let index = known.unwrap_or_else(|| {
        all.push(Denials {
            pid,
            uid,
            command: command.to_owned(),
            ..Denials::default()
        });
        all.len() - 1
    });
    &mut all[index]
}

/// Prints the denials of a process. Returns `false` if there are none.
fn print(process: &Denials) -> bool {
    if process.denied == 0 && process.guessers.is_empty() && process.connections_refused == 0 {
        return false;
    }
    println!(
        "process {} ({}), denied accesses: {}",
        process.pid, process.command, process.denied
    );
    let left_out = process.denied.saturating_sub(process.denials.len() as u64);
    if left_out > 0 {
        println!("  ({left_out} older denials were discarded)");
    }
    for denial in &process.denials {
        println!("  {denial}");
    }
    for guesser in &process.guessers {
        println!("  {}", guesser.sentence);
    }
    if process.connections_refused > 0 {
        println!("  connections refused: {}", process.connections_refused);
    }
    for refusal in &process.refusals {
        println!(
            "  {}: {}. {}",
            refusal.number, refusal.sentence, refusal.advice
        );
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
        let refused = |why: &Why| Example {
            reason: why.name(),
            sentence: why.to_string(),
            advice: why.advice().to_owned(),
        };
        return print_json(Reasons {
            reasons: examples.iter().map(example).collect(),
            connection_reasons: Why::EXAMPLES.iter().map(refused).collect(),
        });
    }
    for example in examples {
        println!("{}\n", example.explain());
    }
    for why in Why::EXAMPLES {
        println!("connection refused: {why}\n  {}\n", why.advice());
    }
    Ok(())
}
