//! What a link to another process provides in addition to [`Link`](crate::Link): the peer's identity, a socket for small
//! messages, control over the peer's copies, leases, and warrants.
//!
//! A device uses this when it attaches the link, and for leases. Sending and receiving do not need it.

use std::sync::Arc;

use crate::direct::{LeaseBoard, LeaseClient};
use crate::ring::PollView;

pub use crate::shm::{
    Control, ControlLine, Credentials, Event, OwnWarrant, PeerAccess, PeerProcess, PeerWarrant,
    Stall, WARRANT_WRITE_MAX, WarrantIssuer, WarrantTaker, peer_credentials, receive_before_end,
};

/// This side's roles on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkRole {
    /// Sends requests.
    Requester,
    /// Responds to the peer's requests.
    Responder,
    /// Both, because a device is linked to itself.
    Both,
}

/// The peer of a link, in another process on this host. The parts may outlive the link.
#[derive(Clone, Debug)]
pub struct RemotePeer {
    /// The peer's identity, as the kernel reports it.
    pub credentials: Credentials,
    /// The peer's process.
    pub process: Arc<PeerProcess>,
    /// The control socket: doorbell, messages between the devices, and detection of the peer's end.
    pub line: Arc<ControlLine>,
    /// Requester: control over the peer's access to our memory.
    pub peer_access: Option<PeerAccess>,
    /// Leases over the link; `None` if it does not support them.
    pub leases: Option<Leases>,
    /// Warrants over the link, if it supports them and the kernel permits copies.
    pub warrants: Option<Warrants>,
}

/// Warrants over a link, according to the role.
#[derive(Clone, Debug)]
pub enum Warrants {
    /// The responder issues warrants.
    Issuer(WarrantIssuer),
    /// The requester takes warrants that the peer has issued.
    Taker(WarrantTaker),
}

/// Leases over a link, according to the role.
#[derive(Clone, Debug)]
pub enum Leases {
    /// The responder grants leases.
    Board(LeaseBoard),
    /// The requester opens leases that the peer has granted.
    Client(LeaseClient),
}

impl RemotePeer {
    /// Grants leases of our memory; `None` at the requester.
    pub fn lease_board(&self) -> Option<&LeaseBoard> {
        match self.leases.as_ref()? {
            Leases::Board(board) => Some(board),
            Leases::Client(_) => None,
        }
    }

    /// Opens leases that the peer has granted; `None` at the responder.
    pub fn lease_client(&self) -> Option<&LeaseClient> {
        match self.leases.as_ref()? {
            Leases::Client(client) => Some(client),
            Leases::Board(_) => None,
        }
    }

    /// Issues warrants for our memory; `None` at the requester, or if peers may not copy to it.
    pub fn warrant_issuer(&self) -> Option<&WarrantIssuer> {
        match self.warrants.as_ref()? {
            Warrants::Issuer(issuer) => Some(issuer),
            Warrants::Taker(_) => None,
        }
    }

    /// Takes warrants that the peer has issued; `None` at the responder, or if we cannot copy to the peer's memory.
    pub fn warrant_taker(&self) -> Option<&WarrantTaker> {
        match self.warrants.as_ref()? {
            Warrants::Taker(taker) => Some(taker),
            Warrants::Issuer(_) => None,
        }
    }
}

/// A view of a link for threads that do not hold it, and its sleep word: an entry of a device's poll set. It is an
/// enum, so that a poll is a branch and not an indirect call; with one kind of link there is not even a branch.
#[derive(Debug)]
pub enum PollHandle {
    /// A link of rings in shared memory.
    Ring(PollView),
}

/// Forwards the call to the inner handle.
macro_rules! each {
    ($self:expr, $handle:ident => $call:expr) => {
        match $self {
            PollHandle::Ring($handle) => $call,
        }
    };
}

impl PollHandle {
    /// Makes the peer ring the doorbell from now on.
    ///
    /// To sleep without missing anything: announce the sleep on every link, issue one `rkey_base::barrier::heavy`,
    /// check every link once more, and only then wait. Only one thread of a process may do this for a link.
    pub fn announce_sleep(&self) {
        each!(self, handle => handle.announce_sleep());
    }

    /// Ends the announced sleep.
    pub fn awake(&self) {
        each!(self, handle => handle.awake());
    }

    /// Whether anything from the peer has arrived. Takes a few nanoseconds.
    #[inline]
    pub fn has_arrived(&self) -> bool {
        each!(self, handle => handle.has_arrived())
    }

    /// Whether our acknowledgement is delayed. A thread that polls without holding the link publishes it after a few
    /// unsuccessful polls ([`Link::publish`](crate::Link::publish)).
    #[inline]
    pub fn owes(&self) -> bool {
        each!(self, handle => handle.owes())
    }
}

impl From<PollView> for PollHandle {
    fn from(view: PollView) -> Self {
        Self::Ring(view)
    }
}
