//! Which process is at the other end of a link, as the owner of the engine has found out.

use serde::{Deserialize, Serialize};

/// A process of this host, as the kernel reports it. A device claims its process; a process can open any number of
/// devices and links, and stays one process.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Process {
    /// Its effective user.
    pub user: u32,
    /// Its process id; 0 if it has none in our PID namespace. All such processes of a user count as one.
    pub pid: u32,
    /// Its start time, in any unit: tells it from an earlier process with the same id. 0 if not known.
    pub started: u64,
}

/// What an engine is told about the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The process there.
    pub process: Process,
    /// It is this process itself.
    pub here: bool,
    /// Its denied requests get the whole explanation. Otherwise only the status.
    pub explain: bool,
}
