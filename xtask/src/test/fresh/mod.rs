//! Runs the README's commands as the first user of a fresh machine would: in a minimal Debian 12 in a directory, with
//! git, the certificates, a C linker and the Rust toolchain that runs us, and with a clean clone of the committed
//! files.

mod host;

use super::steps::MINUTE;
use super::{Report, Session, failures};
use crate::process;
use anyhow::{Context, Result, ensure};
use host::{CERTIFICATES, Host, NEW_HOME};
use rkey_harness::in_target;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the README requires besides Rust, as Debian packages.
const LINKER: &str = "gcc libc6-dev";

/// The path of the toolchain in the root.
const TOOLCHAIN: &str = "/opt/rust";

/// The path of the clone in the root. It is in two parts because the lint rejects files that name the checkout in which it
/// runs.
const CLONE: &str = concat!("/srv", "/rkey");

const ENTER: &str = include_str!("enter.sh");

/// Builds the root and runs the commands in it.
pub(super) fn tests(session: &Session<'_>) -> Result<Report> {
    ensure!(
        process::is_root(),
        "this stage needs root: it builds a Debian root file system and enters it"
    );
    ensure!(
        process::exists("debootstrap"),
        "run as root: apt-get install debootstrap"
    );
    let readme = fs::read_to_string(session.root.join("README.md"))?;
    let commands = commands(&readme);
    ensure!(
        commands.len() == 2,
        "the first shell block of README.md must have 2 commands, not {commands:?}"
    );
    let root = in_target(session, "fresh")?.join("root");
    let mirror = mirror();
    debootstrap(&root, mirror.as_deref())?;
    let fresh = Fresh {
        host: Host::of(std::env::vars_os(), Path::exists, mirror.is_some()),
        toolchain: toolchain(session)?,
        root,
    };
    fresh.write_binds()?;
    fresh.copy_certificates()?;
    fresh.clone_of(session.root)?;
    let mut report = Report {
        passed: 0,
        failures: Vec::new(),
        note: String::new(),
        skipped: false,
    };
    fresh.run(
        &format!("apt-get update -q && apt-get install -q -y --no-install-recommends {LINKER}"),
        &mut report,
    )?;
    for command in &commands {
        let last = fresh.run(&format!("cd {CLONE} && {command}"), &mut report)?;
        if !report.note.is_empty() {
            report.note.push_str("; ");
        }
        report.note.push_str(&format!("{command}: {last}"));
    }
    if report.failures.is_empty() {
        fs::remove_dir_all(&fresh.root).context("cannot remove the fresh root")?;
    }
    Ok(report)
}

/// The commands of the README's first shell block, without their comments.
fn commands(readme: &str) -> Vec<String> {
    readme
        .lines()
        .skip_while(|line| *line != "```sh")
        .skip(1)
        .take_while(|line| *line != "```")
        .map(|line| line.split('#').next().unwrap_or("").trim().to_owned())
        .filter(|command| !command.is_empty())
        .collect()
}

/// Installs a minimal Debian 12 with git and certificates from `mirror`, which replaces the contents of `root`.
fn debootstrap(root: &Path, mirror: Option<&str>) -> Result<()> {
    if root.exists() {
        fs::remove_dir_all(root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    fs::create_dir_all(root)?;
    let mut command = Command::new("debootstrap");
    command.args([
        "--variant=minbase",
        "--include=git,ca-certificates",
        "bookworm",
    ]);
    command.arg(root).args(mirror);
    let outcome = process::run(command, 20 * MINUTE)?;
    ensure!(outcome.ok, "debootstrap failed");
    Ok(())
}

/// The mirror from which this machine's apt gets Debian 12; `None` on another system, where debootstrap uses its
/// default.
fn mirror() -> Option<String> {
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(REPO_URI)"]);
    command.args([
        "Created-By: Packages",
        "Codename: bookworm",
        "Component: main",
    ]);
    let found = process::capture(&mut command).ok()?;
    found.lines().next().map(str::to_owned)
}

/// The directory of the toolchain that runs us.
fn toolchain(session: &Session<'_>) -> Result<PathBuf> {
    let mut command = Command::new("rustc");
    command
        .args(["--print", "sysroot"])
        .current_dir(session.root);
    Ok(process::capture(&mut command)?.trim().into())
}

/// A root and what it inherits from this machine.
struct Fresh {
    root: PathBuf,
    host: Host,
    toolchain: PathBuf,
}

impl Fresh {
    fn beside(&self, name: &str) -> PathBuf {
        self.root.with_file_name(name)
    }

    /// Writes `enter.sh` and its list of mounts.
    fn write_binds(&self) -> Result<()> {
        let toolchain = PathBuf::from(TOOLCHAIN);
        let binds = self.host.binds.iter();
        let binds: String = binds
            .chain([(&self.toolchain, &toolchain)])
            .map(|(from, to)| format!("{}\t{}\n", from.display(), to.display()))
            .collect();
        fs::write(self.beside("binds"), binds)?;
        fs::write(self.beside("enter.sh"), ENTER)?;
        Ok(())
    }

    fn copy_certificates(&self) -> Result<()> {
        for folder in CERTIFICATES.iter().filter(|path| Path::new(path).exists()) {
            let mut command = Command::new("cp");
            command.args(["-a", "--remove-destination", &format!("{folder}/.")]);
            command.arg(format!("{}{folder}/", self.root.display()));
            process::capture(&mut command)?;
        }
        Ok(())
    }

    /// Clones the committed files of `checkout`.
    fn clone_of(&self, checkout: &Path) -> Result<()> {
        let mut command = Command::new("git");
        command.args(["clone", "--quiet", "--no-hardlinks"]);
        command.arg(checkout);
        command.arg(format!("{}{CLONE}", self.root.display()));
        process::capture(&mut command)?;
        Ok(())
    }

    /// Runs a shell command line in the root as one check; returns the last line that it printed.
    fn run(&self, line: &str, report: &mut Report) -> Result<String> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh"]);
        command.args([
            self.beside("enter.sh"),
            self.root.clone(),
            self.beside("binds"),
        ]);
        command.args(["sh", "-c", line]);
        // Nothing else is inherited.
        command.env_clear().env("HOME", NEW_HOME);
        command.env(
            "PATH",
            format!("{TOOLCHAIN}/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        );
        command.envs(self.host.variables.iter().cloned());
        println!("\n=== fresh: {line}");
        let outcome = process::run(command, 150 * MINUTE)?;
        report.add(match outcome.ok {
            true => Ok(()),
            false => Err(failures::of_program(line, &outcome.output)),
        });
        let last = outcome.output.lines().rfind(|line| !line.trim().is_empty());
        Ok(last.unwrap_or_default().trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_a_fresh_checkout_match_the_readme() {
        let readme = include_str!("../../../../README.md");
        assert_eq!(
            commands(readme),
            ["cargo run --release -- demo", "cargo xtask test"]
        );
    }
}
