//! Peeking at messages: the program may find one without receiving it, claim it for a later
//! receive, or discard it.

use super::receive::{Receive, Unexpected};
use super::{Endpoint, Host};
use crate::header::Header;
use crate::matching::Pattern;
use core::net::SocketAddr;

/// A message that the program has found. It must be claimed, received or discarded.
#[must_use]
pub struct Found {
    source: SocketAddr,
    message: Unexpected,
}

impl Found {
    /// The sender of the message.
    #[must_use]
    pub fn source(&self) -> &SocketAddr {
        &self.source
    }

    /// The header of the message.
    #[must_use]
    pub fn header(&self) -> &Header {
        self.message.header()
    }
}

impl<H: Host> Endpoint<H> {
    /// The oldest message that a receive with this pattern would match, and its sender.
    #[must_use]
    pub fn peek(
        &self,
        tagged: bool,
        pattern: &Pattern<SocketAddr>,
    ) -> Option<(SocketAddr, Header)> {
        let (source, _, message) = self.matching(tagged).peek(pattern)?;
        Some((*source, *message.header()))
    }

    /// Finds the message that [`Self::peek`] would return, and takes it out of the queue.
    pub fn find(&mut self, host: &H, tagged: bool, pattern: &Pattern<SocketAddr>) -> Option<Found> {
        let (source, _, message) = self.queue(tagged).match_message(pattern)?;
        host.shared(|pool| pool.forget(1));
        Some(Found { source, message })
    }

    /// Claims a message for a receive with this context.
    pub fn claim(&mut self, context: usize, found: Found) {
        self.claimed.entry(context).or_default().push_back(found);
    }

    /// Takes the first message that was claimed with a context.
    pub fn claimed(&mut self, context: usize) -> Option<Found> {
        let claimed = self.claimed.get_mut(&context)?;
        let first = claimed.pop_front();
        if claimed.is_empty() {
            self.claimed.remove(&context);
        }
        first
    }

    /// Puts back a claimed message that cannot be received now.
    pub fn unclaimed(&mut self, context: usize, found: Found) {
        self.claimed.entry(context).or_default().push_front(found);
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
}
