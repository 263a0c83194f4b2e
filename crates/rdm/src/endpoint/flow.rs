//! Credit and answers: how much peers may send, and when they get credit back.
//!
//! A peer that exceeds its credit loses the connection. Rendezvous messages are limited by how many a sender may have
//! in flight. While the program does not read its completions, peers get neither credit nor answers.

use super::receive::Unexpected;
use super::{Endpoint, Host};
use crate::error::Error;
use crate::header::{Header, Kind};

impl<H: Host> Endpoint<H> {
    /// Charges a peer's message to its credit. If there is not enough, ends the connection and returns `false`.
    #[inline]
    pub(super) fn admit(&mut self, host: &H, connection: usize, len: u32) -> bool {
        let admitted = self.connections[connection].window.charge(len);
        if !admitted {
            self.exceeded(host, connection);
        }
        admitted
    }

    /// Ends the connection of a peer that sends more than it may.
    #[cold]
    pub(super) fn exceeded(&mut self, host: &H, connection: usize) {
        self.cut_off(host, connection, "the peer exceeded its credit");
    }

    /// Releases the credit of a message that the program has taken, and returns credit if due.
    #[inline]
    pub(super) fn message_taken(&mut self, host: &H, connection: usize, len: u32) {
        let it = &mut self.connections[connection];
        it.window.release(len);
        if it.window.is_due() && !it.state().is_lost() {
            self.return_credit(host, connection);
        }
    }

    #[cold]
    fn return_credit(&mut self, host: &H, connection: usize) {
        if host.holds_answers_back() {
            self.owing = true;
            return;
        }
        let (messages, bytes) = self.connections[connection].window.take_returnable();
        let header = Header {
            data: messages.into(),
            len: bytes,
            ..Header::new(Kind::Credit)
        };
        self.send_control(host, connection, &header, &[]);
    }

    /// Releases a message that has matched a receive, or was discarded.
    pub(super) fn release_unexpected(&mut self, host: &H, message: &Unexpected) {
        let connection = message.connection();
        let limited = self.is_limited();
        let it = &mut self.connections[connection];
        it.pending -= 1;
        match message {
            Unexpected::Rts { .. } => it.rendezvous -= 1,
            Unexpected::Eager { header, .. } if limited => {
                self.message_taken(host, connection, header.len)
            }
            Unexpected::Eager { .. } => {}
        }
    }

    /// Sends a peer the FIN of its operation; deferred while the program does not read its completions.
    pub(super) fn send_fin(&mut self, host: &H, connection: usize, id: u64, error: Option<Error>) {
        let fin = Header {
            id,
            data: error.map_or(0, |error| error.number().into()),
            ..Header::new(Kind::Fin)
        };
        if self.connections[connection].state().is_lost() {
            return;
        }
        if host.holds_answers_back() {
            self.owing = true;
            self.connections[connection].pending += 1;
            self.owed.push((connection, fin));
        } else {
            self.send_control(host, connection, &fin, &[]);
        }
    }

    /// Sends credit and answers that waited for the program to read its completions, if it has.
    #[cold]
    pub fn send_owed(&mut self, host: &H) {
        if !self.owing || host.holds_answers_back() {
            return;
        }
        self.owing = false;
        self.answer_owed(host);
        for connection in 0..self.connections.slots() {
            let it = &self.connections[connection];
            if !it.state().is_lost() && it.window.is_due() {
                self.return_credit(host, connection);
            }
        }
    }

    /// Sends the deferred answers.
    pub(super) fn answer_owed(&mut self, host: &H) {
        for (connection, fin) in std::mem::take(&mut self.owed) {
            self.connections[connection].pending -= 1;
            if !self.connections[connection].state().is_lost() {
                self.send_control(host, connection, &fin, &[]);
            }
        }
    }
}
