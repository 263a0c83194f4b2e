//! Helpers for the stages of `cargo xtask test`: programs that run under a deadline ([`process`]), cargo's builds and
//! their programs ([`testbin`]), and the input and the report of a stage. Tests of front ends use its [`hosts`].

pub mod hosts;
pub mod process;
pub mod testbin;

use anyhow::Result;
use std::path::{Path, PathBuf};

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
    /// One check, which failed with the output in `outcome`.
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
    /// A directory for this session, made by the first stage that needs it and removed when the session ends.
    pub scratch: PathBuf,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

/// A subdirectory of the target directory, for builds with other flags and for downloads.
///
/// # Errors
/// cargo does not report the directory.
pub fn in_target(session: &Session<'_>, name: &str) -> Result<PathBuf> {
    Ok(process::target_folder(session.root)?.join(name))
}
