//! The identity of a device.

use serde::{Deserialize, Serialize};

/// The identity of a device: its process ID, and a random number so that a reused process ID is not mistaken for the
/// earlier process.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct NodeId {
    /// The process ID as seen by the process itself (for messages only; no decision uses it).
    pub pid: u32,
    /// A random number, chosen when the device was opened.
    pub nonce: u64,
}

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{:016x}", self.pid, self.nonce)
    }
}
