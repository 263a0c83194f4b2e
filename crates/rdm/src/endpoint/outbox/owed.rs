//! Credit for peers, and the FINs of their operations. While the program does not read its completions, peers get neither:
//! the outbox owes them until then.

use super::super::{Host, Unexpected};
use super::{Answer, Outbox};
use crate::error::Error;
use crate::header::{Header, Kind};

/// What is owed to peers until the program has read completions.
#[derive(Default)]
pub(super) struct Owed {
    /// Whether anything is owed.
    due: bool,
    /// FINs, each with its connection. The rest is credit, which the connections count.
    fins: Vec<(usize, Header)>,
}

impl<H: Host> Outbox<H> {
    /// Releases the credit of a message that the program has taken, and returns credit if due.
    #[inline]
    pub(in crate::endpoint) fn message_taken(
        &mut self,
        host: &H,
        connection: usize,
        len: u32,
    ) -> Answer {
        let it = &mut self.connections[connection];
        it.window.release(len);
        match it.window.is_due() && !it.state().is_lost() {
            true => self.return_credit(host, connection),
            false => Answer::Accepted,
        }
    }

    /// Records that credit cannot be returned now, if it is due.
    #[inline]
    pub(in crate::endpoint) fn owe_credit(&mut self, is_due: bool) {
        self.owed.due |= is_due;
    }

    #[cold]
    fn return_credit(&mut self, host: &H, connection: usize) -> Answer {
        if host.holds_answers_back() {
            self.owed.due = true;
            return Answer::Accepted;
        }
        let (messages, bytes) = self.connections[connection].window.take_returnable();
        let header = Header {
            data: messages.into(),
            len: bytes,
            ..Header::new(Kind::Credit)
        };
        self.answer(host, connection, &header, &[])
    }

    /// Releases a message that has matched a receive, or was discarded.
    pub(in crate::endpoint) fn release_unexpected(
        &mut self,
        host: &H,
        message: &Unexpected,
    ) -> Answer {
        let connection = message.connection();
        let needs_credit = self.needs_credit();
        let it = &mut self.connections[connection];
        it.pending -= 1;
        match message {
            Unexpected::Rts { .. } => it.rendezvous -= 1,
            Unexpected::Eager { header, .. } if needs_credit => {
                return self.message_taken(host, connection, header.len);
            }
            Unexpected::Eager { .. } => {}
        }
        Answer::Accepted
    }

    /// Sends a peer the FIN of its operation; deferred while the program does not read its completions.
    pub(in crate::endpoint) fn send_fin(
        &mut self,
        host: &H,
        connection: usize,
        id: u64,
        error: Option<Error>,
    ) -> Answer {
        let fin = Header {
            id,
            data: error.map_or(0, |error| error.number().into()),
            ..Header::new(Kind::Fin)
        };
        if self.connections[connection].state().is_lost() {
            return Answer::Accepted;
        }
        if !host.holds_answers_back() {
            return self.answer(host, connection, &fin, &[]);
        }
        self.owed.due = true;
        self.owed.fins.push((connection, fin));
        self.connections[connection].pending += 1;
        Answer::Accepted
    }

    /// Whether credit or answers are owed to peers until the program has read completions.
    #[inline]
    pub(in crate::endpoint) fn owes(&self) -> bool {
        self.owed.due
    }

    /// Sends credit and answers that waited for the program to read its completions, if it has. Returns the connections
    /// for which too many answers wait.
    #[cold]
    pub(in crate::endpoint) fn send_owed(&mut self, host: &H) -> Vec<usize> {
        if !self.owed.due || host.holds_answers_back() {
            return Vec::new();
        }
        self.owed.due = false;
        let mut too_many = self.send_owed_fins(host);
        for connection in 0..self.connections.slots() {
            let it = &self.connections[connection];
            if !it.state().is_lost()
                && it.window.is_due()
                && self.return_credit(host, connection) == Answer::TooMany
            {
                too_many.push(connection);
            }
        }
        too_many
    }

    /// Sends the deferred FINs. Returns the connections for which too many answers wait.
    pub(in crate::endpoint) fn send_owed_fins(&mut self, host: &H) -> Vec<usize> {
        let mut too_many = Vec::new();
        for (connection, fin) in std::mem::take(&mut self.owed.fins) {
            let it = &mut self.connections[connection];
            it.pending -= 1;
            if !it.state().is_lost() && self.answer(host, connection, &fin, &[]) == Answer::TooMany
            {
                too_many.push(connection);
            }
        }
        too_many
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::test_host::{TestHost, outbox};
    use super::*;

    /// How many requests were posted.
    fn posted(host: &TestHost) -> usize {
        host.take().len()
    }

    #[test]
    fn credit_and_fins_are_owed_until_the_program_reads_completions() {
        let host = TestHost::default();
        let mut outbox = outbox(&host);
        host.holds_back.set(true);
        assert_eq!(outbox.send_fin(&host, 0, 1, None), Answer::Accepted);
        let window = &mut outbox.connection(0).window;
        while window.has_room(8192) {
            window.charge(8192);
        }
        assert_eq!(outbox.message_taken(&host, 0, 8192), Answer::Accepted);
        assert!(outbox.owes() && outbox.connections()[0].pending == 1);
        assert!(outbox.send_owed(&host).is_empty() && posted(&host) == 0);
        host.holds_back.set(false);
        assert!(outbox.send_owed(&host).is_empty());
        assert_eq!(posted(&host), 2, "the FIN and the credit");
        assert!(!outbox.owes() && outbox.connections()[0].pending == 0);
        assert!(outbox.send_owed(&host).is_empty() && posted(&host) == 0);
    }

    #[test]
    fn a_message_that_finds_its_receive_releases_its_credit() {
        let host = TestHost::default();
        let mut outbox = outbox(&host);
        let header = Header {
            len: 100,
            ..Header::new(Kind::Message)
        };
        let it = outbox.connection(0);
        assert!(it.window.charge(100));
        it.pending += 1;
        let message = Unexpected::Eager {
            header,
            payload: vec![0; 100],
            connection: 0,
        };
        assert_eq!(outbox.release_unexpected(&host, &message), Answer::Accepted);
        assert_eq!(outbox.connections()[0].window.unread(), 0);
        assert_eq!(outbox.connections()[0].pending, 0);
    }
}
