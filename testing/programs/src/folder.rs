//! Folders that every user of the machine can read: what runs as another user finds its files there.

use anyhow::{Context, Result};
use rkey_harness::{Session, in_target, process, testbin};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Puts a release build of the provider into a folder, under the name that libfabric looks for.
pub(crate) fn provider_into(session: &Session<'_>, folder: &Path) -> Result<()> {
    testbin::build(session.root, &["build", "--release", "-p", "rkey-fabric"])?;
    let library = in_target(session, "release/librkey_fi.so")?;
    fs::create_dir_all(folder)?;
    fs::copy(&library, folder.join("librkey-fi.so"))
        .with_context(|| format!("copying {}", library.display()))?;
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

/// Lets everybody read a folder.
pub(crate) fn open_up(folder: &Path) -> Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            open_up(&path)?;
        } else {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}
