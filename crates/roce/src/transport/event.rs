//! The output of a queue pair besides packets: the status of work requests, and received messages.

use crate::packet::NakCode;

/// The status of a work request (the work completion statuses of IBA volume 1, 11.6.2, that a transport can determine).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The request succeeded.
    Success,
    /// A message was longer than its receive.
    LocalLength,
    /// The queue pair does not support the request.
    LocalQpOperation,
    /// The memory of the request could not be accessed.
    LocalProtection,
    /// The queue pair failed before the request ended.
    Flushed,
    /// The peer sent a response that does not match the request.
    BadResponse,
    /// A message was refused while it was being received.
    LocalAccess,
    /// The peer reported the request as invalid.
    RemoteInvalidRequest,
    /// The peer refused the key, the range or the rights.
    RemoteAccess,
    /// The peer could not execute the request.
    RemoteOperation,
    /// The peer did not answer within the timeout and retries.
    RetryExceeded,
    /// The peer had no receive posted within the RNR retries.
    RnrRetryExceeded,
}

/// An event for the owner of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A work request has ended. Requests end in the order in which they were posted.
    Completed {
        /// The id of the request.
        id: u64,
        /// The status of the request.
        status: Status,
    },
    /// A message has consumed a receive.
    Received(Received),
    /// A receive has ended without a message.
    ReceiveFailed {
        /// The id of the receive.
        id: u64,
        /// The status of the receive.
        status: Status,
    },
    /// The responder refused a request of the peer, and the queue pair has failed. The owner moves it to the error state and
    /// flushes its receives; [`transmit`](super::Connection::transmit) still returns the refusal.
    Refused(NakCode),
    /// The requester has failed; the completion with the reason precedes this event. The owner moves the queue pair to the
    /// error state.
    Failed,
}

/// A message that consumed a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The id of the receive.
    pub id: u64,
    /// The length of the message, in bytes. A datagram includes the 40 bytes of the route header.
    pub bytes: u32,
    /// Whether the message is a write with immediate data. Its payload is not in the receive.
    pub is_write: bool,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// The key that the message invalidated.
    pub invalidated: Option<u32>,
    /// Whether the sender requested a solicited event.
    pub solicited: bool,
    /// The number of the sender's queue pair (datagrams only).
    pub source: Option<u32>,
}

/// Counters of network events of a queue pair. They wrap at 2⁶⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Request packets sent again.
    pub retransmitted: u64,
    /// Timeouts while waiting for a response.
    pub timeouts: u64,
    /// Times that the oldest packet was sent again because its response was later than usual.
    pub probes: u64,
    /// Sequence errors reported by the peer.
    pub sequence_naks: u64,
    /// Responses that showed that an earlier response was lost.
    pub implied_naks: u64,
    /// RNR NAKs received from the peer.
    pub rnr_naks: u64,
    /// Responses that were duplicates, late, or matched no request.
    pub stale_responses: u64,
    /// Packets from the peer that arrived after a gap.
    pub out_of_sequence: u64,
    /// Duplicate requests from the peer.
    pub duplicates: u64,
    /// Packets from the peer that were marked in the network, because it was congested (ECN).
    pub marked: u64,
    /// Congestion notifications (CNPs) sent to the peer.
    pub cnps_sent: u64,
    /// Congestion notifications (CNPs) received from the peer.
    pub cnps_received: u64,
    /// Times that congestion has lowered the window.
    pub slowed: u64,
    /// RNR NAKs sent to the peer.
    pub rnr_naks_sent: u64,
    /// Requests of the peer that were refused.
    pub refused: u64,
    /// Packets dropped for another reason: a wrong service, length or queue key, no receive, or an earlier failure.
    pub dropped: u64,
}
