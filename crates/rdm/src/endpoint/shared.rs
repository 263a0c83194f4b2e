//! Receives that several endpoints share. Messages without a receive stay with the endpoint at which they arrived
//! ([`Receives`](super::Receives)).

use super::Host;
use super::receive::{Landing, Receive};
use crate::header::Header;
use crate::matching::{Matching, Pattern};
use core::net::SocketAddr;

/// The shared receives. The host guards them with a lock, which it takes after an endpoint's lock, never before.
pub struct Pool<H: Host> {
    messages: Matching<SocketAddr, Receive<H>, ()>,
    tagged: Matching<SocketAddr, Receive<H>, ()>,
    /// How many messages have no receive, over all endpoints.
    unexpected: usize,
}

impl<H: Host> Default for Pool<H> {
    fn default() -> Self {
        Self {
            messages: Matching::default(),
            tagged: Matching::default(),
            unexpected: 0,
        }
    }
}

impl<H: Host> Pool<H> {
    fn queue(&mut self, tagged: bool) -> &mut Matching<SocketAddr, Receive<H>, ()> {
        match tagged {
            true => &mut self.tagged,
            false => &mut self.messages,
        }
    }

    /// The tagged or the untagged receives, for inspection.
    #[must_use]
    pub fn matching(&self, tagged: bool) -> &Matching<SocketAddr, Receive<H>, ()> {
        match tagged {
            true => &self.tagged,
            false => &self.messages,
        }
    }

    /// Adds a receive; returns whether it may match an unexpected message.
    pub fn post(&mut self, tagged: bool, pattern: Pattern<SocketAddr>, it: Receive<H>) -> bool {
        self.queue(tagged).post(pattern, it);
        self.unexpected > 0
    }

    /// Takes the oldest untagged receive for which `wanted` is true, or else the oldest tagged one; also returns
    /// whether it is tagged.
    pub fn cancel(&mut self, wanted: impl Fn(&H::Receive) -> bool) -> Option<(Receive<H>, bool)> {
        [false, true].into_iter().find_map(|tagged| {
            let receive = self.queue(tagged).cancel(|it| wanted(&it.attached));
            receive.map(|receive| (receive, tagged))
        })
    }

    /// Where a message is stored, if a receive matches it.
    pub(super) fn match_receive(
        &mut self,
        host: &H,
        source: &SocketAddr,
        header: &Header,
    ) -> Option<Landing<H>> {
        let queue = self.queue(header.tagged);
        queue.match_receive(source, header.tag, |receive| {
            receive.landing(host, source, header)
        })
    }

    /// Adds messages to the count of those without a receive.
    pub(super) fn expect_more(&mut self, messages: usize) {
        self.unexpected += messages;
    }

    /// Subtracts messages that are no longer unexpected from the count.
    pub fn forget(&mut self, messages: usize) {
        self.unexpected = self.unexpected.saturating_sub(messages);
    }
}
