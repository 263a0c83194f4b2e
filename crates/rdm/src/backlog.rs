//! Requests that wait for room on a connection: answers to the peer, and reads of rendezvous payloads. A peer that
//! follows the protocol can make only a limited number of them wait.

use crate::limits::OPERATIONS_MAX;
use crate::{atomic, header};
use std::collections::VecDeque;

/// How many requests may wait for room on one connection: more than any peer that follows the protocol needs.
const ANSWERS_MAX: usize = 4 * OPERATIONS_MAX;
/// How many bytes these requests may have in total: more than any peer that follows the protocol needs.
const ANSWERS_BYTES: usize = ANSWERS_MAX * header::MAX_LEN + OPERATIONS_MAX * atomic::BYTES_MAX;

/// A request to post when the connection has room.
#[derive(Debug)]
pub enum Later {
    /// A message, and the operation that its completion belongs to.
    Message(Vec<u8>, u64),
    /// The read of a payload for this operation.
    Read(u64),
}

impl Later {
    /// How many bytes the request keeps.
    fn len(&self) -> usize {
        match self {
            Self::Message(bytes, _) => bytes.len(),
            Self::Read(_) => 0,
        }
    }

    /// The operation that the request belongs to.
    #[must_use]
    pub fn operation(&self) -> u64 {
        let (Self::Message(_, id) | Self::Read(id)) = self;
        *id
    }
}

/// The requests that wait for room on a connection, oldest first.
#[derive(Debug, Default)]
pub struct Backlog {
    list: VecDeque<Later>,
    bytes: usize,
}

impl Backlog {
    /// Appends a request.
    pub fn push_back(&mut self, later: Later) {
        self.bytes += later.len();
        self.list.push_back(later);
    }

    /// Takes the oldest request.
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

    /// All waiting requests, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Later> {
        self.list.iter()
    }

    /// Whether the backlog holds more than a peer that follows the protocol can cause.
    #[must_use]
    pub fn is_too_much(&self) -> bool {
        self.list.len() > ANSWERS_MAX || self.bytes > ANSWERS_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation_id::UNTRACKED;

    #[test]
    fn waiting_answers_are_bounded_in_number_and_in_bytes() {
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
