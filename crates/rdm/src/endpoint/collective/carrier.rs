//! What carries the messages of groups: the connections of the endpoint, and the routes to its peers.

use super::super::flow::TOO_MANY_ANSWERS;
use super::super::in_flight::Next;
use super::super::operation::Operation;
use super::super::outbox::{Answer, Outbox};
use super::super::{Connections, Host};
use crate::error::{Error, Result};
use crate::header::Header;
use crate::peers::Route;
use crate::routes::Routes;
use core::net::SocketAddr;
use std::time::Instant;

/// The parts of an endpoint that carry the messages of groups, during one call.
pub(super) struct Carrier<'a, H: Host> {
    pub(super) host: &'a H,
    pub(super) outbox: &'a mut Outbox<H>,
    routes: &'a mut Routes<H::Caller>,
    /// Connections that the endpoint must end after the call, because of what their peers did.
    violations: Vec<(usize, &'static str)>,
}

impl<'a, H: Host> Carrier<'a, H> {
    pub(super) fn new(
        host: &'a H,
        outbox: &'a mut Outbox<H>,
        routes: &'a mut Routes<H::Caller>,
    ) -> Self {
        Self {
            host,
            outbox,
            routes,
            violations: Vec::new(),
        }
    }

    /// The connections.
    pub(super) fn connections(&self) -> &Connections<H> {
        self.outbox.connections()
    }

    /// The connection to a member; [`Error::Again`] until there is one.
    pub(super) fn connection_to(&mut self, address: SocketAddr, now: Instant) -> Result<usize> {
        let (host, peer) = (self.host, self.routes.peer_at(address));
        self.routes.route_to(peer, now, |to| host.connect(peer, to))
    }

    /// The present route to a member.
    pub(super) fn route_of(&self, address: SocketAddr) -> Route {
        self.routes.route_of(address)
    }

    /// Sends a message without a payload, unless the connection is lost.
    pub(super) fn tell(&mut self, connection: usize, header: &Header) {
        if self.connections()[connection].state().is_lost() {
            return;
        }
        let answer = self.outbox.answer(self.host, connection, header, &[]);
        if answer == Answer::TooMany {
            self.violated(connection, TOO_MANY_ANSWERS);
        }
    }

    /// Stops waiting for the answer of an operation; returns the operation if it has ended.
    pub(super) fn give_up(&mut self, id: u64) -> Option<Operation<H>> {
        match self.outbox.fail_unanswered(id, Error::Canceled) {
            Next::End => self.outbox.release(self.host, id),
            _ => None,
        }
    }

    /// Notes that a peer has violated the protocol.
    pub(super) fn violated(&mut self, connection: usize, why: &'static str) {
        self.violations.push((connection, why));
    }

    /// The connections to end, and why.
    pub(super) fn into_violations(self) -> Vec<(usize, &'static str)> {
        self.violations
    }
}
