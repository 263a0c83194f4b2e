//! What two rsockets tell each other: immediate values, the private data of a connection, and records in each other's memory.

use std::fmt;

/// The version of the private data.
const VERSION: u8 = 1;
/// The flag of a big-endian host.
const BIG_ENDIAN: u8 = 1;
/// The flag of a side that maps memory for `riowrite`.
const HAS_IOMAPS: u8 = 2;
/// The number of bits of an immediate value that are not its operation.
const VALUE_BITS: u32 = 29;
/// The longest message.
pub const LEN_MAX: u32 = (1 << VALUE_BITS) - 1;
/// The bits of an encoded count of mapped areas.
const SCALE_BITS: u32 = 8;

/// An immediate value: the upper three bits say what happened, the others how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// So many bytes were written to the ring.
    Data(u32),
    /// The sequence number up to which the other side may send. A target may have been written.
    Credits(u16),
    /// The record of a mapped area was written.
    Iomap(u32),
    /// Nothing more is sent or received.
    Disconnect,
    /// Nothing happened.
    KeepAlive,
    /// Nothing more is sent.
    Shutdown,
}

impl Message {
    /// The immediate value.
    #[must_use]
    pub fn encode(self) -> u32 {
        let (operation, value) = match self {
            Self::Data(len) => (0, len),
            Self::Credits(up_to) => (4, up_to.into()),
            Self::Iomap(index) => (6, index),
            Self::Disconnect => (7, 0),
            Self::KeepAlive => (7, 1),
            Self::Shutdown => (7, 2),
        };
        operation << VALUE_BITS | value & LEN_MAX
    }

    /// Reads an immediate value.
    ///
    /// # Errors
    /// [`Violation::Message`]: no such operation.
    pub fn decode(immediate: u32) -> Result<Self, Violation> {
        let value = immediate & LEN_MAX;
        Ok(match (immediate >> VALUE_BITS, value) {
            (0, len) => Self::Data(len),
            // rdma-core does not take the sum of the sequence number and the credits modulo 2^16.
            (4, up_to) if up_to <= 0x1_ffff => Self::Credits(up_to as u16),
            (6, index) => Self::Iomap(index),
            (7, 0) => Self::Disconnect,
            (7, 1) => Self::KeepAlive,
            (7, 2) => Self::Shutdown,
            _ => return Err(Violation::Message(immediate)),
        })
    }
}

/// What a peer did against the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An immediate value that has no meaning.
    Message(u32),
    /// More bytes than it may write, or none.
    Length(u32),
    /// More messages than it may send.
    Messages,
    /// Credits that take others back, or more than its queue has room for.
    Credits(u16),
    /// More targets than a connection has.
    Targets,
    /// Data after it said that there is no more.
    AfterEnd,
    /// A record of a mapped area that does not exist.
    Iomap(u32),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(value) => write!(f, "the immediate value {value:#x} has no meaning"),
            Self::Length(len) => write!(f, "it claims to have written {len} bytes"),
            Self::Messages => f.write_str("it sends more messages than it may"),
            Self::Credits(up_to) => write!(f, "it gives credits up to {up_to}, which it cannot"),
            Self::Targets => f.write_str("it names more targets than there can be"),
            Self::AfterEnd => f.write_str("it sends data after the end"),
            Self::Iomap(index) => write!(f, "it maps area {index}, which does not exist"),
        }
    }
}

/// A piece of memory, as its owner tells a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// The address.
    pub addr: u64,
    /// The key.
    pub key: u32,
    /// The length.
    pub len: u32,
}

impl Piece {
    /// The length of a record in memory.
    pub const SIZE: usize = 16;

    /// As a record in a peer's memory, in the byte order of the host.
    #[must_use]
    pub fn to_record(self) -> [u8; Self::SIZE] {
        let mut record = [0; Self::SIZE];
        record[..8].copy_from_slice(&self.addr.to_ne_bytes());
        record[8..12].copy_from_slice(&self.key.to_ne_bytes());
        record[12..].copy_from_slice(&self.len.to_ne_bytes());
        record
    }

