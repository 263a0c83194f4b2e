//! Connections that fail, and how they are taken apart: when nothing refers to them any more, no request, no operation, no
//! message that waits for a receive.

use super::operation::{Operation, Retained};
use super::{Endpoint, Host, Note, Service};
use crate::connection::{Event, Teardown};
use crate::error::Error;
use crate::header::{Header, Kind};
use crate::peers::Route;
use core::net::SocketAddr;
use std::time::Instant;

/// What is left of an endpoint that was closed. Memory in it may be in use until its queue pairs are quiet.
#[must_use]
pub struct Remains<H: Host> {
    /// Its queue pairs.
    pub qps: Vec<H::Qp>,
    operations: Vec<Operation<H>>,
}

impl<H: Host> Remains<H> {
    /// Ends the keys of messages that peers never fetched. The queue pairs are quiet.
    pub fn withdraw(self, host: &H) {
        for operation in self.operations {
            if let Retained::Exposed(exposed) = &operation.retained {
                host.withdraw(exposed);
            }
        }
    }
}

impl<H: Host> Endpoint<H> {
    /// Something happened to a connection. If it is lost by that, what waits on it fails.
    pub fn happened(&mut self, host: &H, connection: usize, event: Event) {
        let change = self.connections.apply(connection, event);
        if change.lost() {
            self.after_loss(host, connection, change.was_open());
        }
    }

    /// A connection failed: what waits for the peer's answer gets none.
    pub fn lose(&mut self, host: &H, connection: usize) {
        self.happened(host, connection, Event::Lost);
    }

    /// A peer violates the protocol: nothing that it says is heard any more.
    #[cold]
    pub(super) fn cut_off(&mut self, host: &H, connection: usize, why: &str) {
        let change = self.connections.apply(connection, Event::Violated);
        if change.cut() {
            let it = &self.connections[connection];
            host.note(Note::Violation { peer: it.peer, why });
            // It need not take what we have sent: then that would never end.
            if let Some(qp) = &it.qp {
                host.end(qp);
            }
        }
        if change.lost() {
            self.after_loss(host, connection, change.was_open());
        }
    }

    /// A connection on which something failed is lost if its queue pair is.
    #[cold]
    pub fn check(&mut self, host: &H, connection: usize) {
        if self.is_broken(host, connection) {
            self.lose(host, connection);
        }
    }

    fn is_broken(&self, host: &H, connection: usize) -> bool {
        let qp = self.connections[connection].qp.as_ref();
        qp.is_some_and(|qp| host.is_broken(qp))
    }

    /// The connections whose queue pair has failed without a word of the peer. The last messages of such a peer are there
    /// already, and may have come since completions were last taken: the host takes them, then calls [`Self::lose`] for
    /// each. A connection that is being made is checked when it is made.
    #[cold]
    #[must_use]
    pub fn broken(&self, host: &H) -> Vec<usize> {
        let is_over = |&connection: &usize| {
            let state = self.connections[connection].state();
            !state.is_lost() && !state.is_connecting() && self.is_broken(host, connection)
        };
        (0..self.connections.slots()).filter(is_over).collect()
    }

    /// A connection was just lost, which had been open or not.
    #[cold]
    fn after_loss(&mut self, host: &H, connection: usize, was_open: bool) {
        let address = self.connections[connection].peer;
        if let Some(collective) = &mut self.collective {
            collective.forget_connection(connection, address, was_open);
        }
        let waiting = std::mem::take(&mut self.connections[connection].backlog);
        let open = self.operations_of(connection).len();
        host.note(Note::Lost {
            peer: address,
            open,
        });
        if let Some(peer) = self.peers.find(address)
            && self.peers[peer].route == Route::Open(connection)
        {
            self.peers[peer].route = self.remaining_route(host, address);
        }
        for later in waiting.iter() {
            self.fail_with(host, later.operation(), Error::ConnectionReset);
        }
        for id in self.operations_of(connection) {
            let Some(operation) = self.operations.get(id) else {
                continue;
            };
            if operation.awaits_answer {
                operation.awaits_answer = false;
                operation.fail(Error::ConnectionReset);
                self.step(host, id);
            }
        }
        // The program hears of the end after it has heard of the beginning.
        let connecting = self.connections[connection].state().is_connecting();
        if self.service == Service::Connected && !connecting {
            self.tell_shut(host);
        }
    }

    /// The way to a peer to whom our own connection was not made, or has ended: over one that it has made, if there is one
    /// (both sides may ask at the same time).
    #[cold]
    pub fn remaining_route(&self, host: &H, address: SocketAddr) -> Route {
        let index = self.connections.iter().position(|it| {
            let qp = it.qp.as_ref().filter(|_| it.state().is_open());
            it.peer == address && qp.is_some_and(|qp| host.is_ready(qp))
        });
        index.map_or(Route::None, Route::Open)
    }

