//! One type for every kind of link, so that one engine can have links of all kinds.

use crate::loopback::Loopback;
use crate::observed::{Observed, Observer};
use crate::shm::ShmLink;
use crate::{
    Capabilities, DownReason, Header, Link, LinkRole, Malformed, NodeId, NotShort, PollHandle,
    PullError, ReceivedFragment, RemotePeer, SendError, ShortSend, Ticket,
};
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::shared::OwnBytes;

/// A link of any kind.
#[derive(Debug)]
pub enum AnyLink {
    /// To ourselves.
    Loopback(Box<Loopback>),
    /// To another process of this host.
    Shm(Box<ShmLink>),
    /// To ourselves, with an observer.
    ObservedLoopback(Box<Observed<Loopback>>),
    /// To another process of this host, with an observer.
    ObservedShm(Box<Observed<ShmLink>>),
}

impl AnyLink {
    /// The same link, with an observer that sees everything that passes.
    #[must_use]
    pub fn observed(self, observer: Box<dyn Observer>) -> Self {
        match self {
            Self::Loopback(link) => {
                Self::ObservedLoopback(Box::new(Observed::new(*link, observer)))
            }
            Self::Shm(link) => Self::ObservedShm(Box::new(Observed::new(*link, observer))),
            observed => observed,
        }
    }
}

impl From<Loopback> for AnyLink {
    fn from(link: Loopback) -> Self {
        Self::Loopback(Box::new(link))
    }
}

impl From<ShmLink> for AnyLink {
    fn from(link: ShmLink) -> Self {
        Self::Shm(Box::new(link))
    }
}

/// Forwards the call to the inner link.
macro_rules! each {
    ($self:expr, $link:ident => $call:expr) => {
        match $self {
            AnyLink::Loopback($link) => $call,
            AnyLink::Shm($link) => $call,
            AnyLink::ObservedLoopback($link) => $call,
            AnyLink::ObservedShm($link) => $call,
        }
    };
}

impl Link for AnyLink {
    #[inline]
    fn node(&self) -> NodeId {
        each!(self, link => link.node())
    }

    #[inline]
    fn capabilities(&self) -> Capabilities {
        each!(self, link => link.capabilities())
    }

    #[inline]
    fn is_up(&self) -> Result<(), DownReason> {
        each!(self, link => link.is_up())
    }

    #[inline(always)]
    fn send_request(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<Ticket, SendError> {
        each!(self, link => link.send_request(header, fill))
    }

    #[inline]
    fn send_remote_iovec(
        &mut self,
        header: &Header,
        remote_iovec: &[(u64, u64)],
    ) -> Result<Ticket, SendError> {
        each!(self, link => link.send_remote_iovec(header, remote_iovec))
    }

    fn prefers_fragments(&self) -> bool {
        each!(self, link => link.prefers_fragments())
    }

    fn prefers_fragments_for_read(&self, len: u64) -> bool {
        each!(self, link => link.prefers_fragments_for_read(len))
    }

    #[inline]
    fn next_response(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
        each!(self, link => link.next_response())
    }

    #[inline]
    fn response_done(&mut self) {
        each!(self, link => link.response_done());
    }

    #[inline]
    fn acknowledged(&mut self) -> Result<Ticket, Malformed> {
        each!(self, link => link.acknowledged())
    }

    #[inline]
    fn next_request(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
        each!(self, link => link.next_request())
    }

    #[inline]
    fn next_short_send(&self) -> Result<Option<ShortSend<'_>>, NotShort> {
        each!(self, link => link.next_short_send())
    }

    #[inline]
    fn request_done(&mut self) {
        each!(self, link => link.request_done());
    }

    #[inline]
    fn room_to_respond(&self) -> bool {
        each!(self, link => link.room_to_respond())
    }

    #[inline]
    fn send_response(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<(), SendError> {
        each!(self, link => link.send_response(header, fill))
    }

    #[inline]
    fn pull<M: Memory>(&self, mem: &M, dst: u64, src: u64, len: u64) -> Result<(), PullError> {
        each!(self, link => link.pull(mem, dst, src, len))
    }

    #[inline]
    fn push<M: Memory>(
        &self,
        mem: &M,
        dst_remote: u64,
        src_local: u64,
        len: u64,
    ) -> Result<(), PullError> {
        each!(self, link => link.push(mem, dst_remote, src_local, len))
    }

    fn revoke_peer_access(&mut self) {
        each!(self, link => link.revoke_peer_access());
    }

    #[inline]
    fn pending(&self) -> bool {
        each!(self, link => link.pending())
    }

    #[inline]
    fn end_burst(&mut self) {
        each!(self, link => link.end_burst());
    }

    fn publish(&mut self) {
        each!(self, link => link.publish());
    }

    fn role(&self) -> LinkRole {
        each!(self, link => link.role())
    }

    fn poll_handle(&self) -> Option<PollHandle> {
        each!(self, link => link.poll_handle())
    }

    #[inline]
    fn has_unacked(&self) -> bool {
        each!(self, link => link.has_unacked())
    }

    fn kick(&self) {
        each!(self, link => link.kick());
    }

    fn peer(&self) -> Option<RemotePeer> {
        each!(self, link => link.peer())
    }
}
