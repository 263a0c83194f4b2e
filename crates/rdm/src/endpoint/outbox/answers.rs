//! Messages and reads that the endpoint posts by itself: answers to peers, credit, the data of writes, and the payloads of
//! RTSs. If a connection has no room, they wait.

use super::super::Host;
use super::super::in_flight::Next;
use super::super::operation::{Operation, OperationKind, Retained};
use super::{Outbox, SEND, copied};
use crate::backlog::Later;
use crate::error::Error;
use crate::header::{self, Header, MAX_LEN};
use crate::limits::{INLINE_MAX, SENDS};
use crate::operation_id::UNTRACKED;
use crate::sges::Sges;
use rkey_core::{Key, RKey};
use rkey_engine::{SendFlags, SendRequest, Sge, Target, Work};

/// What happened to an answer.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::endpoint) enum Answer {
    /// It is posted, or waits for room; or it was not due.
    Accepted,
    /// The peer sends requests, but does not read the answers: too many wait, and it loses its connection.
    TooMany,
}

impl<H: Host> Outbox<H> {
    /// Sends an answer, now or when the connection has room.
    pub(in crate::endpoint) fn answer(
        &mut self,
        host: &H,
        connection: usize,
        header: &Header,
        payload: &[u8],
    ) -> Answer {
        let bytes = encode(header, payload);
        if !self.connections[connection].takes_answers() {
            return self.wait(host, connection, Later::Message(bytes, UNTRACKED));
        }
        // A post fails only on a broken connection, whose waiting requests are dropped when it is lost.
        let _ = self.post_answer(host, connection, bytes, UNTRACKED);
        Answer::Accepted
    }

    /// Sends the message that follows the bytes of a write, now or when the connection has room.
    pub(in crate::endpoint) fn send_data(
        &mut self,
        host: &H,
        connection: usize,
        header: &Header,
        operation: u64,
    ) -> (Answer, Next<H>) {
        let bytes = encode(header, &[]);
        if !self.connections[connection].takes_answers() {
            let answer = self.wait(host, connection, Later::Message(bytes, operation));
            return (answer, Next::Wait);
        }
        let next = self.post_answer(host, connection, bytes, operation);
        (Answer::Accepted, next)
    }

    /// Adds the operation that reads a payload from its sender's memory, and posts the read, now or when the connection has
    /// room. Returns the operation's number, and what follows.
    pub(in crate::endpoint) fn fetch(
        &mut self,
        host: &H,
        connection: usize,
        what: OperationKind<H>,
    ) -> (u64, Next<H>) {
        let id = self.operations.add(Operation::new(connection, what, None));
        let it = &mut self.connections[connection];
        if !it.takes_answers() {
            it.backlog.push_back(Later::Read(id));
            return (id, Next::Wait);
        }
        (id, self.post_fetch(host, connection, id))
    }

    /// Posts the oldest request that waits for room on a connection, if there is room. Returns its operation, and what
    /// follows for that.
    pub(in crate::endpoint) fn post_waiting(
        &mut self,
        host: &H,
        connection: usize,
    ) -> Option<(u64, Next<H>)> {
        let it = &mut self.connections[connection];
        if it.outstanding >= SENDS {
            return None;
        }
        let later = it.backlog.pop_front()?;
        let id = later.operation();
        let next = match later {
            Later::Message(bytes, id) => self.post_answer(host, connection, bytes, id),
            Later::Read(id) => self.post_fetch(host, connection, id),
        };
        Some((id, next))
    }

    /// Whether requests still wait for room on a connection. A host that watches for room stops when this returns `false`.
    pub fn still_waits(&mut self) -> bool {
        self.backlog_watched = self.connections.iter().any(|it| !it.backlog.is_empty());
        self.backlog_watched
    }

    /// Keeps a request until the connection has room, and asks the host to watch for it.
    fn wait(&mut self, host: &H, connection: usize, later: Later) -> Answer {
        let backlog = &mut self.connections[connection].backlog;
        backlog.push_back(later);
        let answer = match backlog.is_too_much() {
            true => Answer::TooMany,
            false => Answer::Accepted,
        };
        if !self.backlog_watched {
            self.backlog_watched = host.watch_backlog();
        }
        answer
    }

