//! The receives of an endpoint and the messages that wait for one, tagged and untagged: which receive a message gets, and
//! which message a receive.
//!
//! Receives that several endpoints share are in a [`Pool`](super::Pool). Messages without a receive stay with the endpoint at
//! which they arrived; after each posted receive, the endpoints offer their messages again.

use super::receive::{Landing, Receive, Unexpected};
use super::{Found, Host};
use crate::header::Header;
use crate::limits::DATAGRAMS_MAX;
use crate::matching::{Matching, Pattern};
use core::net::SocketAddr;
use rkey_engine::Sge;

/// The receives and the unexpected messages of one kind.
type Queue<H> = Matching<SocketAddr, Receive<H>, Unexpected>;

/// The receives of an endpoint, and the messages that wait for one.
pub struct Receives<H: Host> {
    messages: Queue<H>,
    tagged: Queue<H>,
    /// How many shared receives had been posted when waiting messages were last offered to them.
    offered_posts: u64,
    /// Whether receives are canceled as soon as no message waits for them.
    shut: bool,
}

impl<H: Host> Default for Receives<H> {
    fn default() -> Self {
        Self {
            messages: Matching::default(),
            tagged: Matching::default(),
            offered_posts: 0,
            shut: false,
        }
    }
}

/// Messages that have matched shared receives.
pub(super) struct Offered<H: Host> {
    /// Messages that had waited.
    pub(super) waiting: Vec<(Landing<H>, Unexpected)>,
    /// The destination of the message that has just arrived.
    pub(super) newcomer: Option<Landing<H>>,
}

impl<H: Host> Receives<H> {
    /// The queue of tagged or of untagged receives and messages.
    #[inline]
    fn queue(&mut self, tagged: bool) -> &mut Queue<H> {
        match tagged {
            true => &mut self.tagged,
            false => &mut self.messages,
        }
    }

    /// The queue of tagged or of untagged receives and messages, for inspection.
    #[must_use]
    pub fn matching(&self, tagged: bool) -> &Matching<SocketAddr, Receive<H>, Unexpected> {
        match tagged {
            true => &self.tagged,
            false => &self.messages,
        }
    }

