//! The process at the other end of a link, as determined by the engine's owner, or the host at the other end of the wire.

use core::net::IpAddr;
use serde::{Deserialize, Serialize};

/// A process on this host (or another host), as the kernel reports it and not as a device claims it. However many devices and links a
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
    /// The address of its host, if it is on another one. All processes there count as one, whose `user` is
    /// [`ANOTHER_HOST`](Self::ANOTHER_HOST).
    #[serde(default)]
    pub host: Option<IpAddr>,
}

impl Process {
    /// Stands for all users of all other hosts. No user has this number: it means "none" to the kernel, as the one after it
    /// does.
    pub const ANOTHER_HOST: u32 = u32::MAX - 1;
}

/// What the engine's owner has found out about the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The process at the other end.
    pub process: Process,
    /// Whether it is this process.
    pub here: bool,
    /// Whether its denied requests get the full explanation or only the status.
    pub explain: bool,
}
