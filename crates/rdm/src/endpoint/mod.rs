//! The state machine of an endpoint.
//!
//! [`Endpoint`] makes the decisions, and its [`Host`] carries them out: the host owns the queue pairs, the memory and the
//! program's objects. The host calls the endpoint when the program requests something, when the device has completed
//! something, and periodically with the time ([`Endpoint::do_background_work`]). The endpoint calls the host to act. No call waits.
//!
//! A host takes the completions of its device and passes each to [`Endpoint::receive_completed`] or
//! [`Endpoint::request_completed`]. It can take short messages directly from the ring, through [`Endpoint::inbox`].
//!
//! | module | what it is |
//! | --- | --- |
//! | [`host`] | what the endpoint runs on and reports to |
//! | `send` | sending messages: with their payload, or by rendezvous |
//! | `transfer` | reads, writes, atomics and commits of the program |
//! | `receive` | a receive, and what happens to a message that arrives |
//! | `receives` | the posted receives, and the messages that wait for one |
//! | `delivery` | payloads and results for the program, in order |
//! | `payload` | payloads that are read from the sender's memory |
//! | `peek` | finding, claiming and discarding messages |
//! | `inbox` | messages that need no buffer |
//! | `shared` | receives that several endpoints share |
//! | `post` | requests to a connection, and those that wait for room |
//! | `flow` | credit and answers for peers |
//! | `operation` | an operation, and what happens at its end |
//! | `in_flight` | operations in flight |
//! | `progress` | handling the device's completions |
//! | `routes` | peers and connections, for the host |
//! | `loss` | connections that fail, and how they are removed |
//! | `collective` | operations of groups of endpoints |

mod collective;
mod delivery;
mod flow;
pub mod host;
mod in_flight;
mod inbox;
mod loss;
mod operation;
mod payload;
mod peek;
mod post;
mod progress;
mod receive;
mod receives;
mod routes;
mod send;
mod shared;
#[cfg(test)]
mod test_host;
mod transfer;

pub use collective::{Call, Loaded, Members};
pub use host::{Arrived, Host, Note};
pub use inbox::EndpointInbox;
pub use loss::Remains;
pub use peek::{Claims, Found};
pub use receive::Receive;
pub use receives::Receives;
pub use send::{Body, Outgoing};
pub use shared::Pool;
pub use transfer::{AtomicCall, Memory, PlainTransfer, Transfer};

use crate::header::Header;
use crate::limits::OPERATIONS_MAX;
use crate::routes::Routes;
use collective::Collective;
use delivery::Delivery;
use in_flight::InFlight;

/// A connection of an endpoint.
pub type Connection<H> = crate::connection::Connection<<H as Host>::Qp, <H as Host>::Identity>;
/// The connections of an endpoint.
pub type Connections<H> = crate::connection::Connections<<H as Host>::Qp, <H as Host>::Identity>;

/// The service of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable messages to any number of peers.
    ReliableDatagram,
    /// Reliable messages to one peer, with completions in the order of the operations.
    Connected,
    /// Messages to any number of peers; a slow receiver loses some.
    Datagram,
}

impl Service {
    /// Whether senders need credit.
    #[inline]
    fn is_limited(self) -> bool {
        self != Self::Datagram
    }

    /// Whether completions are reported in the order of the operations.
    #[inline]
    fn is_ordered(self) -> bool {
        self == Self::Connected
    }
}

/// An endpoint.
pub struct Endpoint<H: Host> {
    service: Service,
    routes: Routes<H::Caller>,
    /// The connections.
    connections: Connections<H>,
    /// Whether credit or answers are owed to peers until the program has read completions.
    owing: bool,
    owed: Vec<(usize, Header)>,
    /// Whether the host watches the requests that wait for room on connections.
    backlog_watched: bool,
    operations: InFlight<H>,
    delivery: Delivery<H>,
    /// Present once there is a group, or a peer has named one.
    collective: Option<Box<Collective<H>>>,
    receives: Receives<H>,
    claims: Claims,
}

impl<H: Host> Endpoint<H> {
    /// An endpoint that has no connection yet.
    #[must_use]
    pub fn new(service: Service) -> Self {
        Self {
            service,
            routes: Routes::default(),
            connections: Connections::<H>::default(),
            owing: false,
            owed: Vec::new(),
            backlog_watched: false,
            operations: InFlight::new(service),
            delivery: Delivery::new(service),
            collective: None,
            receives: Receives::default(),
            claims: Claims::default(),
        }
    }

    /// Whether senders need credit.
    #[inline]
    fn is_limited(&self) -> bool {
        self.service.is_limited()
    }

    /// Whether completions are reported in the order of the operations.
    #[inline]
    fn is_ordered(&self) -> bool {
        self.service.is_ordered()
    }

    /// The receives, and the messages that wait for one.
    #[must_use]
    pub fn receives(&self) -> &Receives<H> {
        &self.receives
    }

    /// The receives, and the messages that wait for one, for changes.
    #[must_use]
    pub fn receives_mut(&mut self) -> &mut Receives<H> {
        &mut self.receives
    }

    /// The messages that the program has claimed.
    #[must_use]
    pub fn claims(&mut self) -> &mut Claims {
        &mut self.claims
    }

    /// How many operations are in flight, excluding plain ones.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.operations.len()
    }

    /// How many collective operations are in flight.
    #[must_use]
    pub fn collectives(&self) -> usize {
        self.collective.as_ref().map_or(0, |it| it.under_way())
    }

    /// How many operations wait for an answer from their peer, by connection slot.
    #[must_use]
    pub fn unanswered(&self) -> Vec<usize> {
        self.operations.unanswered(self.connections.slots())
    }

    /// Whether a connection has room for this many more requests of the program.
    #[inline]
    #[must_use]
    pub fn has_room(&self, connection: usize, requests: u32) -> bool {
        self.operations.len() < OPERATIONS_MAX && self.connections[connection].has_room(requests)
    }

    /// Whether the host must check it periodically, because it waits for something that no descriptor signals: memory
    /// that peers have not released, or members of groups that may have ended.
    #[must_use]
    pub fn needs_looks(&self) -> bool {
        self.operations.is_draining() || self.collective.as_ref().is_some_and(|it| !it.is_idle())
    }
}
