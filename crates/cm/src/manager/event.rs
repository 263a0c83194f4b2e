//! What a manager reports: events for the program, messages for the network, counters for inspection.

use crate::address::ServiceId;
use crate::connection::{ConnectionId, ListenerId, State};
use crate::wire::{Ece, MAD, PrivateData, Rej, Rep, Req, SidrRep, SidrReq};
use core::net::{IpAddr, SocketAddr};

/// A message to send, as one datagram, to queue pair 1 of the port with the address `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Our address.
    pub from: IpAddr,
    /// The peer's address.
    pub to: IpAddr,
    /// The management datagram.
    pub mad: [u8; MAD],
    /// The connection that sends it, and the service that was asked for; `None` for an answer that belongs to no
    /// connection.
    pub of: Option<(ConnectionId, ServiceId)>,
}

/// A program on this or another host wants a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The new connection. The program answers it with `accept`, `reject` or `close`.
    pub connection: ConnectionId,
    /// The listener that it reached.
    pub listener: ListenerId,
    /// The peer's address and port.
    pub from: SocketAddr,
    /// The address and port that it wanted to reach.
    pub to: SocketAddr,
    /// The peer's queue pair and path. [`Req::check`] has accepted it.
    pub req: Req,
    /// The peer's ECE options.
    pub ece: Ece,
    /// The peer's private data.
    pub data: PrivateData<{ Req::DATA }>,
}

/// A program on this or another host wants a datagram queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramRequest {
    /// The new request. The program answers it with `accept_datagram`, `reject_datagram` or `close`.
    pub connection: ConnectionId,
    /// The listener that it reached.
    pub listener: ListenerId,
    /// The peer's address and port.
    pub from: SocketAddr,
    /// The address and port that it wanted to reach.
    pub to: SocketAddr,
    /// The peer's private data.
    pub data: PrivateData<{ SidrReq::DATA }>,
}

/// What happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer wants a connection.
    ConnectRequest(Box<ConnectRequest>),
    /// The peer accepts. The program brings up its queue pair, then calls `establish`.
    ConnectResponse {
        /// The connection.
        connection: ConnectionId,
        /// The peer's queue pair.
        rep: Box<Rep>,
        /// The peer's ECE options.
        ece: Ece,
    },
    /// Passive side: the peer is ready, too.
    Established {
        /// The connection.
        connection: ConnectionId,
    },
    /// The peer refused the connection, or ended it by a refusal. A refusal that the manager itself sent, because the
    /// peer's answer was impossible, is reported in the same way.
    Rejected {
        /// The connection.
        connection: ConnectionId,
        /// The reason and the private data.
        rej: Box<Rej>,
        /// The peer's ECE options.
        options: u32,
    },
    /// The peer did not answer.
    Unreachable {
        /// The connection.
        connection: ConnectionId,
    },
    /// The connection has ended, or the peer wants it to end: then the program agrees with `disconnect`.
    Disconnected {
        /// The connection.
        connection: ConnectionId,
    },
    /// No more late messages can come: the number of the queue pair may be used again. The last event of a connection.
    TimeWaitExit {
        /// The connection.
        connection: ConnectionId,
    },
    /// A peer wants a datagram queue pair.
    DatagramRequest(Box<DatagramRequest>),
    /// The answer to `resolve_datagram`. The last event of the request.
    DatagramResponse {
        /// The request.
        connection: ConnectionId,
        /// The queue pair, or why there is none: see [`SidrRep::checked_status`].
        rep: Box<SidrRep>,
    },
}

impl Event {
    /// The connection or request that it is about.
    #[must_use]
    pub fn connection(&self) -> ConnectionId {
        match self {
            Self::ConnectRequest(request) => request.connection,
            Self::DatagramRequest(request) => request.connection,
            Self::ConnectResponse { connection, .. }
            | Self::Established { connection }
            | Self::Rejected { connection, .. }
            | Self::Unreachable { connection }
            | Self::Disconnected { connection }
            | Self::TimeWaitExit { connection }
            | Self::DatagramResponse { connection, .. } => *connection,
        }
    }
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such connection or listener, or it has ended.
    #[error("the connection or listener does not exist any more")]
    Unknown,
    /// The call does not fit the state.
    #[error("a connection in the state {0:?} does not allow this call")]
    WrongState(State),
    /// A connection was passed to a call for datagrams, or vice versa.
    #[error("this call is not for this kind of service")]
    WrongKind,
    /// Another listener has this service, on an address that the new one would share.
    #[error("another listener has this port on this address: use another port")]
    InUse,
    /// A listener must accept at least one request.
    #[error("the backlog is 0: pass at least 1")]
    NoBacklog,
    /// No room for another connection, or no communication id.
    #[error("there are {0} connections already: close some")]
    Full(usize),
    /// The addresses are of different families, or one is not a unicast address.
    #[error("no connection is possible between {0} and {1}: use unicast addresses of one family")]
    Addresses(IpAddr, IpAddr),
    /// Not the number of a queue pair.
    #[error("{0:#x} is not the number of a queue pair")]
    QueuePair(u32),
}

/// What a manager has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that arrived.
    pub received: u64,
    /// Datagrams that were not a message of this protocol, or had an impossible address.
    pub malformed: u64,
    /// Messages that matched no connection, or did not fit its state: duplicates, late messages, forgeries.
    pub ignored: u64,
    /// Requests that were dropped because a backlog or limit was reached.
    pub overload: u64,
    /// Answers that were dropped because too many messages waited to be sent.
    pub unanswered: u64,
    /// Messages that were sent again.
    pub repeated: u64,
}
