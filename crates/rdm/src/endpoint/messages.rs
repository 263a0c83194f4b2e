//! Messages and receives meet: a receive is posted and takes a message that waits, or a message arrives and finds a receive.
//! The payload is copied, or read from the sender's memory (rendezvous).

use super::operation::OperationKind;
use super::receive::{Landing, Receive, Unexpected};
use super::receives::Offered;
use super::{Endpoint, Found, Host};
use crate::error::Error;
use crate::header::{Header, Kind};
use crate::limits::RENDEZVOUS_MAX;
use crate::matching::{AfterMatch, Pattern};
use crate::sges::part;
use core::net::SocketAddr;

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
        let needs_credit = self.outbox.needs_credit() && key.is_none();
        if key.is_some() && self.connections()[connection].rendezvous >= RENDEZVOUS_MAX {
            return self.exceeded(host, connection);
        }
        let it = self.outbox.connection(connection);
        if needs_credit && !it.window.charge(header.len) {
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
                if needs_credit {
                    self.message_taken(host, connection, header.len);
                }
            }
            (None, _) if !self.outbox.needs_credit() && self.receives.is_full(header.tagged) => {
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

    /// Receives a message that was found.
    pub fn receive_found(&mut self, host: &H, mut receive: Receive<H>, found: Found) {
        let (landing, _) = receive.landing(host, &found.source, found.message.header());
        self.deliver(host, landing, found.message);
    }

    /// Discards a message that was found.
    pub fn discard(&mut self, host: &H, found: &Found) {
        self.release_unexpected(host, &found.message);
        self.confirm(host, found.message.connection(), found.message.header());
    }

    /// The shared receive for a message that arrived just now; if there is none, the message is counted as unexpected.
    fn match_shared_receive(
        &mut self,
        host: &H,
        source: &SocketAddr,
        header: &Header,
    ) -> Option<Landing<H>> {
        let offered = self.receives.offer(host, Some((source, header)));
        self.deliver_offered(host, offered)
    }

    /// Offers waiting messages to shared receives, if any were posted since the last offer.
    #[inline]
    pub fn offer_to_shared_receives(&mut self, host: &H) {
        if self.receives.is_offer_due(host) {
            let offered = self.receives.offer(host, None);
            self.deliver_offered(host, offered);
        }
    }

    fn deliver_offered(&mut self, host: &H, offered: Offered<H>) -> Option<Landing<H>> {
        for (landing, message) in offered.waiting {
            self.deliver(host, landing, message);
        }
        offered.newcomer
    }

    /// Starts to read the payload of an RTS from its sender.
    fn fetch(
        &mut self,
        host: &H,
        mut landing: Landing<H>,
        header: &Header,
        key: u32,
        connection: usize,
    ) {
        self.delivery.reserve(&mut landing);
        let len = header.len as usize;
        let fits = len.min(landing.room);
        // If nothing fits, there is nothing to read, and the sender gets its answer now.
        landing.len = fits;
        landing.overflow = len - fits;
        landing.sges = part(&landing.sges, 0, fits);
        if fits == 0 || self.connections()[connection].state().is_lost() {
            let error = match len {
                0 => None,
                _ if fits == 0 => Some(Error::Truncated),
                _ => Some(Error::ConnectionReset),
            };
            self.confirm(host, connection, header);
            return self.delivery.complete(host, landing, error);
        }
        let what = OperationKind::Fetch {
            landing: Box::new(landing),
            id: header.id,
            key,
        };
        let (id, next) = self.outbox.fetch(host, connection, what);
        self.carry_out(host, id, next);
    }

    /// Acts on the end of the read of a payload: answers the RTS with FIN, and completes the receive.
    pub(super) fn fetch_over(
        &mut self,
        host: &H,
        connection: usize,
        id: u64,
        landing: Landing<H>,
        error: Option<Error>,
    ) {
        self.send_fin(host, connection, id, error);
        self.delivery.complete(host, landing, error);
    }
}