    /// From the two words of a record.
    #[must_use]
    pub fn from_words(words: [u64; 2]) -> Self {
        let [addr, rest] = words;
        let rest = rest.to_ne_bytes();
        let half =
            |at: usize| u32::from_ne_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
        Self {
            addr,
            key: half(0),
            len: half(4),
        }
    }

    fn to_wire(self) -> [u8; Self::SIZE] {
        let mut wire = [0; Self::SIZE];
        wire[..8].copy_from_slice(&self.addr.to_be_bytes());
        wire[8..12].copy_from_slice(&self.key.to_be_bytes());
        wire[12..].copy_from_slice(&self.len.to_be_bytes());
        wire
    }

    fn from_wire(wire: &[u8; Self::SIZE]) -> Self {
        let word =
            |at: usize| u32::from_be_bytes([wire[at], wire[at + 1], wire[at + 2], wire[at + 3]]);
        Self {
            addr: u64::from(word(0)) << 32 | u64::from(word(4)),
            key: word(8),
            len: word(12),
        }
    }
}

/// A mapped area: an offset, and the memory that is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iomap {
    /// The offset that `riowrite` names.
    pub offset: u64,
    /// The memory.
    pub piece: Piece,
}

impl Iomap {
    /// The length of a record in memory.
    pub const SIZE: usize = 24;

    /// As a record in a peer's memory.
    #[must_use]
    pub fn to_record(self) -> [u8; Self::SIZE] {
        let mut record = [0; Self::SIZE];
        record[..8].copy_from_slice(&self.offset.to_ne_bytes());
        record[8..].copy_from_slice(&self.piece.to_record());
        record
    }
}

/// The private data of a request and of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// How many messages the other side may send at first.
    pub credits: u16,
    /// How many mapped areas there is room for.
    pub iomaps: u16,
    /// Where targets are written, and how many there is room for. Records of mapped areas follow.
    pub targets: Piece,
    /// The first target.
    pub first: Piece,
}

impl Offer {
    /// The length of the private data.
    pub const SIZE: usize = 40;

    /// The private data.
    #[must_use]
    pub fn to_wire(self) -> [u8; Self::SIZE] {
        let mut wire = [0; Self::SIZE];
        wire[0] = VERSION;
        if cfg!(target_endian = "big") {
            wire[1] |= BIG_ENDIAN;
        }
        if self.iomaps > 0 {
            wire[1] |= HAS_IOMAPS;
        }
        wire[2..4].copy_from_slice(&self.credits.to_be_bytes());
        wire[7] = scaled(self.iomaps);
        wire[8..24].copy_from_slice(&self.targets.to_wire());
        wire[24..].copy_from_slice(&self.first.to_wire());
        wire
    }

    /// Reads private data. What follows the first 40 bytes has no meaning.
    ///
    /// # Errors
    /// Says in which way it is not what an rsocket of this host sends.
    pub fn from_wire(data: &[u8]) -> Result<Self, &'static str> {
        let (wire, _) = data
            .split_first_chunk::<{ Self::SIZE }>()
            .ok_or("it is too short")?;
        if wire[0] != VERSION {
            return Err("it has another version");
        }
        if (wire[1] & BIG_ENDIAN != 0) != cfg!(target_endian = "big") {
            return Err("its host has the other byte order");
        }
        let piece = |at: usize| {
            let part = wire[at..].first_chunk::<{ Piece::SIZE }>();
            part.map(Piece::from_wire).unwrap_or_default()
        };
        let offer = Self {
            credits: u16::from_be_bytes([wire[2], wire[3]]),
            iomaps: unscaled(wire[7]),
            targets: piece(8),
            first: piece(24),
        };
        if offer.credits == 0 || offer.first.len == 0 {
            return Err("nothing may be sent to it");
        }
        if offer.targets.len == 0 || offer.targets.len > u32::from(u16::MAX) {
            return Err("it has no room for targets");
        }
        Ok(offer)
    }
}

