//! The RDMA extended transport header (RETH): the target memory of an RDMA write or read.

use super::bytes::{put, u32_at, u64_at};

/// The RDMA extended transport header (IBA volume 1, 9.3.3), 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// The address of the first byte, in the responder's address space.
    pub address: u64,
    /// The remote key.
    pub rkey: u32,
    /// The length of the whole message, in bytes.
    pub length: u32,
}

impl Reth {
    /// The header's length, in bytes.
    pub const LEN: usize = 16;

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        put(&mut bytes, 0, self.address.to_be_bytes());
        put(&mut bytes, 8, self.rkey.to_be_bytes());
        put(&mut bytes, 12, self.length.to_be_bytes());
        bytes
    }

    /// Decodes the header.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            address: u64_at(bytes, 0),
            rkey: u32_at(bytes, 8),
            length: u32_at(bytes, 12),
        }
    }
}
