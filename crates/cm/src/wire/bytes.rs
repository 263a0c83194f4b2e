//! Access to message fields by offset, in network byte order.

/// The length of a message without its MAD header, in bytes.
pub(super) const BODY: usize = 232;

/// Reads fields. All offsets are constants of this crate and within the body.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8; BODY]);

impl Reader<'_> {
    pub(super) fn u8(self, at: usize) -> u8 {
        self.0[at]
    }

    pub(super) fn u16(self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }

    /// Reads a 24-bit field.
    pub(super) fn u24(self, at: usize) -> u32 {
        u32::from(self.0[at]) << 16 | u32::from(self.u16(at + 1))
    }

    pub(super) fn u32(self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    pub(super) fn u64(self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }

    pub(super) fn array<const N: usize>(self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[at..at + N]);
        bytes
    }
}

/// Writes fields.
pub(super) struct Writer<'a>(pub(super) &'a mut [u8; BODY]);

impl Writer<'_> {
    pub(super) fn u8(&mut self, at: usize, value: u8) {
        self.0[at] = value;
    }

    pub(super) fn u16(&mut self, at: usize, value: u16) {
        self.array(at, value.to_be_bytes());
    }

    /// Writes a 24-bit field.
    pub(super) fn u24(&mut self, at: usize, value: u32) {
        let [_, high, middle, low] = value.to_be_bytes();
        self.array(at, [high, middle, low]);
    }

    pub(super) fn u32(&mut self, at: usize, value: u32) {
        self.array(at, value.to_be_bytes());
    }

    pub(super) fn u64(&mut self, at: usize, value: u64) {
        self.array(at, value.to_be_bytes());
    }

    pub(super) fn array<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.0[at..at + N].copy_from_slice(&bytes);
    }
}
