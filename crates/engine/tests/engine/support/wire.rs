//! The wire: a link that carries nothing by itself, so that the test can stop it between any two
//! items.

use rkey_base::fault::Fault;
use rkey_base::memory::{ArenaMemory, Memory};
use rkey_base::shared::{OwnBytes, PeerBytes};
use rkey_link::{
    AnsweredKind, AnsweredRequest, Capabilities, DownReason, Header, HeaderFlags, Link, LinkRole,
    Malformed, NodeId, NotShort, Op, Payload, PullError, ReceivedFragment, RemoteIovec, SendError,
    ShortKind, ShortRequest, Ticket,
};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) enum Load {
    Bytes(Vec<u8>),
    List(RemoteIovec),
}

#[derive(Clone, Debug)]
pub(crate) enum Passing {
    Fragment(Header, Load),
    /// Requests with smaller tickets have been executed.
    Ack(Ticket),
}

/// One end of a wire, in one role. Nothing passes until the test carries it.
pub(crate) struct WireEnd {
    pub(crate) node: NodeId,
    pub(crate) peer_memory: Option<Arc<ArenaMemory>>,
    pub(crate) caps: Capabilities,
    pub(crate) window: usize,
    pub(crate) refuse_remote_iovec: bool,
    /// How many fragments the link prefers to send before a remote iovec; 0 means none.
    pub(crate) fragments_first: usize,
    pub(crate) outbox: VecDeque<Passing>,
    pub(crate) inbox: VecDeque<Passing>,
    sent: Ticket,
    acked: Ticket,
    done: Ticket,
    told: Ticket,
    requester: bool,
    pub(crate) down: Option<DownReason>,
    /// How many responses may wait in `outbox`.
    pub(crate) response_room: usize,
    /// Whether it reads short requests without their header ([`Link::next_short`]).
    pub(crate) reads_short: bool,
    /// How many times it has shown a request with its header.
    pub(crate) shown: Cell<usize>,
    /// Whether the peer may no longer access our memory.
    pub(crate) ended: bool,
}

impl WireEnd {
    pub(super) fn new(
        node: NodeId,
        peer_memory: Arc<ArenaMemory>,
        caps: Capabilities,
        requester: bool,
    ) -> Self {
        Self {
            node,
            peer_memory: Some(peer_memory),
            caps,
            window: 16,
            refuse_remote_iovec: false,
            fragments_first: 0,
            outbox: VecDeque::new(),
            inbox: VecDeque::new(),
            sent: 0,
            acked: 0,
            done: 0,
            told: 0,
            requester,
            down: None,
            response_room: 4,
            reads_short: true,
            shown: Cell::new(0),
            ended: false,
        }
    }

    fn front(&self) -> Option<ReceivedFragment<'_>> {
        match self.inbox.front()? {
            Passing::Ack(_) => None,
            Passing::Fragment(header, Load::Bytes(bytes)) => Some(ReceivedFragment {
                header: *header,
                payload: Payload::Bytes(PeerBytes::from_slice(bytes)),
            }),
            Passing::Fragment(header, Load::List(list)) => Some(ReceivedFragment {
                header: *header,
                payload: Payload::RemoteIovec(Box::new(*list)),
            }),
        }
    }

    fn send(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<(), SendError> {
        assert!(header.len <= self.caps.fragment_max);
        let mut bytes = vec![0; header.len as usize];
        if header.len > 0 {
            fill(OwnBytes::from_slice(&mut bytes)).map_err(SendError::Fault)?;
        }
        self.outbox
            .push_back(Passing::Fragment(*header, Load::Bytes(bytes)));
        Ok(())
    }

    fn room(&self) -> Result<(), SendError> {
        if self.down.is_some() {
            return Err(SendError::Down);
        }
        if (self.sent - self.acked) as usize >= self.window {
            Err(SendError::Full)
        } else {
            Ok(())
        }
    }
}

/// Whether a fragment is a whole message without extra fields.
fn is_whole_and_plain(header: &Header) -> bool {
    const EXTRAS: HeaderFlags = HeaderFlags::IMMEDIATE
        .union(HeaderFlags::INVALIDATE)
        .union(HeaderFlags::REMOTE_IOVEC);
    let whole = HeaderFlags::FIRST | HeaderFlags::LAST;
    header.flags & (whole | EXTRAS) == whole
}

impl Link for WireEnd {
    fn node(&self) -> NodeId {
        self.node
    }

    fn capabilities(&self) -> Capabilities {
        self.caps
    }

    fn is_up(&self) -> Result<(), DownReason> {
        self.down.map_or(Ok(()), Err)
    }

