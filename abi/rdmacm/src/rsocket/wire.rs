//! The protocol between two rsockets: immediate values, the private data of a connection, and records in each other's memory.

use std::fmt;

/// The version of the private data.
const VERSION: u8 = 1;
/// Flag: the host is big-endian.
const BIG_ENDIAN: u8 = 1;
/// Flag: this side has room for mapped areas (`riomap`).
const HAS_IOMAPS: u8 = 2;
/// The number of bits in an immediate value that are not the operation.
const VALUE_BITS: u32 = 29;
/// The maximum length of a message, in bytes.
pub const LEN_MAX: u32 = (1 << VALUE_BITS) - 1;
/// The number of bits in an encoded count of mapped areas.
const SCALE_BITS: u32 = 8;

/// An immediate value: the operation in the upper 3 bits, its operand in the other 29.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// This many bytes were written to the ring.
    Data(u32),
    /// The sequence number up to which the receiver of this message may send. A target may have been written, too.
    Credits(u16),
    /// The record of the mapped area with this index was written.
    Iomap(u32),
    /// The sender will neither send nor receive any more.
    Disconnect,
    /// No operation.
    KeepAlive,
    /// The sender will not send any more.
    Shutdown,
}

impl Message {
    /// Encodes the immediate value.
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

    /// Decodes an immediate value.
    ///
    /// # Errors
    /// [`Violation::Message`]: unknown operation.
    pub fn decode(immediate: u32) -> Result<Self, Violation> {
        let value = immediate & LEN_MAX;
        Ok(match (immediate >> VALUE_BITS, value) {
            (0, len) => Self::Data(len),
            // rdma-core adds credits to the sequence number without reducing the sum modulo 2^16.
            (4, up_to) if up_to <= 0x1_ffff => Self::Credits(up_to as u16),
            (6, index) => Self::Iomap(index),
            (7, 0) => Self::Disconnect,
            (7, 1) => Self::KeepAlive,
            (7, 2) => Self::Shutdown,
            _ => return Err(Violation::Message(immediate)),
        })
    }
}

/// How a peer violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An undefined immediate value.
    Message(u32),
    /// A message of 0 bytes, or of more than the peer may write.
    Length(u32),
    /// More messages than the peer may send.
    Messages,
    /// Credits that revoke earlier ones, or that exceed the peer's receive queue.
    Credits(u16),
    /// A target, although all slots for targets are in use.
    Targets,
    /// Data after the end of the stream.
    AfterEnd,
    /// An index of a mapped area that is out of range.
    Iomap(u32),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(value) => write!(f, "undefined immediate value {value:#x}"),
            Self::Length(len) => write!(f, "invalid message length {len}"),
            Self::Messages => f.write_str("more messages than it has credits for"),
            Self::Credits(up_to) => write!(f, "invalid credits, up to sequence number {up_to}"),
            Self::Targets => f.write_str("a target, although all slots are in use"),
            Self::AfterEnd => f.write_str("data after the end of the stream"),
            Self::Iomap(index) => write!(f, "index {index} of a mapped area is out of range"),
        }
    }
}

/// Memory that a peer may write: address, remote key and length (`struct rs_sge` in rdma-core).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteSge {
    /// The address.
    pub addr: u64,
    /// The remote key.
    pub key: u32,
    /// The length, in bytes.
    pub len: u32,
}

impl RemoteSge {
    /// The length of a record in memory.
    pub const SIZE: usize = 16;

    /// The record for a peer's memory, in host byte order.
    #[must_use]
    pub fn to_record(self) -> [u8; Self::SIZE] {
        let mut record = [0; Self::SIZE];
        record[..8].copy_from_slice(&self.addr.to_ne_bytes());
        record[8..12].copy_from_slice(&self.key.to_ne_bytes());
        record[12..].copy_from_slice(&self.len.to_ne_bytes());
        record
    }

    /// Decodes a record that is read as two words.
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

    fn encode(self) -> [u8; Self::SIZE] {
        let mut wire = [0; Self::SIZE];
        wire[..8].copy_from_slice(&self.addr.to_be_bytes());
        wire[8..12].copy_from_slice(&self.key.to_be_bytes());
        wire[12..].copy_from_slice(&self.len.to_be_bytes());
        wire
    }

    fn decode(wire: &[u8; Self::SIZE]) -> Self {
        let word =
            |at: usize| u32::from_be_bytes([wire[at], wire[at + 1], wire[at + 2], wire[at + 3]]);
        Self {
            addr: u64::from(word(0)) << 32 | u64::from(word(4)),
            key: word(8),
            len: word(12),
        }
    }
}