    /// Whether receives are canceled, because the connection of a connected endpoint has ended.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.shut
    }

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
        let found = self.take_message(tagged, pattern)?;
        host.shared(|pool| pool.forget(1));
        Some(found)
    }

    /// Takes the oldest message that a receive with this pattern matches.
    pub(super) fn take_message(
        &mut self,
        tagged: bool,
        pattern: &Pattern<SocketAddr>,
    ) -> Option<Found> {
        let (source, _, message) = self.queue(tagged).match_message(pattern)?;
        Some(Found { source, message })
    }

    /// Posts a receive if no message waits, and returns it otherwise.
    #[inline]
    pub(super) fn post_unless_waiting(
        &mut self,
        tagged: bool,
        pattern: Pattern<SocketAddr>,
        receive: Receive<H>,
    ) -> Option<Receive<H>> {
        let shut = self.shut;
        let queue = self.queue(tagged);
        if queue.unexpected() == 0 && !shut {
            queue.post(pattern, receive);
            return None;
        }
        Some(receive)
    }

    /// Posts a receive for one message from any sender, without copies of it. Returns false, with nothing posted, if
    /// messages wait or the receive would be canceled: then [`Endpoint::receive`](super::Endpoint::receive) decides.
    #[inline]
    pub fn post_short(
        &mut self,
        tagged: bool,
        (tag, ignore): (u64, u64),
        sge: Sge,
        attached: H::Receive,
    ) -> bool {
        let shut = self.shut;
        let queue = self.queue(tagged);
        if queue.unexpected() > 0 || shut {
            return false;
        }
        let pattern = Pattern {
            source: None,
            tag,
            ignore,
        };
        queue.post(pattern, Receive::of_one(sge, attached));
        true
    }

    /// Posts a receive that no waiting message matches.
    pub(super) fn post(&mut self, tagged: bool, pattern: Pattern<SocketAddr>, receive: Receive<H>) {
        self.queue(tagged).post(pattern, receive);
    }

    /// Where a message that has just arrived is stored, if a receive of the endpoint matches it.
    #[inline]
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

    /// The receive that matches a message of this length, if it is for one message and has room for it, and its index for
    /// [`Self::remove`].
    #[inline]
    pub(super) fn find_for_whole(
        &mut self,
        source: &SocketAddr,
        header: &Header,
        len: usize,
    ) -> Option<(usize, &mut Receive<H>)> {
        let queue = self.queue(header.tagged);
        let found = queue.find_receive(source, header.tag);
        found.filter(|(_, receive)| receive.takes_whole(len))
    }

    /// Drops a receive that was found.
    #[inline]
    pub(super) fn discard(&mut self, tagged: bool, index: usize) {
        self.queue(tagged).drop_receive(index);
    }

    /// Removes a receive that was found.
    #[inline]
    pub(super) fn remove(&mut self, tagged: bool, index: usize) -> Option<Receive<H>> {
        self.queue(tagged).remove_receive(index)
    }

    /// Keeps a message until a receive matches it.
    pub(super) fn keep(&mut self, source: SocketAddr, message: Unexpected) {
        let header = message.header();
        let (tagged, tag) = (header.tagged, header.tag);
        self.queue(tagged).push_unexpected(source, tag, message);
    }

    /// Whether so many messages wait that further datagrams are dropped.
    #[inline]
    pub(super) fn is_full(&self, tagged: bool) -> bool {
        self.matching(tagged).unexpected() >= DATAGRAMS_MAX
    }

    /// How many messages wait for a receive.
    pub(super) fn waiting(&self) -> usize {
        self.messages.unexpected() + self.tagged.unexpected()
    }

    /// Cancels the oldest untagged receive for which `wanted` is true, or else the oldest tagged one, and reports that
    /// to the program. Returns whether there was one.
    pub fn cancel(&mut self, host: &H, wanted: impl Fn(&H::Receive) -> bool) -> bool {
        for tagged in [false, true] {
            let queue = self.queue(tagged);
            if let Some(receive) = queue.cancel(|it| wanted(&it.attached)) {
                receive.cancel(host, tagged);
                return true;
            }
        }
        false
    }

    /// Cancels all receives if the connection has ended.
    pub(super) fn flush_if_shut(&mut self, host: &H) {
        if self.shut {
            while self.cancel(host, |_| true) {}
        }
    }

    /// Cancels all receives, and those that will be posted. Returns whether this is the first time.
    pub(super) fn shut(&mut self, host: &H) -> bool {
        let first = !std::mem::replace(&mut self.shut, true);
        if first {
            self.flush_if_shut(host);
        }
        first
    }

    /// Whether shared receives were posted since waiting messages were last offered to them.
    #[inline]
    pub(super) fn is_offer_due(&self, host: &H) -> bool {
        host.shared_posts()
            .is_some_and(|posts| posts != self.offered_posts)
    }

    /// Offers waiting messages to shared receives if any were posted since the last offer. `newcomer`, a message that
    /// arrived just now, comes last; if no receive matches it, it is counted as unexpected.
    pub(super) fn offer(
        &mut self,
        host: &H,
        newcomer: Option<(&SocketAddr, &Header)>,
    ) -> Offered<H> {
        let mut waiting = Vec::new();
        let landing = host.shared(|pool| {
            let posts = host.shared_posts().unwrap_or_default();
            if std::mem::replace(&mut self.offered_posts, posts) != posts {
                for tagged in [false, true] {
                    let here = self.queue(tagged);
                    waiting.extend(here.offer(|source, _, message| {
                        pool.match_receive(host, source, message.header())
                    }));
                }
                pool.forget(waiting.len());
            }
            let (source, header) = newcomer?;
            let landing = pool.match_receive(host, source, header);
            // Count the newcomer before unlocking the pool: a thread that then posts a receive finds it in this count.
            pool.expect_more(usize::from(landing.is_none()));
            landing
        });
        Offered {
            waiting,
            newcomer: landing.flatten(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Pool;
    use super::super::test_host::TestHost;
    use super::*;
    use crate::header::Kind;
    use crate::matching::Pattern;

    fn source(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn any(tag: u64) -> Pattern<SocketAddr> {
        Pattern {
            source: None,
            tag,
            ignore: 0,
        }
    }

    fn receive(number: u32, room: usize) -> Receive<TestHost> {
        Receive::new(TestHost::sges(room), room, false, number)
    }

    fn message(tag: u64, len: u32) -> Unexpected {
        let header = Header {
            tagged: true,
            tag,
            len,
            ..Header::new(Kind::Message)
        };
        Unexpected::Eager {
            header,
            payload: vec![0; len as usize],
            connection: 0,
        }
    }

    #[test]
    fn a_receive_is_returned_while_messages_wait() {
        let mut all = Receives::<TestHost>::default();
        assert!(
            all.post_unless_waiting(true, any(1), receive(1, 8))
                .is_none()
        );
        all.keep(source(1), message(2, 8));
        assert!(!all.is_full(true) && all.waiting() == 1);
        let back = all.post_unless_waiting(true, any(2), receive(2, 8));
        assert_eq!(back.map(|it| it.attached), Some(2));
        let untagged = all.post_unless_waiting(false, any(2), receive(3, 8));
        assert!(untagged.is_none(), "only a tagged message waits");
        let found = all.take_message(true, &any(2)).unwrap();
        assert_eq!((*found.source(), found.header().tag), (source(1), 2));
        assert_eq!(all.waiting(), 0);
    }

    #[test]
    fn only_a_receive_with_room_takes_a_whole_message() {
        let (mut all, host) = (Receives::<TestHost>::default(), TestHost::default());
        all.post(true, any(1), receive(1, 4));
        let long = message(1, 8);
        assert!(all.find_for_whole(&source(1), long.header(), 8).is_none());
        let landing = all.match_receive(&host, &source(1), long.header());
        assert_eq!(landing.map(|it| it.room), Some(4), "the rest is cut off");
        assert_eq!(all.matching(true).posted(), 0);
    }

    #[test]
    fn receives_are_canceled_once_the_connection_has_ended() {
        let (mut all, host) = (Receives::<TestHost>::default(), TestHost::default());
        all.post(false, any(0), receive(1, 8));
        all.flush_if_shut(&host);
        assert!(host.take().is_empty());
        assert!(all.shut(&host) && !all.shut(&host) && all.is_shut());
        assert_eq!(host.take(), ["canceled 1"]);
        let back = all.post_unless_waiting(false, any(0), receive(2, 8));
        all.post(false, any(0), back.unwrap());
        all.flush_if_shut(&host);
        assert_eq!(host.take(), ["canceled 2"]);
    }

    #[test]
    fn waiting_messages_are_offered_before_the_newcomer_and_once_for_each_receive() {
        let mut all = Receives::<TestHost>::default();
        let host = TestHost::with_pool(Pool::default());
        let post = |number| {
            host.shared_receives_posted.set(u64::from(number));
            host.shared(|pool| pool.post(true, any(1), receive(number, 8)))
        };
        let first = message(1, 8);
        let from = source(1);
        let offered = all.offer(&host, Some((&from, first.header())));
        assert!(offered.newcomer.is_none() && offered.waiting.is_empty());
        all.keep(from, first);
        assert!(!all.is_offer_due(&host));
        assert_eq!(post(1), Some(true), "a message is counted as unexpected");
        assert!(all.is_offer_due(&host));
        let second = message(1, 4);
        let offered = all.offer(&host, Some((&from, second.header())));
        let lens = offered.waiting.iter().map(|(_, it)| it.header().len);
        assert_eq!(lens.collect::<Vec<_>>(), [8]);
        assert!(
            offered.newcomer.is_none(),
            "the older message got the receive"
        );
        all.keep(from, second);
        assert!(!all.is_offer_due(&host) && all.waiting() == 1);
        let found = all.find(&host, true, &any(1)).unwrap();
        assert_eq!(found.header().len, 4);
        assert_eq!(post(2), Some(false), "no message is unexpected any more");
    }
}
