//! The output of a manager: events for the program, messages for the network, counters for inspection.

use crate::address::ServiceId;
use crate::connection::{ConnectionId, ListenerId, State};
use crate::wire::{Ece, MAD, PrivateData, Rej, Rep, Req, SidrRep, SidrReq};
use core::net::{IpAddr, SocketAddr};

/// A message to send as one datagram to queue pair 1 of the port with the address `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Our address.
    pub from: IpAddr,
    /// The peer's address.
    pub to: IpAddr,
    /// The management datagram.
    pub mad: [u8; MAD],
    /// The connection that sends the message and the requested service; `None` for an answer that belongs to no
    /// connection.
    pub of: Option<(ConnectionId, ServiceId)>,
    /// Whether it is the DREQ or DREP with which a call of the program ends a connection. The program may exit right after the call, and
    /// nothing repeats the message then, so a host whose network loses messages may send it several times.
    pub is_parting: bool,
}

/// A program on this or another host wants a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The new connection. The program answers with `accept`, `reject` or `close`.
    pub connection: ConnectionId,
    /// The listener that accepted the request.
    pub listener: ListenerId,
    /// The peer's address and port.
    pub from: SocketAddr,
    /// The address and port that the request was for.
    pub to: SocketAddr,
    /// The peer's queue pair and path, validated by [`Req::check`].
    pub req: Req,
    /// The peer's ECE options.
    pub ece: Ece,
    /// The peer's private data.
    pub data: PrivateData<{ Req::DATA }>,
}

/// A program on this or another host wants a datagram queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramRequest {
    /// The new request. The program answers with `accept_datagram`, `reject_datagram` or `close`.
    pub connection: ConnectionId,
    /// The listener that accepted the request.
    pub listener: ListenerId,
    /// The peer's address and port.
    pub from: SocketAddr,
    /// The address and port that the request was for.
    pub to: SocketAddr,
    /// The peer's private data.
    pub data: PrivateData<{ SidrReq::DATA }>,
}

/// What happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer wants a connection.
    ConnectRequest(Box<ConnectRequest>),
    /// The peer accepted. The program brings up its queue pair and then calls `establish`.
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
    /// The peer refused the connection, or ended it with a refusal. If the manager itself refuses the peer's answer
    /// because it is impossible, that is reported in the same way.
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
    /// The connection has ended, or the peer wants to end it; then the program confirms with `disconnect`.
    Disconnected {
        /// The connection.
        connection: ConnectionId,
    },
    /// No late messages can arrive any more: the queue pair number may be reused. The last event of a connection.
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
    /// The connection or request that the event concerns.
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
    /// The connection or listener does not exist, or has ended.
    #[error("the connection or listener no longer exists")]
    Unknown,
    /// The call does not fit the state.
    #[error("a connection in the state {0:?} does not allow this call")]
    WrongState(State),
    /// A connection was passed to a call for datagram requests, or vice versa.
    #[error("this call does not apply to this kind of service")]
    WrongKind,
    /// Another listener for this service overlaps in address.
    #[error("another listener has this port on this address: use another port")]
    InUse,
    /// The backlog of a listener must be at least 1.
    #[error("the backlog is 0: pass at least 1")]
    NoBacklog,
    /// The limit of connections is reached, or no communication id is free.
    #[error("there are already {0} connections: close some")]
    Full(usize),
    /// The addresses are of different families, or one is not a unicast address.
    #[error("cannot connect {0} to {1}: use unicast addresses of one family")]
    Addresses(IpAddr, IpAddr),
    /// The number is not a valid queue pair number.
    #[error("{0:#x} is not a queue pair number")]
    QueuePair(u32),
}

/// Counters of a manager, since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that arrived.
    pub received: u64,
    /// Datagrams that were not a message of this protocol, or came from an impossible address.
    pub malformed: u64,
    /// Messages that matched no connection, or did not fit its state: duplicates, late messages, forgeries.
    pub ignored: u64,
    /// Requests that were dropped because a backlog or limit was reached.
    pub overload: u64,
    /// Answers that were dropped because too many messages waited to be sent.
    pub unanswered: u64,
    /// Messages that were retransmitted.
    pub repeated: u64,
}
