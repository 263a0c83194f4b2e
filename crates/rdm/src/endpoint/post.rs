//! Posting to a connection: requests, if it has room, and the endpoint's own messages, which can wait for room.

use super::operation::{Operation, OperationKind, Retained};
use super::{Endpoint, Host};
use crate::backlog::Later;
use crate::error::{Error, Result};
use crate::header::{self, Header, MAX_LEN};
use crate::limits::{INLINE_MAX, SENDS};
use crate::operation_id::UNTRACKED;
use rkey_engine::{SendFlags, SendRequest, Sge, Work};

/// The work request of a message.
pub(super) const SEND: Work = Work::Send {
    imm: None,
    invalidate: None,
};

/// A message whose bytes are copied when it is posted.
#[inline]
pub(super) fn copied(id: u64, bytes: &[u8]) -> SendRequest<'_> {
    SendRequest {
        inline: Some(bytes),
        ..SendRequest::new(id, SEND, &[])
    }
}

impl<H: Host> Endpoint<H> {
    /// Posts a request; its id is the number of the operation that its completion belongs to.
    #[inline]
    pub(super) fn post(
        &mut self,
        host: &H,
        connection: usize,
        request: &SendRequest<'_>,
    ) -> Result<()> {
        let connection = &mut self.connections[connection];
        let qp = connection.qp.as_ref().ok_or(Error::NotConnected)?;
        host.post(qp, request)?;
        connection.outstanding += 1;
        Ok(())
    }

    /// Sends one of the endpoint's own messages, now or when the connection has room.
    pub(super) fn send_control(
        &mut self,
        host: &H,
        connection: usize,
        header: &Header,
        payload: &[u8],
    ) {
        self.send_control_for(host, connection, header, payload, UNTRACKED);
    }

    /// Like [`Self::send_control`], for an operation that waits for the message's completion.
    pub(super) fn send_control_for(
        &mut self,
        host: &H,
        connection: usize,
        header: &Header,
        payload: &[u8],
        operation: u64,
    ) {
        let mut header_bytes = [0; MAX_LEN];
        let len = header.encode(&mut header_bytes);
        let mut bytes = header_bytes[..len].to_vec();
        bytes.extend_from_slice(payload);
        let it = &mut self.connections[connection];
        if it.takes_answers() {
            return self.send_control_now(host, connection, bytes, operation);
        }
        it.backlog.push_back(Later::Message(bytes, operation));
        if it.backlog.is_too_much() {
            self.cut_off(
                host,
                connection,
                "the peer sent many requests, but does not take the answers",
            );
        }
        self.watch_backlog(host);
    }

    fn send_control_now(&mut self, host: &H, connection: usize, bytes: Vec<u8>, operation: u64) {
        // A solicited completion wakes a program that waits only for the end of the connection.
        let flags = match header::is_last(&bytes) {
            true => SendFlags::SIGNALED | SendFlags::SOLICITED,
            false => SendFlags::SIGNALED,
        };
        // A post fails only on a broken connection, whose waiting requests are dropped when it is lost.
        if bytes.len() <= INLINE_MAX {
            let request = SendRequest {
                flags,
                ..copied(operation, &bytes)
            };
            if self.post(host, connection, &request).is_err() {
                let next = self.operations.fail(operation, Error::ConnectionReset);
                self.carry_out(host, operation, next);
            }
            return;
        }
        debug_assert_eq!(
            operation, UNTRACKED,
            "control messages of operations are short"
        );
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
    }

    /// Posts requests that waited for room on a connection.
    pub(super) fn catch_up(&mut self, host: &H, connection: usize) {
        while self.connections[connection].outstanding < SENDS {
            match self.connections[connection].backlog.pop_front() {
                None => return,
                Some(Later::Message(bytes, operation)) => {
                    self.send_control_now(host, connection, bytes, operation);
                }
                Some(Later::Read(id)) => self.fetch_now(host, connection, id),
            }
        }
    }

    /// Asks the host to watch requests that wait for room.
    #[cold]
    fn watch_backlog(&mut self, host: &H) {
        if !self.backlog_watched {
            self.backlog_watched = host.watch_backlog();
        }
    }

    /// Whether requests still wait for room on a connection. A host that watches for room stops when this returns `false`.
    pub fn still_waits(&mut self) -> bool {
        self.backlog_watched = self.connections.iter().any(|it| !it.backlog.is_empty());
        self.backlog_watched
    }

    /// How many operations and other requests are in flight.
    #[must_use]
    pub fn under_way(&self) -> usize {
        // Operations wait for completions of requests that are posted or will be.
        let awaited = self.operations.awaited();
        let of_operation = |later: &&Later| later.operation() != UNTRACKED;
        let requests: usize = self
            .connections
            .iter()
            .map(|it| it.outstanding as usize + it.backlog.iter().filter(of_operation).count())
            .sum();
        // The other requests are plain operations, which are recorded nowhere else, and answers.
        self.operations.len() + requests.saturating_sub(awaited)
    }

    /// Whether a connection that is not lost has a posted request that has not completed, or a waiting answer.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.connections.iter().any(|it| it.is_busy())
    }
}
