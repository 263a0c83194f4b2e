//! The atomic acknowledge extended transport header (AtomicAckETH): the result of an atomic operation.

/// The atomic acknowledge extended transport header (IBA volume 1, 9.5.3), 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// The 8 bytes before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Its length in bytes.
    pub const LEN: usize = 8;

    /// Writes it.
    #[must_use]
    pub const fn encode(&self) -> [u8; Self::LEN] {
        self.original.to_be_bytes()
    }

    /// Reads it.
    #[must_use]
    pub const fn decode(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            original: u64::from_be_bytes(*bytes),
        }
    }
}
