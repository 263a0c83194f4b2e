//! One connection, or one request for a datagram queue pair: its state and identifiers.

pub mod state;

pub use state::State;

use crate::address::{Gid, Guid, ServiceId};
use crate::time::{Nanos, Timing, nanos};
use crate::wire::{
    About, Drep, Dreq, MAD, Mad, Message, Mra, PrivateData, Rej, Rtu, SidrRep, SidrStatus,
    Transport,
};
use core::net::{IpAddr, SocketAddr};
use state::{Send, Why};

/// Identifies a connection in calls and events. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) u64);

/// Identifies a listener in calls and events. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub(crate) u64);

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) state: State,
    /// `None` for a datagram service.
    pub(crate) transport: Option<Transport>,
    /// Our communication id, or the id of the SIDR request.
    pub(crate) local_id: u32,
    /// The peer's communication id, once known.
    pub(crate) remote_id: Option<u32>,
    pub(crate) local: IpAddr,
    pub(crate) peer: IpAddr,
    /// Our port and the peer's.
    pub(crate) ports: (u16, u16),
    /// Whether our program initiated the connection.
    pub(crate) is_active: bool,
    /// Passive side: which of the peers that share the address sent the request.
    pub(crate) party: u64,
    /// The GUID of our device instance, as shown to this peer and service.
    pub(crate) own_guid: Guid,
    /// The GUID of the peer's device instance, once known.
    pub(crate) guid: Option<Guid>,
    pub(crate) service: ServiceId,
    /// The transaction id of the REQ or SIDR_REQ. All answers carry it.
    pub(crate) tid: u64,
    /// The transaction id of our DREQ.
    pub(crate) dreq_tid: u64,
    /// The transaction id of the peer's DREQ.
    pub(crate) peer_dreq_tid: u64,
    /// The numbers of our queue pair and, once known, the peer's.
    pub(crate) qpn: u32,
    pub(crate) remote_qpn: Option<u32>,
    /// The time until a message is retransmitted.
    pub(crate) period: Nanos,
    /// How many times a message may be retransmitted.
    pub(crate) retries: u8,
    /// How many more times the last message may be retransmitted.
    pub(crate) left: u8,
    pub(crate) time_wait: Nanos,
    pub(crate) deadline: Option<Nanos>,
    /// The last message, if it may have to be retransmitted.
    pub(crate) kept: Option<Box<[u8; MAD]>>,
    /// The program has closed the connection and gets no more events.
    pub(crate) is_silent: bool,
}

/// A description of a connection, for inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The state of the connection.
    pub state: State,
    /// The transport; `None` for a datagram service.
    pub transport: Option<Transport>,
    /// The requested service.
    pub service: ServiceId,
    /// Whether our program initiated the connection.
    pub is_active: bool,
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub peer: SocketAddr,
    /// Passive side: which of the peers that share the address sent the request.
    pub party: u64,
    /// The peer's communication id, once known.
    pub remote_id: Option<u32>,
    /// The number of our queue pair, once known.
    pub qpn: Option<u32>,
    /// The number of the peer's queue pair, once known.
    pub remote_qpn: Option<u32>,
    /// How many more times the last message may be retransmitted.
    pub left: u8,
    /// Whether the program has closed the connection.
    pub is_closed: bool,
}

/// What the caller of a step supplies for a REJ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    pub(crate) rej: Rej,
    pub(crate) options: u32,
}

impl Connection {
    pub(crate) fn info(&self) -> Info {
        Info {
            state: self.state,
            transport: self.transport,
            service: self.service,
            is_active: self.is_active,
            local: SocketAddr::new(self.local, self.ports.0),
            peer: SocketAddr::new(self.peer, self.ports.1),
            party: self.party,
            remote_id: self.remote_id,
            qpn: Some(self.qpn).filter(|qpn| *qpn != 0),
            remote_qpn: self.remote_qpn,
            left: self.left,
            is_closed: self.is_silent,
        }
    }

