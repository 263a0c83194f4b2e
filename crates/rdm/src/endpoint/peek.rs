//! Peeking at messages: the program may find one without receiving it, claim it for a later
//! receive, or discard it.

use super::receive::Unexpected;
use crate::header::Header;
use core::net::SocketAddr;
use std::collections::{HashMap, VecDeque};

/// A message that has been taken out of its queue. It must be claimed, received or discarded.
#[must_use]
pub struct Found {
    pub(super) source: SocketAddr,
    pub(super) message: Unexpected,
}

impl Found {
    /// The sender of the message.
    #[must_use]
    pub fn source(&self) -> &SocketAddr {
        &self.source
    }

    /// The header of the message.
    #[must_use]
    pub fn header(&self) -> &Header {
        self.message.header()
    }
}

/// Messages that the program has claimed, by the context of the claim, oldest first.
#[derive(Default)]
pub struct Claims {
    by_context: HashMap<usize, VecDeque<Found>>,
}

impl Claims {
    /// Claims a message for a receive with this context.
    pub fn add(&mut self, context: usize, found: Found) {
        self.by_context.entry(context).or_default().push_back(found);
    }

    /// Takes the first message that was claimed with a context.
    pub fn take(&mut self, context: usize) -> Option<Found> {
        let claimed = self.by_context.get_mut(&context)?;
        let first = claimed.pop_front();
        if claimed.is_empty() {
            self.by_context.remove(&context);
        }
        first
    }

    /// Puts back a claimed message that cannot be received now.
    pub fn put_back(&mut self, context: usize, found: Found) {
        self.by_context
            .entry(context)
            .or_default()
            .push_front(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::Kind;

    fn found(tag: u64) -> Found {
        let header = Header {
            tag,
            ..Header::new(Kind::Message)
        };
        Found {
            source: SocketAddr::from(([127, 0, 0, 1], 1)),
            message: Unexpected::Eager {
                header,
                payload: Vec::new(),
                connection: 0,
            },
        }
    }

    #[test]
    fn claimed_messages_are_taken_in_order_by_their_context() {
        let mut claims = Claims::default();
        for (context, tag) in [(1, 10), (2, 20), (1, 11)] {
            claims.add(context, found(tag));
        }
        let take = |claims: &mut Claims, context| claims.take(context).map(|it| it.header().tag);
        assert_eq!(take(&mut claims, 3), None);
        assert_eq!(take(&mut claims, 1), Some(10));
        claims.put_back(1, found(10));
        assert_eq!(take(&mut claims, 1), Some(10), "it is still the first");
        assert_eq!(take(&mut claims, 1), Some(11));
        assert_eq!(take(&mut claims, 1), None);
        assert_eq!(claims.by_context.len(), 1, "an empty list is kept");
    }
}
