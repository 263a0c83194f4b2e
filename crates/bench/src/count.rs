//! `rkey bench --count`: how many instructions, loads and stores the short paths take, on each side.
//!
//! A time depends on the machine and on what else runs there; these counts depend only on the code and the compiler.
//! Valgrind's callgrind runs this program again for each path and side. There [`paths`] plays both sides in turns, in one
//! thread, and callgrind collects only inside [`paths::initiator`] or [`paths::target`].

pub(crate) mod paths;

use anyhow::{Context, Result, bail, ensure};
use comfy_table::{Cell, CellAlignment, Table, presets};
use paths::Path;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::str::FromStr;

/// How often a path runs. The median counts because a thread of the device takes part in some runs.
const RUNS: usize = 3;
/// The sides of a path.
const SIDES: [&str; 2] = ["initiator", "target"];

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

/// Counts every path.
///
/// # Errors
/// valgrind is missing, or a path fails under it.
pub(crate) fn all(mut progress: impl FnMut(&Path)) -> Result<Vec<Count>> {
    let folder = Folder::new()?;
    let mut counts = Vec::new();
    for path in Path::ALL {
        progress(&path);
        for side in SIDES.into_iter().take(path.sides()) {
            let mut runs = Vec::new();
            for run in 0..RUNS {
                runs.push(one_run(path, side, &folder.0.join(format!("{run}")))?);
            }
            runs.sort_by(|a, b| a[0].total_cmp(&b[0]));
            let [instructions, loads, stores] = runs[RUNS / 2];
            counts.push(Count {
                path: path.name().to_owned(),
                side,
                instructions,
                loads,
                stores,
            });
        }
    }
    Ok(counts)
}

/// The file that callgrind writes; removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("rkey-count-{}", std::process::id()));
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("creating {}", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a path under callgrind, which writes to `file`. Returns instructions, loads and stores.
fn one_run(path: Path, side: &str, file: &std::path::Path) -> Result<[f64; 3]> {
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new("valgrind");
    command
        .args([
            "--tool=callgrind",
            "--cache-sim=yes",
            "--separate-threads=yes",
            // Otherwise a polling thread may keep the devices' threads from running.
            "--fair-sched=yes",
        ])
        .arg(format!("--toggle-collect=rkey_bench::count::paths::{side}"))
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .args(["bench", "--counted", path.name()])
        .stdin(Stdio::null());
    let output = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("--count needs valgrind (Debian: apt-get install valgrind)")
        }
        output => output.context("starting valgrind")?,
    };
    ensure!(
        output.status.success(),
        "{} failed under valgrind ({}): {}",
        path.name(),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    // The first thread; the others are those of the devices.
    let file = format!("{}-01", file.display());
    let text = std::fs::read_to_string(&file).with_context(|| format!("reading {file}"))?;
    totals(&text)
}

/// Instructions, loads and stores of an operation, from callgrind's output.
fn totals(text: &str) -> Result<[f64; 3]> {
    let line = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name));
        found.with_context(|| format!("callgrind wrote no line '{name}'"))
    };
    let events: Vec<&str> = line("events: ")?.split_whitespace().collect();
    let sums: Vec<&str> = line("totals: ")?.split_whitespace().collect();
    let mut result = [0.0; 3];
    for (value, event) in result.iter_mut().zip(["Ir", "Dr", "Dw"]) {
        let place = events.iter().position(|name| *name == event);
        let sum = place.and_then(|place| sums.get(place));
        let sum: u64 = sum
            .with_context(|| format!("callgrind did not count {event}"))?
            .parse()?;
        *value = sum as f64 / f64::from(paths::ROUNDS);
    }
    ensure!(
        result[0] > 0.0,
        "callgrind collected nothing: is this program stripped of its symbols?"
    );
    Ok(result)
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
    fn sums_are_found_by_the_names_of_events() {
        let rounds = u64::from(paths::ROUNDS);
        let text = format!(
            "version: 1\nevents: Ir Dr Dw I1mr\nfn=a\n1 2 3 4\ntotals: {} {} {} 9\n",
            500 * rounds,
            100 * rounds,
            50 * rounds
        );
        assert_eq!(totals(&text).unwrap(), [500.0, 100.0, 50.0]);
        assert!(totals("events: Ir\ntotals: 5\n").is_err(), "no loads");
        assert!(totals("events: Ir Dr Dw\ntotals: 0 0 0\n").is_err());
    }

    #[test]
    fn a_path_is_known_by_its_name() {
        for path in Path::ALL {
            let Counted(found) = path.name().parse().unwrap();
            assert_eq!(found, path);
        }
        assert!("telepathy".parse::<Counted>().is_err());
    }
}
