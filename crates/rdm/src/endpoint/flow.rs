//! Answers to peers, and peers that exceed their limits.
//!
//! A peer that exceeds its credit loses the connection. Rendezvous messages are limited by how many a sender may have
//! in flight. While the program does not read its completions, peers get neither credit nor answers.

use super::outbox::Answer;
use super::receive::Unexpected;
use super::{Endpoint, Host};
use crate::error::Error;
use crate::header::Header;

/// Why a peer that sends more than it may is disconnected.
pub(super) const EXCEEDED: &str = "the peer exceeded its credit";
/// Why a peer for which too many answers wait is disconnected.
pub(super) const TOO_MANY_ANSWERS: &str =
    "the peer sent many requests, but does not read the answers";

impl<H: Host> Endpoint<H> {
    /// Ends the connection of a peer that sends more than it may.
    #[cold]
    pub(super) fn exceeded(&mut self, host: &H, connection: usize) {
        self.cut_off(host, connection, EXCEEDED);
    }

    /// Ends the connection of a peer for which too many answers wait.
    #[inline]
    pub(super) fn after_answer(&mut self, host: &H, connection: usize, answer: Answer) {
        if answer == Answer::TooMany {
            self.cut_off(host, connection, TOO_MANY_ANSWERS);
        }
    }

    /// Sends an answer, now or when the connection has room.
    pub(super) fn answer(&mut self, host: &H, connection: usize, header: &Header, payload: &[u8]) {
        let answer = self.outbox.answer(host, connection, header, payload);
        self.after_answer(host, connection, answer);
    }

    /// Releases the credit of a message that the program has taken, and returns credit if due.
    #[inline]
    pub(super) fn message_taken(&mut self, host: &H, connection: usize, len: u32) {
        let answer = self.outbox.message_taken(host, connection, len);
        self.after_answer(host, connection, answer);
    }

    /// Releases a message that has matched a receive, or was discarded.
    pub(super) fn release_unexpected(&mut self, host: &H, message: &Unexpected) {
        let answer = self.outbox.release_unexpected(host, message);
        self.after_answer(host, message.connection(), answer);
    }

    /// Sends a peer the FIN of its operation; deferred while the program does not read its completions.
    pub(super) fn send_fin(&mut self, host: &H, connection: usize, id: u64, error: Option<Error>) {
        let answer = self.outbox.send_fin(host, connection, id, error);
        self.after_answer(host, connection, answer);
    }

    /// Sends credit and answers that waited for the program to read its completions, if it has.
    #[cold]
    pub fn send_owed(&mut self, host: &H) {
        for connection in self.outbox.send_owed(host) {
            self.after_answer(host, connection, Answer::TooMany);
        }
    }
}
