//! The benchmark behind `rkey bench`: the cost of an operation, compared with libfabric and UCX in the same run.
//!
//! A benchmark is two pinned processes: this one is the initiator, a second copy of this program the target. The peers
//! are also such pairs. All take turns, and the distance between the two cores is measured at each turn. Every figure
//! states its condition (static, rotating or touched buffers), because copies between buffers that no program touches
//! measure the cache and not the device.

#![cfg_attr(
    not(test),
    warn(clippy::disallowed_types, clippy::too_many_lines, clippy::unwrap_used)
)]

mod check;
mod child;
mod contest;
mod contestant;
mod control;
mod count;
mod crowd;
mod direct;
mod external;
mod machine;
mod measure;
mod ours;
mod pages;
mod pair;
mod peers;
mod perftest;
mod plan;
mod plot;
mod probe;
mod result;
mod rig;
mod stats;
mod stop;
mod svg;
mod table;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use contest::{Contest, Outcome};
use contestant::Contestant;
use count::Counted;
use indicatif::{ProgressBar, ProgressStyle};
use machine::Machine;
use ours::Ours;
use pair::TargetSpec;
use peers::Peers;
use plan::{Effort, GROWTH, MODES, OPERATIONS, Step};
use probe::Probe;
use result::Measurement;
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use stop::{Reason, Stop};

/// What to measure and how to show it.
#[derive(Args, Debug, Clone)]
pub struct BenchArgs {
    /// Operations to measure (default: all but growth): check, write, read, send, atomic, direct, register, sleep, growth.
    #[arg(value_name = "OPERATION")]
    operations: Vec<String>,
    /// Sizes in bytes: multiples of 8, with an optional suffix k or m (8,4k,1m).
    #[arg(long, value_delimiter = ',', value_parser = parse_size, default_value = "8,4k,64k,1m")]
    sizes: Vec<u64>,
    /// Modes to measure: stream, oneway, single.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "MODE",
        default_value = "stream,oneway,single"
    )]
    modes: Vec<String>,
    /// Numbers of live regions at which to measure registration.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "REGIONS",
        default_value = "0,1000,100000"
    )]
    live: Vec<u64>,
    /// Also measure libfabric and UCX in the same run.
    #[arg(long)]
    peers: bool,
    /// With --peers: also measure libfabric over tcp.
    #[arg(long, requires = "peers")]
    tcp: bool,
    /// Measure rkey's libfabric provider instead of the device itself, with the program that measures libfabric's own providers.
    #[arg(long)]
    libfabric: bool,
    /// Repetitions of each measurement.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=31))]
    reps: u32,
    /// Approximate duration of one repetition.
    #[arg(long, default_value_t = 0.1, value_name = "SECONDS")]
    seconds: f64,
    /// Run few and short repetitions, to check that everything works, not how fast it is.
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
    /// Stop after this time (90, 10m, 2h) and print what was measured. Ctrl-C stops at once.
    #[arg(long, value_name = "TIME", value_parser = stop::parse_limit, default_value = "1h")]
    limit: Duration,
    /// Write all figures of rkey and the peers to a file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a plot of time over size to a file, as SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Count instructions, loads and stores of the short paths on each side, instead of measuring times. Needs valgrind.
    #[arg(long, conflicts_with_all = ["operations", "peers", "libfabric", "svg", "quick"])]
    count: bool,
    /// Run a path for --count; for this program's own use.
    #[arg(long, hide = true, value_name = "PATH")]
    counted: Option<Counted>,
    /// Run the target's side of a benchmark; for this program's own use.
    #[arg(long, hide = true, value_name = "SPEC")]
    target: Option<TargetSpec>,
}

/// What the benchmark needs from the program that contains it. That program must have a subcommand `bench` that takes
/// [`BenchArgs`]: the benchmark runs it again as its target.
pub struct Host<'a> {
    /// Where results are printed. If the first lines cannot be written, nothing is measured; the host reports later
    /// failures.
    pub results: &'a mut dyn Write,
    /// Makes a directory with our libfabric provider under the name that libfabric searches for.
    pub front_ends: fn() -> Result<PathBuf>,
}

/// An unknown word on the command line.
#[derive(Debug)]
pub struct UnknownWord {
    what: &'static str,
    word: String,
    /// The known words.
    pub known: Vec<String>,
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no {} '{}'", self.what, self.word)
    }
}

