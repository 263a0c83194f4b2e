//! The clauses of `fi_mr(3)` through the public interface of an installed libfabric: a C program of checks, over our
//! provider in every mode of registration and several API versions, and over libfabric's own `tcp` and `shm`. Our
//! provider runs with the system's libfabric and with a newer one, and so do libfabric's own programs.
//!
//! Our provider must pass every check. The results of the others must match the page that explains their differences
//! exactly.

mod newer;
mod page;

use crate::folder::{provider_into, run_as};
use crate::mpi;
use anyhow::{Context, Result};
use page::{Check, Found, Results, Verdict};
use rkey_harness::{Report, Session, UID, process};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const SOURCES: &str = "abi/fabric/tests/clauses";
const PAGE: &str = "docs/fabric-differences.md";
/// Libfabric's own providers, and the filter value that each needs.
const OTHERS: &[(&str, &str)] = &[("tcp", "tcp,ofi_rxm"), ("shm", "shm")];
/// The API version of Debian's libfabric.
const API: &str = "1.17";

/// Required mode bits: none, each alone, some sets, and all that may be combined.
const MODES: &[&str] = &[
    "NONE",
    "LOCAL",
    "RAW",
    "VIRT_ADDR",
    "ALLOCATED",
    "PROV_KEY",
    "MMU_NOTIFY",
    "RMA_EVENT",
    "ENDPOINT",
    "HMEM",
    "COLLECTIVE",
    "BASIC",
    "SCALABLE",
    "LOCAL,VIRT_ADDR,ALLOCATED,PROV_KEY",
    "ENDPOINT,ALLOCATED",
    "RAW,VIRT_ADDR",
    "LOCAL,RMA_EVENT,MMU_NOTIFY",
    "LOCAL,RAW,VIRT_ADDR,ALLOCATED,PROV_KEY,MMU_NOTIFY,RMA_EVENT,ENDPOINT,HMEM",
];
/// Modes in which versions or users can differ.
const SOME_MODES: &[&str] = &["NONE", "LOCAL", "RAW", "MMU_NOTIFY", "ENDPOINT", "BASIC"];

/// Modes in which strict mode and the default can differ.
const STRICT_MODES: &[&str] = &["NONE", "LOCAL", "RAW", "RMA_EVENT", "ENDPOINT"];

/// Runs of our provider.
struct Runs {
    /// Runs with MPICH's libfabric, which is newer than Debian's.
    newer: bool,
    api: &'static str,
    modes: &'static [&'static str],
    unprivileged: bool,
    /// With `FI_RKEY_STRICT=1`.
    strict: bool,
}

