//! Completions of a connected endpoint, in the order of its transfers.
//!
//! A short message is there at once, a long one is read from its sender's memory first, and some transfers wait
//! for an answer of the peer. The queues of hardware do not show that: what began later does not complete
//! earlier. Programs of connected endpoints rely on it (libfabric's `ofi_rxm` cuts messages into segments,
//! and takes the last one for the end).

use super::operation::{Operation, Plain, What};
use super::{Endpoint, Landing, Live, State};
use crate::cq::Entry;
use crate::errno::FiError;
use crate::sys::FI_EP_MSG;
use std::collections::VecDeque;

/// Turns that are taken in order, and results that leave in the order of their turns.
pub(crate) struct InOrder<T> {
    /// The oldest turn that is not over.
    first: u64,
    turns: VecDeque<Turn<T>>,
}

enum Turn<T> {
    Open,
    Over(T),
    /// It led to nothing.
    Empty,
}

impl<T> Default for InOrder<T> {
    fn default() -> Self {
        Self {
            first: 0,
            turns: VecDeque::new(),
        }
    }
}

impl<T> InOrder<T> {
    /// Whether nothing is under way, so that a result needs no turn.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Takes the next turn.
    pub(crate) fn enter(&mut self) -> u64 {
        self.turns.push_back(Turn::Open);
        self.first + self.turns.len() as u64 - 1
    }

    /// A turn is over.
    pub(crate) fn finish(&mut self, turn: u64, result: T) {
        self.set(turn, Turn::Over(result));
    }

    /// A turn led to nothing that anybody would be told.
    pub(crate) fn abandon(&mut self, turn: u64) {
        self.set(turn, Turn::Empty);
    }

    fn set(&mut self, turn: u64, to: Turn<T>) {
        let index = turn.checked_sub(self.first).map(|index| index as usize);
        if let Some(place) = index.and_then(|index| self.turns.get_mut(index)) {
            *place = to;
        }
    }

    /// The next result whose turn it is.
    pub(crate) fn next(&mut self) -> Option<T> {
        loop {
            if matches!(self.turns.front()?, Turn::Open) {
                return None;
            }
            self.first += 1;
            if let Turn::Over(result) = self.turns.pop_front()? {
                return Some(result);
            }
        }
    }
}

/// What a program is told about something that arrived.
pub(crate) enum Arrival {
    /// A message is in its receive, or why not.
    Message(Landing, Option<FiError>),
    /// The completion of a write that came with data.
    Data(Entry),
}

impl Endpoint {
    /// Numbers an operation of the program's, and gives it its place in the order of completions where it needs one.
    /// What it holds is known by then: it may be a plain one.
    #[inline]
    pub(super) fn begin(&self, state: &mut State, mut operation: Operation) -> u64 {
        if self.ep_type == FI_EP_MSG {
            // What waits only for the device completes in order by itself.
            let waits = operation.answered || matches!(operation.what, What::Write { .. });
            if waits || !state.sends.is_empty() {
                operation.turn = Some(state.sends.enter());
            }
        }
        let plain = Plain::like(&operation).and_then(Plain::number);
        plain.unwrap_or_else(|| state.operations.add(operation))
    }

    /// The place of something that arrived in the order of completions: none where it can be told at once.
    #[inline]
    pub(super) fn turn(&self, state: &mut State, takes_time: bool) -> Option<u64> {
        let waits = takes_time || !state.arrivals.is_empty();
        (self.ep_type == FI_EP_MSG && waits).then(|| state.arrivals.enter())
    }

    /// Tells the program what arrived, and what waited for that to be told.
    pub(super) fn in_turn(live: &Live, state: &mut State, turn: Option<u64>, arrival: Arrival) {
        let tell = |arrival| match arrival {
            Arrival::Message(landing, error) => Self::complete(live, landing, error),
            Arrival::Data(entry) => {
                if let Some(rx) = &live.rx {
                    rx.cq.push(entry);
                }
            }
        };
        let Some(turn) = turn else {
            return tell(arrival);
        };
        state.arrivals.finish(turn, arrival);
        while let Some(arrival) = state.arrivals.next() {
            tell(arrival);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_leave_in_the_order_of_their_turns() {
        let mut order = InOrder::default();
        let turns: Vec<u64> = (0..4).map(|_| order.enter()).collect();
        order.finish(turns[2], "third");
        assert_eq!(order.next(), None);
        order.abandon(turns[1]);
        assert_eq!(order.next(), None);
        order.finish(turns[0], "first");
        assert_eq!(order.next(), Some("first"));
        assert_eq!(order.next(), Some("third"));
        assert_eq!(order.next(), None);
        assert!(!order.is_empty());
        let last = order.enter();
        order.finish(last, "fifth");
        order.abandon(turns[3]);
        assert_eq!(order.next(), Some("fifth"));
        assert!(order.is_empty());
        // A turn of before means nothing any more.
        order.finish(turns[0], "again");
        assert_eq!(order.next(), None);
    }
}