impl std::error::Error for UnknownWord {}

/// What `--json` writes.
#[derive(Serialize)]
struct Report<'a> {
    machine: &'a Machine,
    figures: &'a [Measurement],
    ratios: Vec<table::Ratio>,
    notes: &'a [String],
    /// Peers and measurements that are missing, and why.
    missing_peers: &'a [String],
    /// Measurements in which the device itself failed.
    failed: &'a [String],
    /// Whether the run ended before everything was measured.
    stopped: bool,
}

/// Runs the benchmark that `args` describe.
///
/// # Errors
/// An unknown operation or mode ([`UnknownWord`]), a file that cannot be written, a device that does not open,
/// a target that does not start. The output names a contestant that fails later; the run continues. If that is
/// the device itself, the run ends with a failure.
pub fn run(args: &BenchArgs, host: &mut Host<'_>) -> Result<ExitCode> {
    if let Some(spec) = args.target {
        return pair::run_target(spec).map(|()| ExitCode::SUCCESS);
    }
    if let Some(Counted(path)) = args.counted {
        return path.run().map(|()| ExitCode::SUCCESS);
    }
    if args.count {
        return counts(host, Target::open(&args.json)?);
    }
    let request = Request::from_args(args)?;
    let (json, svg) = (Target::open(&args.json)?, Target::open(&args.svg)?);
    let stop = Stop::after(args.limit)?;
    let machine = Machine::look(request.cores);
    if writeln!(host.results, "{}\n", machine.describe()).is_err() {
        // Measure nothing, because the results would be lost.
        return Ok(ExitCode::FAILURE);
    }
    machine::pin(request.cores.0);
    let mut peers = (args.peers || args.libfabric)
        .then(peers::Peers::build)
        .transpose()?;
    let contestants = contestants(args, &request, peers.as_mut(), &stop, host.front_ends)?;
    let mut probe = Probe::start(request.cores)?;
    let mut outcome = Contest {
        contestants,
        probe: Box::new(move || probe.as_mut().and_then(Probe::measure)),
        effort: request.effort.clone(),
        stop: &stop,
        bar: progress(),
    }
    .run(&request.steps);
    if let Some(peers) = &peers {
        outcome.trouble.extend(peers.missing.iter().cloned());
    }
    show(host.results, &outcome, &machine, json, svg)?;
    if !outcome.failed.is_empty() {
        complain(format_args!(
            "the device failed in: {}",
            outcome.failed.join("; ")
        ));
        return Ok(ExitCode::FAILURE);
    }
    Ok(match outcome.stopped {
        Some(Reason::Interrupted) => ExitCode::from(stop::INTERRUPTED),
        _ => ExitCode::SUCCESS,
    })
}

