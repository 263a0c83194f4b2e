//! Routes: the connection over which messages go to each peer. If a peer has none, one is made, and the calls that need
//! it are retried when the result is known.

use crate::address::Destination;
use crate::error::{Error, Result};
use crate::peers::{Callers, Peers, Route};
use std::time::Instant;

/// The peers of an endpoint with their routes, and the callers that wait for one. `C` identifies such a caller.
pub struct Routes<C> {
    peers: Peers<Error, C>,
    /// Callers that may retry.
    callers: Callers<C>,
}

impl<C> Default for Routes<C> {
    fn default() -> Self {
        Self {
            peers: Peers::default(),
            callers: Callers::default(),
        }
    }
}

impl<C: Copy + PartialEq> Routes<C> {
    /// The peers.
    #[inline]
    #[must_use]
    pub fn peers(&self) -> &Peers<Error, C> {
        &self.peers
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

    /// The connection to the peer with this number, if it is open and nothing else is to be done first; otherwise
    /// [`Self::numbered_peer`] and [`Self::connection_to`] decide.
    #[inline]
    #[must_use]
    pub fn open_route(&self, number: u64, removals: u64) -> Option<usize> {
        if !self.callers.is_empty() || !self.peers.has_seen(removals) {
            return None;
        }
        match self.peers[self.peers.numbered(number)?].route {
            Route::Open(connection) => Some(connection),
            _ => None,
        }
    }

    /// Records the number of a peer in the address vector.
    pub fn set_number(&mut self, number: u64, peer: usize) {
        self.peers.set_number(number, peer);
    }

    /// For a caller that is about to wait: whether a call may be retried now, so that it should not wait.
    pub fn may_retry(&mut self, caller: C, now: Instant) -> bool {
        self.callers.may_retry(caller, now)
    }

    /// Whether there are callers that may retry but have neither done so nor been woken.
    #[must_use]
    pub fn has_retrying(&self) -> bool {
        !self.callers.is_empty()
    }

    /// The connection to a peer. If there is none, starts to make one with `connect`, and the caller must retry
    /// ([`Error::Again`]). `caller` returns `None` for a call that is retried without waiting to be woken.
    ///
    /// # Errors
    /// Why the peer cannot be reached; reported once.
    #[inline]
    pub fn connection_to(
        &mut self,
        peer: usize,
        caller: impl Fn() -> Option<C>,
        now: impl FnOnce() -> Instant,
        connect: impl FnOnce(Destination) -> Result<()>,
    ) -> Result<usize> {
        if !self.callers.is_empty()
            && let Some(caller) = caller()
        {
            self.callers.retried(peer, caller);
        }
        if let Route::Open(connection) = self.peers[peer].route {
            return Ok(connection);
        }
        self.connect_for(peer, caller(), now(), connect)
    }

    #[cold]
    fn connect_for(
        &mut self,
        peer: usize,
        caller: Option<C>,
        now: Instant,
        connect: impl FnOnce(Destination) -> Result<()>,
    ) -> Result<usize> {
        let connection = self.route_to(peer, now, connect);
        if let Some(caller) = caller {
            let retrying = &mut self.peers[peer].retrying;
            retrying.retain(|&it| it != caller);
            if connection == Err(Error::Again) {
                retrying.push(caller);
            }
        }
        connection
    }

    /// The connection to a peer. If there is none, starts to make one with `connect`, and the result is
    /// [`Error::Again`].
    ///
    /// # Errors
    /// Why the peer cannot be reached; reported once.
    pub fn route_to(
        &mut self,
        peer: usize,
        now: Instant,
        connect: impl FnOnce(Destination) -> Result<()>,
    ) -> Result<usize> {
        let it = &mut self.peers[peer];
        match it.route {
            Route::Open(connection) => return Ok(connection),
            Route::Connecting => return Err(Error::Again),
            Route::None => {}
        }
        if let Some(error) = it.take_failure(now) {
            return Err(error);
        }
        connect(it.destination)?;
        self.peers[peer].route = Route::Connecting;
        Err(Error::Again)
    }

    /// The present route to a destination; [`Route::None`] also if no peer is known there.
    #[must_use]
    pub fn route_of(&self, destination: impl Into<Destination>) -> Route {
        let peer = self.peers.find(destination);
        peer.map_or(Route::None, |peer| self.peers[peer].route)
    }

    /// Records the result of an attempt to reach a peer: the new connection, or the error. After an error, `other`
    /// returns a connection that the peer made in the meantime. Callers that must retry may do so now.
    pub fn connect_finished(
        &mut self,
        peer: usize,
        result: Result<usize>,
        other: impl FnOnce(Destination) -> Option<usize>,
        now: Instant,
    ) {
        let it = &mut self.peers[peer];
        it.route = match result {
            Ok(connection) => Route::Open(connection),
            Err(_) => other(it.destination).map_or(Route::None, Route::Open),
        };
        let failed = result.err().filter(|_| it.route == Route::None);
        it.failed = failed.map(|error| (error, now));
        self.callers.connect_finished(&mut self.peers, peer, now);
    }

    /// Records that a peer has made a connection to us, which becomes the route if there is none.
    pub fn accepted(&mut self, from: Destination, connection: usize) {
        let peer = self.peers.at(from);
        let it = &mut self.peers[peer];
        if it.route == Route::None {
            it.route = Route::Open(connection);
            it.failed = None;
        }
    }

    /// Records that a connection is lost. If it was the route to its peer, `other` returns the connection that remains.
    pub fn lost(
        &mut self,
        to: Destination,
        connection: usize,
        other: impl FnOnce() -> Option<usize>,
    ) {
        if let Some(peer) = self.peers.find(to)
            && self.peers[peer].route == Route::Open(connection)
        {
            self.peers[peer].route = other().map_or(Route::None, Route::Open);
        }
    }

    /// Forgets the peer of a connection that has been removed, unless it has another route or a failure to report.
    pub fn forget(&mut self, to: Destination) {
        self.peers.forget(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::SocketAddr;

    fn to(port: u16) -> Destination {
        SocketAddr::from(([127, 0, 0, 1], port)).into()
    }

    /// Asks for the connection to a peer; the flag says whether one was started.
    fn ask(routes: &mut Routes<u8>, peer: usize, now: Instant) -> (Result<usize>, bool) {
        let mut started = false;
        let connect = |_| {
            started = true;
            Ok(())
        };
        let result = routes.connection_to(peer, || Some(1), || now, connect);
        (result, started)
    }

    #[test]
    fn a_connection_is_made_once_and_then_used() {
        let (mut routes, now) = (Routes::default(), Instant::now());
        let peer = routes.peer_at(to(1));
        assert_eq!(ask(&mut routes, peer, now), (Err(Error::Again), true));
        assert_eq!(routes.route_of(to(1)), Route::Connecting);
        assert_eq!(ask(&mut routes, peer, now), (Err(Error::Again), false));
        routes.connect_finished(peer, Ok(7), |_| None, now);
        assert!(routes.has_retrying(), "the caller must retry");
        assert_eq!(ask(&mut routes, peer, now), (Ok(7), false));
        assert!(!routes.has_retrying(), "the caller has retried");
        assert_eq!(routes.route_of(to(2)), Route::None, "an unknown peer");
    }

    #[test]
    fn an_attempt_that_cannot_start_is_not_waited_for() {
        let (mut routes, now) = (Routes::default(), Instant::now());
        let peer = routes.peer_at(to(1));
        let result = routes.connection_to(peer, || Some(1), || now, |_| Err(Error::NoMemory));
        assert_eq!(result, Err(Error::NoMemory));
        assert_eq!(ask(&mut routes, peer, now), (Err(Error::Again), true));
    }

    #[test]
    fn an_error_is_reported_once_unless_the_peer_has_connected_to_us() {
        for other in [None, Some(3)] {
            let (mut routes, now) = (Routes::default(), Instant::now());
            let peer = routes.peer_at(to(1));
            ask(&mut routes, peer, now).0.unwrap_err();
            routes.connect_finished(peer, Err(Error::TimedOut), |_| other, now);
            let first = ask(&mut routes, peer, now);
            match other {
                Some(connection) => assert_eq!(first, (Ok(connection), false)),
                None => {
                    assert_eq!(first, (Err(Error::TimedOut), false));
                    assert_eq!(ask(&mut routes, peer, now), (Err(Error::Again), true));
                }
            }
        }
    }

    #[test]
    fn a_lost_route_is_replaced_by_the_connection_that_remains() {
        let mut routes = Routes::<u8>::default();
        routes.accepted(to(1), 4);
        routes.accepted(to(1), 5);
        assert_eq!(
            routes.route_of(to(1)),
            Route::Open(4),
            "the first one stays"
        );
        routes.lost(to(1), 5, || None);
        assert_eq!(routes.route_of(to(1)), Route::Open(4));
        routes.lost(to(1), 4, || Some(6));
        assert_eq!(routes.route_of(to(1)), Route::Open(6));
        routes.forget(to(1));
        assert_eq!(routes.route_of(to(1)), Route::Open(6), "it has a route");
        routes.lost(to(1), 6, || None);
        routes.forget(to(1));
        assert_eq!(routes.peers().find(to(1)), None);
    }
}
