//! `rkey bench --count`: how many instructions, loads and stores the short paths take, on each side.
//!
//! A time depends on the machine and its load; these counts depend only on the code and the compiler.
//! Valgrind's callgrind runs this program again for each path. There, [`paths`] plays both sides in turn, in one thread, and
//! callgrind collects only inside [`paths::initiator`] and [`paths::target`]. `benches/peers/count.c` does the same through
//! libfabric.

pub(crate) mod paths;

use super::peers::compile;
use anyhow::{Context, Result, bail, ensure};
use comfy_table::{Cell, CellAlignment, Table, presets};
use paths::Path;
use serde::Serialize;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::str::FromStr;

/// How many times a path may run: a run fails if a thread of the device did part of the work.
const ATTEMPTS: usize = 10;
/// The sides of a path.
const SIDES: [&str; 2] = ["initiator", "target"];
/// The functions that callgrind counts, by side.
const FUNCTIONS: [&str; 2] = [
    "rkey_bench::count::paths::initiator",
    "rkey_bench::count::paths::target",
];

/// The paths through libfabric, each with the program's word for it.
const FABRIC: [(&str, &str); 2] = [("fi_tsend-8", "tagged"), ("fi_write-8", "write")];
/// The functions of the program for libfabric that callgrind counts, by side.
const FABRIC_FUNCTIONS: [&str; 2] = ["count_initiator", "count_target"];
const FABRIC_PROGRAM: &str = include_str!("../../../benches/peers/count.c");

/// The cost of one side of a path: the mean of [`paths::ROUNDS`] operations.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Count {
    pub(crate) path: String,
    pub(crate) side: &'static str,
    pub(crate) instructions: f64,
    pub(crate) loads: f64,
    pub(crate) stores: f64,
}

/// The command with which this program starts itself to run a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted(pub(crate) Path);

impl FromStr for Counted {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Path::ALL.into_iter().find(|path| path.name() == name);
        found
            .map(Self)
            .ok_or_else(|| format!("there is no path '{name}'"))
    }
}

/// A path as callgrind runs it.
struct Subject {
    name: &'static str,
    /// The functions to count, by side.
    functions: &'static [&'static str],
    program: PathBuf,
    words: Vec<String>,
    environment: Vec<(&'static str, OsString)>,
}

/// Counts every path that runs here. The second list names the others, with the reasons. `front_ends` makes a directory with
/// our libfabric provider.
///
/// # Errors
/// valgrind is missing, or a path fails under it.
pub(crate) fn all(
    mut progress: impl FnMut(&'static str),
    front_ends: fn() -> Result<PathBuf>,
) -> Result<(Vec<Count>, Vec<String>)> {
    let folder = Folder::new()?;
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let mut subjects: Vec<Subject> = Path::ALL
        .into_iter()
        .map(|path| Subject {
            name: path.name(),
            functions: &FUNCTIONS[..path.sides()],
            program: program.clone(),
            words: ["bench", "--counted", path.name()].map(String::from).into(),
            environment: Vec::new(),
        })
        .collect();
    let mut missing = Vec::new();
    match through_fabric(&folder, front_ends) {
        Ok(more) => subjects.extend(more),
        Err(error) => missing.push(format!(
            "the paths through libfabric: {error:#} (Debian packages: gcc libfabric-dev)"
        )),
    }
    let mut counts = Vec::new();
    for subject in subjects {
        progress(subject.name);
        let text = profile(&subject, &folder.0.join("counts"))?;
        for (side, function) in SIDES.into_iter().zip(subject.functions) {
            let [instructions, loads, stores] = each(&text, function)?;
            counts.push(Count {
                path: subject.name.to_owned(),
                side,
                instructions,
                loads,
                stores,
            });
        }
    }
    Ok((counts, missing))
}

/// The paths through libfabric, if the program for them can be compiled.
fn through_fabric(folder: &Folder, front_ends: fn() -> Result<PathBuf>) -> Result<Vec<Subject>> {
    compile(&folder.0, "count", FABRIC_PROGRAM, &["-lfabric"])?;
    let provider = front_ends()?;
    let rounds = [paths::WARM_UP, paths::ROUNDS].map(|count| count.to_string());
    let subjects = FABRIC.map(|(name, word)| Subject {
        name,
        functions: &FABRIC_FUNCTIONS,
        program: folder.0.join("count"),
        words: [&[word.to_owned()][..], &rounds].concat(),
        environment: vec![
            ("FI_PROVIDER_PATH", provider.clone().into()),
            ("FI_PROVIDER", "rkey".into()),
            // Libfabric's memory monitor would rewrite the C library's functions that map memory.
            ("FI_MR_CACHE_MONITOR", "disabled".into()),
            ("RKEY_TICK_MS", "60000".into()),
        ],
    });
    Ok(subjects.into())
}

/// A directory for callgrind's output and the compiled program; removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("rkey-count-{}", std::process::id()));
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a path under callgrind, which writes to `file`. Returns what it wrote about the first thread; the other threads
/// belong to the devices.
fn profile(subject: &Subject, file: &std::path::Path) -> Result<String> {
    let mut run = one_run(subject, file);
    for _ in 1..ATTEMPTS {
        if run.is_ok() {
            break;
        }
        run = one_run(subject, file);
    }
    run?;
    let file = format!("{}-01", file.display());
    std::fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))
}