/// A count as the private data has it: from 128 on, in units of 256.
fn scaled(count: u16) -> u8 {
    let small = 1 << (SCALE_BITS - 1);
    match count {
        count if count <= small => count as u8,
        count => (small | count >> SCALE_BITS) as u8,
    }
}

fn unscaled(count: u8) -> u16 {
    let small = 1 << (SCALE_BITS - 1);
    match u16::from(count) {
        count if count <= small => count,
        count => (count & !small) << SCALE_BITS,
    }
}

/// A count of mapped areas that the private data can have: the next larger one.
#[must_use]
pub fn round_iomaps(count: u16) -> u16 {
    let small = 1 << (SCALE_BITS - 1);
    let unit = 1u16 << SCALE_BITS;
    match count {
        count if count <= small => count,
        count => count.div_ceil(unit).min(small - 1) * unit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_values_have_three_bits_of_operation() {
        for (message, value) in [
            (Message::Data(0x1234), 0x0000_1234),
            (Message::Credits(0xffff), 0x8000_ffff),
            (Message::Iomap(3), 0xc000_0003),
            (Message::Disconnect, 0xe000_0000),
            (Message::KeepAlive, 0xe000_0001),
            (Message::Shutdown, 0xe000_0002),
        ] {
            assert_eq!(message.encode(), value);
            assert_eq!(Message::decode(value), Ok(message));
        }
        assert_eq!(Message::decode(0x8001_0001), Ok(Message::Credits(1)));
        for bad in [
            0x2000_0000,
            0x4000_0001,
            0x6000_0000,
            0xa000_0000,
            0xe000_0003,
            0x8002_0000,
        ] {
            assert_eq!(Message::decode(bad), Err(Violation::Message(bad)));
        }
    }

    #[test]
    fn private_data_has_forty_bytes() {
        let offer = Offer {
            credits: 384,
            iomaps: 8,
            targets: Piece {
                addr: 0x0102_0304_0506_0708,
                key: 0x0a0b_0c0d,
                len: 2,
            },
            first: Piece {
                addr: 0x1112_1314_1516_1718,
                key: 0x1a1b_1c1d,
                len: 0x1_0000,
            },
        };
        let wire = offer.to_wire();
        assert_eq!(wire[..8], [1, 2, 1, 0x80, 0, 0, 0, 8]);
        assert_eq!(
            wire[8..24],
            [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 0, 0, 0, 2]
        );
        assert_eq!(wire[36..], [0, 1, 0, 0]);
        let mut padded = wire.to_vec();
        padded.resize(56, 0);
        assert_eq!(Offer::from_wire(&padded), Ok(offer));
        for (at, value) in [(0, 2), (1, 3), (23, 0), (21, 1), (37, 0)] {
            let mut bad = wire;
            bad[at] = value;
            assert!(Offer::from_wire(&bad).is_err(), "byte {at}");
        }
        assert!(Offer::from_wire(&wire[..39]).is_err());
        assert!(Offer::from_wire(&[0; 56]).is_err());
    }

    #[test]
    fn records_survive_memory() {
        let piece = Piece {
            addr: 0x1122_3344_5566_7788,
            key: 7,
            len: 9,
        };
        let record = piece.to_record();
        let word = |at: usize| u64::from_ne_bytes(*record[at..].first_chunk().unwrap());
        assert_eq!(Piece::from_words([word(0), word(8)]), piece);
        let iomap = Iomap { offset: 5, piece };
        assert_eq!(iomap.to_record()[8..], record);
    }

    #[test]
    fn counts_of_areas_are_rounded_up_to_what_fits() {
        for (count, rounded) in [
            (0, 0),
            (1, 1),
            (128, 128),
            (129, 256),
            (256, 256),
            (300, 512),
            (65535, 127 * 256),
        ] {
            assert_eq!(round_iomaps(count), rounded);
            assert_eq!(unscaled(scaled(rounded)), rounded);
        }
    }
}
