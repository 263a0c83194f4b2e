//! rdma-core's own Python tests (Debian ships them in the documentation directory of its package) against our
//! `libibverbs.so.1`, as root and as an ordinary user, compared with the list of results in the repository.

use crate::folder::{open_up, run_as, verbs_into};
use crate::python::{PYTHON, RECORDER};
use anyhow::{Context, Result, ensure};
use rkey_harness::{Report, Session, UID, process};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The list of results, and the program that runs one module.
const LIST: &str = "abi/verbs/tests/rdma-core/results.txt";
const RUNNER: &str = "abi/verbs/tests/rdma-core/run.py";
/// Debian's directory with the tests.
const INSTALLED: &str = "/usr/share/doc/rdma-core/tests";
/// How long a module may take. Most take seconds, or longer on a busy machine.
const MODULE_TIME: Duration = Duration::from_secs(600);

const HEAD: &str = "\
# rdma-core's Python tests on this device: name, result, and why a test is skipped.
# Compared by `cargo xtask test --only rdma-core`; renewed with `--record`.
";

/// The reasons for which a test that is recorded as passing may be skipped: the host lacks what it needs.
const HOST_REASONS: &[&str] = &[
    "There are no huge pages of size 2M allocated",
    "Huge pages of size 2M is not supported in this platform",
    "Device rkey0 doesn't have net interface",
    "Must be run by root on Ethernet link layer",
    "To Create RAW QP must be done by root on Ethernet link layer",
];

const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const HUGE_PAGES_NEEDED: u32 = 16;

/// The result of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    result: String,
    reason: String,
}

type Rows = BTreeMap<String, Row>;

/// The stage.
///
/// # Errors
/// The tests cannot be obtained or run, or the list cannot be read.
pub fn tests(session: &Session<'_>) -> Result<Report> {
    let workspace = Workspace::new(session)?;
    let _huge_pages = HugePages::provide();
    let found = workspace.run_all(None)?;
    let list = session.root.join(LIST);
    if session.record {
        fs::write(&list, render(&found)).with_context(|| format!("cannot write {LIST}"))?;
    }
    let text = fs::read_to_string(&list).with_context(|| format!("cannot read {LIST}"))?;
    let expected = parse(&text)?;
    let mut report = compare(&expected, &found, "as this user");
    if process::is_root() {
        let again = workspace.run_all(Some(UID))?;
        let theirs = compare(&expected, &again, "as an ordinary user");
        report.passed += theirs.passed;
        report.failures.extend(theirs.failures);
        report.note = format!("{}; {}", report.note, theirs.note);
    }
    Ok(report)
}

/// A directory that all users can read with the library, the tests and the runner.
struct Workspace {
    folder: PathBuf,
    modules: Vec<String>,
}

impl Workspace {
    fn new(session: &Session<'_>) -> Result<Self> {
        let folder = session.scratch.join("rdma-core");
        fs::create_dir_all(folder.join("tests"))?;
        verbs_into(session, &folder.join("lib"))?;
        fs::copy(session.root.join(RUNNER), folder.join("run.py"))?;
        fs::copy(session.root.join(RECORDER), folder.join("recorder.py"))?;
        let source = source(session)?;
        let mut modules = Vec::new();
        for entry in fs::read_dir(&source)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let plain = name.strip_suffix(".gz").unwrap_or(&name);
            let to = folder.join("tests").join(plain);
            if name == plain && name.ends_with(".py") {
                fs::copy(entry.path(), to)?;
            } else if name != plain {
                let mut unpack = Command::new("gzip");
                unpack.arg("-dc").arg(entry.path());
                fs::write(to, process::capture(&mut unpack)?)?;
            }
            if let Some(module) = plain.strip_suffix(".py").filter(|m| m.starts_with("test_")) {
                modules.push(module.to_owned());
            }
        }
        modules.sort_unstable();
        ensure!(!modules.is_empty(), "no tests in {}", source.display());
        open_up(&session.scratch)?;
        open_up(&folder)?;
        Ok(Self { folder, modules })
    }

    /// Runs every module, as another user if one is named.
    fn run_all(&self, user: Option<u32>) -> Result<Rows> {
        let mut results = PathBuf::new();
        for module in &self.modules {
            let mut command = Command::new(PYTHON);
            results = run_as(&mut command, user, &self.folder)?.join("results");
            command
                .arg(self.folder.join("run.py"))
                .arg(self.folder.join("tests"))
                .arg(module)
                .arg(&results)
                .env("LD_LIBRARY_PATH", self.folder.join("lib"))
                .env("LD_PRELOAD", self.folder.join("lib/libibverbs.so.1"))
                .env("RKEY_LOG", "off")
                .env("PYTHONDONTWRITEBYTECODE", "1");
            let outcome = process::run(command, MODULE_TIME)?;
            if !outcome.ok {
                println!("error: {module} crashed or hung; its remaining tests have no result");
            }
        }
        parse(&fs::read_to_string(&results).context("no test reported a result")?)
    }
}

