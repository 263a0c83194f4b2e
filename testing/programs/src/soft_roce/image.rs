//! The guest's kernel and root file system. They are built once for a target directory, and again when their scripts change.

use super::cases;
use crate::folder::once;
use anyhow::{Context, Result, ensure};
use rkey_harness::{Session, in_target, process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SCRIPT: &str = include_str!("image.sh");
const INIT: &str = include_str!("init.sh");
const PROGRAM: &str = include_str!("operations.c");

/// The program that records what librdmacm does, and the files that it includes.
const PROBE: [&str; 3] = ["probe.c", "probe_endpoints.h", "common.h"];
/// The directory of these files.
const PROBE_FOLDER: &str = "abi/rdmacm/tests/programs";

/// The name of our own program, which is built beside the image.
pub(super) const OPERATIONS: &str = "operations";

/// The programs that the guest, its image and the tests need, and their Debian packages.
const NEEDED: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("nft", "nftables"),
];

/// The directory with the guest's `vmlinuz` and `initrd.gz`, and with the program [`OPERATIONS`].
pub(super) fn image(session: &Session<'_>) -> Result<PathBuf> {
    let missing = NEEDED.iter().filter(|(name, _)| !process::exists(name));
    let packages: Vec<_> = missing.map(|(_, package)| *package).collect();
    ensure!(
        packages.is_empty(),
        "run as root: apt-get install --no-install-recommends {}",
        packages.join(" ")
    );
    let folder = in_target(session, "soft-roce")?;
    let programs = cases::programs().join(" ");
    let mut probe = Vec::new();
    for name in PROBE {
        let path = session.root.join(PROBE_FOLDER).join(name);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        probe.push((name, text));
    }
    let key = format!("{SCRIPT}{INIT}{PROGRAM}{programs}{probe:?}\n");
    once(&folder, &key, || build(&folder, &programs, &probe))?;
    Ok(folder)
}

fn build(folder: &Path, programs: &str, probe: &[(&str, String)]) -> Result<()> {
    for (name, text) in probe {
        fs::write(folder.join(name), text)?;
    }
    fs::write(folder.join("image.sh"), SCRIPT)?;
    fs::write(folder.join("init.sh"), INIT)?;
    fs::write(folder.join("operations.c"), PROGRAM)?;
    let mut command = Command::new("sh");
    command
        .arg("image.sh")
        .args(programs.split(' '))
        .current_dir(folder);
    process::capture(&mut command)?;
    Ok(())
}
