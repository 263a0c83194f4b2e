//! Receiving messages: receives are posted and canceled; messages match a receive or are kept.

use super::{Endpoint, Host, ReceiveOutcome};
use crate::header::{Header, Kind};
use crate::limits::RENDEZVOUS_MAX;
use crate::matching::{AfterMatch, Pattern};
use crate::sges::{Sges, part};
use core::net::SocketAddr;
use rkey_engine::Sge;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A receive that waits for a message, or for several.
pub struct Receive<H: Host> {
    sges: Sges,
    room: usize,
    /// The host's data for reports to the program.
    pub attached: H::Receive,
    /// For a buffer that takes several messages: how many bytes are used, and what the messages share.
    multi: Option<(usize, Arc<Buffer>)>,
}

impl<H: Host> Receive<H> {
    /// A receive into `room` bytes, for one message or several.
    #[must_use]
    pub fn new(sges: Sges, room: usize, several: bool, attached: H::Receive) -> Self {
        Self {
            sges,
            room,
            attached,
            multi: several.then(Default::default),
        }
    }

    /// Whether the receive is for one message, and a message of this length fits.
    #[inline]
    pub(super) fn takes_whole(&self, len: usize) -> bool {
        self.multi.is_none() && len <= self.room
    }

    /// The memory of the receive.
    #[inline]
    pub(super) fn sges(&self) -> &[Sge] {
        &self.sges
    }

    /// Completes the receive with a whole message, which is in its memory.
    #[inline]
    pub(super) fn complete_whole(mut self, host: &H, source: &SocketAddr, header: &Header) {
        let matched = host.matched(&mut self.attached, 0, false, source, header);
        let how = ReceiveOutcome {
            len: header.len as usize,
            overflow: 0,
            error: None,
            last: false,
        };
        host.received(matched, how);
    }

    /// Cancels the receive and reports that to the program.
    pub fn cancel(self, host: &H, tagged: bool) {
        host.canceled(self.attached, tagged, self.multi.is_some());
    }

    /// Where a message is stored in this receive, and whether the receive takes more messages.
    pub(super) fn landing(
        &mut self,
        host: &H,
        source: &SocketAddr,
        header: &Header,
    ) -> (Landing<H>, AfterMatch) {
        let attached = &mut self.attached;
        let Some((used, buffer)) = &mut self.multi else {
            let landing = Landing {
                sges: std::mem::take(&mut self.sges),
                room: self.room,
                len: 0,
                overflow: 0,
                matched: host.matched(attached, 0, false, source, header),
                buffer: None,
                turn: None,
            };
            return (landing, AfterMatch::Remove);
        };
        let room = self.room - *used;
        let len = room.min(header.len as usize);
        buffer.pending.fetch_add(1, Ordering::AcqRel);
        let landing = Landing {
            sges: part(&self.sges, *used, len),
            room: len,
            len: 0,
            overflow: 0,
            matched: host.matched(attached, *used, true, source, header),
            buffer: Some(Arc::clone(buffer)),
            turn: None,
        };
        *used += len;
        if self.room - *used >= host.least_room().max(1) {
            return (landing, AfterMatch::Keep);
        }
        buffer.full.store(true, Ordering::Release);
        (landing, AfterMatch::Remove)
    }
}

/// What messages in the same buffer share. Endpoints that share receives share it as well.
#[derive(Default)]
pub(super) struct Buffer {
    /// How many messages still wait for their payload.
    pending: AtomicU32,
    /// Whether the buffer takes no more messages.
    full: AtomicBool,
}

/// The destination of a message in its receive.
pub(super) struct Landing<H: Host> {
    pub(super) sges: Sges,
    /// How many bytes fit.
    pub(super) room: usize,
    /// How many bytes were received.
    pub(super) len: usize,
    /// How many bytes do not fit.
    pub(super) overflow: usize,
    matched: H::Matched,
    /// Set if other messages may share the buffer.
    buffer: Option<Arc<Buffer>>,
    /// The receive's turn, if reports to the program are ordered.
    pub(super) turn: Option<u64>,
}

impl<H: Host> Landing<H> {
    /// Ends the message; also returns whether it is the last one of a full buffer.
    #[inline]
    pub(super) fn finish(self) -> (H::Matched, bool) {
        let last = self.buffer.is_some_and(|buffer| {
            let last = buffer.pending.fetch_sub(1, Ordering::AcqRel) == 1;
            last && buffer.full.load(Ordering::Acquire)
        });
        (self.matched, last)
    }
}

/// A message that has no receive yet, or is about to be delivered to one.
pub enum Unexpected {
    /// With its payload.
    Eager {
        /// The header.
        header: Header,
        /// The payload.
        payload: Vec<u8>,
        /// The connection that the message arrived on.
        connection: usize,
    },
    /// An RTS: the payload will be read under this key.
    Rts {
        /// The header.
        header: Header,
        /// The key of the sender's region.
        key: u32,
        /// The connection that the message arrived on.
        connection: usize,
    },
}

