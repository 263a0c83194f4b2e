//! The atomic acknowledge extended transport header (AtomicAckETH): the result of an atomic operation.

/// The atomic acknowledge extended transport header (IBA volume 1, 9.5.3), 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// The 8 bytes before the operation, as a number.
    pub original: u64,
}

impl AtomicAckEth {
    /// The header's length, in bytes.
    pub const LEN: usize = 8;

    /// Encodes the header.
    #[must_use]
    pub const fn encode(&self) -> [u8; Self::LEN] {
        self.original.to_be_bytes()
    }

    /// Decodes the header.
    #[must_use]
    pub const fn decode(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            original: u64::from_be_bytes(*bytes),
        }
    }
}
