//! The address of a queue pair.

use serde::{Deserialize, Serialize};

/// The information that a peer needs to connect to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpAddress {
    /// The queue pair number.
    pub qpn: u32,
    /// The MSN of the first message that the queue pair will send.
    pub msn: u32,
}
