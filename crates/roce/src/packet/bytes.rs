//! Access to header fields by offset, in network byte order. Each header is an array of its own length, and offsets are
//! constants of this crate, so no access is out of range.

use super::Malformed;

/// Reads a 16-bit field.
pub(super) fn u16_at<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes(array_at(bytes, at))
}

/// Reads a 24-bit field.
pub(super) fn u24_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from(bytes[at]) << 16 | u32::from(u16_at(bytes, at + 1))
}

/// Reads a 32-bit field.
pub(super) fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes(array_at(bytes, at))
}

/// Reads a 64-bit field.
pub(super) fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from_be_bytes(array_at(bytes, at))
}

fn array_at<const N: usize, const M: usize>(bytes: &[u8; N], at: usize) -> [u8; M] {
    let mut field = [0; M];
    field.copy_from_slice(&bytes[at..at + M]);
    field
}

/// Writes a field.
pub(super) fn put<const N: usize, const M: usize>(bytes: &mut [u8; N], at: usize, field: [u8; M]) {
    bytes[at..at + M].copy_from_slice(&field);
}

/// The bytes of a 24-bit field; higher bits of the value are dropped.
pub(super) const fn u24(value: u32) -> [u8; 3] {
    let [_, high, middle, low] = value.to_be_bytes();
    [high, middle, low]
}

/// Reads headers one after the other.
pub(super) struct Cursor<'a> {
    /// The total length, for the error.
    length: usize,
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self {
            length: bytes.len(),
            rest: bytes,
        }
    }

    /// The next header.
    pub(super) fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], Malformed> {
        let (header, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(Malformed::Short(self.length))?;
        self.rest = rest;
        Ok(header)
    }

    /// The bytes after the headers read so far.
    pub(super) const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}
