//! The immediate data header (ImmDt): 4 bytes for the receiver's completion.

/// The immediate data header (IBA volume 1, 9.3.6), 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDt {
    /// The 4 bytes, decoded as a big-endian number.
    pub data: u32,
}

impl ImmDt {
    /// The header's length, in bytes.
    pub const LEN: usize = 4;

    /// Encodes the header.
    #[must_use]
    pub const fn encode(&self) -> [u8; Self::LEN] {
        self.data.to_be_bytes()
    }

    /// Decodes the header.
    #[must_use]
    pub const fn decode(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            data: u32::from_be_bytes(*bytes),
        }
    }
}
