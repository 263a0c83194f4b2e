//! Messages that the program looks for: it may see one without receiving it, claim it for a later receive, or throw it
//! away.

use super::receive::{Kept, Receive};
use super::{Endpoint, Host};
use crate::header::Header;
use crate::matching::Pattern;
use core::net::SocketAddr;

/// A message that the program has found. It has to be claimed, received or discarded.
#[must_use]
pub struct Found {
    source: SocketAddr,
    kept: Kept,
}

impl Found {
    /// Its sender.
    #[must_use]
    pub fn source(&self) -> &SocketAddr {
        &self.source
    }

    /// Its header.
    #[must_use]
    pub fn header(&self) -> &Header {
        self.kept.header()
    }
}

impl<H: Host> Endpoint<H> {
    /// The oldest message that a receive of this pattern would get, and its sender.
    #[must_use]
    pub fn peek(
        &self,
        tagged: bool,
        pattern: &Pattern<SocketAddr>,
    ) -> Option<(SocketAddr, Header)> {
        let (source, _, kept) = self.matching(tagged).peek(pattern)?;
        Some((*source, *kept.header()))
    }

    /// The same, taken out of the queue.
    pub fn find(&mut self, host: &H, tagged: bool, pattern: &Pattern<SocketAddr>) -> Option<Found> {
        let (source, _, kept) = self.queue(tagged).message_for(pattern)?;
        host.shared(|pool| pool.forget(1));
        Some(Found { source, kept })
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

    /// Puts a message back that was claimed and cannot be received now.
    pub fn unclaimed(&mut self, context: usize, found: Found) {
        self.claimed.entry(context).or_default().push_front(found);
    }

    /// Receives a message that was found.
    pub fn receive_found(&mut self, host: &H, mut receive: Receive<H>, found: Found) {
        let (landing, _) = receive.landing(host, &found.source, found.kept.header());
        self.deliver(host, landing, found.kept);
    }

    /// Throws a message away that was found.
    pub fn discard(&mut self, host: &H, found: &Found) {
        self.unkeep(host, &found.kept);
        self.confirm(host, found.kept.connection(), found.kept.header());
    }
}
