//! Things that happen to a device outside of completions.

use rkey_engine::{CqId, QpId, SrqId};

/// Something happened; taken with [`crate::Device::next_event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue was full when an entry came: it and its queue pairs are broken.
    CqOverrun(CqId),
    /// A queue pair went to the error state for a reason that no completion tells.
    QpFatal {
        /// Which.
        qp: QpId,
        /// Its number.
        qpn: u32,
    },
    /// The peer asked for something that it may not do; this queue pair is in the error state.
    AccessError {
        /// Which.
        qp: QpId,
        /// Its number.
        qpn: u32,
    },
    /// The peer asked for something that makes no sense; this queue pair is in the error state.
    RequestError {
        /// Which.
        qp: QpId,
        /// Its number.
        qpn: u32,
    },
    /// All sends that were started before the queue pair went to SQD are complete.
    SqDrained {
        /// Which.
        qp: QpId,
        /// Its number.
        qpn: u32,
    },
    /// A queue pair in the error state will take nothing more from its shared receive queue.
    LastWqeReached {
        /// Which.
        qp: QpId,
        /// Its number.
        qpn: u32,
    },
    /// A shared receive queue has fewer entries than its limit.
    SrqLimit(SrqId),
    /// The first request of the peer arrived while the queue pair was in RTR.
    CommEstablished {
        /// Which.
        qp: QpId,
        /// Its number.
        qpn: u32,
    },
    /// The process of the connected peer is gone.
    PeerGone {
        /// Which.
        qp: QpId,
        /// Its number.
        qpn: u32,
    },
}