    fn post_answer(&mut self, host: &H, connection: usize, bytes: Vec<u8>, id: u64) -> Next<H> {
        // A solicited completion wakes a program that waits only for the end of the connection.
        let flags = match header::is_last(&bytes) {
            true => SendFlags::SIGNALED | SendFlags::SOLICITED,
            false => SendFlags::SIGNALED,
        };
        if bytes.len() <= INLINE_MAX {
            let request = SendRequest {
                flags,
                ..copied(id, &bytes)
            };
            return match self.post(host, connection, &request) {
                Ok(()) => Next::Wait,
                Err(_) => self.operations.fail(id, Error::ConnectionReset),
            };
        }
        debug_assert_eq!(id, UNTRACKED, "messages of operations are short");
        let bytes = bytes.into_boxed_slice();
        let sges = [Sge {
            addr: bytes.as_ptr() as u64,
            len: bytes.len() as u32,
            key: host.everything(),
        }];
        let id = self.operations.add(Operation {
            retained: Retained::Bytes(bytes),
            ..Operation::new(connection, OperationKind::Transmit, None)
        });
        let request = SendRequest {
            flags,
            ..SendRequest::new(id, SEND, &sges)
        };
        if self.post(host, connection, &request).is_err() {
            self.operations.forget(id);
        }
        Next::Wait
    }

    /// Posts the read of the payload of an RTS.
    fn post_fetch(&mut self, host: &H, connection: usize, id: u64) -> Next<H> {
        let operation = self.operations.get(id);
        let Some(OperationKind::Fetch { landing, key, .. }) = operation.map(|it| &it.what) else {
            return Next::Wait;
        };
        let remote = Target {
            addr: 0,
            key: RKey::Device(Key(*key)),
        };
        let all = landing.sges.iter().copied();
        let sges: Sges = all.filter(|sge| sge.len > 0).collect();
        let request = SendRequest {
            // `RECEIVES` makes the device check the local region for the right to receive until the last byte has
            // arrived: the program may deregister it before then.
            flags: SendFlags::RECEIVES | SendFlags::SIGNALED,
            ..SendRequest::new(id, Work::Read { remote }, &sges)
        };
        let Err(error) = self.post(host, connection, &request) else {
            return Next::Wait;
        };
        match self.operations.forget(id) {
            // The sender gets the error.
            Some(mut operation) => {
                operation.fail(error);
                Next::Over(operation)
            }
            None => Next::Wait,
        }
    }
}

/// The bytes of a message.
fn encode(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut header_bytes = [0; MAX_LEN];
    let len = header.encode(&mut header_bytes);
    let mut bytes = header_bytes[..len].to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::super::test_host::{TestHost, outbox};
    use super::*;
    use crate::header::Kind;

    fn fin() -> Header {
        Header::new(Kind::Fin)
    }

    /// How many requests were posted.
    fn posted(host: &TestHost) -> usize {
        host.take().len()
    }

    #[test]
    fn answers_wait_for_room_and_are_posted_in_order() {
        let host = TestHost::default();
        let mut outbox = outbox(&host);
        outbox.connection(0).outstanding = SENDS;
        assert_eq!(outbox.answer(&host, 0, &fin(), &[]), Answer::Accepted);
        let what = OperationKind::Write { data: 1, len: 2 };
        let id = outbox.begin(Operation::new(0, what, Some(3)));
        let (answer, next) = outbox.send_data(&host, 0, &fin(), id);
        assert!(answer == Answer::Accepted && matches!(next, Next::Wait));
        assert!(posted(&host) == 0 && outbox.still_waits());
        assert!(outbox.post_waiting(&host, 0).is_none(), "there is no room");
        assert!(outbox.connection(0).request_completed(), "requests wait");
        let (first, next) = outbox.post_waiting(&host, 0).unwrap();
        assert!(first == UNTRACKED && matches!(next, Next::Wait));
        outbox.connection(0).request_completed();
        host.refuses.set(Some(Error::NotConnected));
        let (second, next) = outbox.post_waiting(&host, 0).unwrap();
        assert!(second == id && matches!(next, Next::End), "the post failed");
        assert!(!outbox.still_waits());
    }

    #[test]
    fn a_peer_that_takes_no_answers_is_noticed() {
        let host = TestHost::default();
        let mut outbox = outbox(&host);
        outbox.connection(0).outstanding = SENDS;
        let mut count = 0;
        while outbox.answer(&host, 0, &fin(), &[]) == Answer::Accepted {
            count += 1;
            assert!(count < 1 << 20, "the backlog is not limited");
        }
    }
}
