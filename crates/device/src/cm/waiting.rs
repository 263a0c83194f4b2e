//! Messages that could not be sent yet, by destination name.
//!
//! All messages to a name wait for the same receiver, so one attempt answers for all of them. Attempts become rarer while
//! the receiver accepts nothing.

use std::collections::{BTreeMap, VecDeque};

use rkey_cm::ConnectionId;
use rkey_cm::time::Nanos;

use super::carrier::{Name, PendingMessage};

/// The maximum number of queued messages. Senders retransmit those that are dropped.
const MAX: usize = 4096;
/// The pause before the first retry, and the longest pause, in nanoseconds.
const PAUSES: [Nanos; 2] = [2_000_000, 50_000_000];

#[derive(Debug, Default)]
struct MessageQueue {
    messages: VecDeque<PendingMessage>,
    pause: Nanos,
}

/// The queued messages.
#[derive(Debug, Default)]
pub(super) struct MessageQueues {
    queues: BTreeMap<Name, MessageQueue>,
    count: usize,
}

impl MessageQueues {
    /// Whether messages are queued for a name.
    pub(super) fn has(&self, name: Name) -> bool {
        self.queues.contains_key(&name)
    }

    /// Whether a connection's request is queued for a name.
    pub(super) fn has_request(&self, name: Name, id: ConnectionId) -> bool {
        let queue = self.queues.get(&name);
        queue.is_some_and(|queue| {
            let of = |pending: &PendingMessage| pending.message.of.map(|(id, _)| id);
            queue
                .messages
                .iter()
                .any(|it| it.is_request && of(it) == Some(id))
        })
    }

    /// Whether another message can be queued.
    pub(super) fn has_room(&self) -> bool {
        self.count < MAX
    }

    /// Queues a message, or drops it if there is no room.
    pub(super) fn push(&mut self, name: Name, pending: PendingMessage) {
        if self.has_room() {
            self.count += 1;
            let queue = self.queues.entry(name).or_default();
            queue.messages.push_back(pending);
        }
    }

    /// Removes all messages queued for a name. The caller pushes back those that must wait longer, and calls
    /// [`MessageQueues::again`].
    pub(super) fn take(&mut self, name: Name) -> VecDeque<PendingMessage> {
        let queue = self.queues.get_mut(&name);
        let messages = queue.map(|queue| std::mem::take(&mut queue.messages));
        let messages = messages.unwrap_or_default();
        self.count -= messages.len();
        messages
    }

    /// The time of the first retry for a name, if messages are queued for it.
    pub(super) fn begin(&mut self, now: Nanos, name: Name) -> Option<Nanos> {
        let queue = self.queues.get_mut(&name)?;
        queue.pause = PAUSES[0];
        Some(now + queue.pause)
    }

    /// The time of the next retry, after an attempt before which `before` messages were queued. `None` if none are left.
    pub(super) fn again(&mut self, now: Nanos, name: Name, before: usize) -> Option<Nanos> {
        let queue = self.queues.get_mut(&name)?;
        if queue.messages.is_empty() {
            self.queues.remove(&name);
            return None;
        }
        let [shortest, longest] = PAUSES;
        queue.pause = match queue.messages.len() < before {
            true => shortest,
            false => (2 * queue.pause).min(longest),
        };
        // Not later than the earliest deadline.
        let ends = queue.messages.iter().map(|pending| pending.until).min();
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

    fn pending(until: Nanos) -> PendingMessage {
        let here = Ipv4Addr::LOCALHOST.into();
        let message = Transmit {
            from: here,
            to: here,
            mad: [0; MAD],
            of: None,
            is_parting: false,
        };
        PendingMessage {
            message,
            is_request: true,
            until,
        }
    }

    #[test]
    fn retries_become_rarer_and_end_at_the_deadline_of_the_message() {
        let mut waiting = MessageQueues::default();
        waiting.push(NAME, pending(500_000_000));
        let mut at = waiting.begin(0, NAME).unwrap();
        let mut attempts = Vec::new();
        while at < 500_000_000 {
            attempts.push(at / 1_000_000);
            let messages = waiting.take(NAME);
            messages.into_iter().for_each(|it| waiting.push(NAME, it));
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
    fn a_receiver_that_makes_progress_is_retried_often() {
        let mut waiting = MessageQueues::default();
        for _ in 0..3 {
            waiting.push(NAME, pending(Nanos::MAX));
        }
        waiting.begin(0, NAME);
        assert_eq!(waiting.again(0, NAME, 3), Some(4_000_000));
        assert_eq!(waiting.again(0, NAME, 4), Some(2_000_000));
    }

    #[test]
    fn the_number_of_waiting_messages_is_limited() {
        let mut waiting = MessageQueues::default();
        for number in 0..MAX + 10 {
            assert_eq!(waiting.has_room(), number < MAX);
            waiting.push(NAME, pending(1));
        }
        assert_eq!(waiting.take(NAME).len(), MAX);
        assert!(waiting.has_room());
    }
}
