//! The invalidate extended transport header (IETH): the key that a send invalidates.

/// The invalidate extended transport header (IBA volume 1, 9.3.7), 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth {
    /// The remote key that the receiver invalidates.
    pub rkey: u32,
}

impl Ieth {
    /// The header's length, in bytes.
    pub const LEN: usize = 4;

    /// Encodes the header.
    #[must_use]
    pub const fn encode(&self) -> [u8; Self::LEN] {
        self.rkey.to_be_bytes()
    }

    /// Decodes the header.
    #[must_use]
    pub const fn decode(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            rkey: u32::from_be_bytes(*bytes),
        }
    }
}