/// Counts what the short paths take, and shows it.
fn counts(host: &mut Host<'_>, json: Option<Target>) -> Result<ExitCode> {
    let bar = progress();
    let counted = count::all(|path| bar.set_message(path), host.front_ends);
    bar.finish_and_clear();
    let (counts, missing) = counted?;
    let results = &mut host.results;
    let _ = writeln!(results, "{}", count::Shown(&counts));
    for line in missing {
        let _ = writeln!(results, "not counted: {line}");
    }
    if let Some(file) = json {
        file.write(&serde_json::to_string_pretty(&counts)?)?;
        let _ = writeln!(results, "counts: {}", file.path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// All contestants, started and asleep, the device first.
fn contestants(
    args: &BenchArgs,
    request: &Request,
    peers: Option<&mut Peers>,
    stop: &Stop,
    front_ends: fn() -> Result<PathBuf>,
) -> Result<Vec<Box<dyn Contestant>>> {
    let setup = request.setup();
    let mut all: Vec<Box<dyn Contestant>> = Vec::new();
    match (&peers, args.libfabric) {
        (Some(peers), true) => {
            all.push(Box::new(peers.start_own_provider(
                &setup,
                &request.steps,
                stop,
                &front_ends()?,
            )?));
        }
        _ => all.push(Box::new(Ours::start(request.cores, request.longest())?)),
    }
    if let (Some(peers), true) = (peers, args.peers) {
        all.extend(peers.start(&setup, &request.steps, args.tcp, stop));
    }
    Ok(all)
}

/// Prints and writes everything that was measured.
fn show(
    results: &mut dyn Write,
    outcome: &Outcome,
    machine: &Machine,
    json: Option<Target>,
    svg: Option<Target>,
) -> Result<()> {
    let _ = writeln!(results, "{}", table::render(&outcome.figures));
    for line in &outcome.notes {
        let _ = writeln!(results, "{line}");
    }
    for line in &outcome.trouble {
        let _ = writeln!(results, "not measured: {line}");
    }
    if let Some(file) = json {
        let report = Report {
            machine,
            figures: &outcome.figures,
            ratios: table::ratios(&outcome.figures),
            notes: &outcome.notes,
            missing_peers: &outcome.trouble,
            failed: &outcome.failed,
            stopped: outcome.stopped.is_some(),
        };
        file.write(&serde_json::to_string_pretty(&report)?)?;
        let _ = writeln!(results, "figures: {}", file.path.display());
    }
    if let Some(file) = svg {
        file.write(&plot::draw(&outcome.figures, &machine.describe()))?;
        let _ = writeln!(results, "plot: {}", file.path.display());
    }
    Ok(())
}

/// Writes a line to standard error. A failure is ignored because there is nowhere left to report it.
fn complain(text: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "rkey: {text}");
}

/// A file for results, opened before anything is measured.
struct Target {
    path: PathBuf,
    file: File,
}

impl Target {
    fn open(path: &Option<PathBuf>) -> Result<Option<Self>> {
        let Some(path) = path else { return Ok(None) };
        // The file keeps its contents until there are new results.
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Some(Self {
            path: path.clone(),
            file,
        }))
    }

    fn write(&self, text: &str) -> Result<()> {
        // Devices and pipes have no length.
        let _ = self.file.set_len(0);
        (&self.file)
            .write_all(text.as_bytes())
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// The arguments, checked.
struct Request {
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
            "--seconds must be more than 0 and at most 60"
        );
        let operations = if args.operations.is_empty() {
            let all = names.iter().filter(|name| **name != GROWTH);
            all.map(|name| (*name).to_owned()).collect()
        } else {
            args.operations.clone()
        };
        let [initiator, target] = args.cores[..] else {
            bail!("--cores needs two numbers, as in 0,1");
        };
        for core in [initiator, target] {
            ensure!(
                machine::may_use(core),
                "--cores: this process is not allowed to run on core {core} (see its CPU affinity)"
            );
        }
        let effort = if args.quick {
            Effort {
                repetitions: 3,
                seconds: 0.01,
                repeats: 0,
                fewer: 10,
            }
        } else {
            Effort {
                repetitions: args.reps,
                seconds: args.seconds,
                repeats: args.reps,
                fewer: 1,
            }
        };
        let steps = plan::steps(&operations, &args.modes, &args.sizes, &args.live);
        ensure!(
            !steps.is_empty(),
            "nothing to measure: these operations do not have these modes"
        );
        Ok(Self {
            sizes: args.sizes.clone(),
            cores: (initiator, target),
            effort,
            steps,
        })
    }

    fn setup(&self) -> peers::Setup {
        peers::Setup {
            sizes: self.sizes.clone(),
            cores: self.cores,
        }
    }

    /// Size in bytes of a buffer that is large enough for every measurement.
    fn longest(&self) -> u64 {
        let longest = self
            .sizes
            .iter()
            .map(|&size| size * measure::slots_of(size).max(2))
            .max();
        longest.unwrap_or(0).max(pages::PAGE as u64)
    }
}

fn check_words(what: &'static str, given: &[String], known: &[&str]) -> Result<(), UnknownWord> {
    match given.iter().find(|word| !known.contains(&word.as_str())) {
        Some(word) => Err(UnknownWord {
            what,
            word: word.clone(),
            known: known.iter().map(|&known| known.to_owned()).collect(),
        }),
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
        _ => Err("a size must be a multiple of 8 from 8 to 64m".into()),
    }
}

fn progress() -> ProgressBar {
    // The bar hides itself if standard error is not a terminal.
    let bar = ProgressBar::new(0);
    let style = "{bar:30} {pos}/{len}, {elapsed} elapsed, about {eta} left: {wide_msg}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
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
        assert_eq!(error.to_string(), "there is no operation 'wrlte'");
        assert_eq!(error.known, ["write", "read"]);
    }
}
