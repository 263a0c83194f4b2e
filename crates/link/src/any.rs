//! One type for every kind of link, so that one engine can have links of all kinds.

use crate::loopback::Loopback;
use crate::observed::{Observed, Observer};
use crate::shm::ShmLink;
use crate::{
    AnsweredRequest, Capabilities, DownReason, Header, Link, LinkRole, Malformed, NodeId, NotShort,
    PollHandle, PullError, ReceivedFragment, RemotePeer, SendError, ShortRequest, Ticket,
};
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::shared::OwnBytes;

/// A link of any kind.
#[derive(Debug)]
pub enum AnyLink {
    /// To another process of this host. It is the common case, so it is one comparison away.
    Shm(Box<ShmLink>),
    /// Any other.
    Other(Box<OtherLink>),
}

/// The links that do not have to be the fastest.
#[derive(Debug)]
pub enum OtherLink {
    /// To ourselves.
    Loopback(Loopback),
    /// To ourselves, with an observer.
    ObservedLoopback(Observed<Loopback>),
    /// To another process of this host, with an observer.
    ObservedShm(Observed<ShmLink>),
}

impl AnyLink {
    /// The same link, with an observer that sees everything that passes. A link that has an observer keeps it.
    #[must_use]
    pub fn observed(self, observer: Box<dyn Observer>) -> Self {
        let observed = match self {
            Self::Shm(link) => OtherLink::ObservedShm(Observed::new(*link, observer)),
            Self::Other(link) => match *link {
                OtherLink::Loopback(link) => {
                    OtherLink::ObservedLoopback(Observed::new(link, observer))
                }
                observed => observed,
            },
        };
        Self::Other(Box::new(observed))
    }
}

impl From<Loopback> for AnyLink {
    fn from(link: Loopback) -> Self {
        Self::Other(Box::new(OtherLink::Loopback(link)))
    }
}

impl From<ShmLink> for AnyLink {
    fn from(link: ShmLink) -> Self {
        Self::Shm(Box::new(link))
    }
}

/// Forwards all calls to the inner link.
macro_rules! forward {
    ($any:ident, $always:meta, $requester:meta, $quick:meta: $($variant:ident),+) => {
        impl Link for $any {
            #[$quick]
            fn node(&self) -> NodeId {
                match self { $($any::$variant(link) => link.node()),+ }
            }

            #[$quick]
            fn capabilities(&self) -> Capabilities {
                match self { $($any::$variant(link) => link.capabilities()),+ }
            }

            #[$quick]
            fn is_up(&self) -> Result<(), DownReason> {
                match self { $($any::$variant(link) => link.is_up()),+ }
            }

            #[$always]
            fn send_request(
                &mut self,
                header: &Header,
                fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
            ) -> Result<Ticket, SendError> {
                match self { $($any::$variant(link) => link.send_request(header, fill)),+ }
            }

            #[$requester]
            fn send_remote_iovec(
                &mut self,
                header: &Header,
                remote_iovec: &[(u64, u64)],
            ) -> Result<Ticket, SendError> {
                match self { $($any::$variant(link) => link.send_remote_iovec(header, remote_iovec)),+ }
            }

            fn prefers_fragments(&self) -> bool {
                match self { $($any::$variant(link) => link.prefers_fragments()),+ }
            }

            fn prefers_fragments_for_read(&self, len: u64) -> bool {
                match self { $($any::$variant(link) => link.prefers_fragments_for_read(len)),+ }
            }

            #[$requester]
            fn next_response(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
                match self { $($any::$variant(link) => link.next_response()),+ }
            }

            #[$requester]
            fn response_done(&mut self) {
                match self { $($any::$variant(link) => link.response_done()),+ };
            }

            #[$requester]
            fn acknowledged(&mut self) -> Result<Ticket, Malformed> {
                match self { $($any::$variant(link) => link.acknowledged()),+ }
            }

            #[$quick]
            fn next_request(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
                match self { $($any::$variant(link) => link.next_request()),+ }
            }

            #[$quick]
            fn next_short(&self) -> Result<Option<ShortRequest<'_>>, NotShort> {
                match self { $($any::$variant(link) => link.next_short()),+ }
            }

            fn next_answered(&self) -> Option<AnsweredRequest> {
                match self { $($any::$variant(link) => link.next_answered()),+ }
            }

            #[$quick]
            fn request_done(&mut self) {
                match self { $($any::$variant(link) => link.request_done()),+ };
            }

            #[$quick]
            fn room_to_respond(&self) -> bool {
                match self { $($any::$variant(link) => link.room_to_respond()),+ }
            }

            #[$quick]
            fn send_response(
                &mut self,
                header: &Header,
                fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
            ) -> Result<(), SendError> {
                match self { $($any::$variant(link) => link.send_response(header, fill)),+ }
            }

            #[$quick]
            fn pull<M: Memory>(&self, mem: &M, dst: u64, src: u64, len: u64) -> Result<(), PullError> {
                match self { $($any::$variant(link) => link.pull(mem, dst, src, len)),+ }
            }

            #[$quick]
            fn push<M: Memory>(
                &self,
                mem: &M,
                dst_remote: u64,
                src_local: u64,
                len: u64,
            ) -> Result<(), PullError> {
                match self { $($any::$variant(link) => link.push(mem, dst_remote, src_local, len)),+ }
            }

            fn revoke_peer_access(&mut self) {
                match self { $($any::$variant(link) => link.revoke_peer_access()),+ };
            }

            #[$quick]
            fn pending(&self) -> bool {
                match self { $($any::$variant(link) => link.pending()),+ }
            }

            #[$requester]
            fn end_burst(&mut self) {
                match self { $($any::$variant(link) => link.end_burst()),+ };
            }

            fn publish(&mut self) {
                match self { $($any::$variant(link) => link.publish()),+ };
            }

            fn role(&self) -> LinkRole {
                match self { $($any::$variant(link) => link.role()),+ }
            }

            fn poll_handle(&self) -> Option<PollHandle> {
                match self { $($any::$variant(link) => link.poll_handle()),+ }
            }

            #[$quick]
            fn has_unacked(&self) -> bool {
                match self { $($any::$variant(link) => link.has_unacked()),+ }
            }

            fn kick(&self) {
                match self { $($any::$variant(link) => link.kick()),+ };
            }

            fn peer(&self) -> Option<RemotePeer> {
                match self { $($any::$variant(link) => link.peer()),+ }
            }
        }
    };
}

forward!(AnyLink, inline(always), inline, inline: Shm, Other);
// The requester's calls are functions of their own, so that they do not make the code of the common case longer (measured:
// `rkey bench --count`).
forward!(OtherLink, inline(never), inline(never), inline: Loopback, ObservedLoopback, ObservedShm);
