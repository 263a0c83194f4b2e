//! The base transport header (BTH), with which every packet begins.

use super::bytes::{put, u16_at, u24, u24_at};
use super::{Malformed, Opcode, Psn};

/// The base transport header (IBA volume 1, 9.2), 12 bytes. Reserved bits are ignored and written as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// The responder's completion raises an event if only solicited completions do (SE).
    pub solicited: bool,
    /// The migration state (MigReq): set if the path is the primary one. Linux's Soft-RoCE writes 0 and does not look at it.
    pub migrated: bool,
    /// How many bytes pad the payload to a multiple of 4: 0 to 3.
    pub pad: u8,
    /// The partition key.
    pub pkey: u16,
    /// The path is congested (forward).
    pub fecn: bool,
    /// The path back is congested (backward). In RoCEv2 only in a congestion notification.
    pub becn: bool,
    /// The number of the queue pair that gets the packet. 24 bits.
    pub destination: u32,
    /// The requester wants an acknowledgement (A).
    pub ack_request: bool,
    /// The packet's sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Its length in bytes.
    pub const LEN: usize = 12;

    /// Writes it.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.opcode.to_byte();
        bytes[1] =
            u8::from(self.solicited) << 7 | u8::from(self.migrated) << 6 | (self.pad & 3) << 4;
        put(&mut bytes, 2, self.pkey.to_be_bytes());
        bytes[4] = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6;
        put(&mut bytes, 5, u24(self.destination));
        bytes[8] = u8::from(self.ack_request) << 7;
        put(&mut bytes, 9, u24(self.psn.get()));
        bytes
    }

    /// Reads it.
    ///
    /// # Errors
    ///
    /// The version of the transport is not 0, or the opcode is unknown.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, Malformed> {
        let version = bytes[1] & 0xf;
        if version != 0 {
            return Err(Malformed::Version(version));
        }
        Ok(Self {
            opcode: Opcode::from_byte(bytes[0]).ok_or(Malformed::Opcode(bytes[0]))?,
            solicited: bytes[1] & 0x80 != 0,
            migrated: bytes[1] & 0x40 != 0,
            pad: bytes[1] >> 4 & 3,
            pkey: u16_at(bytes, 2),
            fecn: bytes[4] & 0x80 != 0,
            becn: bytes[4] & 0x40 != 0,
            destination: u24_at(bytes, 5),
            ack_request: bytes[8] & 0x80 != 0,
            psn: Psn::new(u24_at(bytes, 9)),
        })
    }
}
