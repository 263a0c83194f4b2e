//! Directories that every user of the machine can read, for programs that run as another user, and what goes into them:
//! the front ends, under the names that other programs look for. Directories that are kept between runs.

use anyhow::{Context, Result};
use rkey_harness::testbin::{self, Built};
use rkey_harness::{Session, process};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The shared object with the front ends.
const LIBRARY: &str = "librkey_all.so";

/// Puts a debug build of the front ends for verbs and for the connection manager into a directory.
pub(crate) fn verbs_into(session: &Session<'_>, folder: &Path) -> Result<()> {
    let names = [
        "libibverbs.so.1",
        "libibverbs.so",
        "librdmacm.so.1",
        "librdmacm.so",
    ];
    library_into(&testbin::build_all(session.root)?, folder, &names)
}

/// Puts a release build of the provider into a directory, under the name that libfabric looks for.
pub(crate) fn provider_into(session: &Session<'_>, folder: &Path) -> Result<()> {
    let built = testbin::build_release(session.root)?;
    library_into(&built, folder, &["librkey-fi.so"])
}

/// Puts the library with the front ends into a directory under each of `names`.
pub(crate) fn library_into(built: &Built, folder: &Path, names: &[&str]) -> Result<()> {
    let library = built.libraries.get(LIBRARY);
    let library = library.with_context(|| format!("cargo built no {LIBRARY}"))?;
    fs::create_dir_all(folder)?;
    let (first, others) = names.split_first().context("the library needs a name")?;
    fs::copy(library, folder.join(first))
        .with_context(|| format!("cannot copy {}", library.display()))?;
    // Links, so that the loader recognises one file.
    for name in others {
        let _ = fs::remove_file(folder.join(name));
        symlink(first, folder.join(name)).context("cannot link the library")?;
    }
    Ok(())
}

/// Makes a directory inside `folder` that belongs to `user`, or to us, and lets `command` run there as that user, with
/// its home and its temporary files in it. Returns the directory.
pub(crate) fn run_as(command: &mut Command, user: Option<u32>, folder: &Path) -> Result<PathBuf> {
    let own = folder.join(user.map_or("own".to_owned(), |uid| uid.to_string()));
    fs::create_dir_all(&own)?;
    if let Some(uid) = user {
        chown(&own, Some(uid), Some(uid))?;
        command.uid(uid).gid(uid);
    }
    command
        .current_dir(&own)
        .env("HOME", &own)
        .env("TMPDIR", &own);
    Ok(own)
}

/// Copies a directory into another, readable for every user.
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

/// Makes a directory readable for every user.
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

/// Fills a directory that is kept between runs by calling `bring`, unless it already has what is `wanted`.
pub(crate) fn once(kept: &Path, wanted: &str, bring: impl FnOnce() -> Result<()>) -> Result<()> {
    let stamp = kept.join("complete");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    let _ = fs::remove_dir_all(kept);
    fs::create_dir_all(kept)?;
    bring()?;
    fs::write(stamp, wanted)?;
    Ok(())
}