    fn send_request(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<Ticket, SendError> {
        assert!(self.requester && !header.op.is_response());
        self.room()?;
        self.send(header, fill)?;
        self.sent += 1;
        Ok(self.sent - 1)
    }

    fn send_remote_iovec(
        &mut self,
        header: &Header,
        remote_iovec: &[(u64, u64)],
    ) -> Result<Ticket, SendError> {
        assert!(self.requester && !remote_iovec.is_empty());
        self.room()?;
        let mut header = *header;
        header.flags |= HeaderFlags::REMOTE_IOVEC;
        let sum: u64 = remote_iovec.iter().map(|r| r.1).sum();
        let want = if header.op == rkey_link::Op::Read {
            header.total
        } else {
            header.len
        };
        assert_eq!(sum, u64::from(want));
        let list = RemoteIovec::new(remote_iovec).expect("not too long");
        self.outbox
            .push_back(Passing::Fragment(header, Load::List(list)));
        self.sent += 1;
        Ok(self.sent - 1)
    }

    fn prefers_fragments(&self) -> bool {
        ((self.sent - self.acked) as usize) < self.fragments_first.min(self.window)
    }

    fn prefers_fragments_for_read(&self, len: u64) -> bool {
        len <= self.fragments_first as u64 * u64::from(self.caps.fragment_max)
    }

    fn next_response(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
        Ok(if self.requester { self.front() } else { None })
    }

    fn response_done(&mut self) {
        if self.requester && self.front().is_some() {
            self.inbox.pop_front();
        }
    }

    fn acknowledged(&mut self) -> Result<Ticket, Malformed> {
        while let (true, Some(Passing::Ack(ticket))) = (self.requester, self.inbox.front()) {
            self.acked = *ticket;
            self.inbox.pop_front();
        }
        Ok(self.acked)
    }

    fn next_request(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
        let request = if self.requester { None } else { self.front() };
        self.shown
            .set(self.shown.get() + usize::from(request.is_some()));
        Ok(request)
    }

    fn next_short(&self) -> Result<Option<ShortRequest<'_>>, NotShort> {
        if self.requester || !self.reads_short {
            return Err(NotShort);
        }
        let (header, bytes) = match self.inbox.front() {
            None => return Ok(None),
            Some(Passing::Fragment(header, Load::Bytes(bytes))) => (header, bytes),
            Some(_) => return Err(NotShort),
        };
        let requested = header.flags.contains(HeaderFlags::REQUESTED_KEY);
        let kind = match header.op {
            Op::Send if !requested => ShortKind::Send {
                solicited: header.flags.contains(HeaderFlags::SOLICITED),
            },
            Op::Write if header.len > 0 => ShortKind::Write {
                addr: header.addr,
                key: header.key,
                requested,
            },
            _ => return Err(NotShort),
        };
        if !is_whole_and_plain(header) || header.total != header.len {
            return Err(NotShort);
        }
        Ok(Some(ShortRequest {
            dst_qp: header.dst_qp,
            src_qp: header.src_qp,
            msn: header.msn,
            kind,
            bytes: PeerBytes::from_slice(bytes),
        }))
    }

    fn next_answered(&self) -> Option<AnsweredRequest> {
        let Some(Passing::Fragment(header, Load::Bytes(_))) = self.inbox.front() else {
            return None;
        };
        let [a, b] = header.operands;
        let kind = match header.op {
            Op::Read if (1..=self.caps.in_slot_max).contains(&header.total) => {
                AnsweredKind::Read(header.total)
            }
            Op::CompareSwap => AnsweredKind::CompareSwap(a, b),
            Op::FetchAdd => AnsweredKind::FetchAdd(a),
            _ => return None,
        };
        let is_one = is_whole_and_plain(header) && header.len == 0;
        let may_be_read = self.reads_short && !self.requester && is_one;
        may_be_read.then_some(AnsweredRequest {
            dst_qp: header.dst_qp,
            src_qp: header.src_qp,
            msn: header.msn,
            addr: header.addr,
            key: header.key,
            requested: header.flags.contains(HeaderFlags::REQUESTED_KEY),
            kind,
        })
    }

    fn request_done(&mut self) {
        if !self.requester && self.inbox.pop_front().is_some() {
            self.done += 1;
        }
    }

    fn room_to_respond(&self) -> bool {
        !self.requester && self.outbox.len() < self.response_room
    }

    fn send_response(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<(), SendError> {
        assert!(!self.requester && header.op.is_response());
        if self.outbox.len() >= self.response_room {
            return Err(SendError::Full);
        }
        self.send(header, fill)
    }

    fn pull<M: Memory>(&self, mem: &M, dst: u64, src: u64, len: u64) -> Result<(), PullError> {
        let peer = self.peer_memory.as_ref().ok_or(PullError::Gone)?;
        if self.refuse_remote_iovec {
            return Err(PullError::Refused);
        }
        let mut bytes = vec![0; len as usize];
        peer.load_bytes(&mut bytes, src)
            .map_err(|fault| PullError::Remote(fault.address))?;
        mem.store_bytes(dst, &bytes).map_err(PullError::Local)
    }

    fn push<M: Memory>(
        &self,
        mem: &M,
        dst_remote: u64,
        src_local: u64,
        len: u64,
    ) -> Result<(), PullError> {
        let peer = self.peer_memory.as_ref().ok_or(PullError::Gone)?;
        if self.refuse_remote_iovec {
            return Err(PullError::Refused);
        }
        let mut bytes = vec![0; len as usize];
        mem.load_bytes(&mut bytes, src_local)
            .map_err(PullError::Local)?;
        peer.store_bytes(dst_remote, &bytes)
            .map_err(|fault| PullError::Remote(fault.address))
    }

    fn revoke_peer_access(&mut self) {
        self.ended = true;
    }

    fn role(&self) -> LinkRole {
        match self.requester {
            true => LinkRole::Requester,
            false => LinkRole::Responder,
        }
    }

    fn pending(&self) -> bool {
        let owes = !self.requester && self.done > self.told;
        !self.inbox.is_empty() || owes || self.down.is_some()
    }

    fn end_burst(&mut self) {
        if !self.requester && self.done > self.told {
            self.told = self.done;
            self.outbox.push_back(Passing::Ack(self.done));
        }
    }
}

pub(crate) const CAPS: Capabilities = Capabilities {
    in_slot_max: 64,
    fragment_max: 256,
    remote_iovec: false,
    remote_iovec_min: 1024,
    direct: false,
};
