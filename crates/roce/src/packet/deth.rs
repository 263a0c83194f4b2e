//! The datagram extended transport header (DETH): who sent a datagram.

use super::bytes::{put, u24, u24_at, u32_at};

/// The datagram extended transport header (IBA volume 1, 9.3.2), 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// The Q_Key that the receiving queue pair must have.
    pub qkey: u32,
    /// The number of the queue pair that sent it. 24 bits.
    pub source: u32,
}

impl Deth {
    /// Its length in bytes.
    pub const LEN: usize = 8;

    /// Writes it.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        put(&mut bytes, 0, self.qkey.to_be_bytes());
        put(&mut bytes, 5, u24(self.source));
        bytes
    }

    /// Reads it.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            qkey: u32_at(bytes, 0),
            source: u24_at(bytes, 5),
        }
    }
}
