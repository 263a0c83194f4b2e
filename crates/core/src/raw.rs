//! Raw keys: everything a peer needs to reach a region, as bytes, and the table that maps them to numbers.
#![allow(clippy::unimplemented)]

/// A key with its surroundings.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct RawKey {
    /// The remote key: one of the device's, or a requested one.
    pub key: u64,
    /// True when `key` was asked for by the program.
    pub requested: bool,
    /// First address by which requests name the region.
    pub base: u64,
    /// Bytes of the region, up to 2^56.
    pub len: u64,
    /// Random number of the device that owns it.
    pub node: u64,
}

impl RawKey {
    /// Bytes of a raw key.
    pub const LEN: usize = 32;

    /// The bytes to hand to a peer.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        unimplemented!()
    }

    /// Reads the bytes; any bytes are accepted, and none when they are not a raw key.
    #[must_use]
    pub fn from_bytes(_bytes: &[u8]) -> Option<Self> {
        unimplemented!()
    }
}
