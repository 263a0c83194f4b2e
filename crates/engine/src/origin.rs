//! The process at the other end of a link, as the engine's owner has determined it.

use serde::{Deserialize, Serialize};

/// A process on this host, as the kernel reports it and not as a device claims it. However many devices and links a
/// process opens, it counts as one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Process {
    /// Its effective user.
    pub user: u32,
    /// Its process id; 0 if it has none in our PID namespace. All such processes of a user count as one.
    pub pid: u32,
    /// Its start time, in any unit: distinguishes it from an earlier process with the same id. 0 if not known.
    pub started: u64,
}

/// What the engine's owner has found out about the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The process at the other end.
    pub process: Process,
    /// Whether it is this process.
    pub here: bool,
    /// Whether its denied requests get the whole explanation or only the status.
    pub explain: bool,
}
