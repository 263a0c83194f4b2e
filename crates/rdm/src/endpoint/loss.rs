//! Connections that are made, fail or end, and what that means for the operations and the peers.

use super::outbox::{Answer, Remains};
use super::{Endpoint, Host, Note, Service};
use crate::connection::Event;
use crate::error::Error;
use crate::header::{Header, Kind};
use std::time::Instant;

impl<H: Host> Endpoint<H> {
    /// Applies an event to a connection. If that loses the connection, its waiting operations fail.
    pub fn happened(&mut self, host: &H, connection: usize, event: Event) {
        let change = self.outbox.apply(connection, event);
        if change.lost() {
            self.after_loss(host, connection, change.was_open());
        }
    }

    /// Handles the loss of a connection: its operations that wait for the peer's answer fail.
    pub fn lose(&mut self, host: &H, connection: usize) {
        self.happened(host, connection, Event::Lost);
    }

    /// Disconnects a peer that violated the protocol: its messages are ignored from now on.
    #[cold]
    pub(super) fn cut_off(&mut self, host: &H, connection: usize, why: &str) {
        let change = self.outbox.apply(connection, Event::Violated);
        if change.cut() {
            let it = &self.connections()[connection];
            host.note(Note::Violation { peer: it.peer, why });
            // End the queue pair: a peer that never takes our requests would keep it open forever.
            if let Some(qp) = &it.qp {
                host.end(qp);
            }
        }
        if change.lost() {
            self.after_loss(host, connection, change.was_open());
        }
    }

    /// Checks a connection after a failure: it is lost if its queue pair has failed.
    #[cold]
    pub fn check(&mut self, host: &H, connection: usize) {
        if self.outbox.is_broken(host, connection) {
            self.lose(host, connection);
        }
    }

    /// Handles the consequences of a loss. `was_open` says whether operations could use the connection.
    #[cold]
    fn after_loss(&mut self, host: &H, connection: usize, was_open: bool) {
        let address = self.connections()[connection].peer;
        if let Some(groups) = &mut self.groups {
            groups.forget_connection(connection, address, was_open);
        }
        let waiting = self.outbox.take_backlog(connection);
        let open = self.outbox.operations_of(connection);
        host.note(Note::Lost {
            peer: address,
            open,
        });
        if let Some(to) = self.connections()[connection].leads_to {
            let other = || self.outbox.open_to(host, to);
            self.routes.lost(to, connection, other);
        }
        for later in waiting.iter() {
            let id = later.operation();
            let next = self.outbox.fail_dropped(id);
            self.carry_out(host, id, next);
        }
        for id in self.outbox.unanswered_of(connection) {
            let next = self.outbox.fail_unanswered(id, Error::ConnectionReset);
            self.carry_out(host, id, next);
        }
        // The end is reported to the program only after the connection's establishment has been.
        let connecting = self.connections()[connection].state().is_connecting();
        if self.service == Service::Connected && !connecting {
            self.tell_shut(host);
        }
    }

    /// Starts to use a connection that has been made, by either side.
    ///
    /// # Errors
    /// [`Error::ConnectionReset`]: the connection has been lost since then.
    pub fn made(&mut self, host: &H, connection: usize) -> crate::error::Result<()> {
        self.check(host, connection);
        self.outbox.apply(connection, Event::Made);
        match self.connections()[connection].state().is_lost() {
            true => Err(Error::ConnectionReset),
            false => Ok(()),
        }
    }

    /// Reports the result of an attempt to reach a peer: the new connection, or the error. After an error, a connection
    /// that the peer made in the meantime is used. Callers that must retry may do so now.
    pub fn connect_finished(
        &mut self,
        host: &H,
        peer: usize,
        result: crate::error::Result<usize>,
        now: Instant,
    ) {
        let result = result.and_then(|it| self.made(host, it).map(|()| it));
        let other = |to| self.outbox.open_to(host, to);
        self.routes.connect_finished(peer, result, other, now);
    }

    /// Starts to use a connection that a peer made to us.
    pub fn accepted(&mut self, host: &H, connection: usize) {
        if self.made(host, connection).is_err() {
            return;
        }
        if let Some(from) = self.connections()[connection].leads_to {
            self.routes.accepted(from, connection);
        }
    }

    /// Cancels the receives of a connected endpoint whose connection has ended, and reports that to the program, once.
    pub fn tell_shut(&mut self, host: &H) {
        if self.receives.shut(host) {
            host.shut();
        }
    }

    /// Notifies all peers that the endpoint is closing, after the answers that it still owes.
    pub fn say_goodbye(&mut self, host: &H) {
        for connection in self.outbox.send_owed_fins(host) {
            self.after_answer(host, connection, Answer::TooMany);
        }
        for connection in 0..self.connections().slots() {
            self.say_bye(host, connection);
        }
    }

    /// Notifies one peer, if its connection can send. The message is also sent while the connection is still being made, if our
    /// queue pair can send: the peer gets it once its own side is ready.
    pub fn say_bye(&mut self, host: &H, connection: usize) {
        if self.outbox.can_send(host, connection) {
            self.answer(host, connection, &Header::new(Kind::Bye), &[]);
        }
    }

    /// Ends all connections and operations at once; nothing is reported to the program.
    pub fn close(&mut self, host: &H) -> Remains<H> {
        self.groups = None;
        host.shared(|pool| pool.forget(self.receives.waiting()));
        self.outbox.close()
    }
}
