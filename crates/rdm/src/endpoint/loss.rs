//! Connections that fail, and their teardown, which starts when no posted request, no waiting answer and no operation
//! refers to them.

use super::operation::{Operation, Retained};
use super::{Endpoint, Host, Note, Service};
use crate::connection::{Event, Teardown};
use crate::error::Error;
use crate::header::{Header, Kind};
use std::time::Instant;

/// What a closed endpoint leaves behind. Peers may use the memory of its operations until the queue pairs are quiet.
#[must_use]
pub struct Remains<H: Host> {
    /// The queue pairs.
    pub qps: Vec<H::Qp>,
    operations: Vec<Operation<H>>,
}

impl<H: Host> Remains<H> {
    /// Revokes the keys of messages that peers never fetched. Called once the queue pairs are quiet.
    pub fn withdraw(self, host: &H) {
        for operation in self.operations {
            if let Retained::Exposed(exposed) = &operation.retained {
                host.withdraw(exposed);
            }
        }
    }
}

impl<H: Host> Endpoint<H> {
    /// Applies an event to a connection. If that loses the connection, its waiting operations fail.
    pub fn happened(&mut self, host: &H, connection: usize, event: Event) {
        let change = self.connections.apply(connection, event);
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
        let change = self.connections.apply(connection, Event::Violated);
        if change.cut() {
            let it = &self.connections[connection];
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
        if self.is_broken(host, connection) {
            self.lose(host, connection);
        }
    }

    fn is_broken(&self, host: &H, connection: usize) -> bool {
        let qp = self.connections[connection].qp.as_ref();
        qp.is_some_and(|qp| host.is_broken(qp))
    }

    /// The connections whose queue pair has failed without a message from the peer. The peer's last messages are in the
    /// completion queue by now, perhaps unread. So take completions before calling [`Self::lose`] for each connection.
    /// A connection that is being made is checked once it is made.
    #[cold]
    #[must_use]
    pub fn broken(&self, host: &H) -> Vec<usize> {
        let is_over = |&connection: &usize| {
            let state = self.connections[connection].state();
            !state.is_lost() && !state.is_connecting() && self.is_broken(host, connection)
        };
        (0..self.connections.slots()).filter(is_over).collect()
    }

    /// Handles the consequences of a loss. `was_open` says whether operations could use the connection.
    #[cold]
    fn after_loss(&mut self, host: &H, connection: usize, was_open: bool) {
        let address = self.connections[connection].peer;
        if let Some(collective) = &mut self.collective {
            collective.forget_connection(connection, address, was_open);
        }
        let waiting = std::mem::take(&mut self.connections[connection].backlog);
        let open = self.operations.of_connection(connection).len();
        host.note(Note::Lost {
            peer: address,
            open,
        });
        if let Some(to) = self.connections[connection].leads_to {
            let other = || self.connections.open_to(to, |qp| host.is_ready(qp));
            self.routes.lost(to, connection, other);
        }
        for later in waiting.iter() {
            let id = later.operation();
            let next = self.operations.fail(id, Error::ConnectionReset);
            self.carry_out(host, id, next);
        }
        for id in self.operations.unanswered_of(connection) {
            let next = self.operations.fail_unanswered(id, Error::ConnectionReset);
            self.carry_out(host, id, next);
        }
        // The end is reported to the program only after the connection's establishment has been.
        let connecting = self.connections[connection].state().is_connecting();
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
        self.connections.apply(connection, Event::Made);
        match self.connections[connection].state().is_lost() {
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
        let other = |to| self.connections.open_to(to, |qp| host.is_ready(qp));
        self.routes.connect_finished(peer, result, other, now);
    }

    /// Starts to use a connection that a peer made to us.
    pub fn accepted(&mut self, host: &H, connection: usize) {
        if self.made(host, connection).is_err() {
            return;
        }
        if let Some(from) = self.connections[connection].leads_to {
            self.routes.accepted(from, connection);
        }
    }

    /// Cancels the receives of a connected endpoint whose connection has ended, and reports that to the program, once.
    pub fn tell_shut(&mut self, host: &H) {
        if self.receives.shut(host) {
            host.shut();
        }
    }

    /// Tears down ended connections. Call it right after taking the completions, so that destroying a queue pair loses
    /// none.
    #[cold]
    pub(super) fn tear_down(&mut self, host: &H, now: Instant) {
        if !self.connections.is_teardown_due(now) {
            return;
        }
        for index in 0..self.connections.slots() {
            if self.connections[index].teardown(false) == Teardown::Wait {
                continue;
            }
            let referred = self.operations.uses(index);
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
                    if let Some(to) = self.connections.release(index) {
                        self.routes.forget(to);
                    }
                }
            }
        }
    }

    /// Notifies all peers that the endpoint is closing, after the answers that it still owes.
    pub fn say_goodbye(&mut self, host: &H) {
        self.answer_owed(host);
        for connection in 0..self.connections.slots() {
            self.say_bye(host, connection);
        }
    }

    /// Notifies one peer, if its connection can send. The message is also sent while the connection is still being made, if our
    /// queue pair can send: the peer gets it once its own side is ready.
    pub fn say_bye(&mut self, host: &H, connection: usize) {
        let it = &self.connections[connection];
        let can_send = it.qp.as_ref().is_some_and(|qp| host.is_ready(qp));
        if !it.state().is_lost() && can_send {
            self.send_control(host, connection, &Header::new(Kind::Bye), &[]);
        }
    }

    /// Ends all connections and operations at once; nothing is reported to the program.
    pub fn close(&mut self, host: &H) -> Remains<H> {
        self.collective = None;
        host.shared(|pool| pool.forget(self.receives.waiting()));
        let mut qps = Vec::new();
        for connection in 0..self.connections.slots() {
            self.connections.apply(connection, Event::Closed);
            qps.extend(self.connections[connection].qp.take());
        }
        Remains {
            qps,
            operations: self.operations.take_all(),
        }
    }
}