const fn runs(newer: bool, api: &'static str, modes: &'static [&'static str]) -> Runs {
    Runs {
        newer,
        api,
        modes,
        unprivileged: false,
        strict: false,
    }
}

/// Programs for versions before 1.5 cannot offer single mode bits; versions 1.19, 1.22 and 2.0 brought later
/// changes.
const OURS: &[Runs] = &[
    runs(false, API, MODES),
    runs(false, "1.5", SOME_MODES),
    runs(false, "1.4", &["NONE", "BASIC"]),
    runs(true, "1.18", SOME_MODES),
    runs(true, "1.22", SOME_MODES),
    runs(true, "2.5", MODES),
    Runs {
        unprivileged: true,
        ..runs(false, API, SOME_MODES)
    },
    Runs {
        unprivileged: true,
        ..runs(true, "2.5", SOME_MODES)
    },
    Runs {
        strict: true,
        ..runs(false, API, STRICT_MODES)
    },
    Runs {
        strict: true,
        ..runs(true, "2.5", STRICT_MODES)
    },
];

/// The stage.
///
/// # Errors
/// A package or a program is missing, something does not compile, or the output of the checks cannot be parsed.
pub fn tests(session: &Session<'_>) -> Result<Report> {
    let workspace = Workspace::new(session)?;
    let versions = [newer::version(None)?, newer::check(&workspace.newer)?];
    let checks = page::checks(&workspace.list()?)?;
    let mut wrong = Vec::new();
    let mut passed = ours(&workspace, &checks, &mut wrong)?;
    passed += newer::programs(session.root, &workspace.newer, &mut wrong)?;
    let found = others(&workspace, &checks, &mut wrong)?;
    let file = session.root.join(PAGE);
    let text = fs::read_to_string(&file).unwrap_or_default();
    let rendered = page::render(&checks, &found, &page::explanations(&text));
    if session.record {
        fs::write(&file, &rendered)?;
    } else if page::steady(&rendered) != page::steady(&text) {
        wrong.extend(page::changes(&text, &rendered));
        wrong.push(format!("{PAGE} is out of date: use --record"));
    }
    if rendered.contains(page::UNEXPLAINED) {
        wrong.push(format!(
            "{PAGE}: explain each difference marked {}",
            page::UNEXPLAINED
        ));
    }
    passed += found.values().map(Results::len).sum::<usize>();
    for what in &wrong {
        println!("error: {what}");
    }
    Ok(Report {
        passed,
        failures: wrong,
        note: format!(
            "{} checks; rkey in every mode with libfabric {} and {}, compared with tcp and shm",
            checks.len(),
            versions[0],
            versions[1]
        ),
        skipped: false,
    })
}

/// Every check must pass wherever it applies, and must apply somewhere. Returns how many passed.
fn ours(workspace: &Workspace, checks: &[Check], wrong: &mut Vec<String>) -> Result<usize> {
    let mut passed = 0;
    let mut shown = BTreeSet::new();
    for runs in OURS {
        if runs.unprivileged && !process::is_root() {
            continue;
        }
        for mode in runs.modes {
            let mut command = workspace.command(runs.newer);
            command
                .env("FI_PROVIDER", "rkey")
                .env("FI_RKEY_MR_MODE", mode)
                .env("FI_RKEY_STRICT", if runs.strict { "1" } else { "0" });
            command.args(["--api", runs.api, "rkey"]);
            workspace.run_as(&mut command, runs.unprivileged)?;
            let results = page::results(&process::capture(&mut command)?, checks)?;
            for (name, result) in results {
                match result.verdict {
                    Verdict::Ok => {
                        passed += 1;
                        shown.insert(name);
                    }
                    Verdict::Inapplicable => {}
                    _ => wrong.push(format!(
                        "rkey, API {}, mode {mode}{}: {name} {}: {}",
                        runs.api,
                        if runs.strict { ", strict" } else { "" },
                        result.verdict.name(),
                        result.came
                    )),
                }
            }
        }
    }
    let never = checks.iter().filter(|check| !shown.contains(&check.name));
    wrong.extend(never.map(|check| format!("rkey: {} applies in no run", check.name)));
    Ok(passed)
}

/// The results of libfabric's own providers, which are the same for every user.
fn others(workspace: &Workspace, checks: &[Check], wrong: &mut Vec<String>) -> Result<Found> {
    let mut found = Found::new();
    for (provider, filter) in OTHERS {
        let run = |unprivileged| {
            let mut command = workspace.command(false);
            // Many wait until they time out, so they run in parallel.
            command
                .env("FI_PROVIDER", filter)
                .args(["--together", "16", "--api", API, provider]);
            workspace.run_as(&mut command, unprivileged)?;
            page::results(&process::capture(&mut command)?, checks)
        };
        let results = run(false)?;
        if process::is_root() {
            for (name, result) in run(true)? {
                let same = results
                    .get(&name)
                    .is_some_and(|known| known.verdict == result.verdict);
                if !same && !page::UNSTEADY.contains(&name.as_str()) {
                    wrong.push(format!(
                        "{provider}: {name} differs for an ordinary user: {} {}",
                        result.verdict.name(),
                        result.came
                    ));
                }
            }
        }
        found.insert(provider, results);
    }
    Ok(found)
}

/// A directory that all users can read, with the program and the provider.
struct Workspace {
    folder: PathBuf,
    /// The directory of the newer libfabric.
    newer: PathBuf,
}

impl Workspace {
    fn new(session: &Session<'_>) -> Result<Self> {
        let folder = session.scratch.join("fabric");
        fs::create_dir_all(&folder)?;
        provider_into(session, &folder.join("lib"))?;
        let newer = folder.join("newer");
        fs::create_dir_all(&newer)?;
        let library = mpi::kept(session)?.join("venv/lib/mpich/libfabric.so.1");
        fs::copy(&library, newer.join("libfabric.so.1"))
            .with_context(|| format!("cannot copy {}", library.display()))?;
        let mut sources: Vec<PathBuf> = fs::read_dir(session.root.join(SOURCES))?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        sources.retain(|path| path.extension().is_some_and(|end| end == "c"));
        sources.sort();
        let mut compile = Command::new("gcc");
        compile
            .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra"])
            .args(["-Wno-missing-field-initializers", "-o"])
            .arg(folder.join("clauses"))
            .args(&sources)
            .arg("-lfabric");
        process::capture(&mut compile)?;
        Ok(Self { folder, newer })
    }

    /// The program with one of the two libraries.
    fn command(&self, newer: bool) -> Command {
        let mut command = Command::new(self.folder.join("clauses"));
        command
            .env("FI_PROVIDER_PATH", self.folder.join("lib"))
            .env("RKEY_LOG", "off");
        if newer {
            command.env("LD_LIBRARY_PATH", &self.newer);
        }
        command
    }

    /// The program's list of its checks.
    fn list(&self) -> Result<String> {
        let mut command = self.command(false);
        self.run_as(&mut command, false)?;
        process::capture(command.arg("--list"))
    }

    fn run_as(&self, command: &mut Command, unprivileged: bool) -> Result<()> {
        run_as(command, unprivileged.then_some(UID), &self.folder)?;
        Ok(())
    }
}
