//! Helpers for the stages of `cargo xtask test`: programs that run under a deadline ([`process`]), cargo's builds and
//! their programs ([`testbin`]), and the input and the report of a stage. Tests of front ends use its [`hosts`], the bad
//! [`network`] between them, their [`outage`]s, its [`ports`], its reader of capture files ([`pcap`]) and its [`temporary_folder`].

pub mod hosts;
pub mod key;
pub mod namespace;
pub mod network;
pub mod outage;
pub mod pcap;
pub mod ports;
pub mod process;
pub mod testbin;

use anyhow::Result;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// An unprivileged user, without a home, a shell or a capability.
pub const UID: u32 = 65534;

/// The result of a stage.
pub struct Report {
    /// Tests or checks that passed.
    pub passed: usize,
    /// Tests or checks that failed: the name of each, and below it its output.
    pub failures: Vec<String>,
    /// A note for the table.
    pub note: String,
    /// The stage could not run here, and the note says why.
    pub skipped: bool,
}

impl Report {
    /// A report of one check. If it failed, `outcome` has its output.
    #[must_use]
    pub fn check(outcome: Result<(), String>, note: impl Into<String>) -> Self {
        let mut report = Self {
            passed: 0,
            failures: Vec::new(),
            note: note.into(),
            skipped: false,
        };
        report.add(outcome);
        report
    }

    /// Adds one more check.
    pub fn add(&mut self, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => self.passed += 1,
            Err(said) => self.failures.push(said),
        }
    }

    /// A stage that cannot run here.
    #[must_use]
    pub fn skip(why: impl Into<String>) -> Self {
        Self {
            passed: 0,
            failures: Vec::new(),
            note: why.into(),
            skipped: true,
        }
    }
}

/// The input of the stages.
pub struct Session<'a> {
    /// The repository.
    pub root: &'a Path,
    /// Whether missing Debian packages may be installed.
    pub install: bool,
    /// Whether stages with recorded results record new ones.
    pub record: bool,
    /// A temporary directory, which the first stage that needs it creates, and which is removed at the end.
    pub scratch: PathBuf,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

/// Creates an empty directory for temporary files, whose name begins with `name`. Each call creates another one, so tests of one
/// process that run at the same time share none. The caller removes it.
///
/// # Panics
/// If the directory cannot be created.
#[must_use]
pub fn temporary_folder(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("{name}-{}-{number}", std::process::id()));
    // An earlier process with the same id, which was killed, may have left it behind.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("cannot create a temporary directory");
    folder
}

/// Replaces a link with a copy of the file to which it leads, for users who cannot access cargo's directory.
///
/// # Panics
/// If there is no link, or no room for a copy.
pub fn replace_link_with_copy(link: &Path) {
    let file = std::fs::canonicalize(link).expect("the link leads to a file");
    std::fs::remove_file(link).expect("the directory is ours");
    std::fs::copy(file, link).expect("there is room for a copy");
}

/// A subdirectory of the target directory, for builds with other flags and for downloads.
///
/// # Errors
/// cargo does not report the directory.
pub fn in_target(session: &Session<'_>, name: &str) -> Result<PathBuf> {
    Ok(process::target_folder(session.root)?.join(name))
}
