//! The host's access to peers and connections.

use super::{Connection, Connections, Endpoint, Host};
use crate::address::Destination;
use crate::connection::Event;
use crate::error::Result;
use crate::routes::Routes;
use std::time::Instant;

impl<H: Host> Endpoint<H> {
    /// The connections.
    #[inline]
    #[must_use]
    pub fn connections(&self) -> &Connections<H> {
        &self.connections
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

    /// Adds a connection that is being made, and returns its slot. No operation uses the connection until it is made,
    /// and then only operations for this destination.
    pub fn add_connection(
        &mut self,
        host: &H,
        qp: H::Qp,
        to: impl Into<Destination>,
        identity: H::Identity,
    ) -> usize {
        let qpn = host.qpn(&qp);
        self.connections
            .add(qpn, Connection::<H>::new(qp, to.into(), identity))
    }

    /// Records from its hello whether a peer's device chooses the keys of its regions.
    pub fn set_device_keys(&mut self, connection: usize, device_keys: bool) {
        self.connections[connection].device_keys = device_keys;
    }

    /// Records that a peer has made a connection only to send: it is no route to the peer's address.
    pub fn set_one_way(&mut self, connection: usize) {
        self.connections[connection].leads_to = None;
    }

    /// Records that the connection of a connected endpoint could not be made, and drops its queue pair.
    pub fn refuse(&mut self, connection: usize) {
        self.connections.apply(connection, Event::Refused);
        self.connections[connection].qp = None;
    }

    /// Drops all connections without notifying a peer. Call it only if no peer has learned of them.
    pub fn forget_connections(&mut self) {
        self.connections.clear();
    }

    /// Makes the next scan for ended connections due at once.
    pub fn hurry_teardown(&mut self) {
        self.connections.hurry_teardown();
    }

    /// The connection to a peer. If there is none, the host starts to connect, and the caller must retry
    /// ([`Error::Again`](crate::error::Error::Again)). `caller` returns `None` for a call that is retried without waiting to be woken.
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
}