    /// The way to a peer; without one the host begins to connect. [`Error::Again`] while it does.
    ///
    /// # Errors
    /// Why the peer cannot be reached, told once.
    pub fn route_to(&mut self, host: &H, peer: usize, now: Instant) -> crate::error::Result<usize> {
        let it = &mut self.peers[peer];
        match it.route {
            Route::Open(connection) => return Ok(connection),
            Route::Connecting => return Err(Error::Again),
            Route::None => {}
        }
        if let Some(error) = it.take_failure(now) {
            return Err(error);
        }
        let address = it.address;
        host.connect(peer, address)?;
        self.peers[peer].route = Route::Connecting;
        Err(Error::Again)
    }

    /// A connection that the host has made to a peer: it is used from now on.
    ///
    /// # Errors
    /// [`Error::ConnectionReset`]: the peer has gone since.
    pub fn made(&mut self, host: &H, connection: usize) -> crate::error::Result<()> {
        self.check(host, connection);
        self.connections.apply(connection, Event::Made);
        match self.connections[connection].state().is_lost() {
            true => Err(Error::ConnectionReset),
            false => Ok(()),
        }
    }

    /// It is decided whether there is a way to a peer: over this connection, which has been made, or none because of this
    /// error, unless the peer has connected to us meanwhile. Callers that were asked to call again may do so.
    pub fn decided(
        &mut self,
        host: &H,
        peer: usize,
        result: crate::error::Result<usize>,
        now: Instant,
    ) {
        let result = result.and_then(|it| self.made(host, it).map(|()| it));
        let route = match result {
            Ok(connection) => Route::Open(connection),
            Err(_) => self.remaining_route(host, self.peers[peer].address),
        };
        let it = &mut self.peers[peer];
        it.route = route;
        it.failed = result
            .err()
            .filter(|_| route == Route::None)
            .map(|it| (it, now));
        self.callers.decided(&mut self.peers, peer, now);
    }

    /// A peer that has connected to us is ready.
    pub fn accepted(&mut self, host: &H, connection: usize) {
        if self.made(host, connection).is_err() {
            return;
        }
        let peer = self.peers.at(self.connections[connection].peer);
        if self.peers[peer].route == Route::None {
            self.peers[peer].route = Route::Open(connection);
            self.peers[peer].failed = None;
        }
    }

    /// Gives the receives of a connected endpoint back, whose connection ended, and tells the program, once.
    pub fn tell_shut(&mut self, host: &H) {
        if !std::mem::replace(&mut self.shut, true) {
            self.flush_receives(host);
            host.shut();
        }
    }

    /// Takes connections apart that are over. The completion queue has just been found empty.
    #[cold]
    pub(super) fn tear_down(&mut self, host: &H, now: Instant) {
        if !self.connections.is_teardown_due(now) {
            return;
        }
        for index in 0..self.connections.slots() {
            if self.connections[index].teardown(false) == Teardown::Wait {
                continue;
            }
            let mut draining = self.draining.iter();
            let referred = !self.operations_of(index).is_empty()
                || draining.any(|operation| operation.connection == index);
            let it = &self.connections[index];
            match (it.teardown(referred), &it.qp) {
                (Teardown::Wait, _) => {}
                (Teardown::End, qp) => {
                    if let Some(qp) = qp {
                        host.end(qp);
                    }
                    self.connections.apply(index, Event::Ended);
                }
                (Teardown::Release, Some(qp)) if !host.is_quiet(qp) => {}
                (Teardown::Release, qp) => {
                    if let Some(qpn) = qp.as_ref().map(|qp| host.qpn(qp)) {
                        drop(self.connections.take_qp(index, qpn));
                    }
                    if let Some(address) = self.connections.release(index) {
                        self.peers.forget(address);
                    }
                }
            }
        }
    }

    /// Tells all peers that the endpoint goes, after what they still have to be told.
    pub fn say_goodbye(&mut self, host: &H) {
        self.answer_owed(host);
        for connection in 0..self.connections.slots() {
            self.say_bye(host, connection);
        }
    }

    /// Tells one peer, if there is a connection.
    pub fn say_bye(&mut self, host: &H, connection: usize) {
        if self.connections[connection].state().is_open() {
            self.say(host, connection, &Header::new(Kind::Bye), &[]);
        }
    }

    /// Ends all connections and operations at once; the program is told nothing.
    pub fn close(&mut self, host: &H) -> Remains<H> {
        self.collective = None;
        let kept = self.messages.unexpected() + self.tagged.unexpected();
        host.shared(|pool| pool.forget(kept));
        let mut qps = Vec::new();
        for connection in 0..self.connections.slots() {
            self.connections.apply(connection, Event::Closed);
            qps.extend(self.connections[connection].qp.take());
        }
        let mut operations = self.operations.drain();
        operations.extend(self.draining.drain());
        Remains { qps, operations }
    }
}
