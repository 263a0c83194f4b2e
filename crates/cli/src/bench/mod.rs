//! `rkey bench`: what an operation costs here, beside libfabric and UCX in the same run.
//!
//! A benchmark is two pinned processes: this one initiates, a second copy of this program is the
//! target. Every figure carries its condition (static or touched buffers), because a copy between
//! buffers that nobody touches measures the cache, not the device.

mod check;
mod control;
mod direct;
mod machine;
mod measure;
mod pages;
mod pair;
mod peers;
mod plan;
mod plot;
mod result;
mod rig;
mod stats;
mod table;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use machine::Machine;
use pair::{Pair, TargetSpec};
use plan::{Effort, MODES, OPERATIONS, Step};
use result::Measurement;
use serde::Serialize;
use std::path::PathBuf;

/// What to measure and how to show it.
#[derive(Args, Debug, Clone)]
pub(crate) struct BenchArgs {
    /// Operations to measure: check, write, read, send, atomic, direct, register, sleep; all when none is named.
    #[arg(value_name = "OPERATION")]
    operations: Vec<String>,
    /// Sizes in bytes, multiples of 8; k and m are accepted (8,4k,1m).
    #[arg(long, value_delimiter = ',', value_parser = parse_size, default_value = "8,4k,64k,1m")]
    sizes: Vec<u64>,
    /// Ways of measuring: stream, oneway, single.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "MODE",
        default_value = "stream,oneway,single"
    )]
    modes: Vec<String>,
    /// Numbers of live regions beside which registration is measured.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "REGIONS",
        default_value = "0,1000,100000"
    )]
    live: Vec<u64>,
    /// Measures libfabric and UCX in the same run.
    #[arg(long)]
    peers: bool,
    /// With --peers: libfabric over tcp as well.
    #[arg(long, requires = "peers")]
    tcp: bool,
    /// Measures our libfabric provider instead of the device itself, with the program that measures libfabric's.
    #[arg(long)]
    libfabric: bool,
    /// Repetitions of each measurement.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=31))]
    reps: u32,
    /// About how long one repetition runs.
    #[arg(long, default_value_t = 0.1, value_name = "SECONDS")]
    seconds: f64,
    /// Few and short repetitions: to see that everything works, not how fast.
    #[arg(long, conflicts_with_all = ["reps", "seconds"])]
    quick: bool,
    /// Cores of the initiator and of the target.
    #[arg(
        long,
        value_delimiter = ',',
        num_args = 1,
        default_value = "0,1",
        value_name = "CORE,CORE"
    )]
    cores: Vec<usize>,
    /// Writes all figures, ours and the peers', to a file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws time over size into a file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The target's side of a benchmark; for this program itself.
    #[arg(long, hide = true, value_name = "SPEC")]
    target: Option<TargetSpec>,
}

/// What `--json` writes.
#[derive(Serialize)]
struct Report<'a> {
    machine: &'a Machine,
    figures: &'a [Measurement],
    ratios: Vec<table::Ratio>,
    notes: &'a [String],
    missing_peers: &'a [String],
}

/// Runs the benchmark that `args` describe.
///
/// # Errors
/// An unknown operation or mode, a device that does not open, a target that fails, a file that
/// cannot be written. A peer that fails is named in the output and does not end the run.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    if let Some(spec) = args.target {
        return pair::run_target(spec);
    }
    let request = Request::from_args(args)?;
    let machine = Machine::look(request.cores);
    println!("{}\n", machine.describe());
    let peers = (args.peers || args.libfabric)
        .then(peers::Peers::build)
        .transpose()?;
    let order = request.order();
    let runs = peers
        .as_ref()
        .filter(|_| args.peers)
        .map(|peers| peers.runs(&order, args.tcp))
        .unwrap_or_default();

    let own = if args.libfabric {
        1
    } else {
        request.steps.len()
    };
    let bar = progress(own + runs.len());
    let mut figures = Vec::new();
    let (mut notes, mut trouble) = (Vec::new(), Vec::new());
    if let (true, Some(peers)) = (args.libfabric, &peers) {
        bar.set_message("libfabric rkey");
        figures.extend(peers.own_provider(&order)?);
        bar.inc(1);
    } else {
        let mut pair = Pair::start(request.cores, request.longest())?;
        for step in &request.steps {
            bar.set_message(step.name());
            figures.push(
                step.run(&mut pair, &request.effort, &mut notes)
                    .with_context(|| step.name())?,
            );
            bar.inc(1);
        }
    }
    for run in &runs {
        bar.set_message(run.name.clone());
        match peers.as_ref().map(|peers| peers.measure(run, &order)) {
            Some(Ok(measured)) => figures.extend(measured),
            Some(Err(error)) => trouble.push(format!("{error:#}")),
            None => {}
        }
        bar.inc(1);
    }
    bar.finish_and_clear();

    println!("{}", table::render(&figures));
    if let Some(peers) = &peers {
        trouble.extend(peers.missing.iter().cloned());
    }
    for line in &notes {
        println!("{line}");
    }
    for line in &trouble {
        println!("not measured: {line}");
    }
    if let Some(file) = &args.json {
        let report = Report {
            machine: &machine,
            figures: &figures,
            ratios: table::ratios(&figures),
            notes: &notes,
            missing_peers: &trouble,
        };
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        println!("figures: {}", file.display());
    }
    if let Some(file) = &args.svg {
        plot::draw(&figures, &machine.describe().replace('\n', "; "), file)?;
        println!("plot: {}", file.display());
    }
    Ok(())
}

