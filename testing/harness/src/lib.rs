//! What the stages of `cargo xtask test` share: programs that run under a deadline ([`process`]), builds by cargo and
//! the programs that come out of them ([`testbin`]), and what a stage is given and reports.

pub mod process;
pub mod testbin;

use anyhow::Result;
use std::path::{Path, PathBuf};

/// `nobody`: a user without a home, a shell or a capability.
pub const UID: u32 = 65534;

/// What a stage found.
pub struct Report {
    /// Tests or checks that passed.
    pub passed: usize,
    /// Tests or checks that failed: the name of each, and below it what it said.
    pub failures: Vec<String>,
    /// A sentence for the table.
    pub note: String,
    /// The stage could not run here; the note says why.
    pub skipped: bool,
}

impl Report {
    /// One check, and what it said in `outcome`.
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

    /// Counts one more check.
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

/// What the stages are given.
pub struct Session<'a> {
    /// The repository.
    pub root: &'a Path,
    /// Missing Debian packages may be installed.
    pub install: bool,
    /// Stages with recorded results take what they find as the new record.
    pub record: bool,
    /// A folder of this session's own, made by the first stage that needs it and removed when the session ends.
    pub scratch: PathBuf,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

/// A place in the target directory, for a build with other flags so that the ordinary one stays warm, or what is kept.
///
/// # Errors
/// cargo does not say where that is.
pub fn in_target(session: &Session<'_>, name: &str) -> Result<PathBuf> {
    Ok(process::target_folder(session.root)?.join(name))
}
