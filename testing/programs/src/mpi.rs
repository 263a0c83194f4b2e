//! MPI over the libfabric provider: Debian's Open MPI, and MPICH and Intel MPI of the Python package index, four ranks each.
//!
//! A C program of ours checks the data of messages, collectives and one-sided access; then a part of mpi4py's
//! own tests runs, compared with the list of what does not pass. `RKEY_MPI4PY` names other modules of these.
//! Every other way between the ranks is forbidden, and each MPI has to say that it took the provider.

use crate::rdma_core::RECORDER;
use anyhow::{Context, Result, bail, ensure};
use rkey_harness::{Report, Session, UID, in_target, process, testbin};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The program, what runs mpi4py's tests, and the list of those that do not pass.
const SOURCES: &str = "abi/fabric/tests/mpi";
const LIST: &str = "abi/fabric/tests/mpi/results.txt";
/// The interpreter that the packages are installed for.
const PYTHON: &str = "/usr/bin/python3";
const MPICH: &str = "mpich==5.0.2";
const INTEL: &str = "impi-rt==2021.18.1";
const MPI4PY: &str = "mpi4py==4.1.2";
/// What is tested without being asked for more.
const MODULES: &str = concat!(
    r"^test_(p2p_(buf|obj)(_matched)?|cco_(buf|obj)|cco_(buf|obj|vec)_inter|cco_nb_buf|cco_ngh_(buf|obj)",
    r"|comm(_inter|_topo)?|win)\.py"
);
const RANKS: &str = "4";
/// A run takes seconds, and many minutes where everybody else is busy: Open MPI gives its processors away to who spins.
const LIMIT_S: u64 = 900;
const EVERYTHING: &[&str] = &[
    "messages",
    "matched",
    "truncation",
    "collectives",
    "access",
    "windows",
];

const HEAD: &str = "\
# mpi4py's tests over the libfabric provider, four ranks: the MPI, a test that does not pass, and why; or how many pass.
# Compared by `cargo xtask test --only mpi`; renewed with `--record`.
";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mpi {
    Open,
    Mpich,
    Intel,
}

impl Mpi {
    const ALL: [Self; 3] = [Self::Open, Self::Mpich, Self::Intel];

    const fn name(self) -> &'static str {
        match self {
            Self::Open => "openmpi",
            Self::Mpich => "mpich",
            Self::Intel => "intel",
        }
    }

    /// Whose compiler makes the programs for it: Intel's MPI runs those of MPICH, and comes without one.
    const fn compiled_by(self) -> Self {
        match self {
            Self::Open => Self::Open,
            Self::Mpich | Self::Intel => Self::Mpich,
        }
    }

    /// What it prints when it has taken the provider.
    const fn proof(self) -> &'static str {
        match self {
            Self::Open => "mtl:ofi:provider: rkey0",
            Self::Mpich | Self::Intel => "libfabric provider: rkey",
        }
    }

    /// Tests of mpi4py that stop the others: with Open MPI a send that cannot be cancelled is an error, and what it
    /// has sent then disturbs those behind, with every provider.
    const fn left_out(self) -> &'static str {
        match self {
            Self::Open => "Cancel",
            Self::Mpich | Self::Intel => "",
        }
    }
}

/// A run of the C program.
struct Run {
    mpi: Mpi,
    provider: &'static str,
    environment: &'static [(&'static str, &'static str)],
    parts: &'static [&'static str],
    unprivileged: bool,
    /// Open MPI's windows are not made of messages, but of accesses of the provider's: `osc rdma` over `btl ofi`.
    direct: bool,
}

