//! Messages that could not be sent yet, by the name that they go to.
//!
//! All messages to a name wait for the same receiver, so one attempt answers for all of them. The longer the receiver takes
//! nothing, the rarer the attempts.

use std::collections::{BTreeMap, VecDeque};

use rkey_cm::ConnectionId;
use rkey_cm::time::Nanos;

use super::carrier::{Letter, Name};

/// The maximum number of messages that wait. The senders repeat dropped ones.
const MAX: usize = 4096;
/// The pause before the first new attempt, and the longest one.
const PAUSES: [Nanos; 2] = [2_000_000, 50_000_000];

#[derive(Debug, Default)]
struct Queue {
    letters: VecDeque<Letter>,
    pause: Nanos,
}

/// The messages that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queues: BTreeMap<Name, Queue>,
    count: usize,
}

impl Waiting {
    /// Whether messages wait for a name.
    pub(super) fn has(&self, name: Name) -> bool {
        self.queues.contains_key(&name)
    }

    /// Whether the request of a connection waits for a name.
    pub(super) fn has_request(&self, name: Name, id: ConnectionId) -> bool {
        let queue = self.queues.get(&name);
        queue.is_some_and(|queue| {
            let of = |letter: &Letter| letter.message.of.map(|(id, _)| id);
            queue
                .letters
                .iter()
                .any(|it| it.is_request && of(it) == Some(id))
        })
    }

    /// Whether one more may wait.
    pub(super) fn has_room(&self) -> bool {
        self.count < MAX
    }

    /// Adds a message, or drops it if there is no room.
    pub(super) fn push(&mut self, name: Name, letter: Letter) {
        if self.has_room() {
            self.count += 1;
            let queue = self.queues.entry(name).or_default();
            queue.letters.push_back(letter);
        }
    }

    /// Takes out all messages for a name. The caller puts back those that still wait, and calls [`Waiting::again`].
    pub(super) fn take(&mut self, name: Name) -> VecDeque<Letter> {
        let queue = self.queues.get_mut(&name);
        let letters = queue.map(|queue| std::mem::take(&mut queue.letters));
        let letters = letters.unwrap_or_default();
        self.count -= letters.len();
        letters
    }

    /// When to try for the first time, if a message has begun to wait for a name.
    pub(super) fn begin(&mut self, now: Nanos, name: Name) -> Option<Nanos> {
        let queue = self.queues.get_mut(&name)?;
        queue.pause = PAUSES[0];
        Some(now + queue.pause)
    }

    /// When to try again after an attempt before which `before` messages waited. `None`: none waits any more.
    pub(super) fn again(&mut self, now: Nanos, name: Name, before: usize) -> Option<Nanos> {
        let queue = self.queues.get_mut(&name)?;
        if queue.letters.is_empty() {
            self.queues.remove(&name);
            return None;
        }
        let [shortest, longest] = PAUSES;
        queue.pause = match queue.letters.len() < before {
            true => shortest,
            false => (2 * queue.pause).min(longest),
        };
        // Not later than the end of its patience.
        let ends = queue.letters.iter().map(|letter| letter.until).min();
        let at = now + queue.pause;
        Some(ends.map_or(at, |end| at.min(end.max(now + shortest))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rkey_cm::manager::Transmit;
    use rkey_cm::wire::MAD;
    use std::net::Ipv4Addr;

    const NAME: Name = Name::Block(7);

    fn letter(until: Nanos) -> Letter {
        let here = Ipv4Addr::LOCALHOST.into();
        let message = Transmit {
            from: here,
            to: here,
            mad: [0; MAD],
            of: None,
        };
        Letter {
            message,
            is_request: true,
            until,
        }
    }

    #[test]
    fn attempts_become_rarer_and_end_with_the_message() {
        let mut waiting = Waiting::default();
        waiting.push(NAME, letter(500_000_000));
        let mut at = waiting.begin(0, NAME).unwrap();
        let mut attempts = Vec::new();
        while at < 500_000_000 {
            attempts.push(at / 1_000_000);
            let letters = waiting.take(NAME);
            letters.into_iter().for_each(|it| waiting.push(NAME, it));
            at = waiting.again(at, NAME, 1).unwrap();
        }
        assert_eq!(attempts[..7], [2, 6, 14, 30, 62, 112, 162]);
        assert_eq!(at, 500_000_000);
        assert!(waiting.has(NAME));
        waiting.take(NAME);
        assert_eq!(waiting.again(at, NAME, 1), None);
        assert!(!waiting.has(NAME));
    }

    #[test]
    fn a_receiver_that_takes_messages_is_tried_often() {
        let mut waiting = Waiting::default();
        for _ in 0..3 {
            waiting.push(NAME, letter(Nanos::MAX));
        }
        waiting.begin(0, NAME);
        assert_eq!(waiting.again(0, NAME, 3), Some(4_000_000));
        assert_eq!(waiting.again(0, NAME, 4), Some(2_000_000));
    }

    #[test]
    fn the_number_of_messages_is_limited() {
        let mut waiting = Waiting::default();
        for number in 0..MAX + 10 {
            assert_eq!(waiting.has_room(), number < MAX);
            waiting.push(NAME, letter(1));
        }
        assert_eq!(waiting.take(NAME).len(), MAX);
        assert!(waiting.has_room());
    }
}
