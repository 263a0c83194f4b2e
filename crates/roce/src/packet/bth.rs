//! The base transport header (BTH), which starts every packet.

use super::bytes::{put, u16_at, u24, u24_at};
use super::{Malformed, Opcode, Psn};

/// The base transport header (IBA volume 1, 9.2), 12 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// The operation.
    pub opcode: Opcode,
    /// Solicited event (SE): the responder's completion raises an event even if only solicited ones do.
    pub solicited: bool,
    /// The migration state (MigReq): set if the path is the primary one. Linux's Soft-RoCE writes 0 and ignores it.
    pub migrated: bool,
    /// How many bytes pad the payload to a multiple of 4: 0 to 3.
    pub pad: u8,
    /// The partition key.
    pub pkey: u16,
    /// The path is congested (forward).
    pub fecn: bool,
    /// The path back is congested (backward). In RoCEv2 only in a congestion notification.
    pub becn: bool,
    /// The number of the destination queue pair, 24 bits.
    pub destination: u32,
    /// The reserved bits after the congestion bits (6), and after the acknowledge request (7). The standard writes 0 and ignores them.
    pub reserved: u16,
    /// The requester wants an acknowledgement (A).
    pub ack_request: bool,
    /// The packet's sequence number.
    pub psn: Psn,
}

impl Bth {
    /// The header's length, in bytes.
    pub const LEN: usize = 12;

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.opcode.to_byte();
        bytes[1] =
            u8::from(self.solicited) << 7 | u8::from(self.migrated) << 6 | (self.pad & 3) << 4;
        put(&mut bytes, 2, self.pkey.to_be_bytes());
        let [high, low] = [self.reserved >> 7 & 0x3f, self.reserved & 0x7f];
        bytes[4] = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6 | high as u8;
        put(&mut bytes, 5, u24(self.destination));
        bytes[8] = u8::from(self.ack_request) << 7 | low as u8;
        put(&mut bytes, 9, u24(self.psn.get()));
        bytes
    }

    /// Decodes the header.
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
            reserved: u16::from(bytes[4] & 0x3f) << 7 | u16::from(bytes[8] & 0x7f),
            ack_request: bytes[8] & 0x80 != 0,
            psn: Psn::new(u24_at(bytes, 9)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sets one field at a time, to check each field's position.
    #[test]
    fn each_field_has_its_own_bits() {
        let opcode = Opcode::from_byte(0x64).expect("UD SEND Only");
        let zero = Bth {
            opcode,
            solicited: false,
            migrated: false,
            pad: 0,
            pkey: 0,
            fecn: false,
            becn: false,
            destination: 0,
            reserved: 0,
            ack_request: false,
            psn: Psn::new(0),
        };
        let with = |change: fn(&mut Bth)| {
            let mut bth = zero;
            change(&mut bth);
            bth
        };
        for (bth, at, bytes) in [
            (with(|it| it.solicited = true), 1, &[0x80][..]),
            (with(|it| it.migrated = true), 1, &[0x40]),
            (with(|it| it.pad = 3), 1, &[0x30]),
            (with(|it| it.pkey = 0x8765), 2, &[0x87, 0x65]),
            (with(|it| it.fecn = true), 4, &[0x80]),
            (with(|it| it.becn = true), 4, &[0x40]),
            (
                with(|it| it.destination = 0x12_3456),
                5,
                &[0x12, 0x34, 0x56],
            ),
            (with(|it| it.reserved = 0x3f << 7), 4, &[0x3f]),
            (with(|it| it.reserved = 0x7f), 8, &[0x7f]),
            (with(|it| it.ack_request = true), 8, &[0x80]),
            (
                with(|it| it.psn = Psn::new(0xfe_dcba)),
                9,
                &[0xfe, 0xdc, 0xba],
            ),
        ] {
            let mut wanted = [0; Bth::LEN];
            wanted[0] = 0x64;
            wanted[at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(bth.encode(), wanted);
            assert_eq!(Bth::decode(&wanted), Ok(bth));
        }
    }
}
