//! Posting to a connection: requests that have room, and messages of our own that are sent when there is some.

use super::operation::{Operation, Retained, What};
use super::{Endpoint, Host};
use crate::backlog::Later;
use crate::error::{Error, Result};
use crate::header::{self, Header, MAX_LEN};
use crate::limits::{INLINE_MAX, SENDS};
use crate::operation::UNTRACKED;
use rkey_engine::{SendFlags, SendRequest, Sge, Work};

/// The work of a message.
pub(super) const SEND: Work = Work::Send {
    imm: None,
    invalidate: None,
};

/// A message that is copied when it is posted.
#[inline]
pub(super) fn copied(id: u64, bytes: &[u8]) -> SendRequest<'_> {
    SendRequest {
        inline: Some(bytes),
        ..SendRequest::new(id, SEND, &[])
    }
}

impl<H: Host> Endpoint<H> {
    /// Posts a request; its id is that of the operation that is told of its completion.
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

    /// Sends a message of our own, now or when there is room.
    pub(super) fn say(&mut self, host: &H, connection: usize, header: &Header, payload: &[u8]) {
        self.say_for(host, connection, header, payload, UNTRACKED);
    }

    /// The same for an operation, which is told of its completion.
    pub(super) fn say_for(
        &mut self,
        host: &H,
        connection: usize,
        header: &Header,
        payload: &[u8],
        operation: u64,
    ) {
        let mut head = [0; MAX_LEN];
        let len = header.encode(&mut head);
        let mut bytes = head[..len].to_vec();
        bytes.extend_from_slice(payload);
        let it = &mut self.connections[connection];
        if it.takes_answers() {
            return self.say_now(host, connection, bytes, operation);
        }
        it.backlog.push_back(Later::Message(bytes, operation));
        if it.backlog.is_too_much() {
            self.cut_off(host, connection, "it asks much and takes no answers");
        }
        self.watch_backlog(host);
    }

    fn say_now(&mut self, host: &H, connection: usize, bytes: Vec<u8>, operation: u64) {
        // A program that waits for nothing but the end of the connection hears of this.
        let flags = match header::is_last(&bytes) {
            true => SendFlags::SIGNALED | SendFlags::SOLICITED,
            false => SendFlags::SIGNALED,
        };
        // A connection that fails meanwhile loses what it was to carry.
        if bytes.len() <= INLINE_MAX {
            let request = SendRequest {
                flags,
                ..copied(operation, &bytes)
            };
            if self.post(host, connection, &request).is_err() {
                self.fail_with(host, operation, Error::ConnectionReset);
            }
            return;
        }
        debug_assert_eq!(operation, UNTRACKED, "what operations say is short");
        let bytes = bytes.into_boxed_slice();
        let sges = [Sge {
            addr: bytes.as_ptr() as u64,
            len: bytes.len() as u32,
            key: host.everything(),
        }];
        let id = self.operations.add(Operation {
            retained: Retained::Bytes(bytes),
            ..Operation::new(connection, What::Transmit, None)
        });
        let request = SendRequest {
            flags,
            ..SendRequest::new(id, SEND, &sges)
        };
        if self.post(host, connection, &request).is_err() {
            self.operations.take(id);
        }
    }

    /// Posts what waited for room on a connection.
    pub(super) fn catch_up(&mut self, host: &H, connection: usize) {
        while self.connections[connection].outstanding < SENDS {
            match self.connections[connection].backlog.pop_front() {
                None => return,
                Some(Later::Message(bytes, operation)) => {
                    self.say_now(host, connection, bytes, operation);
                }
                Some(Later::Read(id)) => self.fetch_now(host, connection, id),
            }
        }
    }

    /// Lets the host watch what waits for room.
    #[cold]
    fn watch_backlog(&mut self, host: &H) {
        if !self.backlog_watched {
            self.backlog_watched = host.watch_backlog();
        }
    }

    /// For a host that watches: whether something still waits for room. If not, it stops watching.
    pub fn still_waits(&mut self) -> bool {
        self.backlog_watched = self.connections.iter().any(|it| !it.backlog.is_empty());
        self.backlog_watched
    }

    /// Operations and other requests that are under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        // Completions that operations wait for are of requests that were posted, or will be.
        let awaited =
            |it: &Operation<H>| (it.left as usize).saturating_sub(it.awaits_answer.into());
        let awaited: usize = self.operations.iter().map(awaited).sum();
        let of_operation = |later: &&Later| later.operation() != UNTRACKED;
        let requests: usize = self
            .connections
            .iter()
            .map(|it| it.outstanding as usize + it.backlog.iter().filter(of_operation).count())
            .sum();
        // The rest is of plain operations, which are nowhere else, and of answers.
        self.operations.len() + requests.saturating_sub(awaited)
    }

    /// Whether something that was posted has not arrived yet.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.connections.iter().any(|it| it.is_busy())
    }
}