    /// Whether the passive side has yet to accept or reject.
    pub(crate) fn is_undecided(state: State) -> bool {
        matches!(state, State::ReqReceived | State::SidrReceived)
    }

    /// Whether the connection is kept only to retransmit an answer.
    pub(crate) fn lingers(state: State) -> bool {
        matches!(state, State::Refused | State::SidrAnswered)
    }

    /// Whether a message from this address with this id of ours is for this connection.
    pub(crate) fn is_named(&self, from: IpAddr, local: u32) -> bool {
        self.peer == from && self.remote_id == Some(local)
    }

    fn rej(&self, about: About, why: Why, given: Option<&Refusal>) -> Rej {
        let bare = |reason| Rej::bare(0, 0, about, reason);
        let rej = match (why, given) {
            (Why::Given, Some(refusal)) => Rej {
                about,
                ..refusal.rej
            },
            (Why::Given | Why::Consumer, _) => bare(crate::wire::RejectReason::CONSUMER),
            (Why::Timeout, _) => {
                bare(crate::wire::RejectReason::TIMEOUT).with_info(&self.own_guid.0)
            }
            (Why::Stale, _) => bare(crate::wire::RejectReason::STALE),
        };
        Rej {
            local: self.local_id,
            remote: self.remote_id.unwrap_or(0),
            ..rej
        }
    }

    /// Builds the message to send; `None` for [`Send::Given`] and [`Send::Again`], whose messages exist
    /// already.
    pub(crate) fn message(
        &self,
        send: Send,
        given: Option<&Refusal>,
        timing: &Timing,
    ) -> Option<Mad> {
        let (local, remote) = (self.local_id, self.remote_id.unwrap_or(0));
        let mra = |about| {
            Message::Mra(Mra {
                local,
                remote,
                about,
                service_timeout: timing.service,
                data: PrivateData::default(),
            })
        };
        let rej = |about, why| Message::Rej(self.rej(about, why, given));
        let (tid, message) = match send {
            Send::Given | Send::Again => return None,
            Send::MraReq => (self.tid, mra(About::Req)),
            Send::MraRep => (self.tid, mra(About::Rep)),
            Send::RejReq(why) => (self.tid, rej(About::Req, why)),
            Send::RejRep(why) => (self.tid, rej(About::Rep, why)),
            Send::RejOther(why) => (self.tid, rej(About::Other, why)),
            Send::Rtu => {
                let data = PrivateData::default();
                let rtu = Rtu {
                    local,
                    remote,
                    data,
                };
                (self.tid, Message::Rtu(rtu))
            }
            Send::Dreq => {
                let dreq = Dreq {
                    local,
                    remote,
                    remote_qpn: self.remote_qpn.unwrap_or(0),
                    data: PrivateData::default(),
                };
                (self.dreq_tid, Message::Dreq(dreq))
            }
            Send::Drep => {
                let data = PrivateData::default();
                let drep = Drep {
                    local,
                    remote,
                    data,
                };
                (self.peer_dreq_tid, Message::Drep(drep))
            }
            Send::SidrRefusal => (self.tid, Message::SidrRep(self.sidr_refusal())),
        };
        let options = given.map_or(0, |refusal| refusal.options);
        Some(Mad {
            tid,
            modifier: options,
            message,
        })
    }

    fn sidr_refusal(&self) -> SidrRep {
        let request = self.remote_id.unwrap_or(0);
        SidrRep::without_queue_pair(request, self.service, SidrStatus::REJECT)
    }

    /// Our address as a GID.
    pub(crate) fn local_gid(&self) -> Gid {
        Gid::from(self.local)
    }

    /// How long to wait after a peer's MRA: the service timeout in it plus one `period`.
    pub(crate) fn service_time(&self, code: u8) -> Nanos {
        nanos(code.min(crate::time::MAX_SERVICE)) + self.period
    }
}