fn one_run(subject: &Subject, file: &std::path::Path) -> Result<()> {
    let functions = subject.functions.iter();
    let mut command = Command::new("valgrind");
    command
        .args([
            "--tool=callgrind",
            "--cache-sim=yes",
            "--separate-threads=yes",
            // Without fair scheduling, a polling thread may keep the devices' threads from running.
            "--fair-sched=yes",
        ])
        .args(functions.map(|function| format!("--toggle-collect={function}")))
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(&subject.program)
        .args(&subject.words)
        .envs(
            subject
                .environment
                .iter()
                .map(|(name, value)| (name, value)),
        )
        .stdin(Stdio::null());
    let output = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("--count needs valgrind (Debian: apt-get install valgrind)")
        }
        output => output.context("cannot start valgrind")?,
    };
    ensure!(
        output.status.success(),
        "{} failed under valgrind ({}): {}",
        subject.name,
        output.status,
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    Ok(())
}

/// Instructions, loads and stores of an operation in a function and all that it calls, from callgrind's output.
fn each(text: &str, function: &str) -> Result<[f64; 3]> {
    let events = text.lines().find_map(|line| line.strip_prefix("events: "));
    let events: Vec<&str> = events
        .context("callgrind wrote no line 'events: '")?
        .split_whitespace()
        .collect();
    let sums = costs_in(text, function)?;
    let mut result = [0.0; 3];
    for (value, event) in result.iter_mut().zip(["Ir", "Dr", "Dw"]) {
        let place = events.iter().position(|name| *name == event);
        let place = place.with_context(|| format!("callgrind did not count {event}"))?;
        // Callgrind omits zeros at the end of a line.
        let sum = sums.get(place).copied().unwrap_or(0);
        *value = sum as f64 / f64::from(paths::ROUNDS);
    }
    ensure!(
        result[0] > 0.0,
        "callgrind collected nothing in {function}: is this program stripped of its symbols?"
    );
    Ok(result)
}

/// The sum of all cost lines of a function: its own costs, and those of its calls.
///
/// The names of functions are numbered, and written out where a number first occurs.
fn costs_in(text: &str, function: &str) -> Result<Vec<u64>> {
    let (mut names, mut sums) = (HashMap::new(), Vec::<u64>::new());
    let mut inside = false;
    for line in text.lines() {
        let named = ["fn=", "cfn="].into_iter().find_map(|key| {
            let (number, name) = line.strip_prefix(key)?.split_once(')')?;
            Some((key, number, name.trim_start()))
        });
        if let Some((key, number, name)) = named {
            if !name.is_empty() {
                names.insert(number, name);
            }
            if key == "fn=" {
                inside = names.get(number) == Some(&function);
            }
        } else if inside && line.starts_with(|first: char| "+-*0123456789".contains(first)) {
            // The first word is a position.
            for (at, word) in line.split_whitespace().skip(1).enumerate() {
                let cost: u64 = word
                    .parse()
                    .with_context(|| format!("cannot parse a cost in '{line}'"))?;
                sums.resize(sums.len().max(at + 1), 0);
                sums[at] += cost;
            }
        }
    }
    Ok(sums)
}

/// The counts as a table.
pub(crate) struct Shown<'a>(pub(crate) &'a [Count]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(["path", "side", "instructions", "loads", "stores"]);
        for count in self.0 {
            let number =
                |value: f64| Cell::new(format!("{value:.0}")).set_alignment(CellAlignment::Right);
            table.add_row([
                Cell::new(&count.path),
                Cell::new(count.side),
                number(count.instructions),
                number(count.loads),
                number(count.stores),
            ]);
        }
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_a_function_includes_its_callees() {
        let rounds = u64::from(paths::ROUNDS);
        let text = format!(
            "version: 1\nevents: Ir Dr Dw I1mr\n\nfn=(1) main\n5 70 70 70\ncfi=(2) x.rs\ncfn=(2) side\ncalls=1 9\n\
             * 999 999 999 9\n\nfn=(2)\n10 {0} {0} {1}\n+3 {1}\ncfn=(3) other\ncalls=2 1\n* {1} {0} {0} 3\n\
             fi=(4) y.rs\n-2 {0}\n\nfn=(3)\n1 77 77\n",
            10 * rounds,
            5 * rounds
        );
        assert_eq!(each(&text, "side").unwrap(), [30.0, 20.0, 15.0]);
        assert!(each(&text, "missing").is_err());
        let without_loads = text.replace("Ir Dr Dw", "Ir Bc Dw");
        assert!(each(&without_loads, "side").is_err());
    }

    #[test]
    fn counted_paths_are_found_by_name() {
        for path in Path::ALL {
            let Counted(found) = path.name().parse().unwrap();
            assert_eq!(found, path);
        }
        assert!("telepathy".parse::<Counted>().is_err());
    }
}
