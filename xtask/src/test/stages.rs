//! The stages, in the order that finds mistakes at the lowest cost.

use super::steps::{MINUTE, nightly, succeeds, suite};
use super::{Report, Session, counts, fresh, fuzz, networks, unprivileged};
use crate::testbin::{self, Program};
use crate::{conform, lint, packages, process};
use anyhow::{Context, Result};
use rkey_harness::in_target;
use rkey_programs::{deny, fabric, mpi, rdma_core, soft_roce, transfer, udapl};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A stage of the suite.
pub(super) struct Stage {
    /// For `--only`.
    pub(super) name: &'static str,
    /// What the stage checks, in one line.
    pub(super) what: &'static str,
    pub(super) run: fn(&Session<'_>) -> Result<Report>,
}

const fn stage(
    name: &'static str,
    what: &'static str,
    run: fn(&Session<'_>) -> Result<Report>,
) -> Stage {
    Stage { name, what, run }
}

pub(super) const ALL: &[Stage] = &[
    stage(
        "packages",
        "Debian packages that the suite needs",
        debian_packages,
    ),
    stage("fmt", "formatting", fmt),
    stage("clippy", "clippy without warnings", clippy),
    stage(
        "lint",
        "layers, words, unsafety, sizes, documents",
        lint_stage,
    ),
    stage(
        "deny",
        "licences, versions and sources of dependencies",
        deny::tests,
    ),
    stage(
        "advisories",
        "known vulnerabilities of dependencies, by RustSec's database",
        deny::advisories,
    ),
    stage("test", "all unit, model, property and process tests", tests),
    stage(
        "doc",
        "examples in the documentation, and the documentation itself",
        doctests,
    ),
    stage(
        "conform",
        "the conformance table is current and its tests run",
        conformance,
    ),
    stage("loom", "lock-free parts under every interleaving", loom),
    stage(
        "fixed",
        "the cache's hooks in a program that is not position-independent",
        fixed_addresses,
    ),
    stage(
        "miri",
        "base, core, engine, rdm, cm and roce under Miri",
        miri,
    ),
    stage(
        "fuzz",
        "mutated input for each entry that reads a peer's bytes, for some seconds each",
        fuzz::mutated,
    ),
    stage(
        "libfuzzer",
        "input guided by coverage (cargo-fuzz) for each fuzz target, a minute each",
        fuzz::by_coverage,
    ),
    stage(
        "unprivileged",
        "process tests again as uid 65534",
        unprivileged::tests,
    ),
    stage(
        "rdma-core",
        "rdma-core's own Python tests against our libibverbs.so.1",
        rdma_core::tests,
    ),
    stage(
        "fabric",
        "the clauses of fi_mr through libfabric: rkey in every mode, compared with tcp and shm",
        fabric::tests,
    ),
    stage(
        "mpi",
        "Open MPI, MPICH and Intel MPI on four ranks over the libfabric provider",
        mpi::tests,
    ),
    stage(
        "transfer",
        "the Mooncake transfer engine over our libibverbs.so.1",
        transfer::tests,
    ),
    stage(
        "udapl",
        "dtest, dapltest and related programs over our uDAPL provider",
        udapl::tests,
    ),
    stage("demo", "the demo, as this user and as uid 65534", demo),
    stage("examples", "every example succeeds", examples),
    stage(
        "peers",
        "the benchmark and its peers' programs build and run",
        peers,
    ),
    stage(
        "counts",
        "instructions, loads and stores of the short paths, compared with the recorded ones",
        instruction_counts,
    ),
    stage(
        "soft-roce",
        "stock programs whose peer is the kernel's Soft-RoCE, in a virtual machine",
        soft_roce::tests,
    ),
    stage(
        "networks",
        "the tests between two hosts on bad networks, one fault at a time",
        networks::tests,
    ),
    stage(
        "fresh",
        "the README's commands in a minimal Debian 12, as its first user",
        fresh::tests,
    ),
];

/// Stages that run only by name, because they are too slow for every run, need root or further packages, or have results that can change
/// without a code change.
pub(super) const ON_REQUEST: &[&str] = &[
    "advisories",
    "miri",
    "libfuzzer",
    "soft-roce",
    "networks",
    "fresh",
];

fn debian_packages(session: &Session<'_>) -> Result<Report> {
    Ok(Report::check(Ok(()), packages::ensure(session.install)?))
}

/// A check whose output was already printed.
fn told(ok: bool, what: &str) -> Result<(), String> {
    ok.then_some(())
        .ok_or_else(|| format!("{what}; the output of the stage says why"))
}

/// Runs cargo as one check.
fn one_check(session: &Session<'_>, words: &str, note: &str) -> Result<Report> {
    let mut command = process::cargo(session.root);
    command.args(words.split(' '));
    Ok(Report::check(succeeds(command, 15 * MINUTE)?, note))
}

fn fmt(session: &Session<'_>) -> Result<Report> {
    one_check(session, "fmt --all --check", "cargo fmt --check")
}

fn clippy(session: &Session<'_>) -> Result<Report> {
    let words = "clippy --workspace --all-targets -- -D warnings";
    one_check(session, words, "all targets, warnings are errors")
}

fn lint_stage(session: &Session<'_>) -> Result<Report> {
    let name = "cargo xtask lint";
    Ok(Report::check(told(lint::run(session.root)?, name), name))
}

fn has_nextest(session: &Session<'_>) -> bool {
    process::capture(process::cargo(session.root).args(["nextest", "--version"])).is_ok()
}

fn tests(session: &Session<'_>) -> Result<Report> {
    // Also build the examples, because tests start them and `cargo test --tests` does not build them.
    let built = testbin::build_tests(session.root)?;
    let listed = testbin::list(&built.tests)?;
    let expected = listed.iter().filter(|test| !test.ignored).count();
    let mut command = process::cargo(session.root);
    let (runner, words) = match has_nextest(session) {
        true => (
            "cargo nextest",
            "nextest run --workspace --profile suite --color never",
        ),
        false => (
            "cargo test",
            "test --workspace --no-fail-fast --lib --bins --tests",
        ),
    };
    command.args(words.split(' '));
    // Ten minutes, or many more on a slow or busy machine. Under nextest, each test has its own limit.
    let mut report = suite(command, 60 * MINUTE, runner)?;
    report.failures.extend(too_few(expected, &report));
    Ok(report)
}

/// Both runners must run every test that the test programs list.
fn too_few(expected: usize, report: &Report) -> Option<String> {
    let ran = report.passed + report.failures.len();
    (ran < expected).then(|| format!("{ran} tests ran, the test programs list {expected}"))
}

fn doctests(session: &Session<'_>) -> Result<Report> {
    let mut command = process::cargo(session.root);
    command.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
    let mut report = suite(
        command,
        10 * MINUTE,
        "doc tests; rustdoc of all items without warnings",
    )?;
    // This finds everything that the documentation of the public items alone would, except links to private items.
    let mut command = process::cargo(session.root);
    command.args([
        "doc",
        "--workspace",
        "--no-deps",
        "--document-private-items",
    ]);
    let flags = "-D warnings -A rustdoc::private_intra_doc_links";
    command.env("RUSTDOCFLAGS", flags);
    report.add(succeeds(command, 10 * MINUTE)?);
    Ok(report)
}

fn conformance(session: &Session<'_>) -> Result<Report> {
    let name = "cargo xtask conform --check";
    let ok = conform::run(session.root, &conform::Args::checking())?;
    Ok(Report::check(told(ok, name), name))
}

fn loom(session: &Session<'_>) -> Result<Report> {
    let mut command = process::cargo(session.root);
    command.args("test --release -p rkey-base -p rkey-cache -p rkey-core --lib loom".split(' '));
    command
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", in_target(session, "loom")?);
    // The models run for seconds, so the best code would cost more to make than it saves.
    command
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "2");
    command.env("LOOM_MAX_PREEMPTIONS", "3");
    suite(
        command,
        30 * MINUTE,
        "rkey-base, rkey-cache and rkey-core with --cfg loom",
    )
}

/// The hooks in a program that is not position-independent: in such a program, the address of a library's function is that
/// of a stub in the program itself.
fn fixed_addresses(session: &Session<'_>) -> Result<Report> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = process::cargo(session.root);
    // With a target, the flags apply to the test program and its crates only.
    command.args(["test", "-p", "rkey-cache", "--test", "memhooks", "--target"]);
    command.arg(target);
    command
        .env("RUSTFLAGS", "-C relocation-model=static")
        .env("CARGO_TARGET_DIR", in_target(session, "fixed")?);
    suite(
        command,
        10 * MINUTE,
        "rkey-cache with -C relocation-model=static",
    )
}

fn miri(session: &Session<'_>) -> Result<Report> {
    if process::capture(nightly(session.root).args(["miri", "--version"])).is_err() {
        return Ok(Report::skip(
            "no nightly toolchain with miri (rustup +nightly component add miri)",
        ));
    }
    let mut command = nightly(session.root);
    command.args("miri test --no-fail-fast --lib --tests".split(' '));
    command.args(
        "-p rkey-base -p rkey-core -p rkey-engine -p rkey-rdm -p rkey-cm -p rkey-roce".split(' '),
    );
    command.env(
        "MIRIFLAGS",
        "-Zmiri-disable-isolation -Zmiri-permissive-provenance",
    );
    command
        .env("PROPTEST_CASES", "2")
        .env("CARGO_TARGET_DIR", in_target(session, "miri")?);
    suite(command, 60 * MINUTE, "nightly Miri")
}

/// The release build of `rkey`.
fn release_build(session: &Session<'_>) -> Result<PathBuf> {
    let mut built = testbin::build_release(session.root)?;
    let program = built.programs.remove("rkey");
    let program = program.context("cargo built no program named rkey")?;
    Ok(program.executable)
}

fn instruction_counts(session: &Session<'_>) -> Result<Report> {
    counts::tests(session, &release_build(session)?)
}

fn demo(session: &Session<'_>) -> Result<Report> {
    let program = release_build(session)?;
    let mut command = Command::new(&program);
    command.arg("demo");
    let mut report = Report::check(succeeds(command, 3 * MINUTE)?, "as this user");
    if !process::is_root() {
        report.note = "as this user only, because xtask does not run as root".into();
        return Ok(report);
    }
    let mut command = unprivileged::command(session, &program)?;
    command.arg("demo");
    report.add(succeeds(command, 3 * MINUTE)?);
    report.note = "as root and as uid 65534".into();
    Ok(report)
}

fn examples(session: &Session<'_>) -> Result<Report> {
    let built = testbin::build_all(session.root)?;
    let programs = built.programs.into_values();
    let wanted = |program: &Program| program.is_example && program.package == "rkey";
    let examples: Vec<_> = programs.filter(wanted).collect();
    let mut report = Report {
        passed: 0,
        failures: Vec::new(),
        note: format!("{} examples", examples.len()),
        skipped: false,
    };
    for example in &examples {
        let mut command = Command::new(&example.executable);
        command.current_dir(session.root);
        report.add(succeeds(command, 2 * MINUTE)?);
    }
    if examples.is_empty() {
        report
            .failures
            .push("cargo built no examples of rkey".into());
    }
    Ok(report)
}

/// Whether a short run of the benchmark measures libfabric and UCX.
fn measures_peers(program: &Path, ours: &[&str]) -> Result<bool> {
    let mut command = Command::new(program);
    command.args([
        "bench", "write", "send", "--sizes", "8,65536", "--peers", "--quick",
    ]);
    command.args(ours);
    let outcome = process::run(command, 5 * MINUTE)?;
    let said = |name| outcome.output.contains(name);
    Ok(outcome.ok && said("libfabric") && said("ucx") && !said("not measured"))
}

fn peers(session: &Session<'_>) -> Result<Report> {
    let program = release_build(session)?;
    let mut ran = true;
    for ours in [&[][..], &["--libfabric"]] {
        ran &= measures_peers(&program, ours)? || {
            println!("again, because a peer may hang: libfabric's shm has done so");
            measures_peers(&program, ours)?
        };
    }
    let note = if ran {
        "rkey bench, also of our libfabric provider, compared with libfabric and UCX"
    } else {
        "rkey bench failed, or did not measure libfabric or UCX"
    };
    Ok(Report::check(told(ran, note), note))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_omits_tests_fails() {
        let mut report = Report::check(Ok(()), "");
        report.failures.push("FAIL a".into());
        assert_eq!(too_few(2, &report), None);
        assert!(too_few(3, &report).is_some_and(|said| said.contains("2 tests ran")));
    }
}
