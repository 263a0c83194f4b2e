//! Removes the files that earlier runs left in our private directory.
//!
//! A directory with front ends must outlive `rkey run`, which the program replaces, and the next run of the same build
//! reuses it: there is one for each build directory. It is removed once the build directory no longer exists. A file for
//! refusals is removed by its watcher. If the watcher was killed, a later run finds the file unlocked and removes it.

use rkey_kit::dat_conf::REGISTRY;
use rkey_kit::delivery::{FRONT_ENDS, FrontEnd, OWN_LIBFABRIC};
use rustix::fs::{FlockOperation, OFlags, flock};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// The prefixes of directories with front ends, and of files for refusals.
pub(super) const FOLDER: &str = "run-";
pub(super) const REPORT: &str = "refused-";
/// Files for refusals that are younger than this are not removed: their watcher may be about to lock them.
const YOUNG: Duration = Duration::from_secs(60);

/// Marks a file for refusals as in use, until it is closed.
pub(super) fn lock(file: &File) {
    // Locking fails only on unusual file systems; then the file may be removed while its watcher runs.
    let _ = flock(file, FlockOperation::NonBlockingLockExclusive);
}

/// Cleans up our private directory. Whatever cannot be removed is left to the next run.
pub(super) fn tidy(private: &Path) {
    let Ok(entries) = fs::read_dir(private) else {
        return;
    };
    for entry in entries.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        let _ = if name.starts_with(FOLDER) {
            remove_without_libraries(&path)
        } else if name.starts_with(REPORT) {
            remove_without_watcher(&path)
        } else {
            Ok(())
        };
    }
}

/// Every front end that a "run-" directory may link to.
fn front_ends() -> impl Iterator<Item = &'static FrontEnd> {
    FRONT_ENDS.iter().chain([&OWN_LIBFABRIC])
}

/// Removes a directory with front ends if their build directory no longer exists. It removes only our own links and the
/// file of adapters.
fn remove_without_libraries(folder: &Path) -> io::Result<()> {
    let mut gone = false;
    for front_end in front_ends() {
        let library = match fs::read_link(folder.join(front_end.file)) {
            // Earlier versions had fewer front ends, and our libfabric is present only on request.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        if library.parent().is_none_or(Path::exists) {
            return Ok(());
        }
        gone = true;
    }
    if !gone {
        return Ok(());
    }
    let names = front_ends().flat_map(|front_end| front_end.links.iter().chain([&front_end.file]));
    for name in names {
        let link = folder.join(name);
        if link.is_symlink() {
            fs::remove_file(link)?;
        }
    }
    match fs::remove_file(folder.join(REGISTRY)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::remove_dir(folder)
}

/// Removes a file for refusals that is not locked.
fn remove_without_watcher(path: &Path) -> io::Result<()> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    let age = file.metadata()?.modified()?.elapsed();
    if age.is_ok_and(|age| age > YOUNG) {
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::time::{Instant, SystemTime};

    fn empty(name: &str) -> PathBuf {
        let base = std::env::temp_dir().join(format!("rkey-tidy-{name}-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        base
    }

    #[test]
    fn run_directories_are_removed_when_their_libraries_are_gone() {
        let base = empty("folders");
        let libraries = base.join("libraries");
        let make = |name: &str, libraries: &Path| {
            let folder = base.join(name);
            fs::create_dir(&folder).unwrap();
            for front_end in front_ends() {
                let library = libraries.join(front_end.built);
                front_end.put_into(&folder, &library).unwrap();
            }
            fs::write(folder.join(REGISTRY), "").unwrap();
            folder
        };
        fs::create_dir(&libraries).unwrap();
        // A running build may have removed its libraries briefly.
        let used = make("run-used", &libraries);
        let left = make("run-left", Path::new("/no/such/folder"));
        let mixed = make("run-mixed", Path::new("/no/such/folder"));
        fs::write(mixed.join("of another program"), "").unwrap();
        let earlier = make("run-earlier", Path::new("/no/such/folder"));
        fs::remove_file(earlier.join(FRONT_ENDS[1].file)).unwrap();
        fs::create_dir(base.join("run-begun")).unwrap();
        let other = make("other", Path::new("/no/such/folder"));
        tidy(&base);
        assert!(used.exists() && !left.exists() && !earlier.exists() && other.exists());
        assert!(base.join("run-begun").exists(), "another run fills it");
        assert!(mixed.join("of another program").exists());
        fs::remove_dir(&libraries).unwrap();
        tidy(&base);
        assert!(!used.exists());
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn reports_are_removed_after_their_watcher_has_ended() {
        let base = empty("reports");
        let make = |name: &str, age: Duration| {
            let path = base.join(name);
            let file = File::create(&path).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
            (path, file)
        };
        let old = 2 * YOUNG;
        let (held, holder) = make("refused-1", old);
        lock(&holder);
        let (left, _) = make("refused-2", old);
        let (young, _) = make("refused-3", Duration::ZERO);
        // A process that another test starts briefly has our descriptors, and the locks with them.
        let goes = |path: &Path| {
            let started = Instant::now();
            while path.exists() {
                tidy(&base);
                assert!(started.elapsed() < Duration::from_secs(60), "it stays");
            }
        };
        goes(&left);
        assert!(held.exists() && young.exists());
        drop(holder);
        goes(&held);
        assert!(young.exists());
        fs::remove_dir_all(&base).unwrap();
    }
}
