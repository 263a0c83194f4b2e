//! Credit: how much memory one peer may use here with messages that the program has not received.
//!
//! A sender has credit for a number of messages and bytes with each peer, and gets it back as the peer's program takes
//! them. Messages beyond that stay at the sender until a receive matches (rendezvous), so every receive gets its
//! message, however many others are queued before it. A peer that exceeds its credit violates the protocol.

use crate::limits::EAGER_MAX;

/// How many messages of one peer the receiver keeps.
pub const MESSAGES: u32 = 4096;
/// The maximum total size of the messages of one peer that the receiver keeps, in bytes.
pub const BYTES: u32 = 4 << 20;

/// How much we may send to a peer.
#[derive(Clone, Copy, Debug)]
pub struct Credit {
    messages: u32,
    bytes: u32,
}

impl Default for Credit {
    fn default() -> Self {
        Self {
            messages: MESSAGES,
            bytes: BYTES,
        }
    }
}

impl Credit {
    /// Spends the credit for a message of this length; returns `false` if there is not enough.
    #[inline]
    pub fn spend(&mut self, len: u32) -> bool {
        if self.messages == 0 || self.bytes < len {
            return false;
        }
        self.messages -= 1;
        self.bytes -= len;
        true
    }

    /// Whether there is enough for a message of this length.
    #[inline]
    #[must_use]
    pub fn has(mut self, len: u32) -> bool {
        self.spend(len)
    }

    /// The remaining messages and bytes.
    #[must_use]
    pub fn left(self) -> (u32, u32) {
        (self.messages, self.bytes)
    }

    /// Whether the credit may be insufficient for the next message.
    #[must_use]
    pub fn is_used_up(self) -> bool {
        !self.has(EAGER_MAX as u32)
    }

    /// Adds credit that the peer returned, up to the maximum.
    pub fn add(&mut self, messages: u32, bytes: u32) {
        self.messages = self.messages.saturating_add(messages).min(MESSAGES);
        self.bytes = self.bytes.saturating_add(bytes).min(BYTES);
    }
}

/// A peer's use of its credit here.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreditUse {
    /// Messages and bytes that the program has not taken.
    held: (u32, u32),
    /// Messages and bytes that the program has taken, but whose credit has not been returned.
    returnable: (u32, u32),
}

impl CreditUse {
    /// Whether the peer has credit for a message of this length.
    #[inline]
    #[must_use]
    pub fn has_room(&self, len: u32) -> bool {
        let messages = self.held.0 + 1 + self.returnable.0;
        let bytes = self.held.1.saturating_add(len);
        messages <= MESSAGES && bytes.saturating_add(self.returnable.1) <= BYTES
    }

    /// Charges a message that arrived; returns `false` if the peer had no credit for it.
    #[inline]
    pub fn charge(&mut self, len: u32) -> bool {
        let bytes = self.held.1.saturating_add(len);
        self.held = (self.held.0 + 1, bytes);
        self.held.0 + self.returnable.0 <= MESSAGES
            && bytes.saturating_add(self.returnable.1) <= BYTES
    }

    /// Releases a message that the program has taken.
    #[inline]
    pub fn release(&mut self, len: u32) {
        self.held = (
            self.held.0.saturating_sub(1),
            self.held.1.saturating_sub(len),
        );
        self.pass(len);
    }

    /// Charges a message for which the peer has credit, and releases it at once.
    #[inline]
    pub fn pass(&mut self, len: u32) {
        self.returnable = (self.returnable.0 + 1, self.returnable.1 + len);
    }

    /// Whether returning credit is worth a message: the messages or the bytes to return are at least half of what the
    /// peer could have then.
    #[inline]
    #[must_use]
    pub fn is_due(&self) -> bool {
        let half = |back: u32, held: u32, all: u32| back > 0 && 2 * back >= all - held.min(all);
        half(self.returnable.0, self.held.0, MESSAGES)
            || half(self.returnable.1, self.held.1, BYTES)
    }

    /// How many bytes the program has not taken.
    #[must_use]
    pub fn unread(&self) -> u64 {
        self.held.1.into()
    }

    /// Messages and bytes for which the peer has no credit at present.
    #[must_use]
    pub fn used(&self) -> (u32, u32) {
        (
            self.held.0 + self.returnable.0,
            self.held.1 + self.returnable.1,
        )
    }

    /// Takes the credit to return: messages, bytes.
    #[must_use]
    pub fn take_returnable(&mut self) -> (u32, u32) {
        std::mem::take(&mut self.returnable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_used_up_and_returned() {
        let (mut credit, mut window) = (Credit::default(), CreditUse::default());
        let mut sent = 0;
        while credit.spend(8192) {
            assert!(window.charge(8192));
            sent += 1;
        }
        assert_eq!(sent, BYTES / 8192);
        assert!(!window.is_due(), "the program took no message");
        // The receiver holds all messages but one, so that one is at least half of what the peer could use.
        window.release(8192);
        assert!(window.is_due());
        let (messages, bytes) = window.take_returnable();
        credit.add(messages, bytes);
        assert!(credit.spend(8192) && !credit.spend(1));
        assert!(window.charge(8192));
        assert!(!window.charge(1), "the peer has no credit left");
    }

    #[test]
    fn credit_for_empty_messages_is_returned_in_halves() {
        let (mut credit, mut window) = (Credit::default(), CreditUse::default());
        let mut told = 0;
        for _ in 0..10 * MESSAGES {
            assert!(credit.spend(0) && window.charge(0));
            window.release(0);
            if window.is_due() {
                let (messages, bytes) = window.take_returnable();
                credit.add(messages, bytes);
                told += 1;
            }
        }
        assert_eq!(told, 20, "credit returns in halves");
        credit.add(u32::MAX, u32::MAX);
        assert_eq!((credit.messages, credit.bytes), (MESSAGES, BYTES));
    }
}
