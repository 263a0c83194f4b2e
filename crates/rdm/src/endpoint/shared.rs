//! Receives that several endpoints share. Messages without a receive stay with the endpoint at which they arrived;
//! after each posted receive, the endpoints offer their messages again.

use super::receive::{Landing, Receive};
use super::{Endpoint, Host};
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

    /// Subtracts messages that are no longer unexpected from the count.
    pub fn forget(&mut self, messages: usize) {
        self.unexpected = self.unexpected.saturating_sub(messages);
    }
}

impl<H: Host> Endpoint<H> {
    /// Offers waiting messages to receives if any were posted since the last offer. `newcomer`, a message that arrived
    /// just now, comes last; returns its destination if a receive matches.
    fn offer_with(
        &mut self,
        host: &H,
        newcomer: Option<(&SocketAddr, &Header)>,
    ) -> Option<Landing<H>> {
        let mut matched = Vec::new();
        let landing = host.shared(|pool| {
            let posts = host.shared_posts().unwrap_or_default();
            if std::mem::replace(&mut self.offered_posts, posts) != posts {
                for tagged in [false, true] {
                    let there = pool.queue(tagged);
                    let kept = self.queue(tagged);
                    matched.extend(kept.offer(|source, tag, message| {
                        there.match_receive(source, tag, |receive| {
                            receive.landing(host, source, message.header())
                        })
                    }));
                }
                pool.forget(matched.len());
            }
            let landing = newcomer.and_then(|(source, header)| {
                let queue = pool.queue(header.tagged);
                queue.match_receive(source, header.tag, |receive| {
                    receive.landing(host, source, header)
                })
            });
            // Count the newcomer before unlocking the pool: a thread that then posts a receive finds it in this count.
            pool.unexpected += usize::from(newcomer.is_some() && landing.is_none());
            landing
        });
        for (landing, message) in matched {
            self.deliver(host, landing, message);
        }
        landing.flatten()
    }

    /// The shared receive for a message that arrived just now; if there is none, the message is counted as unexpected.
    pub(super) fn match_shared_receive(
        &mut self,
        host: &H,
        source: &SocketAddr,
        header: &Header,
    ) -> Option<Landing<H>> {
        self.offer_with(host, Some((source, header)))
    }

    /// Offers waiting messages to shared receives, if any were posted since the last offer.
    #[inline]
    pub fn offer_to_shared_receives(&mut self, host: &H) {
        if host
            .shared_posts()
            .is_some_and(|posts| posts != self.offered_posts)
        {
            self.offer_with(host, None);
        }
    }
}
