//! The datagram extended transport header (DETH): the sender of a datagram.

use super::bytes::{put, u24, u24_at, u32_at};

/// The datagram extended transport header (IBA volume 1, 9.3.2), 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// The Q_Key, which must match that of the receiving queue pair.
    pub qkey: u32,
    /// The number of the sending queue pair, 24 bits.
    pub source: u32,
}

impl Deth {
    /// The header's length, in bytes.
    pub const LEN: usize = 8;

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        put(&mut bytes, 0, self.qkey.to_be_bytes());
        put(&mut bytes, 5, u24(self.source));
        bytes
    }

    /// Decodes the header.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            qkey: u32_at(bytes, 0),
            source: u24_at(bytes, 5),
        }
    }
}
