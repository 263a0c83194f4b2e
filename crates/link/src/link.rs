//! The trait that the engine uses.

use crate::{
    AnsweredRequest, DownReason, Header, LinkRole, Malformed, NodeId, NotShort, PollHandle,
    PullError, ReceivedFragment, RemotePeer, SendError, ShortRequest, Ticket,
};
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::shared::OwnBytes;
use serde::{Deserialize, Serialize};

/// The capabilities of a link. Constant for its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Payload up to this many bytes travels inside its slot.
    pub in_slot_max: u32,
    /// The maximum payload of one fragment.
    pub fragment_max: u32,
    /// Whether the responder can copy from and to the requester's memory ([`Link::pull`], [`Link::push`]).
    pub remote_iovec: bool,
    /// The payload size from which a remote iovec is worth its system call, in bytes; but see
    /// [`Link::prefers_fragments`].
    pub remote_iovec_min: u32,
    /// Whether direct leases can be used over this link.
    pub direct: bool,
}

/// A path between this device and one other (or itself).
///
/// Order of calls: a requester calls [`send_request`](Self::send_request) any number of times, then
/// [`end_burst`](Self::end_burst). It takes responses with [`next_response`](Self::next_response), each followed by
/// [`response_done`](Self::response_done), until none is left, and then reads [`acknowledged`](Self::acknowledged). A
/// responder executes a [`next_request`](Self::next_request) only while [`room_to_respond`](Self::room_to_respond) is
/// true; it sends the responses, calls [`request_done`](Self::request_done), and then ends the burst. `next_request` and
/// `next_response` may be called again without `..._done`: they return the same fragment.
pub trait Link {
    /// The device at the other end.
    fn node(&self) -> NodeId;

    /// The link's capabilities.
    fn capabilities(&self) -> Capabilities;

    /// Whether the link is up.
    ///
    /// # Errors
    /// Why it is down. A link that is down stays down.
    fn is_up(&self) -> Result<(), DownReason>;

    /// Sends one fragment of `header.len` payload bytes, which `fill` writes to the slot or ring (it is not called
    /// for 0 bytes).
    ///
    /// # Errors
    /// [`SendError::Full`] when there is no room; [`SendError::Fault`] when `fill` failed, and then nothing was sent;
    /// [`SendError::Down`]. A `header.len` above [`Capabilities::fragment_max`] is always `Full`: split the message.
    fn send_request(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<Ticket, SendError>;

    /// Sends a fragment whose payload stays in this process's memory; adds the flag
    /// [`REMOTE_IOVEC`](crate::HeaderFlags::REMOTE_IOVEC). The memory must not change until the fragment is
    /// acknowledged. For an [`Op::Read`](crate::Op::Read) the list says where the data may be pushed.
    ///
    /// # Errors
    /// Same as for [`send_request`](Self::send_request); a list that is empty, too long or does not add up to
    /// `header.len` (reads: to `header.total`, with `header.len` 0) is always `Full`.
    fn send_remote_iovec(
        &mut self,
        header: &Header,
        remote_iovec: &[(u64, u64)],
    ) -> Result<Ticket, SendError>;

    /// Whether a fragment should carry its payload although a remote iovec is possible: the ring has room for a whole
    /// fragment, and two processes that copy concurrently, one into the ring and one out of it, are faster than one
    /// that copies directly. By default, remote iovecs are used.
    fn prefers_fragments(&self) -> bool {
        false
    }

    /// Whether a read's data should come through the response ring, although the responder could copy it directly;
    /// `len` is the sum of all reads sent in this way that have not completed.
    fn prefers_fragments_for_read(&self, len: u64) -> bool {
        let _ = len;
        false
    }

    /// The oldest response that has not been taken.
    ///
    /// # Errors
    /// The peer violated the protocol; the link is down.
    fn next_response(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed>;

    /// Frees the slot of the response. Does nothing if there is none.
    fn response_done(&mut self);

    /// The ticket below which every request has been executed and its responses have been taken.
    ///
    /// # Errors
    /// The peer violated the protocol; the link is down.
    fn acknowledged(&mut self) -> Result<Ticket, Malformed>;

    /// Like [`next_request`](Self::next_request), for short requests only.
    ///
    /// # Errors
    /// [`NotShort`]: only [`next_request`](Self::next_request) can tell what is next.
    #[inline]
    fn next_short(&self) -> Result<Option<ShortRequest<'_>>, NotShort> {
        Err(NotShort)
    }

    /// Like [`next_request`](Self::next_request), for reads whose data fit into a slot and atomics only. `None` also if only
    /// [`next_request`](Self::next_request) can tell what is next.
    #[inline]
    fn next_answered(&self) -> Option<AnsweredRequest> {
        None
    }

    /// The oldest request that has not been executed.
    ///
    /// # Errors
    /// The peer violated the protocol; the link is down.
    fn next_request(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed>;

    /// Removes the request, which has been executed, refused or dropped. Does nothing if there is none.
    fn request_done(&mut self);

    /// Whether one response with a whole fragment of payload can be sent now.
    fn room_to_respond(&self) -> bool;

    /// Sends a response; see [`send_request`](Self::send_request).
    ///
    /// # Errors
    /// Same as for [`send_request`](Self::send_request).
    fn send_response(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<(), SendError>;

    /// Responder: copies `len` bytes at `src` in the requester's memory to `dst` in ours.
    ///
    /// # Errors
    /// [`PullError`]; some bytes may have been copied.
    fn pull<M: Memory>(&self, mem: &M, dst: u64, src: u64, len: u64) -> Result<(), PullError>;

    /// Responder: copies `len` bytes at `src_local` in our memory to `dst_remote` in the requester's.
    ///
    /// # Errors
    /// [`PullError`]; some bytes may have been copied.
    fn push<M: Memory>(
        &self,
        mem: &M,
        dst_remote: u64,
        src_local: u64,
        len: u64,
    ) -> Result<(), PullError>;

    /// Requester: revokes the peer's permit to copy to or from our memory; no copy begins after this has returned. Call
    /// it before detaching the link.
    fn revoke_peer_access(&mut self) {}

    /// Whether there is something to receive or to publish, including a doorbell to ring, or the link is down. If not,
    /// no other call has anything to do. Takes a few nanoseconds.
    fn pending(&self) -> bool;

    /// Publishes due acknowledgements and wakes the peer if it sleeps. Call it after each burst of requests or
    /// responses, and occasionally during unsuccessful polling.
    fn end_burst(&mut self);

    /// Publishes a delayed acknowledgement, and wakes the peer if it sleeps. Does nothing on a link that never delays
    /// acknowledgements.
    fn publish(&mut self) {}

    /// This side's role on the link.
    fn role(&self) -> LinkRole {
        LinkRole::Both
    }

    /// A handle for pollers that do not hold the link; `None` if they need none, because everything that arrives comes
    /// from this device itself.
    fn poll_handle(&self) -> Option<PollHandle> {
        None
    }

    /// Whether another process still has to acknowledge something, according to the last acknowledgement that we read.
    fn has_unacked(&self) -> bool {
        false
    }

    /// Wakes the peer, whether or not it sleeps. Never blocks.
    fn kick(&self) {}

    /// The peer, if it is in another process; `None` for a link of a device to itself.
    fn peer(&self) -> Option<RemotePeer> {
        None
    }
}
