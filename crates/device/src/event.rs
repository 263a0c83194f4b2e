//! Asynchronous events.

use rkey_engine::{CqId, QpId, SrqId};

/// An event outside of completions; taken with [`crate::Device::next_event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overran: it and its queue pairs are broken.
    CqOverrun(CqId),
    /// A queue pair went to the error state for a reason that no completion reports.
    QpFatal {
        /// Which.
        qp: QpId,
        /// Its number.
        qpn: u32,
    },
    /// The peer sent a request that was denied; this queue pair is in the error state.
    AccessError {
        /// Which.
        qp: QpId,
        /// Its number.
        qpn: u32,
    },
    /// The peer sent an invalid request; this queue pair is in the error state.
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
    /// A queue pair in the error state takes no more receives from its shared receive queue.
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
