//! Events that the program has not fetched, in the order in which they happened.

use super::Event;
use crate::connection::ConnectionId;
use std::collections::{BTreeMap, BTreeSet};

/// The queue. Dropping the events of one connection does not search those of others, so no peer can make it slow.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: BTreeMap<u64, Event>,
    by_connection: BTreeSet<(ConnectionId, u64)>,
    next: u64,
}

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        self.next += 1;
        self.by_connection.insert((event.connection(), self.next));
        self.queue.insert(self.next, event);
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        let (number, event) = self.queue.pop_first()?;
        self.by_connection.remove(&(event.connection(), number));
        Some(event)
    }

    /// Drops the events of a connection; returns whether there were any.
    pub(super) fn drop_those_of(&mut self, id: ConnectionId) -> bool {
        let of = self.by_connection.range((id, 0)..=(id, u64::MAX));
        let numbers: Vec<u64> = of.map(|(_, number)| *number).collect();
        for number in &numbers {
            self.queue.remove(number);
            self.by_connection.remove(&(id, *number));
        }
        !numbers.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }
}
