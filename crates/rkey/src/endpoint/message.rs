//! What arrives, and which of it a receive accepts.

use super::address::Address;
use crate::error::{Error, Result};

/// The longest message, in bytes.
pub const MESSAGE_MAX: usize = 1 << 30;

/// A message that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its bytes: the receive's buffer, cut to the length of the message.
    pub bytes: Vec<u8>,
    /// The sender's address.
    pub from: Address,
    /// Its tag; 0 without one.
    pub tag: u64,
}

/// Which tags a receive accepts. Made from a number, which means exactly this tag.
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

    /// This tag, in which the bits of `ignore` may differ.
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

/// The length of a message, as its header says it.
pub(super) fn checked_len(len: usize) -> Result<u32> {
    match u32::try_from(len) {
        Ok(short) if len <= MESSAGE_MAX => Ok(short),
        _ => Err(Error::MessageTooLong {
            len,
            limit: MESSAGE_MAX,
        }),
    }
}
