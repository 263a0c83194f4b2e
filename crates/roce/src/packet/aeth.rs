//! The acknowledge extended transport header (AETH): the responder's verdict on a request.

use super::bytes::{put, u24, u24_at};
use super::{Bth, Opcode};

/// The acknowledge extended transport header (IBA volume 1, 9.3.5), 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// An acknowledgement, or the reason for a refusal.
    pub syndrome: Syndrome,
    /// The message sequence number: how many messages the responder has completed, modulo 2²⁴.
    pub msn: u32,
}

/// The responder's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// This packet and all before it have arrived.
    Ack(Credits),
    /// Receiver not ready (RNR NAK): send again after this time.
    RnrNak(RnrTimer),
    /// Refused (NAK).
    Nak(NakCode),
    /// A value that the specification reserves. A requester treats it as a bad response.
    Reserved(ReservedSyndrome),
}

/// How many more messages the responder has posted receives for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits(u8);

/// How long a requester waits after an RNR NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(u8);

/// Why the responder refuses (IBA volume 1, 9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A packet is missing: send again from the PSN of this acknowledgement.
    PsnSequenceError,
    /// The responder does not support the request, or the request does not match the preceding packets or its own
    /// length.
    InvalidRequest,
    /// The key does not permit the access.
    RemoteAccessError,
    /// The responder failed.
    RemoteOperationalError,
    /// A request of a reliable datagram is invalid.
    InvalidRdRequest,
}

/// A syndrome value that the specification reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedSyndrome(u8);

/// The bits of a credit count, timer or NAK code.
const VALUE: u8 = 0x1f;

const ACK: u8 = 0x00;
const RNR_NAK: u8 = 0x20;
const NAK: u8 = 0x60;

impl Aeth {
    /// The header's length, in bytes.
    pub const LEN: usize = 4;

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.syndrome.to_byte();
        put(&mut bytes, 1, u24(self.msn));
        bytes
    }

    /// Decodes the header.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            syndrome: Syndrome::from_byte(bytes[0]),
            msn: u24_at(bytes, 1),
        }
    }
}

impl Syndrome {
    /// Encodes the syndrome.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack(credits) => ACK | credits.0,
            Self::RnrNak(timer) => RNR_NAK | timer.0,
            Self::Nak(code) => NAK | code.to_bits(),
            Self::Reserved(ReservedSyndrome(byte)) => byte,
        }
    }

    /// Decodes a syndrome.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Self {
        let value = byte & VALUE;
        match byte & !VALUE {
            ACK => Self::Ack(Credits(value)),
            RNR_NAK => Self::RnrNak(RnrTimer(value)),
            NAK => match NakCode::from_bits(value) {
                Some(code) => Self::Nak(code),
                None => Self::Reserved(ReservedSyndrome(byte)),
            },
            _ => Self::Reserved(ReservedSyndrome(byte)),
        }
    }
}

/// Whether a packet only acknowledges: it refuses nothing and has no data. `packet` begins with its base transport header.
///
/// ```
/// use rkey_roce::packet::only_acknowledges;
///
/// let mut packet = [0; 16];
/// packet[0] = 0x11; // RC ACKNOWLEDGE
/// assert!(only_acknowledges(&packet));
/// packet[12] = 0x60; // NAK: a packet is missing
/// assert!(!only_acknowledges(&packet));
/// ```
#[must_use]
pub fn only_acknowledges(packet: &[u8]) -> bool {
    let opcode = packet.first().copied().and_then(Opcode::from_byte);
    let syndrome = packet.get(Bth::LEN).copied().map(Syndrome::from_byte);
    opcode.is_some_and(Opcode::is_acknowledge) && matches!(syndrome, Some(Syndrome::Ack(_)))
}

impl Credits {
    /// The responder does not count receives: the requester may send without limit.
    pub const UNLIMITED: Self = Self(VALUE);

    /// The largest count that can be encoded in 5 bits and is at most `receives`.
    #[must_use]
    pub fn at_most(receives: u32) -> Self {
        let above = COUNTS.partition_point(|&count| count <= receives);
        Self(above.saturating_sub(1) as u8)
    }

    /// The count; `None` if it is unlimited.
    #[must_use]
    pub fn count(self) -> Option<u32> {
        COUNTS.get(usize::from(self.0)).copied()
    }
}

/// The counts for codes 0 to 30 (IBA volume 1, 9.7.7, table "End-to-end flow control credit encoding").
const COUNTS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

impl RnrTimer {
    /// The timer with this code, which is the `min_rnr_timer` of `ibv_modify_qp`; `None` for codes above
    /// 31.
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code <= VALUE {
            Some(Self(code))
        } else {
            None
        }
    }

    /// The code, below 32.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time in nanoseconds.
    ///
    /// ```
    /// use rkey_roce::packet::RnrTimer;
    ///
    /// assert_eq!(RnrTimer::new(1).map(RnrTimer::nanoseconds), Some(10_000));
    /// ```
    #[must_use]
    pub const fn nanoseconds(self) -> u64 {
        // The table has an entry for each of the 32 codes.
        TENS_OF_MICROSECONDS[(self.0 & VALUE) as usize] * 10_000
    }
}

/// The times by code, in units of 10 µs (IBA volume 1, table "Encoding for RNR NAK timer field").
const TENS_OF_MICROSECONDS: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl NakCode {
    const fn to_bits(self) -> u8 {
        match self {
            Self::PsnSequenceError => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccessError => 2,
            Self::RemoteOperationalError => 3,
            Self::InvalidRdRequest => 4,
        }
    }

    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::PsnSequenceError,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccessError,
            3 => Self::RemoteOperationalError,
            4 => Self::InvalidRdRequest,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_decodes_to_a_syndrome() {
        for byte in 0..=u8::MAX {
            let syndrome = Syndrome::from_byte(byte);
            assert_eq!(syndrome.to_byte(), byte);
            let reserved = matches!(syndrome, Syndrome::Reserved(_));
            // Values with the top bit set, values with 10 in the next two bits, and NAK codes from 5 are
            // reserved.
            assert_eq!(reserved, byte >= 0x65 || byte >> 5 == 2, "{byte:#x}");
        }
        assert_eq!(Syndrome::from_byte(0x1f), Syndrome::Ack(Credits::UNLIMITED));
        assert_eq!(
            Syndrome::from_byte(0x62),
            Syndrome::Nak(NakCode::RemoteAccessError)
        );
    }

    #[test]
    fn credits_are_rounded_down() {
        for (receives, count) in [
            (0, 0),
            (5, 4),
            (6, 6),
            (7, 6),
            (1000, 768),
            (32767, 24576),
            (32768, 32768),
            (u32::MAX, 32768),
        ] {
            assert_eq!(Credits::at_most(receives).count(), Some(count));
        }
        assert_eq!(Credits::UNLIMITED.count(), None);
    }

    #[test]
    fn rnr_timer_codes_match_verbs() {
        let nanoseconds = |code| RnrTimer::new(code).map(RnrTimer::nanoseconds);
        assert_eq!(nanoseconds(0), Some(655_360_000));
        assert_eq!(nanoseconds(1), Some(10_000));
        assert_eq!(nanoseconds(12), Some(640_000));
        assert_eq!(nanoseconds(31), Some(491_520_000));
        assert_eq!(nanoseconds(32), None);
        for code in 1..31 {
            assert!(nanoseconds(code) < nanoseconds(code + 1));
        }
    }
}
