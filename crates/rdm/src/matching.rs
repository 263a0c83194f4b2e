//! Matching: posted receives and unexpected messages, each in the order of arrival. This file
//! touches no memory.

use std::collections::VecDeque;

/// What a receive accepts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pattern<P> {
    /// The sender; `None` accepts any.
    pub source: Option<P>,
    /// The tag.
    pub tag: u64,
    /// Bits of the tag that matching ignores.
    pub ignore: u64,
}

impl<P: PartialEq> Pattern<P> {
    /// Whether the pattern accepts a message from this sender with this tag.
    #[inline]
    pub fn accepts(&self, source: &P, tag: u64) -> bool {
        (self.tag ^ tag) & !self.ignore == 0
            && self.source.as_ref().is_none_or(|from| from == source)
    }
}

/// Posted receives and unexpected messages of one kind (tagged or not).
pub struct Matching<P, R, M> {
    posted: VecDeque<(Pattern<P>, R)>,
    unexpected: VecDeque<(P, u64, M)>,
}

impl<P, R, M> Default for Matching<P, R, M> {
    fn default() -> Self {
        Self {
            posted: VecDeque::new(),
            unexpected: VecDeque::new(),
        }
    }
}

impl<P: PartialEq, R, M> Matching<P, R, M> {
    /// Calls `take` with the oldest receive that accepts a message, and returns its result. The receive leaves the
    /// queue unless `take` also returns [`AfterMatch::Keep`].
    #[inline]
    pub fn match_receive<T>(
        &mut self,
        source: &P,
        tag: u64,
        take: impl FnOnce(&mut R) -> (T, AfterMatch),
    ) -> Option<T> {
        let index = self
            .posted
            .iter()
            .position(|(pattern, _)| pattern.accepts(source, tag))?;
        let (_, receive) = self.posted.get_mut(index)?;
        let (result, then) = take(receive);
        match (then, index) {
            (AfterMatch::Keep, _) => {}
            // Usually it is the first one, and no other receive has to move.
            (AfterMatch::Remove, 0) => drop(self.posted.pop_front()),
            (AfterMatch::Remove, _) => drop(self.posted.remove(index)),
        }
        Some(result)
    }

    /// The oldest receive that accepts a message, and its index for [`Self::remove_receive`]. The receive stays where it is:
    /// moving it costs as much as matching it.
    #[inline]
    pub fn find_receive(&mut self, source: &P, tag: u64) -> Option<(usize, &mut R)> {
        let accepts = |(pattern, _): &(Pattern<P>, R)| pattern.accepts(source, tag);
        // Usually the first receive matches.
        let index = match self.posted.front().is_some_and(accepts) {
            true => 0,
            false => self.posted.iter().position(accepts)?,
        };
        let (_, receive) = self.posted.get_mut(index)?;
        Some((index, receive))
    }

    /// Drops the receive with this index.
    #[inline]
    pub fn drop_receive(&mut self, index: usize) {
        match index {
            0 => drop(self.posted.pop_front()),
            _ => drop(self.posted.remove(index)),
        }
    }

    /// Removes the receive with this index from the queue.
    #[inline]
    pub fn remove_receive(&mut self, index: usize) -> Option<R> {
        let (_, receive) = match index {
            0 => self.posted.pop_front(),
            _ => self.posted.remove(index),
        }?;
        Some(receive)
    }

    /// Keeps a message until a receive accepts it.
    pub fn push_unexpected(&mut self, source: P, tag: u64, message: M) {
        self.unexpected.push_back((source, tag, message));
    }

    /// Offers the unexpected messages, oldest first, to receives outside this queue. Messages for
    /// which `take` returns a value leave the queue.
    pub fn offer<T>(&mut self, mut take: impl FnMut(&P, u64, &M) -> Option<T>) -> Vec<(T, M)> {
        let mut taken = Vec::new();
        for (source, tag, message) in std::mem::take(&mut self.unexpected) {
            match take(&source, tag, &message) {
                Some(answer) => taken.push((answer, message)),
                None => self.unexpected.push_back((source, tag, message)),
            }
        }
        taken
    }

    /// Takes the oldest unexpected message that `pattern` accepts; returns its sender, its tag, and the message.
    pub fn match_message(&mut self, pattern: &Pattern<P>) -> Option<(P, u64, M)> {
        if self.unexpected.is_empty() {
            return None;
        }
        let index = self.position(pattern)?;
        self.unexpected.remove(index)
    }

    /// Finds the message that [`Self::match_message`] would take.
    pub fn peek(&self, pattern: &Pattern<P>) -> Option<&(P, u64, M)> {
        self.unexpected.get(self.position(pattern)?)
    }

    fn position(&self, pattern: &Pattern<P>) -> Option<usize> {
        self.unexpected
            .iter()
            .position(|(source, tag, _)| pattern.accepts(source, *tag))
    }

    /// Appends a receive.
    #[inline]
    pub fn post(&mut self, pattern: Pattern<P>, receive: R) {
        self.posted.push_back((pattern, receive));
    }

