//! The atomic extended transport header (AtomicETH): the operands of an atomic operation.

use super::bytes::{put, u32_at, u64_at};

/// The atomic extended transport header (IBA volume 1, 9.3.4), 28 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// The address of the 8 bytes, in the responder's address space.
    pub address: u64,
    /// The remote key.
    pub rkey: u32,
    /// The value that a compare-and-swap stores or a fetch-and-add adds.
    pub swap_or_add: u64,
    /// The value that a compare-and-swap compares with.
    pub compare: u64,
}

impl AtomicEth {
    /// The header's length, in bytes.
    pub const LEN: usize = 28;

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        put(&mut bytes, 0, self.address.to_be_bytes());
        put(&mut bytes, 8, self.rkey.to_be_bytes());
        put(&mut bytes, 12, self.swap_or_add.to_be_bytes());
        put(&mut bytes, 20, self.compare.to_be_bytes());
        bytes
    }

    /// Decodes the header.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            address: u64_at(bytes, 0),
            rkey: u32_at(bytes, 8),
            swap_or_add: u64_at(bytes, 12),
            compare: u64_at(bytes, 20),
        }
    }
}
