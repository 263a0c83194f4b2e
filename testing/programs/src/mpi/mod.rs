//! MPI over the libfabric provider: Debian's Open MPI, and MPICH and Intel MPI from the Python package index, four ranks each.
//!
//! Our C program checks the data of messages, collectives and one-sided access. A Python program starts children under each monitor of
//! the registration cache. Then a part of mpi4py's own tests runs
//! and is compared with the list of those that fail. `RKEY_MPI4PY` selects other modules of mpi4py's tests. Every other
//! transport between the ranks is disabled, and each MPI must report that it uses the provider.

mod found;
mod launch;
mod packages;
mod runs;

use crate::folder::{copy, provider_into};
use crate::python::RECORDER;
use anyhow::{Context, Result, ensure};
use found::Found;
use launch::{ADDRESSES, LIMIT_S};
pub(crate) use packages::kept;
use rkey_harness::hosts::Hosts;
use rkey_harness::{Report, Session, UID, process};
use runs::{LAYERED, MONITORS, Monitor, Mpi, PLAIN, RANKS, RUNS, Run, monitor_line};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The program, the runner of mpi4py's tests, and the list of those that fail.
const SOURCES: &str = "abi/fabric/tests/mpi";
const LIST: &str = "abi/fabric/tests/mpi/results.txt";
/// The modules that are tested by default.
const MODULES: &str = concat!(
    r"^test_(p2p_(buf|obj)(_matched)?|cco_(buf|obj)|cco_(buf|obj|vec)_inter|cco_nb_buf|cco_ngh_(buf|obj)",
    r"|comm(_inter|_topo)?|win)\.py"
);

const HEAD: &str = "\
# mpi4py's tests over the libfabric provider with four ranks. For each MPI: the number of tests that pass, or a test that does not and the reason.
# Compared by `cargo xtask test --only mpi`; renewed with `--record`.
";

/// The stage.
///
/// # Errors
/// The Python package index cannot be reached, something does not compile, or a rank reports nothing.
pub fn tests(session: &Session<'_>) -> Result<Report> {
    let workspace = Workspace::new(session)?;
    let (mut passed, mut failures) = (0, Vec::new());
    for run in RUNS {
        if run.unprivileged && !process::is_root() {
            continue;
        }
        match workspace.program(run) {
            Ok(()) => passed += 1,
            Err(error) => {
                println!("error: {error:#}");
                failures.push(format!("{error:#}"));
            }
        }
    }
    if let Some(hosts) = Hosts::new(4400, &ADDRESSES) {
        for provider in [PLAIN, LAYERED] {
            match workspace.two_hosts(&hosts, provider) {
                Ok(()) => passed += 1,
                Err(error) => {
                    println!("error: {error:#}");
                    failures.push(format!("{error:#}"));
                }
            }
        }
    }
    for monitor in MONITORS {
        match workspace.children(monitor) {
            Ok(()) => passed += 1,
            Err(error) => {
                println!("error: {error:#}");
                failures.push(format!("{error:#}"));
            }
        }
    }
    let modules = std::env::var("RKEY_MPI4PY").ok();
    let mut found = Vec::new();
    for mpi in Mpi::ALL {
        found.push(workspace.mpi4py(mpi, modules.as_deref().unwrap_or(MODULES))?);
    }
    let text: String = found.iter().map(Found::render).collect();
    if session.record && modules.is_none() {
        fs::write(session.root.join(LIST), format!("{HEAD}{text}"))?;
    }
    let expected = fs::read_to_string(session.root.join(LIST)).unwrap_or_default();
    for one in &found {
        let wrong = one.judge(&expected, modules.is_none());
        passed += one.passed();
        if !wrong.is_empty() {
            println!("{}", one.output);
        }
        for what in wrong {
            println!("error: mpi4py over {}: {what}", one.mpi);
            failures.push(format!("mpi4py over {}: {what}", one.mpi));
        }
    }
    Ok(Report {
        passed,
        failures,
        note: format!("{} runs of four ranks, mpi4py", RUNS.len()),
        skipped: false,
    })
}

/// A directory that all users can read, with the MPIs, the programs and the provider.
struct Workspace {
    folder: PathBuf,
}

