//! A refused access, told at both sides.

use rkey_core::Denial;
use rkey_link::NodeId;
use serde::Serialize;

/// Which side this engine was on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Side {
    /// This engine refused a peer's request.
    Target,
    /// The peer refused this engine's request, and sent its reason along.
    Initiator,
    /// A local key, range or right was refused; no peer was involved.
    Local,
}

/// Everything that is known about one refused access.
#[derive(Clone, Debug)]
pub struct DenialReport {
    /// Counts from 1 within an engine; completions carry it as their vendor code.
    pub id: u32,
    /// Which side this is.
    pub side: Side,
    /// The queue pair here.
    pub qpn: u32,
    /// The queue pair of the peer.
    pub peer_qpn: u32,
    /// The peer's device.
    pub peer: NodeId,
    /// The id of the work request (initiator and local).
    pub work_id: Option<u64>,
    /// What was refused and why.
    pub denial: Denial,
}

impl std::fmt::Display for DenialReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.denial)?;
        match self.side {
            Side::Target => write!(
                f,
                " (asked by pid {}, qp {:#x}, on qp {:#x} here)",
                self.peer.pid, self.peer_qpn, self.qpn
            ),
            Side::Initiator => write!(
                f,
                " (refused by pid {}, qp {:#x}, for qp {:#x} here)",
                self.peer.pid, self.peer_qpn, self.qpn
            ),
            Side::Local => write!(f, " (local, qp {:#x})", self.qpn),
        }
    }
}
