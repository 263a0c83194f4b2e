//! The process at the other end of a link, as determined by the engine's owner, or the host at the other end of the wire.

use core::net::IpAddr;
use serde::{Deserialize, Serialize};

/// A process on this host (or another host), as the kernel reports it and not as a device claims it. A process counts as one,
/// regardless of how many devices and links it opens.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Process {
    /// The effective user of the process.
    pub user: u32,
    /// The process id; 0 if the process has none in our PID namespace. All such processes of a user count as one.
    pub pid: u32,
    /// The start time, in any unit: distinguishes the process from an earlier one with the same id. 0 if not known.
    pub started: u64,
    /// The address of the process's host, if that is another host. All processes of a host count as one, whose `user` is
    /// [`ANOTHER_HOST`](Self::ANOTHER_HOST).
    #[serde(default)]
    pub host: Option<IpAddr>,
}

impl Process {
    /// Stands for all users of all other hosts. The kernel accepts this number as a user id, but systems do not
    /// assign it. The next number, `u32::MAX`, means "no user" to the kernel.
    pub const ANOTHER_HOST: u32 = u32::MAX - 1;
}

/// The other end of a link, as the engine's owner has identified it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The process at the other end.
    pub process: Process,
    /// Whether the process is our own.
    pub here: bool,
    /// Whether the process's denied requests get the full explanation or only the status.
    pub explain: bool,
}