impl Workspace {
    fn new(session: &Session<'_>) -> Result<Self> {
        let folder = session.scratch.join("mpi");
        fs::create_dir_all(&folder)?;
        let kept = kept(session)?;
        provider_into(session, &folder.join("lib"))?;
        for part in ["venv", "intel", "tests"] {
            copy(&kept.join(part), &folder)?;
        }
        let sources = session.root.join(SOURCES);
        for script in ["suite.py", "children.py"] {
            fs::copy(sources.join(script), folder.join(script))?;
        }
        fs::copy(session.root.join(RECORDER), folder.join("recorder.py"))?;
        let workspace = Self { folder };
        for mpi in [Mpi::Open, Mpi::Mpich] {
            let mut compile = match mpi {
                Mpi::Open => Command::new("mpicc.openmpi"),
                _ => Command::new(workspace.folder.join("venv/bin/mpicc")),
            };
            compile
                .arg("-O1")
                .arg("-o")
                .arg(workspace.folder.join(mpi.name()));
            for file in ["main.c", "messages.c", "collectives.c", "windows.c"] {
                compile.arg(sources.join(file));
            }
            process::capture(&mut compile)?;
        }
        Ok(workspace)
    }

    fn program(&self, run: &Run) -> Result<()> {
        let user = run.unprivileged.then_some(UID);
        let mut command = self.launch(run.mpi, run.provider, user, run.direct)?;
        command
            .arg(self.folder.join(run.mpi.compiled_by().name()))
            .args(run.parts)
            .envs(run.environment.iter().copied());
        agree(command, run.mpi, run.parts, monitor_line(run.environment))
    }

    /// Runs the C program on two hosts.
    fn two_hosts(&self, hosts: &Hosts, provider: &str) -> Result<()> {
        let parts = ["messages", "collectives", "access"];
        let mut command = self.launch_on(hosts, provider)?;
        command
            .arg(self.folder.join(Mpi::Mpich.name()))
            .args(parts)
            // Packets between hosts carry only keys that the provider chooses.
            .env("MPIR_CVAR_CH4_OFI_ENABLE_MR_PROV_KEY", "1")
            .env("FI_OFI_RXM_SAR_LIMIT", "0");
        agree(command, Mpi::Mpich, &parts, None)
    }

    /// Runs a Python program that starts children, under a monitor of the registration cache.
    fn children(&self, monitor: &Monitor) -> Result<()> {
        let mut command = self.launch(Mpi::Open, PLAIN, None, false)?;
        command
            .arg(self.folder.join("venv/bin/python3"))
            .arg(self.folder.join("children.py"))
            .envs(monitor.iter().copied());
        let described = process::describe(&command);
        let outcome = process::run(command, Duration::from_secs(LIMIT_S + 60))?;
        ensure!(outcome.ok, "{described} failed");
        let agreed = format!("children: {RANKS} ranks agree");
        for line in [agreed].into_iter().chain(monitor_line(monitor)) {
            ensure!(
                outcome.output.contains(&line),
                "{described} did not print {line:?}"
            );
        }
        proven(Mpi::Open, &outcome.output).context(described)
    }

    /// Runs mpi4py's tests.
    fn mpi4py(&self, mpi: Mpi, modules: &str) -> Result<Found> {
        let results = self.folder.join(format!("{}.results", mpi.name()));
        let mut command = self.launch(mpi, PLAIN, None, false)?;
        command
            .arg(self.folder.join("venv/bin/python3"))
            .arg(self.folder.join("suite.py"))
            .arg(self.folder.join("tests"))
            .arg(&results)
            .arg(modules)
            .arg(mpi.left_out());
        let described = process::describe(&command);
        let outcome = process::run_unseen(command, Duration::from_secs(LIMIT_S + 60))?;
        let mut found = Found {
            mpi: mpi.name(),
            rows: BTreeMap::new(),
            ended: !outcome.timed_out,
            output: String::new(),
        };
        let complete = found
            .add_ranks(&results)
            .and_then(|()| proven(mpi, &outcome.output));
        if complete.is_err() {
            println!("{}", outcome.output);
        }
        found.output = outcome.output;
        complete.context(described).map(|()| found)
    }
}

/// Runs the C program, whose ranks must agree in each part, over the provider.
fn agree(command: Command, mpi: Mpi, parts: &[&str], also: Option<String>) -> Result<()> {
    let described = process::describe(&command);
    let outcome = process::run(command, Duration::from_secs(LIMIT_S + 60))?;
    ensure!(outcome.ok, "{described} failed");
    let parts = parts.iter();
    let lines = parts.map(|part| format!("{part}: {RANKS} ranks agree"));
    for line in lines.chain(also) {
        ensure!(
            outcome.output.contains(&line),
            "{described} did not print {line:?}"
        );
    }
    proven(mpi, &outcome.output).context(described)
}

fn proven(mpi: Mpi, output: &str) -> Result<()> {
    ensure!(
        output.contains(mpi.proof()),
        "{} did not use the provider: it did not print {:?}",
        mpi.name(),
        mpi.proof()
    );
    Ok(())
}
