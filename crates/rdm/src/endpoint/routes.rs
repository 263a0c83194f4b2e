//! The host's access to peers and connections.

use super::{Connection, Connections, Endpoint, Host};
use crate::address::Destination;
use crate::connection::Event;
use crate::error::{Error, Result};
use crate::peers::{Peers, Route};
use std::time::Instant;

impl<H: Host> Endpoint<H> {
    /// The connections.
    #[inline]
    #[must_use]
    pub fn connections(&self) -> &Connections<H> {
        &self.connections
    }

    /// The peers.
    #[inline]
    #[must_use]
    pub fn peers(&self) -> &Peers<Error, H::Caller> {
        &self.peers
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

    /// The index of the peer at a destination, which is added if it is new.
    pub fn peer_at(&mut self, destination: impl Into<Destination>) -> usize {
        self.peers.at(destination)
    }

    /// The index of the peer with this number in the address vector; `None` if it is not known. `removals` counts the
    /// addresses removed from the address vector so far.
    #[inline]
    pub fn numbered_peer(&mut self, number: u64, removals: u64) -> Option<usize> {
        self.peers.see_removals(removals);
        self.peers.numbered(number)
    }

    /// Records the number of a peer in the address vector.
    pub fn set_number(&mut self, number: u64, peer: usize) {
        self.peers.set_number(number, peer);
    }

    /// The connection to a peer. If there is none, the host starts to connect, and the caller must retry
    /// ([`Error::Again`]). `caller` returns `None` for a call that is retried without waiting to be woken.
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
        if !self.callers.is_empty()
            && let Some(caller) = caller()
        {
            self.callers.retried(peer, caller);
        }
        if let Route::Open(connection) = self.peers[peer].route {
            return Ok(connection);
        }
        self.connect_for(host, peer, caller(), now())
    }

    #[cold]
    fn connect_for(
        &mut self,
        host: &H,
        peer: usize,
        caller: Option<H::Caller>,
        now: Instant,
    ) -> Result<usize> {
        let connection = self.route_to(host, peer, now);
        if let Some(caller) = caller {
            let retrying = &mut self.peers[peer].retrying;
            retrying.retain(|&it| it != caller);
            if connection == Err(Error::Again) {
                retrying.push(caller);
            }
        }
        connection
    }

    /// For a caller that is about to wait: whether a call may be retried now, so that it should not wait.
    pub fn may_retry(&mut self, caller: H::Caller, now: Instant) -> bool {
        self.callers.may_retry(caller, now)
    }

    /// Whether there are callers that may retry but have neither done so nor been woken.
    #[must_use]
    pub fn has_retrying(&self) -> bool {
        !self.callers.is_empty()
    }

    /// The connection to a peer. If there is none, the host starts to connect, and the result is [`Error::Again`].
    ///
    /// # Errors
    /// Why the peer cannot be reached; reported once.
    pub(super) fn route_to(
        &mut self,
        host: &H,
        peer: usize,
        now: Instant,
    ) -> crate::error::Result<usize> {
        let it = &mut self.peers[peer];
        match it.route {
            Route::Open(connection) => return Ok(connection),
            Route::Connecting => return Err(Error::Again),
            Route::None => {}
        }
        if let Some(error) = it.take_failure(now) {
            return Err(error);
        }
        let destination = it.destination;
        host.connect(peer, destination)?;
        self.peers[peer].route = Route::Connecting;
        Err(Error::Again)
    }
}