    /// Takes the oldest receive for which `wanted` is true.
    pub fn cancel(&mut self, wanted: impl Fn(&R) -> bool) -> Option<R> {
        let index = self
            .posted
            .iter()
            .position(|(_, receive)| wanted(receive))?;
        self.posted.remove(index).map(|(_, receive)| receive)
    }

    /// How many receives are posted.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// How many unexpected messages are kept.
    #[inline]
    #[must_use]
    pub fn unexpected(&self) -> usize {
        self.unexpected.len()
    }

    /// The senders that posted receives name, once for each receive.
    pub fn wanted(&self) -> impl Iterator<Item = &P> {
        self.posted
            .iter()
            .filter_map(|(pattern, _)| pattern.source.as_ref())
    }

    /// The tags of the posted receives, oldest first, each with its ignore mask.
    pub fn wanted_tags(&self) -> impl Iterator<Item = (u64, u64)> {
        self.posted
            .iter()
            .map(|(pattern, _)| (pattern.tag, pattern.ignore))
    }

    /// The tags of the unexpected messages, oldest first.
    pub fn unexpected_tags(&self) -> impl Iterator<Item = u64> {
        self.unexpected.iter().map(|(_, tag, _)| *tag)
    }

    /// The senders of the unexpected messages, once for each message.
    pub fn sources(&self) -> impl Iterator<Item = &P> {
        self.unexpected.iter().map(|(source, _, _)| source)
    }
}

/// What happens to a receive after a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterMatch {
    /// The receive is complete and leaves the queue.
    Remove,
    /// The receive stays for the next message.
    Keep,
}

#[cfg(test)]
mod tests {
    use super::*;

    type Queue = Matching<u32, &'static str, &'static str>;

    fn tag(tag: u64) -> Pattern<u32> {
        Pattern {
            source: None,
            tag,
            ignore: 0,
        }
    }

    #[test]
    fn receives_match_in_posting_order() {
        let mut queue = Queue::default();
        queue.post(tag(1), "first");
        queue.post(tag(1), "second");
        queue.post(
            Pattern {
                ignore: u64::MAX,
                ..tag(0)
            },
            "any",
        );
        let take =
            |queue: &mut Queue, tag| queue.match_receive(&9, tag, |r| (*r, AfterMatch::Remove));
        assert_eq!(take(&mut queue, 1), Some("first"));
        assert_eq!(take(&mut queue, 7), Some("any"));
        assert_eq!(take(&mut queue, 7), None);
        assert_eq!(take(&mut queue, 1), Some("second"));
        assert_eq!(queue.posted(), 0);
    }

    #[test]
    fn only_the_oldest_matching_receive_is_found() {
        let mut queue = Queue::default();
        for (number, name) in [(1, "first"), (2, "second"), (2, "third")] {
            queue.post(tag(number), name);
        }
        let find = |queue: &mut Queue, tag| queue.find_receive(&9, tag).map(|(at, it)| (at, *it));
        assert_eq!(find(&mut queue, 3), None);
        assert_eq!(find(&mut queue, 2), Some((1, "second")));
        assert_eq!(queue.posted(), 3, "finding removes nothing");
        assert_eq!(queue.remove_receive(1), Some("second"));
        assert_eq!(find(&mut queue, 1), Some((0, "first")));
        assert_eq!(find(&mut queue, 2), Some((1, "third")));
        assert_eq!(queue.remove_receive(0), Some("first"));
        assert_eq!(queue.remove_receive(1), None);
        assert_eq!(queue.remove_receive(0), Some("third"));
        assert_eq!(queue.posted(), 0);
    }

    #[test]
    fn messages_match_in_order_of_arrival() {
        let mut queue = Queue::default();
        queue.push_unexpected(1, 5, "a");
        queue.push_unexpected(2, 5, "b");
        queue.push_unexpected(1, 6, "c");
        assert_eq!(queue.peek(&tag(6)).map(|m| m.2), Some("c"));
        let from_two = Pattern {
            source: Some(2),
            ..tag(5)
        };
        assert_eq!(queue.match_message(&from_two).map(|m| m.2), Some("b"));
        assert_eq!(queue.match_message(&tag(5)).map(|m| m.2), Some("a"));
        assert_eq!(queue.match_message(&tag(5)).map(|m| m.2), None);
        assert_eq!(queue.unexpected(), 1);
    }

    #[test]
    fn a_receive_that_stays_posted_after_a_match_can_be_canceled() {
        let mut queue = Queue::default();
        queue.post(tag(0), "long");
        assert_eq!(
            queue.match_receive(&1, 0, |r| (*r, AfterMatch::Keep)),
            Some("long")
        );
        assert_eq!(queue.cancel(|r| *r == "other"), None);
        assert_eq!(queue.cancel(|r| *r == "long"), Some("long"));
        assert_eq!(queue.match_receive(&1, 0, |r| (*r, AfterMatch::Keep)), None);
    }
}
