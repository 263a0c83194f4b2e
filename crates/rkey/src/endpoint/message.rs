//! Messages that arrive, and which of them a receive accepts.

use crate::address::Address;
use crate::error::{Error, Result};

/// The longest message, in bytes.
pub const MESSAGE_MAX: usize = 1 << 30;

/// A message that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The message's bytes: the receive's buffer, truncated to the length of the message.
    pub bytes: Vec<u8>,
    /// The sender's address.
    pub from: Address,
    /// The message's tag, or 0 if it has none.
    pub tag: u64,
}

/// Which tags a receive accepts. A number converts to a pattern that accepts exactly this tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The tag.
    pub tag: u64,
    /// Bits of the tag that may differ.
    pub ignore: u64,
}

impl Tag {
    /// Any tag.
    pub const ANY: Self = Self {
        tag: 0,
        ignore: u64::MAX,
    };

    /// Accepts this tag; the bits of `ignore` may differ.
    #[must_use]
    pub const fn masked(tag: u64, ignore: u64) -> Self {
        Self { tag, ignore }
    }
}

impl From<u64> for Tag {
    fn from(tag: u64) -> Self {
        Self { tag, ignore: 0 }
    }
}

/// The length of a message according to its header.
pub(super) fn checked_len(len: usize) -> Result<u32> {
    match u32::try_from(len) {
        Ok(short) if len <= MESSAGE_MAX => Ok(short),
        _ => Err(Error::MessageTooLong {
            len,
            limit: MESSAGE_MAX,
        }),
    }
}
