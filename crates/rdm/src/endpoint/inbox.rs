//! Messages that are copied directly from the ring to their receive. If the poll of the endpoint's own completion queue
//! takes a short message from the ring, and the message needs no answer, it bypasses the intermediate buffer, whether it
//! finds a receive or is kept as unexpected. All other messages pass through a buffer, including those for a shared
//! receive context, and those that arrive while the engine is driven without this inbox (by the engine thread, or by a
//! poll of another queue).
//!
//! This code runs while the device is locked, so it neither posts to the device nor calls it.

use super::{Endpoint, Host};
use crate::error::Error;
use crate::header::{self, Header};
use core::net::SocketAddr;
use rkey_base::memory::Memory;
use rkey_base::shared::PeerBytes;
use rkey_core::{Denial, NamedKey, Reason};
use rkey_engine::{Inbox, Message, Sge};

/// The inbox of an endpoint during one poll of its completion queue.
pub struct EndpointInbox<'a, H: Host> {
    endpoint: &'a mut Endpoint<H>,
    host: &'a H,
    /// Denials of access to the memory of receives, reported when the device is unlocked.
    refused: Vec<Denial>,
}

impl<H: Host> EndpointInbox<'_, H> {
    /// Ends the poll. Called when the device is unlocked.
    #[inline]
    pub fn finish(self) {
        if !self.refused.is_empty() {
            self.report_refused();
        }
    }

    #[cold]
    fn report_refused(self) {
        for denial in self.refused {
            self.host.refused(&denial);
        }
    }
}

impl<H: Host, M: Memory> Inbox<M> for EndpointInbox<'_, H> {
    fn offer(&mut self, message: &Message<'_, M>) -> bool {
        let Self {
            endpoint,
            host,
            refused,
        } = self;
        let copy_to_receive = |sges: &[Sge], bytes: PeerBytes<'_>| {
            let copied = message.scatter(host.domain(), sges, bytes);
            copied.map_err(|denial| why_not(*host, *denial, refused))
        };
        let taken = endpoint.take_directly(host, message.qpn(), message.bytes(), copy_to_receive);
        taken.is_some()
    }
}

/// Why memory could not be written.
#[cold]
fn why_not<H: Host>(host: &H, denial: Denial, refused: &mut Vec<Denial>) -> Error {
    // Memory that the program names without a region has no rights: access to it fails only if it is not mapped.
    let unnamed = matches!(denial.key, NamedKey::Local(key) if key == host.everything());
    if unnamed || matches!(denial.reason, Reason::Fault { .. }) {
        return Error::Fault;
    }
    refused.push(denial);
    Error::Denied
}

impl<H: Host> Endpoint<H> {
    /// An inbox for one poll of the completion queue.
    #[inline]
    pub fn inbox<'a>(&'a mut self, host: &'a H) -> EndpointInbox<'a, H> {
        EndpointInbox {
            endpoint: self,
            host,
            refused: Vec::new(),
        }
    }

    /// Takes a message for this queue pair; `copy_to_receive` copies a part of it to the memory of a receive. On `None`,
    /// the message and the endpoint are unchanged.
    #[inline]
    pub fn take_directly(
        &mut self,
        host: &H,
        qpn: u32,
        bytes: PeerBytes<'_>,
        copy_to_receive: impl FnOnce(&[Sge], PeerBytes<'_>) -> Result<(), Error>,
    ) -> Option<()> {
        // Shared receives are matched together with the messages of other endpoints.
        if host.shared_posts().is_some() {
            return None;
        }
        let connection = self.connections().find(qpn)?;
        let payload = bytes.slice(header::LEN, bytes.len().checked_sub(header::LEN)?)?;
        let word = |at: usize| u64::from_le(bytes.get_u64(8 * at));
        let header = Header::of_message([word(0), word(1), word(2), word(3)], payload.len())?;
        let (needs_credit, ordered) = (self.outbox.needs_credit(), self.outbox.is_ordered());
        let it = &self.connections()[connection];
        if !it.state().hears() {
            return None;
        }
        // The inbox can neither post an answer nor end the connection of a peer that exceeds its credit.
        if header.confirm || needs_credit && !it.window.has_room(header.len) {
            return None;
        }
        let source = it.peer;
        if !ordered
            && let Some((index, receive)) =
                self.receives
                    .find_for_whole(&source, &header, payload.len())
        {
            match copy_to_receive(receive.sges(), payload) {
                Ok(()) => {
                    host.received_whole(&mut receive.attached, &source, &header);
                    self.receives.discard(header.tagged, index);
                }
                Err(error) => self.fail_whole(host, index, &source, &header, error),
            }
            if needs_credit {
                let window = &mut self.outbox.connection(connection).window;
                window.pass(header.len);
                // The credit is returned when the device can be used again.
                let due = window.is_due();
                self.outbox.owe_credit(due);
            }
            return Some(());
        }
        let landing = self.receives.match_receive(host, &source, &header);
        if landing.is_none() && !needs_credit && self.receives.is_full(header.tagged) {
            return None;
        }
        if needs_credit {
            self.outbox.connection(connection).window.charge(header.len);
        }
        let Some(landing) = landing else {
            self.keep_unexpected(connection, header, payload.to_vec());
            return Some(());
        };
        self.delivery
            .copy_with(host, landing, payload.len(), |sges, fits| {
                copy_to_receive(sges, payload.slice(0, fits).unwrap_or(payload))
            });
        if needs_credit {
            let window = &mut self.outbox.connection(connection).window;
            window.release(header.len);
            let due = window.is_due();
            // The credit is returned when the device can be used again.
            self.outbox.owe_credit(due);
        }
        Some(())
    }

    /// Fails the receive with this index, because the whole message that it has matched could not be copied to its memory.
    #[cold]
    fn fail_whole(
        &mut self,
        host: &H,
        index: usize,
        source: &SocketAddr,
        header: &Header,
        error: Error,
    ) {
        if let Some(mut receive) = self.receives.remove(header.tagged, index) {
            let (mut landing, _) = receive.landing(host, source, header);
            landing.len = header.len as usize;
            self.delivery.complete(host, landing, Some(error));
        }
    }
}
