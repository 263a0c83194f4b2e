//! Results in the order in which their transfers began: the completions of a connected endpoint.
//!
//! A short message is there at once, a long one is read from its sender's memory first, and some transfers wait
//! for an answer of the peer. The queues of hardware do not show that: what began later does not complete
//! earlier. Programs of connected endpoints rely on it (libfabric's `ofi_rxm` cuts messages into segments,
//! and takes the last one for the end).

use std::collections::VecDeque;

/// Turns that are taken in order, and results that leave in the order of their turns.
pub struct InOrder<T> {
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
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Takes the next turn.
    pub fn enter(&mut self) -> u64 {
        self.turns.push_back(Turn::Open);
        self.first + self.turns.len() as u64 - 1
    }

    /// A turn is over.
    pub fn finish(&mut self, turn: u64, result: T) {
        self.set(turn, Turn::Over(result));
    }

    /// A turn led to nothing that the program is told.
    pub fn abandon(&mut self, turn: u64) {
        self.set(turn, Turn::Empty);
    }

    fn set(&mut self, turn: u64, to: Turn<T>) {
        let index = turn.checked_sub(self.first).map(|index| index as usize);
        if let Some(place) = index.and_then(|index| self.turns.get_mut(index)) {
            *place = to;
        }
    }

    /// The next result whose turn it is; nothing while that one is under way.
    pub fn pop(&mut self) -> Option<T> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_leave_in_the_order_of_their_turns() {
        let mut order = InOrder::default();
        let turns: Vec<u64> = (0..4).map(|_| order.enter()).collect();
        order.finish(turns[2], "third");
        assert_eq!(order.pop(), None);
        order.abandon(turns[1]);
        assert_eq!(order.pop(), None);
        order.finish(turns[0], "first");
        assert_eq!(order.pop(), Some("first"));
        assert_eq!(order.pop(), Some("third"));
        assert_eq!(order.pop(), None);
        assert!(!order.is_empty());
        let last = order.enter();
        order.finish(last, "fifth");
        order.abandon(turns[3]);
        assert_eq!(order.pop(), Some("fifth"));
        assert!(order.is_empty());
        // A turn of before means nothing any more.
        order.finish(turns[0], "again");
        assert_eq!(order.pop(), None);
    }
}
