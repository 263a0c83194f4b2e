//! The RDMA extended transport header (RETH): which memory an RDMA write or read means.

use super::bytes::{put, u32_at, u64_at};

/// The RDMA extended transport header (IBA volume 1, 9.3.3), 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// The address of the first byte, in the responder's terms.
    pub address: u64,
    /// The remote key.
    pub rkey: u32,
    /// The bytes of the whole message.
    pub length: u32,
}

impl Reth {
    /// Its length in bytes.
    pub const LEN: usize = 16;

    /// Writes it.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        put(&mut bytes, 0, self.address.to_be_bytes());
        put(&mut bytes, 8, self.rkey.to_be_bytes());
        put(&mut bytes, 12, self.length.to_be_bytes());
        bytes
    }

    /// Reads it.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            address: u64_at(bytes, 0),
            rkey: u32_at(bytes, 8),
            length: u32_at(bytes, 12),
        }
    }
}
