//! The extended reliable connection transport header (XRCETH): the shared receive queue that a request is for.

use super::bytes::{put, u24, u24_at};

/// The extended reliable connection transport header (IBA volume 1, annex A14), 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcEth {
    /// The number of the shared receive queue, 24 bits.
    pub srq: u32,
}

impl XrcEth {
    /// The header's length, in bytes.
    pub const LEN: usize = 4;

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        put(&mut bytes, 1, u24(self.srq));
        bytes
    }

    /// Decodes the header.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            srq: u24_at(bytes, 1),
        }
    }
}