/// The directory with the tests: the installed one, or (where packages are installed without their documentation) one
/// that is unpacked from the package.
fn source(session: &Session<'_>) -> Result<PathBuf> {
    let installed = Path::new(INSTALLED);
    if installed.is_dir() {
        return Ok(installed.to_owned());
    }
    let folder = session.scratch.join("package");
    fs::create_dir_all(&folder)?;
    let mut download = Command::new("apt-get");
    download
        .args(["download", "rdma-core"])
        .current_dir(&folder);
    process::capture(&mut download)?;
    let package = fs::read_dir(&folder)?.flatten().next();
    let package = package.context("apt-get download saved no package")?.path();
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("-x").arg(package).arg(&folder);
    process::capture(&mut unpack)?;
    Ok(folder.join(INSTALLED.trim_start_matches('/')))
}

/// Provides huge pages, while it is alive, for the tests that need them; only root can do that.
struct HugePages(Option<u32>);

impl HugePages {
    /// If the kernel finds too few free pages, they are returned: the tests that need huge pages are then skipped.
    fn provide() -> Self {
        let now = || {
            let text = fs::read_to_string(HUGE_PAGES).ok()?;
            text.trim().parse::<u32>().ok()
        };
        let few = now().filter(|&now| now < HUGE_PAGES_NEEDED);
        let given = few.filter(|_| fs::write(HUGE_PAGES, HUGE_PAGES_NEEDED.to_string()).is_ok());
        let it = Self(given);
        match now() {
            Some(now) if now >= HUGE_PAGES_NEEDED => it,
            _ => Self(None),
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            let _ = fs::write(HUGE_PAGES, before.to_string());
        }
    }
}

fn parse(text: &str) -> Result<Rows> {
    let mut rows = Rows::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut columns = line.splitn(3, '\t').map(str::to_owned);
        let (name, result) = (columns.next(), columns.next());
        let (name, result) = name
            .zip(result)
            .with_context(|| format!("{line:?} has no result after the test's name"))?;
        let reason = columns.next().unwrap_or_default();
        rows.insert(name, Row { result, reason });
    }
    Ok(rows)
}

fn render(rows: &Rows) -> String {
    let mut text = HEAD.to_owned();
    for (name, Row { result, reason }) in rows {
        text.push_str(format!("{name}\t{result}\t{reason}").trim_end());
        text.push('\n');
    }
    text
}

/// How to count a test that was recorded as `expected` and ended as `found`; `Err` says what is wrong.
fn judge(expected: Option<&Row>, found: Option<&Row>) -> Result<bool, String> {
    let before = expected.map(|row| row.result.as_str());
    let Some(now) = found else {
        return Err("reported no result".to_owned());
    };
    match (before, now.result.as_str()) {
        (Some("ok"), "ok") => Ok(true),
        (_, "ok") => Err("passes, but is not recorded as passing: use --record".to_owned()),
        (Some("ok"), "skip") if HOST_REASONS.iter().any(|r| now.reason.starts_with(r)) => Ok(false),
        (Some("ok"), result) => Err(format!("recorded as passing, but: {result} {}", now.reason)),
        (_, "skip") => Ok(false),
        (_, result) => Err(format!("{result} {}", now.reason)),
    }
}

fn compare(expected: &Rows, found: &Rows, how: &str) -> Report {
    let mut names: Vec<&String> = expected.keys().chain(found.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let (mut passed, mut failures) = (0, Vec::new());
    for name in &names {
        match judge(expected.get(*name), found.get(*name)) {
            Ok(true) => passed += 1,
            Ok(false) => {}
            Err(what) => {
                println!("error: {name} ({how}) {what}");
                failures.push(format!("{name} ({how}) {what}"));
            }
        }
    }
    Report {
        passed,
        failures,
        note: format!("{passed} of {} pass {how}", names.len()),
        skipped: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(result: &str, reason: &str) -> Option<Row> {
        Some(Row {
            result: result.to_owned(),
            reason: reason.to_owned(),
        })
    }

    #[test]
    fn result_lists_round_trip() {
        let mut rows = Rows::new();
        rows.extend(row("ok", "").map(|row| ("a.B.c".to_owned(), row)));
        rows.extend(row("skip", "no GPU").map(|row| ("a.B.d".to_owned(), row)));
        assert_eq!(parse(&render(&rows)).unwrap(), rows);
        assert!(parse("only a name").is_err());
    }

    #[test]
    fn a_result_that_contradicts_the_record_is_a_failure() {
        let judge = |before: Option<Row>, now: Option<Row>| judge(before.as_ref(), now.as_ref());
        let (ok, skip, bad) = (row("ok", ""), row("skip", "no GPU"), row("FAIL", "x"));
        assert_eq!(judge(ok.clone(), ok.clone()), Ok(true));
        assert_eq!(judge(skip.clone(), skip.clone()), Ok(false));
        assert_eq!(judge(None, skip.clone()), Ok(false));
        for (before, now) in [
            (ok.clone(), skip.clone()),
            (ok.clone(), bad.clone()),
            (ok.clone(), None),
            (skip.clone(), ok.clone()),
            (skip.clone(), bad.clone()),
            (bad.clone(), bad.clone()),
            (None, ok.clone()),
            (None, bad.clone()),
        ] {
            assert!(
                judge(before.clone(), now.clone()).is_err(),
                "{before:?} {now:?}"
            );
        }
        let host = row("skip", HOST_REASONS[0]);
        assert_eq!(judge(ok, host), Ok(false));
    }
}
