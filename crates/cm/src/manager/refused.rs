//! Connections that were not established, for inspection: requests that were refused or dropped here, and our own.
//!
//! The active side learns little (InfiniBand has one reason for "wrong queue pair type", "wrong address" and "refused by the
//! program"), and nothing at all about a full backlog. The passive side knows.

use super::{Event, Kind};
use crate::address::ServiceId;
use crate::connection::{Connection, ConnectionId};
use crate::wire::{Detail, RejectReason, SidrStatus};
use core::net::SocketAddr;
use std::collections::VecDeque;

/// How many records are kept until the host fetches them. An untrusted peer can cause any number.
const MAX: usize = 64;

/// Why a connection was not established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAccepted {
    /// The listener's backlog is full. The request was dropped, and its sender retransmits it.
    Backlog {
        /// The length of the backlog.
        backlog: usize,
    },
    /// The peer has reached its limit of undecided requests. The request was dropped, and its sender retransmits it.
    TooMany,
    /// The listener is for queue pairs of another type.
    Transport {
        /// What the request asks for.
        asked: Kind,
        /// What the listener offers.
        offered: Kind,
    },
    /// Our program refused.
    Program(RejectReason),
    /// Refused here, for a reason that the peer is told, too.
    Here(RejectReason),
    /// The peer refused, with this reason and detail.
    Peer(RejectReason, Option<Detail>),
    /// The peer refused a request for a datagram queue pair.
    PeerDatagram(SidrStatus, Option<Detail>),
    /// The peer did not answer.
    NoAnswer,
}

impl NotAccepted {
    /// The reason in an event that ends an attempt to connect.
    pub(super) fn of_event(event: &Event) -> Option<Self> {
        match event {
            Event::Rejected { rej, .. } => Some(Self::Peer(rej.reason, rej.detail())),
            Event::Unreachable { .. } => Some(Self::NoAnswer),
            Event::DatagramResponse { rep, .. } => match rep.checked_status() {
                SidrStatus::VALID => None,
                status => Some(Self::PeerDatagram(status, rep.detail())),
            },
            _ => None,
        }
    }
}

/// A connection that was not established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The connection. `None` for a request that never became one.
    pub connection: Option<ConnectionId>,
    /// Whether our program initiated the connection.
    pub is_active: bool,
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub peer: SocketAddr,
    /// The requested service.
    pub service: ServiceId,
    /// Passive side: which of the peers that share the address sent the request.
    pub party: u64,
    /// The peer's communication id, if known.
    pub remote_id: Option<u32>,
    /// Why the connection was not established.
    pub why: NotAccepted,
}

impl Refused {
    /// The record of a connection.
    pub(super) fn connection(id: ConnectionId, it: &Connection, why: NotAccepted) -> Self {
        let info = it.info();
        Self {
            connection: Some(id),
            is_active: info.is_active,
            local: info.local,
            peer: info.peer,
            service: info.service,
            party: info.party,
            remote_id: info.remote_id,
            why,
        }
    }
}

/// The most recent refused requests.
#[derive(Debug, Default)]
pub(super) struct RefusedRequests(VecDeque<Refused>);

impl RefusedRequests {
    pub(super) fn push(&mut self, refused: Refused) {
        if self.0.len() == MAX {
            self.0.pop_front();
        }
        self.0.push_back(refused);
    }

    pub(super) fn pop(&mut self) -> Option<Refused> {
        self.0.pop_front()
    }
}