/// The arguments, checked.
struct Request {
    operations: Vec<String>,
    modes: Vec<String>,
    sizes: Vec<u64>,
    cores: (usize, usize),
    effort: Effort,
    steps: Vec<Step>,
}

impl Request {
    fn from_args(args: &BenchArgs) -> Result<Self> {
        let names: Vec<&str> = OPERATIONS.iter().map(|(name, _)| *name).collect();
        check_words("operation", &args.operations, &names)?;
        check_words("mode", &args.modes, MODES)?;
        ensure!(
            args.seconds > 0.0 && args.seconds <= 60.0,
            "--seconds is more than 0 and at most 60"
        );
        let operations = if args.operations.is_empty() {
            names.iter().map(|name| (*name).to_owned()).collect()
        } else {
            args.operations.clone()
        };
        let [initiator, target] = args.cores[..] else {
            bail!("--cores wants two numbers, as in 0,1");
        };
        for core in [initiator, target] {
            ensure!(
                machine::may_use(core),
                "--cores: this process may not run on core {core}"
            );
        }
        let effort = if args.quick {
            Effort {
                repetitions: 3,
                seconds: 0.01,
            }
        } else {
            Effort {
                repetitions: args.reps,
                seconds: args.seconds,
            }
        };
        let steps = plan::steps(&operations, &args.modes, &args.sizes, &args.live);
        ensure!(
            !steps.is_empty(),
            "nothing to measure: these operations have none of these modes"
        );
        Ok(Self {
            operations,
            modes: args.modes.clone(),
            sizes: args.sizes.clone(),
            cores: (initiator, target),
            effort,
            steps,
        })
    }

    fn order(&self) -> peers::Order {
        peers::Order {
            operations: self.operations.clone(),
            modes: self.modes.clone(),
            sizes: self.sizes.clone(),
            cores: self.cores,
            repetitions: self.effort.repetitions,
            seconds: self.effort.seconds,
        }
    }

    /// Bytes of the buffer that all measurements fit into.
    fn longest(&self) -> u64 {
        let longest = self
            .sizes
            .iter()
            .map(|&size| size * measure::slots_of(size).max(2))
            .max();
        longest.unwrap_or(0).max(pages::PAGE as u64)
    }
}

fn check_words(what: &str, given: &[String], known: &[&str]) -> Result<()> {
    match given.iter().find(|word| !known.contains(&word.as_str())) {
        Some(word) => {
            let error = anyhow::anyhow!("there is no {what} '{word}'");
            Err(crate::failure::hinted(
                error,
                format!("one of: {}", known.join(", ")),
            ))
        }
        None => Ok(()),
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, factor) = match lower.strip_suffix(['k', 'm']) {
        Some(digits) => (
            digits,
            if lower.ends_with('k') {
                1 << 10
            } else {
                1 << 20
            },
        ),
        None => (lower.as_str(), 1),
    };
    let size = digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(factor));
    match size {
        Some(size) if size >= 8 && size % 8 == 0 && size <= 64 << 20 => Ok(size),
        _ => Err("a size is a multiple of 8 from 8 to 64m".into()),
    }
}

fn progress(steps: usize) -> ProgressBar {
    // Hidden by itself when standard error is no terminal.
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_size("8"), Ok(8));
        assert_eq!(parse_size("64k"), Ok(65536));
        assert_eq!(parse_size("1M"), Ok(1 << 20));
        for bad in ["", "7", "12", "k", "1g", "-8", "99999999999999999999m"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_unknown_operation_names_the_known_ones() {
        let error =
            check_words("operation", &["wrlte".to_owned()], &["write", "read"]).unwrap_err();
        assert!(format!("{error:#}").contains("wrlte"));
    }
}
