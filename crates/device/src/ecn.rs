//! Explicit congestion notification (RFC 3168): two bits in the IP header of each datagram.
//!
//! A sender that reacts to congestion says so in these bits. A congested router then changes them, instead of dropping the
//! datagram. Setting and reading them needs no privileges.

use quinn_udp::EcnCodepoint;
use rkey_roce::transport::obeys_notifications;

/// The bits of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ecn(u8);

impl Ecn {
    /// The sender reacts to congestion: ECT(0).
    const CAPABLE: Self = Self(0b10);
    /// A router has reported congestion: CE.
    pub(crate) const CONGESTED: Self = Self(0b11);

    /// These bits; all others are ignored.
    pub(crate) fn from_bits(bits: u8) -> Self {
        Self(bits & 0b11)
    }

    /// The two bits.
    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    /// The bits with which a datagram leaves. `packet` begins with its base transport header.
    pub(crate) fn of_packet(packet: &[u8]) -> Self {
        match obeys_notifications(packet) {
            true => Self::CAPABLE,
            false => Self::default(),
        }
    }

    pub(crate) fn from_codepoint(codepoint: Option<EcnCodepoint>) -> Self {
        codepoint.map_or(Self::default(), |it| Self(it as u8))
    }

    pub(crate) fn codepoint(self) -> Option<EcnCodepoint> {
        EcnCodepoint::from_bits(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packets_whose_sender_reacts_may_be_marked() {
        // RC write, RC acknowledgement; UC and UD sends; CNP; an unknown opcode, and nothing.
        let of = |opcode: u8| Ecn::of_packet(&[opcode, 0, 0]);
        assert_eq!([0x0a, 0x11].map(of), [Ecn::CAPABLE; 2]);
        assert_eq!([0x24, 0x64, 0x81, 0xff].map(of), [Ecn::default(); 4]);
        assert_eq!(Ecn::of_packet(&[]), Ecn::default());
    }

    #[test]
    fn bits_round_trip() {
        for bits in 0..4 {
            let ecn = Ecn::from_bits(bits | 0xfc);
            assert_eq!(ecn.bits(), bits);
            assert_eq!(Ecn::from_codepoint(ecn.codepoint()), ecn);
        }
        assert_eq!(Ecn::CONGESTED.codepoint(), Some(EcnCodepoint::Ce));
    }
}