/// A mapped area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iomap {
    /// The offset at which `riowrite` addresses it.
    pub offset: u64,
    /// The memory.
    pub memory: RemoteSge,
}

impl Iomap {
    /// The length of a record in memory.
    pub const SIZE: usize = 24;

    /// The record for a peer's memory.
    #[must_use]
    pub fn to_record(self) -> [u8; Self::SIZE] {
        let mut record = [0; Self::SIZE];
        record[..8].copy_from_slice(&self.offset.to_ne_bytes());
        record[8..].copy_from_slice(&self.memory.to_record());
        record
    }
}

/// The private data of a REQ and of a REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// How many messages the receiver of the offer may send initially.
    pub credits: u16,
    /// The number of records of mapped areas that fit.
    pub iomaps: u16,
    /// Where targets are written; the length is a number of targets. The records of mapped areas follow.
    pub targets: RemoteSge,
    /// The first target.
    pub first: RemoteSge,
}

impl Offer {
    /// The length of the private data.
    pub const SIZE: usize = 40;

    /// Encodes the private data.
    #[must_use]
    pub fn encode(self) -> [u8; Self::SIZE] {
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
        wire[8..24].copy_from_slice(&self.targets.encode());
        wire[24..].copy_from_slice(&self.first.encode());
        wire
    }

    /// Decodes private data. Ignores all bytes after the first 40.
    ///
    /// # Errors
    /// Why it is not the private data of an rsocket on this host.
    pub fn decode(data: &[u8]) -> Result<Self, &'static str> {
        let (wire, _) = data
            .split_first_chunk::<{ Self::SIZE }>()
            .ok_or("too short")?;
        if wire[0] != VERSION {
            return Err("unknown version");
        }
        if (wire[1] & BIG_ENDIAN != 0) != cfg!(target_endian = "big") {
            return Err("the peer's host has a different byte order");
        }
        let sge = |at: usize| {
            let part = wire[at..].first_chunk::<{ RemoteSge::SIZE }>();
            part.map(RemoteSge::decode).unwrap_or_default()
        };
        let offer = Self {
            credits: u16::from_be_bytes([wire[2], wire[3]]),
            iomaps: unscaled(wire[7]),
            targets: sge(8),
            first: sge(24),
        };
        if offer.credits == 0 || offer.first.len == 0 {
            return Err("no credits, or an empty ring");
        }
        if offer.targets.len == 0 || offer.targets.len > u32::from(u16::MAX) {
            return Err("invalid number of targets");
        }
        Ok(offer)
    }
}

/// Encodes a count in one byte: above 128, in units of 256.
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

/// Rounds a count of mapped areas up to the next one that can be encoded, at most 127 * 256.
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
    fn the_upper_three_bits_of_an_immediate_value_are_the_operation() {
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
    fn private_data_is_forty_bytes_long() {
        let offer = Offer {
            credits: 384,
            iomaps: 8,
            targets: RemoteSge {
                addr: 0x0102_0304_0506_0708,
                key: 0x0a0b_0c0d,
                len: 2,
            },
            first: RemoteSge {
                addr: 0x1112_1314_1516_1718,
                key: 0x1a1b_1c1d,
                len: 0x1_0000,
            },
        };
        let wire = offer.encode();
        assert_eq!(wire[..8], [1, 2, 1, 0x80, 0, 0, 0, 8]);
        assert_eq!(
            wire[8..24],
            [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 0, 0, 0, 2]
        );
        assert_eq!(wire[36..], [0, 1, 0, 0]);
        let mut padded = wire.to_vec();
        padded.resize(56, 0);
        assert_eq!(Offer::decode(&padded), Ok(offer));
        for (at, value) in [(0, 2), (1, 3), (23, 0), (21, 1), (37, 0)] {
            let mut bad = wire;
            bad[at] = value;
            assert!(Offer::decode(&bad).is_err(), "byte {at}");
        }
        assert!(Offer::decode(&wire[..39]).is_err());
        assert!(Offer::decode(&[0; 56]).is_err());
    }

    #[test]
    fn records_survive_a_round_trip_through_memory() {
        let sge = RemoteSge {
            addr: 0x1122_3344_5566_7788,
            key: 7,
            len: 9,
        };
        let record = sge.to_record();
        let word = |at: usize| u64::from_ne_bytes(*record[at..].first_chunk().unwrap());
        assert_eq!(RemoteSge::from_words([word(0), word(8)]), sge);
        let iomap = Iomap {
            offset: 5,
            memory: sge,
        };
        assert_eq!(iomap.to_record()[8..], record);
    }

    #[test]
    fn iomap_counts_are_rounded_up_to_encodable_counts() {
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
