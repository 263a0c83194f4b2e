//! Results in the order in which their transfers began: the completions of a connected endpoint.
//!
//! A short message is complete at once, a long one must first be read from its sender's memory, and some transfers wait
//! for the peer's answer. With hardware queues, no operation completes before an earlier one. Programs with connected
//! endpoints rely on that (libfabric's `ofi_rxm` splits messages into segments, and takes the last segment as the end
//! of the message).

use std::collections::VecDeque;

/// Turns, which are assigned in order, and results, which leave in the order of their turns.
pub struct InOrder<T> {
    /// The number of the oldest turn in `turns`.
    first: u64,
    turns: VecDeque<Turn<T>>,
}

enum Turn<T> {
    Open,
    Over(T),
    /// The turn ended without a result.
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
    /// Whether there are no turns, so that a result can be reported without one.
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

    /// Ends a turn with a result.
    pub fn finish(&mut self, turn: u64, result: T) {
        self.set(turn, Turn::Over(result));
    }

    /// Ends a turn without a result.
    pub fn abandon(&mut self, turn: u64) {
        self.set(turn, Turn::Empty);
    }

    fn set(&mut self, turn: u64, to: Turn<T>) {
        let index = turn.checked_sub(self.first).map(|index| index as usize);
        if let Some(place) = index.and_then(|index| self.turns.get_mut(index)) {
            *place = to;
        }
    }

    /// Takes the next result in order; `None` while its turn is open, or if there is none.
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
    fn results_are_returned_in_turn_order() {
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
        // Ignores a turn that has already ended.
        order.finish(turns[0], "again");
        assert_eq!(order.pop(), None);
    }
}
