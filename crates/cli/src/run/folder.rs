//! The directory in which a program finds the front ends, inside our private directory.
//!
//! Programs load libraries from there, so no other user may write to it. It is in the directory for temporary files, where
//! the name may already exist: from one of our earlier runs, or from an attacker. So it is used only if it is our own
//! directory and other users cannot change it.

use super::tidy::{FOLDER, tidy};
use crate::failure::hinted;
use anyhow::{Context, Result};
use rkey_kit::dat_conf;
use rkey_kit::delivery::{FrontEnd, PLACES};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The directory is readable by all, so that a program that changes its user still finds it.
const MODE: u32 = 0o755;
/// Write permissions of other users.
const OTHERS_WRITE: u32 = 0o022;

/// Makes a directory with all front ends under the names that programs load.
pub(super) fn make(front_ends: &[FrontEnd]) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find the rkey program")?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    let mut found = Vec::new();
    for front_end in front_ends {
        let library = front_end.find(beside).ok_or_else(|| {
            let places: Vec<String> = PLACES
                .iter()
                .map(|place| beside.join(place).display().to_string())
                .collect();
            let places = places.join(", ");
            let error = anyhow::anyhow!("{} was not found in {places}", front_end.built);
            hinted(
                error,
                "build it with `cargo build --release`; if you copy the rkey program, copy this library, too",
            )
        })?;
        let library = fs::canonicalize(&library)
            .with_context(|| format!("cannot open {}", library.display()))?;
        found.push((front_end, library));
    }
    let private = private()?;
    tidy(&private);
    let folder = private.join(name(found.iter().map(|(_, library)| library)));
    claim(&folder)
        .and_then(|()| {
            found
                .iter()
                .try_for_each(|(front_end, library)| front_end.put_into(&folder, library))
        })
        .and_then(|()| dat_conf::put_into(&folder))
        .with_context(|| format!("cannot create files in {}", folder.display()))?;
    Ok(folder)
}

/// The name of the directory for these libraries.
fn name<'a>(libraries: impl Iterator<Item = &'a PathBuf>) -> String {
    // FNV-1a: it distinguishes paths and need not resist attacks.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for library in libraries {
        for byte in library.as_os_str().as_bytes().iter().chain(&[0]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{FOLDER}{hash:016x}")
}

/// Our private directory for temporary files, to which other users cannot write.
pub(super) fn private() -> Result<PathBuf> {
    // The program may change its working directory, so the path must be absolute.
    let temporary =
        std::path::absolute(std::env::temp_dir()).context("cannot make TMPDIR an absolute path")?;
    let folder = temporary.join(format!("rkey-{}", own_user()));
    claim(&folder).map_err(|error| {
        let what = format!("cannot use {}", folder.display());
        hinted(
            anyhow::Error::new(error).context(what),
            "set TMPDIR to a directory of your own",
        )
    })?;
    Ok(folder)
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Creates a directory, or checks that an existing one is ours and not writable by others.
fn claim(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(MODE).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other,
    }
    let there = fs::symlink_metadata(folder)?;
    let ours = there.is_dir() && there.uid() == own_user() && there.mode() & OTHERS_WRITE == 0;
    if ours {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "it belongs to another user, or others can write to it",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn only_a_private_directory_of_this_user_is_used() {
        let base = std::env::temp_dir().join(format!("rkey-folder-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let good = base.join("good");
        claim(&good).unwrap();
        claim(&good).unwrap();
        let open = base.join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        assert!(claim(&open).is_err());
        let link = base.join("link");
        symlink(&good, &link).unwrap();
        assert!(claim(&link).is_err());
        let file = base.join("file");
        fs::write(&file, "").unwrap();
        assert!(claim(&file).is_err());
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn the_directory_name_depends_on_the_paths_of_the_libraries() {
        let [a, b] = ["/a/libibverbs.so", "/b/libibverbs.so"].map(PathBuf::from);
        assert_ne!(name([&a].into_iter()), name([&b].into_iter()));
        assert_eq!(name([&a].into_iter()), name([&a].into_iter()));
    }
}
