//! What an engine reports to its device in addition to completions, and which of these events are for the program.

use crate::groups::Group;
use crate::{CqId, DenialReport, Guesser, LinkId, QpId, SrqId, WarrantRequest};
use rkey_core::BindError;
use rkey_link::DownReason;
use std::sync::Arc;

/// Something that happened. [`crate::Engine::poll_event`] returns the events in order.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// An armed completion queue got an entry; it is disarmed now.
    CqReady(CqId),
    /// A watched completion queue got a solicited entry, or one with an error; it is no longer watched.
    CqSeen(CqId),
    /// An event for the program.
    Async(AsyncEvent),
    /// A queue pair needs a link to the device that owns queue pair number `peer`. The device calls
    /// [`crate::Engine::connect_qp`] (connected types), [`crate::Engine::connect_qpn`] (datagrams), or
    /// [`crate::Engine::unreachable`].
    LinkNeeded {
        /// The queue pair.
        qp: QpId,
        /// The number to find.
        peer: u32,
    },
    /// A queue pair's peer has been silent for the queue pair's whole timeout. Raised only if
    /// [`crate::EngineConfig::asks_about_silence`] is set; the device calls [`crate::Engine::judge_silence`].
    PeerSilent {
        /// The queue pair.
        qp: QpId,
        /// The link to the peer, if there is one.
        link: Option<LinkId>,
        /// The number of the peer queue pair.
        peer: u32,
    },
    /// A datagram to a group waits for the links to the devices that have members. The device calls
    /// [`crate::Engine::connect_group`].
    GroupNeeded {
        /// The queue pair that sends the datagram.
        qp: QpId,
        /// The group.
        group: Group,
    },
    /// A link broke and has been detached; queue pairs have failed their requests on it.
    LinkDown {
        /// The link's id. [`crate::Engine::take_detached`] returns the link itself.
        link: LinkId,
        /// Why.
        reason: DownReason,
    },
    /// Writes to the peer at the other end of this link waited long for its engine. The device may ask that device for a
    /// warrant, and then calls [`crate::Engine::take_warrant`].
    WarrantWanted {
        /// The link.
        link: LinkId,
        /// What to ask for.
        request: WarrantRequest,
    },
    /// Pushes over this link have waited for the peer's memory for so long that there will be few more. Raised once for each link.
    PushesStalled(LinkId),
    /// An access was denied, here or at the peer. [`crate::Engine::reports`] already has the report.
    Denied(Arc<DenialReport>),
    /// A process has named many unknown keys. Raised when its requests are first delayed, and when the number of its
    /// guesses reaches 100, 1,000 and so on.
    Guessing(Guesser),
    /// A posted bind failed; its completion has [`crate::Status::WindowBind`], this event has the reason.
    BindFailed {
        /// The queue pair of the bind.
        qp: QpId,
        /// The number of the queue pair.
        qpn: u32,
        /// The id of the work request.
        work_id: u64,
        /// Why.
        error: Box<BindError>,
    },
    /// A peer's operation completed on a region to which a counter is bound.
    CounterHit {
        /// The counter that was bound to the region.
        counter: u32,
        /// The endpoint that the queue pair belongs to, or the queue pair's own number.
        endpoint: u32,
        /// The number of bytes that were moved.
        bytes: u32,
        /// True for a write or an atomic, false for a read.
        write: bool,
    },
}

/// An event that no completion reports. The device passes it on to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue was full when an entry was added. The queue is broken, and so are its queue pairs.
    CqOverrun(CqId),
    /// A queue pair went to the error state for a reason that no completion reports.
    QpFatal {
        /// The queue pair.
        qp: QpId,
        /// The number of the queue pair.
        qpn: u32,
    },
    /// The peer requested an access that it may not make, and this target queue pair went to the error state.
    AccessError {
        /// The queue pair.
        qp: QpId,
        /// The number of the queue pair.
        qpn: u32,
    },
    /// The peer sent an invalid request (too long for the receive, unaligned atomic),
    /// and this target queue pair went to the error state.
    RequestError {
        /// The queue pair.
        qp: QpId,
        /// The number of the queue pair.
        qpn: u32,
    },
    /// All sends that were started before the queue pair was put into Sqd are complete.
    SqDrained {
        /// The queue pair.
        qp: QpId,
        /// The number of the queue pair.
        qpn: u32,
    },
    /// A queue pair in the error state takes no more receives from its shared receive queue.
    LastWqeReached {
        /// The queue pair.
        qp: QpId,
        /// The number of the queue pair.
        qpn: u32,
    },
    /// A shared receive queue has fewer entries than its limit; the limit is disarmed now.
    SrqLimit(SrqId),
    /// The peer's first request arrived while the queue pair was in Rtr.
    CommEstablished {
        /// The queue pair.
        qp: QpId,
        /// The number of the queue pair.
        qpn: u32,
    },
    /// The link of a connected queue pair has ended. If requests were outstanding on a reliable connection, they fail, which moves the queue
    /// pair to the error state. Otherwise it stays in its state: to flush its receives, move it to the error state. With
    /// [`QpConfig::fail_with_peer`](crate::QpConfig::fail_with_peer), the device does that right after this event: do not connect the
    /// same queue pair again before it has.
    PeerGone {
        /// The queue pair.
        qp: QpId,
        /// The number of the queue pair.
        qpn: u32,
        /// What the peer has said about it (the device's `Qp::disconnect`); `None` if it has said nothing.
        why: Option<u8>,
    },
}

impl From<AsyncEvent> for Event {
    fn from(event: AsyncEvent) -> Self {
        Self::Async(event)
    }
}
