//! What waits for room on a connection: answers to the peer, and reads of payloads by rendezvous. A peer that
//! keeps the rules can make only so much wait.

use crate::limits::OPERATIONS_MAX;
use crate::{atomic, header};
use std::collections::VecDeque;

/// Answers that may wait for room on one connection, and their bytes: no peer that keeps the rules needs so many.
const ANSWERS_MAX: usize = 4 * OPERATIONS_MAX;
const ANSWERS_BYTES: usize = ANSWERS_MAX * header::MAX_LEN + OPERATIONS_MAX * atomic::BYTES_MAX;

/// What is posted when there is room.
#[derive(Debug)]
pub enum Later {
    /// A message, and the operation that is told of its completion.
    Message(Vec<u8>, u64),
    /// The read of a payload, by its operation.
    Read(u64),
}

impl Later {
    /// Bytes that it keeps.
    fn len(&self) -> usize {
        match self {
            Self::Message(bytes, _) => bytes.len(),
            Self::Read(_) => 0,
        }
    }

    /// The operation that it is of.
    #[must_use]
    pub fn operation(&self) -> u64 {
        let (Self::Message(_, id) | Self::Read(id)) = self;
        *id
    }
}

/// What waits for room on a connection, the oldest first.
#[derive(Debug, Default)]
pub struct Backlog {
    list: VecDeque<Later>,
    bytes: usize,
}

impl Backlog {
    /// Adds something behind what waits.
    pub fn push_back(&mut self, later: Later) {
        self.bytes += later.len();
        self.list.push_back(later);
    }

    /// Takes the oldest.
    pub fn pop_front(&mut self) -> Option<Later> {
        let later = self.list.pop_front()?;
        self.bytes -= later.len();
        Some(later)
    }

    /// Whether nothing waits.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All that waits, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Later> {
        self.list.iter()
    }

    /// Whether it is more than a peer that keeps the rules can make wait.
    #[must_use]
    pub fn is_too_much(&self) -> bool {
        self.list.len() > ANSWERS_MAX || self.bytes > ANSWERS_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::UNTRACKED;

    #[test]
    fn answers_that_wait_are_bounded_in_number_and_in_bytes() {
        for (len, most) in [
            (header::LEN, ANSWERS_MAX),
            (header::LEN + atomic::BYTES_MAX, OPERATIONS_MAX),
        ] {
            let mut backlog = Backlog::default();
            let mut count = 0;
            while !backlog.is_too_much() {
                backlog.push_back(Later::Message(vec![0; len], UNTRACKED));
                count += 1;
            }
            assert!(count > most && count < 2 * most, "{count} of {len} B");
            assert!(backlog.bytes < 2 * ANSWERS_BYTES);
            while backlog.pop_front().is_some() {}
            assert!(backlog.is_empty() && backlog.bytes == 0);
        }
    }
}
