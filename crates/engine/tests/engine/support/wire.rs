//! The wire: a link that carries nothing by itself, so that the test can stop it between any two things.

use rkey_base::fault::Fault;
use rkey_base::memory::{ArenaMemory, Memory};
use rkey_base::shared::{Foreign, Place};
use rkey_link::{
    Capabilities, DownReason, Head, HeadFlags, Incoming, Link, Malformed, NodeId, Payload,
    PullError, References, SendError, Ticket,
};
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) enum Load {
    Bytes(Vec<u8>),
    List(References),
}

#[derive(Clone, Debug)]
pub(crate) enum Passing {
    Piece(Head, Load),
    /// Requests with smaller tickets are executed.
    Ack(Ticket),
}

/// One end of a wire, in one role. Nothing passes until the world carries it.
pub(crate) struct WireEnd {
    pub(crate) node: NodeId,
    pub(crate) peer_memory: Option<Arc<ArenaMemory>>,
    pub(crate) caps: Capabilities,
    pub(crate) window: usize,
    pub(crate) refuse_reference: bool,
    /// So many pieces it prefers to a reference: 0 if it knows no better.
    pub(crate) pieces_first: usize,
    pub(crate) outbox: VecDeque<Passing>,
    pub(crate) inbox: VecDeque<Passing>,
    sent: Ticket,
    acked: Ticket,
    done: Ticket,
    told: Ticket,
    requester: bool,
    pub(crate) down: Option<DownReason>,
    /// Responses that may wait in `outbox`.
    pub(crate) response_room: usize,
    /// The peer may not reach for our memory any more.
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
            refuse_reference: false,
            pieces_first: 0,
            outbox: VecDeque::new(),
            inbox: VecDeque::new(),
            sent: 0,
            acked: 0,
            done: 0,
            told: 0,
            requester,
            down: None,
            response_room: 4,
            ended: false,
        }
    }

    fn front(&self) -> Option<Incoming<'_>> {
        match self.inbox.front()? {
            Passing::Ack(_) => None,
            Passing::Piece(head, Load::Bytes(bytes)) => Some(Incoming {
                head: *head,
                payload: Payload::Bytes(Foreign::from_slice(bytes)),
            }),
            Passing::Piece(head, Load::List(list)) => Some(Incoming {
                head: *head,
                payload: Payload::Reference(Box::new(*list)),
            }),
        }
    }

    fn send(
        &mut self,
        head: &Head,
        fill: impl FnOnce(Place<'_>) -> Result<(), Fault>,
    ) -> Result<(), SendError> {
        assert!(head.len <= self.caps.piece_max);
        let mut bytes = vec![0; head.len as usize];
        if head.len > 0 {
            fill(Place::from_slice(&mut bytes)).map_err(SendError::Fault)?;
        }
        self.outbox
            .push_back(Passing::Piece(*head, Load::Bytes(bytes)));
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

    fn request(
        &mut self,
        head: &Head,
        fill: impl FnOnce(Place<'_>) -> Result<(), Fault>,
    ) -> Result<Ticket, SendError> {
        assert!(self.requester && !head.op.is_response());
        self.room()?;
        self.send(head, fill)?;
        self.sent += 1;
        Ok(self.sent - 1)
    }

    fn request_by_reference(
        &mut self,
        head: &Head,
        refs: &[(u64, u64)],
    ) -> Result<Ticket, SendError> {
        assert!(self.requester && !refs.is_empty());
        self.room()?;
        let mut head = *head;
        head.flags |= HeadFlags::BY_REFERENCE;
        let sum: u64 = refs.iter().map(|r| r.1).sum();
        let want = if head.op == rkey_link::Op::Read {
            head.total
        } else {
            head.len
        };
        assert_eq!(sum, u64::from(want));
        let list = References::new(refs).expect("not too long");
        self.outbox
            .push_back(Passing::Piece(head, Load::List(list)));
        self.sent += 1;
        Ok(self.sent - 1)
    }

    fn prefers_pieces(&self) -> bool {
        ((self.sent - self.acked) as usize) < self.pieces_first.min(self.window)
    }

    fn prefers_pieces_back(&self, len: u64) -> bool {
        len <= self.pieces_first as u64 * u64::from(self.caps.piece_max)
    }

    fn response(&self) -> Result<Option<Incoming<'_>>, Malformed> {
        Ok(if self.requester { self.front() } else { None })
    }

    fn response_done(&mut self) {
        if self.requester && self.front().is_some() {
            self.inbox.pop_front();
        }
    }

    fn acked(&mut self) -> Result<Ticket, Malformed> {
        while let (true, Some(Passing::Ack(ticket))) = (self.requester, self.inbox.front()) {
            self.acked = *ticket;
            self.inbox.pop_front();
        }
        Ok(self.acked)
    }

    fn incoming(&self) -> Result<Option<Incoming<'_>>, Malformed> {
        Ok(if self.requester { None } else { self.front() })
    }

    fn incoming_done(&mut self) {
        if !self.requester && self.inbox.pop_front().is_some() {
            self.done += 1;
        }
    }

    fn room_to_respond(&self) -> bool {
        !self.requester && self.outbox.len() < self.response_room
    }

    fn respond(
        &mut self,
        head: &Head,
        fill: impl FnOnce(Place<'_>) -> Result<(), Fault>,
    ) -> Result<(), SendError> {
        assert!(!self.requester && head.op.is_response());
        if self.outbox.len() >= self.response_room {
            return Err(SendError::Full);
        }
        self.send(head, fill)
    }

    fn pull<M: Memory>(&self, mem: &M, dst: u64, src: u64, len: u64) -> Result<(), PullError> {
        let peer = self.peer_memory.as_ref().ok_or(PullError::Gone)?;
        if self.refuse_reference {
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
        if self.refuse_reference {
            return Err(PullError::Refused);
        }
        let mut bytes = vec![0; len as usize];
        mem.load_bytes(&mut bytes, src_local)
            .map_err(PullError::Local)?;
        peer.store_bytes(dst_remote, &bytes)
            .map_err(|fault| PullError::Remote(fault.address))
    }

    fn end_references(&mut self) {
        self.ended = true;
    }

    fn pending(&self) -> bool {
        !self.inbox.is_empty() || (!self.requester && self.done > self.told)
    }

    fn flush(&mut self) {
        if !self.requester && self.done > self.told {
            self.told = self.done;
            self.outbox.push_back(Passing::Ack(self.done));
        }
    }
}

pub(crate) const CAPS: Capabilities = Capabilities {
    inline_max: 64,
    piece_max: 256,
    by_reference: false,
    reference_min: 1024,
    direct: false,
};