const fn run(mpi: Mpi, provider: &'static str, parts: &'static [&'static str]) -> Run {
    Run {
        mpi,
        provider,
        environment: &[],
        parts,
        unprivileged: false,
        direct: false,
    }
}

/// The provider alone, and with libfabric's own layer on top.
const PLAIN: &str = "rkey";
const LAYERED: &str = "rkey;ofi_rxm";

const RUNS: &[Run] = &[
    run(Mpi::Open, PLAIN, EVERYTHING),
    run(Mpi::Mpich, PLAIN, EVERYTHING),
    run(Mpi::Intel, PLAIN, EVERYTHING),
    // The ofi_rxm of libfabric 1.17 never completes a message that it sends in segments and a matched probe has taken,
    // over any provider. `rkey run` sets the variable for that.
    run(
        Mpi::Open,
        LAYERED,
        &["messages", "collectives", "access", "windows"],
    ),
    Run {
        environment: &[("FI_OFI_RXM_SAR_LIMIT", "0")],
        ..run(Mpi::Open, LAYERED, EVERYTHING)
    },
    // Messages that are longer than their receives confuse MPICH over ofi_rxm.
    run(
        Mpi::Mpich,
        LAYERED,
        &["messages", "matched", "collectives", "access", "windows"],
    ),
    Run {
        environment: &[("FI_RKEY_PROFILE", "efa")],
        ..run(Mpi::Mpich, PLAIN, &["messages", "access", "windows"])
    },
    Run {
        environment: &[("FI_RKEY_PROFILE", "efa")],
        ..run(Mpi::Intel, PLAIN, EVERYTHING)
    },
    Run {
        environment: &[("FI_RKEY_PROFILE", "cxi")],
        ..run(Mpi::Mpich, PLAIN, &["messages", "access", "windows"])
    },
    // Its `btl ofi` does not know some operations of accumulates, and crashes when a rank compares and swaps in its own
    // window.
    Run {
        direct: true,
        ..run(Mpi::Open, PLAIN, &["access"])
    },
    Run {
        unprivileged: true,
        ..run(Mpi::Open, PLAIN, &["messages", "access", "windows"])
    },
    Run {
        unprivileged: true,
        ..run(Mpi::Mpich, PLAIN, &["messages", "access", "windows"])
    },
    Run {
        unprivileged: true,
        ..run(Mpi::Intel, PLAIN, &["messages", "access", "windows"])
    },
];

/// The stage.
///
/// # Errors
/// The Python package index cannot be reached, something does not compile, or a rank reports nothing.
pub fn tests(session: &Session<'_>) -> Result<Report> {
    let place = Place::new(session)?;
    let (mut passed, mut failures) = (0, Vec::new());
    for run in RUNS {
        if run.unprivileged && !process::is_root() {
            continue;
        }
        match place.program(run) {
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
        found.push(place.mpi4py(mpi, modules.as_deref().unwrap_or(MODULES))?);
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

/// A folder that everybody can read, with the MPIs, the programs and the provider.
struct Place {
    folder: PathBuf,
}

impl Place {
    fn new(session: &Session<'_>) -> Result<Self> {
        let folder = session.scratch.join("mpi");
        fs::create_dir_all(&folder)?;
        let kept = kept(session)?;
        provider_into(session, &folder.join("lib"))?;
        for part in ["venv", "intel", "tests"] {
            copy(&kept.join(part), &folder)?;
        }
        let sources = session.root.join(SOURCES);
        fs::copy(sources.join("suite.py"), folder.join("suite.py"))?;
        fs::copy(session.root.join(RECORDER), folder.join("recorder.py"))?;
        let place = Self { folder };
        for mpi in [Mpi::Open, Mpi::Mpich] {
            let mut compile = match mpi {
                Mpi::Open => Command::new("mpicc.openmpi"),
                _ => Command::new(place.folder.join("venv/bin/mpicc")),
            };
            compile
                .arg("-O1")
                .arg("-o")
                .arg(place.folder.join(mpi.name()));
            for file in ["main.c", "messages.c", "collectives.c", "windows.c"] {
                compile.arg(sources.join(file));
            }
            process::capture(&mut compile)?;
        }
        Ok(place)
    }

    /// Starts four ranks of something.
    fn launch(&self, mpi: Mpi, provider: &str, user: Option<u32>, direct: bool) -> Result<Command> {
        let own = self
            .folder
            .join(user.map_or("own".to_owned(), |uid| uid.to_string()));
        fs::create_dir_all(&own)?;
        // An MPI that is asked to end ends its ranks; one that is killed leaves them behind.
        let mut command = Command::new("timeout");
        command.arg("--kill-after=20").arg(LIMIT_S.to_string());
        if let Some(uid) = user {
            chown(&own, Some(uid), Some(uid))?;
            command.uid(uid).gid(uid);
        }
        command
            .current_dir(&own)
            .env("HOME", &own)
            .env("TMPDIR", &own)
            .env("FI_PROVIDER_PATH", self.folder.join("lib"))
            .env("FI_PROVIDER", provider)
            .env("RKEY_LOG", "info")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        match mpi {
            Mpi::Open => {
                command.args(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"]);
                let (btl, osc) = match direct {
                    true => ("self,ofi", "rdma"),
                    false => ("self", "sm,pt2pt"),
                };
                for (name, value) in [
                    ("pml", "cm"),
                    ("mtl", "ofi"),
                    ("btl", btl),
                    ("btl_ofi_provider_include", provider),
                    ("osc", osc),
                    ("mtl_ofi_provider_include", provider),
                    ("mtl_base_verbose", "1"),
                    ("mpi_yield_when_idle", "1"),
                ] {
                    command.args(["--mca", name, value]);
                }
                command
                    .env("MPI4PY_MPIABI", "openmpi")
                    // Its windows over messages are for one thread at a time, and it never acknowledges a
                    // synchronous send that a matched probe has taken.
                    .env("MPI4PY_RC_THREAD_LEVEL", "serialized")
                    .env("MPI4PY_RC_RECV_MPROBE", "false");
            }
            Mpi::Mpich => {
                command
                    .arg(self.folder.join("venv/bin/mpiexec"))
                    .env("MPIR_CVAR_CH4_NETMOD", "ofi")
                    .env("MPIR_CVAR_NOLOCAL", "1")
                    .env("MPIR_CVAR_DEBUG_SUMMARY", "1")
                    .env("MPI4PY_MPIABI", "mpich")
                    .env("LD_LIBRARY_PATH", self.folder.join("venv/lib"));
            }
            Mpi::Intel => {
                let intel = self.folder.join("intel");
                command
                    .arg(intel.join("bin/mpiexec.hydra"))
                    .env("I_MPI_ROOT", &intel)
                    .env("I_MPI_HYDRA_BOOTSTRAP", "fork")
                    .env("I_MPI_FABRICS", "ofi")
                    .env("I_MPI_OFI_PROVIDER", provider)
                    .env("I_MPI_DEBUG", "2")
                    .env("MPI4PY_MPIABI", "impi")
                    .env("MPI4PY_LIBMPI", intel.join("lib/libmpi.so.12"))
                    .env("LD_LIBRARY_PATH", intel.join("lib"));
            }
        }
        command.args(["-n", RANKS]);
        Ok(command)
    }

    fn program(&self, run: &Run) -> Result<()> {
        let user = run.unprivileged.then_some(UID);
        let mut command = self.launch(run.mpi, run.provider, user, run.direct)?;
        command
            .arg(self.folder.join(run.mpi.compiled_by().name()))
            .args(run.parts)
            .envs(run.environment.iter().copied());
        let described = process::describe(&command);
        let outcome = process::run(command, Duration::from_secs(LIMIT_S + 60))?;
        ensure!(outcome.ok, "{described} failed");
        for part in run.parts {
            let line = format!("{part}: {RANKS} ranks agree");
            ensure!(outcome.output.contains(&line), "{described}: no {line:?}");
        }
        proven(run.mpi, &outcome.output).context(described)
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
        // The last words of a test run: without them some tests are missing.
        found.ended &= outcome.output.matches("Ran ").count() == 4;
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

fn proven(mpi: Mpi, output: &str) -> Result<()> {
    ensure!(
        output.contains(mpi.proof()),
        "{} took another way: it does not say {:?}",
        mpi.name(),
        mpi.proof()
    );
    Ok(())
}

/// The folder with MPICH, Intel MPI and mpi4py, which are brought there if need be.
pub(crate) fn kept(session: &Session<'_>) -> Result<PathBuf> {
    let kept = in_target(session, "mpi")?;
    install(&kept)?;
    Ok(kept)
}

/// Puts a release build of the provider into a folder, under the name that libfabric looks for.
pub(crate) fn provider_into(session: &Session<'_>, folder: &Path) -> Result<()> {
    testbin::build(session.root, &["build", "--release", "-p", "rkey-fabric"])?;
    let library = in_target(session, "release/librkey_fi.so")?;
    fs::create_dir_all(folder)?;
    fs::copy(&library, folder.join("librkey-fi.so"))
        .with_context(|| format!("copying {}", library.display()))?;
    Ok(())
}

/// Brings MPICH, Intel MPI, mpi4py and mpi4py's tests from the Python package index, once for a target folder.
fn install(kept: &Path) -> Result<()> {
    let stamp = kept.join("complete");
    let wanted = format!("{MPICH} {INTEL} {MPI4PY}\n");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    let _ = fs::remove_dir_all(kept);
    fs::create_dir_all(kept)?;
    pip(
        kept,
        "venv",
        &["install", "-q", "--only-binary", ":all:", MPICH, MPI4PY],
    )?;
    // Its files have the names of MPICH's.
    pip(
        kept,
        "intel",
        &["install", "-q", "--only-binary", ":all:", INTEL],
    )?;
    pip(
        kept,
        "venv",
        &[
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            "mpi4py",
            MPI4PY,
        ],
    )?;
    let package = MPI4PY.replace("==", "-");
    let mut unpack = Command::new("tar");
    unpack
        .arg("-xzf")
        .arg(format!("{package}.tar.gz"))
        .current_dir(kept);
    process::capture(&mut unpack)?;
    fs::rename(kept.join(&package).join("test"), kept.join("tests"))?;
    fs::write(stamp, wanted)?;
    Ok(())
}

/// Runs the installer of a Python environment in the folder, which is made if it is not there.
pub(crate) fn pip(kept: &Path, environment: &str, words: &[&str]) -> Result<()> {
    let environment = kept.join(environment);
    if !environment.exists() {
        let mut create = Command::new(PYTHON);
        create.args(["-m", "venv", "--copies"]).arg(&environment);
        process::capture(&mut create)?;
    }
    let mut command = Command::new(environment.join("bin/python3"));
    command.args(["-m", "pip", "--disable-pip-version-check"]);
    command
        .args(words)
        .args(["--retries", "10", "--timeout", "60"]);
    command.current_dir(kept);
    let described = process::describe(&command);
    if !process::run(command, Duration::from_secs(600))?.ok {
        bail!("{described} failed: this stage needs the Python package index");
    }
    Ok(())
}

/// Copies a folder into another, readable for everybody.
pub(crate) fn copy(from: &Path, into: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    command
        .args(["-a", "--no-preserve=ownership"])
        .arg(from)
        .arg(into);
    process::capture(&mut command)?;
    let mut command = Command::new("chmod");
    command.args(["-R", "a+rX"]).arg(into);
    process::capture(&mut command)?;
    Ok(())
}

/// What became of mpi4py's tests.
struct Found {
    mpi: &'static str,
    /// Result and reason by test.
    rows: BTreeMap<String, (String, String)>,
    /// All ranks came to their ends.
    ended: bool,
    /// What the ranks printed; shown only when a result is not the recorded one.
    output: String,
}

impl Found {
    /// Adds what each rank has reported in its file.
    fn add_ranks(&mut self, results: &Path) -> Result<()> {
        for rank in 0..4 {
            let file = results.with_extension(format!("results.{rank}"));
            let text = fs::read_to_string(&file)
                .with_context(|| format!("rank {rank} reported nothing"))?;
            self.add(&text);
        }
        Ok(())
    }

    /// Adds what one rank reports: a test has failed if it failed on one of them.
    fn add(&mut self, text: &str) {
        for line in text.lines() {
            let mut columns = line.splitn(3, '\t').map(str::to_owned);
            let (Some(name), Some(result)) = (columns.next(), columns.next()) else {
                continue;
            };
            let reason = columns.next().unwrap_or_default();
            let row = self
                .rows
                .entry(name)
                .or_insert_with(|| (result.clone(), reason.clone()));
            if result == "FAIL" && row.0 != "FAIL" {
                *row = (result, reason);
            }
        }
    }

    fn with(&self, result: &str) -> impl Iterator<Item = (&String, &String)> {
        self.rows
            .iter()
            .filter(move |(_, row)| row.0 == result)
            .map(|(name, row)| (name, &row.1))
    }

    fn passed(&self) -> usize {
        self.with("ok").count()
    }

    fn render(&self) -> String {
        let mpi = self.mpi;
        let mut text = format!("{mpi}\tpass\t{}\n", self.passed());
        for (name, reason) in self.with("FAIL") {
            text.push_str(format!("{mpi}\t{name}\t{reason}").trim_end());
            text.push('\n');
        }
        text
    }

    /// What is not as the list has it; the number of those that pass counts only for the ordinary modules.
    fn judge(&self, list: &str, ordinary: bool) -> Vec<String> {
        let mut wrong = Vec::new();
        let start = format!("{}\t", self.mpi);
        let lines = list.lines().filter_map(|line| line.strip_prefix(&start));
        let known: BTreeMap<&str, &str> = lines.filter_map(|line| line.split_once('\t')).collect();
        for (name, reason) in self.with("FAIL") {
            if !known.contains_key(name.as_str()) {
                wrong.push(format!("{name} failed: {reason}"));
            }
        }
        let passed = self.passed().to_string();
        if ordinary && known.get("pass") != Some(&passed.as_str()) {
            let before = known.get("pass").unwrap_or(&"none");
            wrong.push(format!(
                "{passed} tests pass, and {before} are recorded (--record)"
            ));
        }
        if !self.ended {
            wrong.push("not every rank came to its end".to_owned());
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_as_a_failure() {
        let mut found = Found {
            mpi: "mpich",
            rows: BTreeMap::new(),
            ended: true,
            output: String::new(),
        };
        found.add("a.A.one\tok\t\na.A.two\tok\t\na.A.three\tskip\tnot here\n");
        found.add("a.A.one\tok\t\na.A.two\tFAIL\t1 != 2\na.A.three\tskip\tnot here\n");
        assert_eq!(found.passed(), 1);
        let list = found.render();
        assert_eq!(list, "mpich\tpass\t1\nmpich\ta.A.two\t1 != 2\n");
        assert!(found.judge(&list, true).is_empty());
        assert_eq!(found.judge("mpich\tpass\t1\n", true).len(), 1);
        assert_eq!(found.judge("openmpi\tpass\t1\n", true).len(), 2);
        assert_eq!(found.judge("", false).len(), 1);
        found.ended = false;
        assert_eq!(found.judge(&list, true).len(), 1);
    }
}
