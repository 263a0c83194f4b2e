//! What comes out of a queue pair besides packets: how work requests ended, and what the peer sent.

use crate::packet::NakCode;

/// How a work request ended (the work completion statuses of IBA volume 1, 11.6.2, as far as a transport finds them).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It succeeded.
    Success,
    /// A message was longer than its receive.
    LocalLength,
    /// The queue pair does not support the request.
    LocalQpOperation,
    /// The memory of the request could not be accessed.
    LocalProtection,
    /// The queue pair failed before this request had ended.
    Flushed,
    /// The peer sent a response that does not fit the request.
    BadResponse,
    /// A message that was being received ended in a refusal.
    LocalAccess,
    /// The peer found the request invalid.
    RemoteInvalidRequest,
    /// The peer refused it because of the key, the range or the rights.
    RemoteAccess,
    /// The peer could not execute the request.
    RemoteOperation,
    /// No answer within the timeout and retries.
    RetryExceeded,
    /// The peer had no receive posted within the receiver-not-ready retries.
    RnrRetryExceeded,
}

/// Something that the owner of a queue pair handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A work request has ended. They end in the order in which they were posted.
    Completed {
        /// The id that the request was posted with.
        id: u64,
        /// How it ended.
        status: Status,
    },
    /// A message has arrived that consumed a receive.
    Received(Received),
    /// A receive has ended without a message.
    ReceiveFailed {
        /// The id of the receive.
        id: u64,
        /// How it ended.
        status: Status,
    },
    /// The responder refused a request of the peer, and the queue pair has failed. Its owner moves it to the error state and
    /// flushes its receives; the refusal itself still leaves with [`transmit`](super::Connection::transmit).
    Refused(NakCode),
    /// The requester has failed; the completion that says why came before. The queue pair's owner moves it to the error
    /// state.
    Failed,
}

/// A message that consumed a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The id of the receive.
    pub id: u64,
    /// How many bytes the message has. A datagram counts the 40 bytes of route header.
    pub bytes: u32,
    /// A write with immediate data, whose bytes are not in the receive.
    pub is_write: bool,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// The key that the message invalidated.
    pub invalidated: Option<u32>,
    /// The sender requested a solicited event.
    pub solicited: bool,
    /// The sender's queue pair (datagrams only).
    pub source: Option<u32>,
}

/// What a queue pair has seen of its network. The counts only grow, and wrap at 2⁶⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Request packets sent again.
    pub retransmitted: u64,
    /// Times that no answer came in time.
    pub timeouts: u64,
    /// Sequence errors that the peer reported.
    pub sequence_naks: u64,
    /// Answers that showed that an earlier answer was lost.
    pub implied_naks: u64,
    /// Times that the peer had no receive.
    pub rnr_naks: u64,
    /// Answers that came again or late, or that fit no request.
    pub stale_responses: u64,
    /// Packets of the peer that came too early, because one before them is missing.
    pub out_of_sequence: u64,
    /// Requests of the peer that came again.
    pub duplicates: u64,
    /// Times that the peer was told that there is no receive.
    pub rnr_naks_sent: u64,
    /// Requests of the peer that were refused.
    pub refused: u64,
    /// Packets dropped for another reason: a wrong service, length or queue key, no receive, or an earlier failure.
    pub dropped: u64,
}
