//! The workspace's test programs: their paths, and the tests in them.

use crate::process;
use anyhow::{Context, Result};
use cargo_metadata::Message;
use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One compiled test program.
pub struct TestBinary {
    /// The crate it belongs to.
    pub package: String,
    /// The target's name: the crate's own, or that of a file in tests/.
    pub target: String,
    /// The path of the program.
    pub executable: PathBuf,
    /// The directory of the crate, in which cargo runs it.
    pub directory: PathBuf,
}

/// A compiled program that is not a test.
pub struct Program {
    /// The crate it belongs to.
    pub package: String,
    /// Whether it is an example.
    pub is_example: bool,
    /// The path of the program.
    pub executable: PathBuf,
}

/// The output of a build.
#[derive(Default)]
pub struct Built {
    /// Test programs.
    pub tests: Vec<TestBinary>,
    /// Other programs (binaries and examples) by target name.
    pub programs: BTreeMap<String, Program>,
    /// Shared libraries, by file name.
    pub libraries: BTreeMap<String, PathBuf>,
}

/// Builds with `cargo ARGUMENTS --message-format json` and reads its messages.
fn build(root: &Path, arguments: &[&str]) -> Result<Built> {
    let mut command = process::cargo(root);
    command
        .args(arguments)
        .args(["--message-format", "json-render-diagnostics"]);
    eprintln!("$ {}", process::describe(&command));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut built = Built::default();
    let stdout = child.stdout.take().context("cargo's output is not piped")?;
    for message in Message::parse_stream(BufReader::new(stdout)) {
        let Message::CompilerArtifact(artifact) = message? else {
            continue;
        };
        for library in artifact
            .filenames
            .iter()
            .filter(|path| path.extension() == Some("so"))
        {
            let name = library.file_name().unwrap_or_default().to_owned();
            built.libraries.insert(name, library.into());
        }
        let Some(executable) = artifact.executable else {
            continue;
        };
        let directory = artifact
            .manifest_path
            .parent()
            .map_or_else(PathBuf::new, |p| p.into());
        let package = package_name(&artifact.manifest_path)?;
        if artifact.profile.test {
            built.tests.push(TestBinary {
                package,
                target: artifact.target.name,
                executable: executable.into(),
                directory,
            });
        } else {
            let program = Program {
                package,
                is_example: artifact.target.is_example(),
                executable: executable.into(),
            };
            built.programs.insert(artifact.target.name, program);
        }
    }
    anyhow::ensure!(
        child.wait()?.success(),
        "cargo {} failed",
        arguments.join(" ")
    );
    Ok(built)
}

fn package_name(manifest: &cargo_metadata::camino::Utf8Path) -> Result<String> {
    let text = std::fs::read_to_string(manifest)?;
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with("name"));
    let name = line.and_then(|line| line.split('"').nth(1));
    Ok(name
        .with_context(|| format!("{manifest} names no package"))?
        .to_owned())
}

/// Builds every test of the workspace.
pub fn build_tests(root: &Path) -> Result<Built> {
    build(root, &["test", "--workspace", "--no-run"])
}

/// Builds every library, program and example of the workspace. Which features the other crates get depends on all that is built at once,
/// so a build of one crate would compile most crates again.
pub fn build_all(root: &Path) -> Result<Built> {
    let words = ["build", "--workspace", "--lib", "--bins", "--examples"];
    build(root, &words)
}

/// Builds the front ends and `rkey` for release. Both at once, for the same reason.
pub fn build_release(root: &Path) -> Result<Built> {
    let words = ["build", "--release", "-p", "rkey-all", "-p", "rkey-cli"];
    build(root, &words)
}

/// A test of the workspace, and whether an ordinary run skips it.
pub struct Listed {
    /// The crate it belongs to.
    pub package: String,
    /// Path of the test inside its program.
    pub name: String,
    /// Marked `#[ignore]`.
    pub ignored: bool,
}

/// Lists the tests of every test program.
pub fn list(binaries: &[TestBinary]) -> Result<Vec<Listed>> {
    let mut tests = Vec::new();
    for binary in binaries {
        let ask = |extra: &[&str]| {
            let mut command = Command::new(&binary.executable);
            command
                .args(["--list", "--format", "terse"])
                .args(extra)
                .current_dir(&binary.directory);
            process::capture(&mut command)
        };
        let ignored: Vec<String> = names(&ask(&["--ignored"])?);
        for name in names(&ask(&[])?) {
            let ignored = ignored.contains(&name);
            tests.push(Listed {
                package: binary.package.clone(),
                name,
                ignored,
            });
        }
    }
    Ok(tests)
}

fn names(list: &str) -> Vec<String> {
    list.lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .map(str::to_owned)
        .collect()
}