impl Unexpected {
    /// The header of the message.
    #[must_use]
    pub fn header(&self) -> &Header {
        match self {
            Self::Eager { header, .. } | Self::Rts { header, .. } => header,
        }
    }

    pub(super) fn connection(&self) -> usize {
        let (Self::Eager { connection, .. } | Self::Rts { connection, .. }) = self;
        *connection
    }
}

impl<H: Host> Endpoint<H> {
    /// Posts a receive, after offering it the unexpected messages.
    #[inline]
    pub fn receive(
        &mut self,
        host: &H,
        tagged: bool,
        pattern: Pattern<SocketAddr>,
        receive: Receive<H>,
    ) {
        let back = self.receives.post_unless_waiting(tagged, pattern, receive);
        if let Some(receive) = back {
            self.receive_waiting(host, tagged, pattern, receive);
        }
    }

    /// Offers a receive the unexpected messages, and posts it if it can take more. If the connection has ended, cancels
    /// it.
    fn receive_waiting(
        &mut self,
        host: &H,
        tagged: bool,
        pattern: Pattern<SocketAddr>,
        mut receive: Receive<H>,
    ) {
        loop {
            let Some(found) = self.receives.take_message(tagged, &pattern) else {
                self.receives.post(tagged, pattern, receive);
                break;
            };
            let (landing, then) = receive.landing(host, &found.source, found.header());
            self.deliver(host, landing, found.message);
            if then == AfterMatch::Remove {
                break;
            }
        }
        self.receives.flush_if_shut(host);
    }

    /// Handles a message or an RTS.
    #[inline]
    pub(super) fn message_arrived(
        &mut self,
        host: &H,
        connection: usize,
        header: Header,
        payload: &[u8],
    ) {
        let key = match header.kind {
            Kind::Rts { key } => Some(key),
            _ => None,
        };
        let limited = self.outbox.is_limited() && key.is_none();
        if key.is_some() && self.connections()[connection].rendezvous >= RENDEZVOUS_MAX {
            return self.exceeded(host, connection);
        }
        let it = self.outbox.connection(connection);
        if limited && !it.window.charge(header.len) {
            return self.exceeded(host, connection);
        }
        let source = it.peer;
        let landing = match host.shared_posts() {
            Some(_) => self.match_shared_receive(host, &source, &header),
            None => self.receives.match_receive(host, &source, &header),
        };
        match (landing, key) {
            (Some(landing), Some(key)) => {
                let message = self.note_rts(connection, header, key);
                self.deliver(host, landing, message);
            }
            (Some(landing), None) => {
                self.delivery.copy(host, landing, payload);
                self.confirm(host, connection, &header);
                if limited {
                    self.message_taken(host, connection, header.len);
                }
            }
            (None, _) if !self.outbox.is_limited() && self.receives.is_full(header.tagged) => {
                // `match_shared_receive` has counted the message as unexpected, but it is dropped.
                host.shared(|pool| pool.forget(1));
            }
            (None, Some(key)) => {
                let message = self.note_rts(connection, header, key);
                self.receives.keep(source, message);
            }
            (None, None) => self.keep_unexpected(connection, header, payload.to_vec()),
        }
    }

    fn note_rts(&mut self, connection: usize, header: Header, key: u32) -> Unexpected {
        let it = self.outbox.connection(connection);
        it.pending += 1;
        it.rendezvous += 1;
        Unexpected::Rts {
            header,
            key,
            connection,
        }
    }

    /// Keeps a message until a receive matches it.
    pub(super) fn keep_unexpected(&mut self, connection: usize, header: Header, payload: Vec<u8>) {
        let it = self.outbox.connection(connection);
        it.pending += 1;
        let source = it.peer;
        let message = Unexpected::Eager {
            header,
            payload,
            connection,
        };
        self.receives.keep(source, message);
    }

    /// Delivers a message to its receive: copies it, or starts to read it.
    pub(super) fn deliver(&mut self, host: &H, landing: Landing<H>, message: Unexpected) {
        self.release_unexpected(host, &message);
        match message {
            Unexpected::Eager {
                header,
                payload,
                connection,
            } => {
                self.delivery.copy(host, landing, &payload);
                self.confirm(host, connection, &header);
            }
            Unexpected::Rts {
                header,
                key,
                connection,
            } => self.fetch(host, landing, &header, key, connection),
        }
    }

    /// Confirms to the sender that a message was delivered, if the sender requested that.
    pub(super) fn confirm(&mut self, host: &H, connection: usize, header: &Header) {
        if header.confirm || matches!(header.kind, Kind::Rts { .. }) {
            self.send_fin(host, connection, header.id, None);
        }
    }
}
