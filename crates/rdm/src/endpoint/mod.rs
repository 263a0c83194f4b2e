//! The state machine of an endpoint.
//!
//! [`Endpoint`] makes the decisions, and its [`Host`] carries them out: the host owns the queue pairs, the memory and the
//! program's objects. The host calls the endpoint when the program requests something, when the device has completed
//! something, and periodically with the time ([`Endpoint::do_background_work`]). The endpoint calls the host to act. No call waits.
//!
//! A host takes the completions of its device and passes each to [`Endpoint::receive_completed`] or
//! [`Endpoint::request_completed`]. It can take short messages directly from the ring, through [`Endpoint::inbox`].
//!
//! An endpoint is made of parts that own their state: [`Routes`], [`Outbox`], [`Receives`], [`Claims`], `Delivery` and
//! [`Groups`]. A part returns what follows from a call, and [`Endpoint`] passes it to the part that it concerns.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`host`] | what the endpoint runs on and reports to |
//! | `outbox` | part: the connections, and what is posted to them |
//! | `send` | sends messages through the outbox: with their payload, or by rendezvous |
//! | `short` | the express lane: short messages in one buffer |
//! | `transfer` | reads, writes, atomics and commits through the outbox |
//! | `in_flight` | the outbox's operations in flight |
//! | `receives` | part: the posted receives, and the messages that wait for one |
//! | `peek` | part: messages that the program has found and claimed |
//! | `delivery` | part: payloads and data for the program, which are delivered in order |
//! | `collective` | part: groups of endpoints, and their collective operations |
//! | `receive` | one receive, and the place of a message in it |
//! | `shared` | receives that several endpoints share |
//! | `messages` | the endpoint matches messages and receives |
//! | `inbox` | the endpoint takes messages that need no buffer |
//! | `flow` | the endpoint answers peers, and ends the connections of those that exceed their limits |
//! | `operation` | one operation, and what the endpoint does at its end |
//! | `progress` | the endpoint handles the device's completions |
//! | `loss` | the endpoint handles connections that are made, fail or end |

mod collective;
mod delivery;
mod flow;
pub mod host;
mod in_flight;
mod inbox;
mod loss;
mod messages;
mod operation;
mod outbox;
mod peek;
mod progress;
mod receive;
mod receives;
mod send;
mod shared;
mod short;
#[cfg(test)]
mod test_host;
mod transfer;

pub use collective::{Call, Groups, Loaded, Members};
pub use host::{Host, Note, ReceiveOutcome};
pub use inbox::EndpointInbox;
pub use outbox::{Outbox, Remains};
pub use peek::{Claims, Found};
pub use receive::Receive;
pub use receives::Receives;
pub use send::{Outgoing, PayloadSource};
pub use shared::Pool;
pub use short::{SHORT_MAX, ShortMessage};
pub use transfer::{AtomicCall, Memory, PlainTransfer, Transfer};

use crate::error::Result;
use crate::routes::Routes;
use delivery::Delivery;
use receive::Unexpected;
use std::time::Instant;

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
    fn needs_credit(self) -> bool {
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
    outbox: Outbox<H>,
    delivery: Delivery<H>,
    /// Present once there is a group, or a peer has named one.
    groups: Option<Box<Groups<H>>>,
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
            outbox: Outbox::new(service),
            delivery: Delivery::new(service),
            groups: None,
            receives: Receives::default(),
            claims: Claims::default(),
        }
    }

    /// The connections.
    #[inline]
    #[must_use]
    pub fn connections(&self) -> &Connections<H> {
        self.outbox.connections()
    }

    /// The connections, and the operations in flight.
    #[inline]
    #[must_use]
    pub fn outbox(&self) -> &Outbox<H> {
        &self.outbox
    }

    /// The connections and the operations in flight, for changes.
    #[inline]
    #[must_use]
    pub fn outbox_mut(&mut self) -> &mut Outbox<H> {
        &mut self.outbox
    }

    /// The peers, and the connection to each.
    #[inline]
    #[must_use]
    pub fn routes(&self) -> &Routes<H::Caller> {
        &self.routes
    }

    /// The peers, and the connection to each, for changes.
    #[inline]
    #[must_use]
    pub fn routes_mut(&mut self) -> &mut Routes<H::Caller> {
        &mut self.routes
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

    /// The connection to a peer. If there is none, the host starts to connect, and the caller must retry
    /// ([`Error::Again`](crate::error::Error::Again)). `caller` returns `None` for a call that is retried without waiting
    /// to be woken.
    ///
    /// # Errors
    /// Why the peer cannot be reached; reported once.
    #[inline]
    pub fn connection_to(
        &mut self,
        host: &H,
        peer: usize,
        caller: impl Fn() -> Option<H::Caller>,
        now: impl FnOnce() -> Instant,
    ) -> Result<usize> {
        let connect = |to| host.connect(peer, to);
        self.routes.connection_to(peer, caller, now, connect)
    }

    /// Sends a message of the program. `attached` is called unless the message is a plain operation.
    ///
    /// # Errors
    /// An error of posting or copying; the message was not sent.
    #[inline]
    pub fn send(
        &mut self,
        host: &H,
        it: &Outgoing,
        body: &impl PayloadSource<H>,
        attached: impl FnOnce() -> H::Operation,
    ) -> Result<()> {
        self.outbox.send(host, it, body, attached)
    }

    /// Begins a transfer.
    ///
    /// # Errors
    /// An error of posting, or [`Error::Again`](crate::error::Error::Again) if there is no credit for the data. Nothing was
    /// sent.
    #[inline]
    pub fn transfer(&mut self, host: &H, it: Transfer<'_>, attached: H::Operation) -> Result<()> {
        self.outbox.transfer(host, it, attached)
    }

    /// Begins a plain transfer, with its id from [`Outbox::plain_id`].
    ///
    /// # Errors
    /// An error of posting. Nothing was sent.
    #[inline]
    pub fn transfer_plain(&mut self, host: &H, id: u64, it: &PlainTransfer) -> Result<()> {
        self.outbox.transfer_plain(host, id, it)
    }

    /// Begins an atomic operation.
    ///
    /// # Errors
    /// An error of posting; nothing was sent.
    pub fn atomic(&mut self, host: &H, it: AtomicCall, attached: H::Operation) -> Result<()> {
        self.outbox.atomic(host, it, attached)
    }

    /// Whether the host must check it periodically, because it waits for something that no descriptor signals: memory
    /// that peers have not released, or members of groups that may have ended.
    #[must_use]
    pub fn needs_looks(&self) -> bool {
        self.outbox.is_draining() || self.groups.as_ref().is_some_and(|it| !it.is_idle())
    }
}
