//! A link to another process.

use crate::ring::{End, INLINE_MAX, Role};
use crate::{
    Capabilities, DownReason, Head, Incoming, Link, Malformed, NodeId, PullError, SendError, Ticket,
};
use rkey_base::barrier;
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::shared::Place;
use std::cell::Cell;
use std::sync::atomic::{Ordering, fence};

/// A link to a device in another process of this host; one role.
#[derive(Debug)]
pub struct ShmLink {
    node: NodeId,
    end: End,
    down: Cell<Option<DownReason>>,
    capabilities: Capabilities,
    /// The sleeper at the other end issues heavy barriers, so a light one is enough here.
    light: bool,
    /// The epoch of the peer's sleep for which its bell has been rung.
    rung: u64,
}

impl ShmLink {
    /// A look at the link from other threads, without any lock.
    pub fn peek(&self) -> crate::ring::Peek {
        self.end.peek()
    }

    fn is_requester(&self) -> bool {
        self.end.role() == Role::Requester
    }

    #[cold]
    fn full_or_down(&self, error: SendError) -> SendError {
        if error == SendError::Full && self.is_up().is_err() {
            SendError::Down
        } else {
            error
        }
    }

    fn ring(&mut self) {}
}

impl Link for ShmLink {
    fn node(&self) -> NodeId {
        self.node
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn is_up(&self) -> Result<(), DownReason> {
        match self.end.broken() {
            Some(malformed) => Err(DownReason::Malformed(malformed)),
            None => self.down.get().map_or(Ok(()), Err),
        }
    }

    #[inline]
    fn request(
        &mut self,
        head: &Head,
        fill: impl FnOnce(Place<'_>) -> Result<(), Fault>,
    ) -> Result<Ticket, SendError> {
        debug_assert!(self.is_requester() && !head.op.is_response());
        self.end.send(head, fill).map_err(|e| self.full_or_down(e))
    }

    fn request_by_reference(
        &mut self,
        head: &Head,
        refs: &[(u64, u64)],
    ) -> Result<Ticket, SendError> {
        debug_assert!(self.is_requester() && !head.op.is_response());
        self.end
            .send_references(head, refs)
            .map_err(|e| self.full_or_down(e))
    }

    #[inline]
    fn response(&self) -> Result<Option<Incoming<'_>>, Malformed> {
        if !self.is_requester() {
            return Ok(None);
        }
        self.end.next()
    }

    #[inline]
    fn response_done(&mut self) {
        if self.is_requester() {
            self.end.done();
        }
    }

    #[inline]
    fn acked(&mut self) -> Result<Ticket, Malformed> {
        self.end.refresh()
    }

    #[inline]
    fn incoming(&self) -> Result<Option<Incoming<'_>>, Malformed> {
        if self.is_requester() {
            return Ok(None);
        }
        self.end.next()
    }

    #[inline]
    fn incoming_done(&mut self) {
        if !self.is_requester() {
            self.end.done();
        }
    }

    #[inline]
    fn room_to_respond(&self) -> bool {
        !self.is_requester() && self.end.has_room()
    }

    #[inline]
    fn respond(
        &mut self,
        head: &Head,
        fill: impl FnOnce(Place<'_>) -> Result<(), Fault>,
    ) -> Result<(), SendError> {
        debug_assert!(!self.is_requester() && head.op.is_response());
        self.end
            .send(head, fill)
            .map(|_| ())
            .map_err(|e| self.full_or_down(e))
    }

    fn pull<M: Memory>(&self, _mem: &M, _dst: u64, _src: u64, _len: u64) -> Result<(), PullError> {
        Err(PullError::Refused)
    }

    fn push<M: Memory>(
        &self,
        _mem: &M,
        _dst_remote: u64,
        _src_local: u64,
        _len: u64,
    ) -> Result<(), PullError> {
        Err(PullError::Refused)
    }

    #[inline]
    fn pending(&self) -> bool {
        self.end.pending()
    }

    #[inline]
    fn flush(&mut self) {
        self.end.count_empty();
        if self.end.take_dirty() {
            if self.light {
                barrier::light();
            } else {
                fence(Ordering::SeqCst);
            }
            let epoch = self.end.peer_epoch();
            if epoch & 1 == 1 && epoch != self.rung {
                self.rung = epoch;
                self.ring();
            }
        }
    }
}
