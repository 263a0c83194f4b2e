//! Refusals by a responder: the codes in [`rkey_link::Header::imm`] of a NAK, and the table of RNR delays.

/// Why a message was not executed. Part of the protocol between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Nak {
    /// No receive is posted: try again after the delay (its code is in bits 8 to 12).
    ReceiverNotReady = 1,
    /// Another message number was expected.
    Sequence = 2,
    /// The request is invalid for this queue pair.
    InvalidRequest = 3,
    /// The key, the range or the rights forbid it.
    RemoteAccess = 4,
    /// The responder could not execute the request.
    RemoteOperation = 5,
    /// The queue pair does not exist, is not ready to receive, or has another peer.
    NotReady = 6,
    /// The remote iovec cannot be copied: send fragments instead.
    NoRemoteIovec = 7,
    /// The requester's memory could not be accessed; the address is in the header.
    RequesterFault = 8,
    /// The queue pair is ready, but its device still searches for the device of its peer.
    Searching = 9,
}

impl Nak {
    /// The refusal with this code, which is in the lowest 8 bits.
    #[must_use]
    pub fn from_code(imm: u32) -> Option<Self> {
        Some(match imm as u8 {
            1 => Self::ReceiverNotReady,
            2 => Self::Sequence,
            3 => Self::InvalidRequest,
            4 => Self::RemoteAccess,
            5 => Self::RemoteOperation,
            6 => Self::NotReady,
            7 => Self::NoRemoteIovec,
            8 => Self::RequesterFault,
            9 => Self::Searching,
            _ => return None,
        })
    }
}

/// The receiver-not-ready delay for a 5-bit code, in nanoseconds (IBA table 45).
pub(crate) const fn rnr_delay_ns(code: u8) -> u64 {
    /// In units of 10 µs.
    const TABLE: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    TABLE[(code & 31) as usize] as u64 * 10_000
}

/// The transport timeout for a 5-bit code, in nanoseconds; 0 means no timeout.
pub(crate) const fn timeout_ns(code: u8) -> u64 {
    if code == 0 { 0 } else { 4096 << (code & 31) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnr_delays_and_timeouts_match_the_specification() {
        assert_eq!(rnr_delay_ns(0), 655_360_000);
        assert_eq!(rnr_delay_ns(1), 10_000);
        assert_eq!(rnr_delay_ns(12), 640_000);
        assert_eq!(rnr_delay_ns(31), 491_520_000);
        assert_eq!(timeout_ns(0), 0);
        assert_eq!(timeout_ns(14), 67_108_864);
    }

    #[test]
    fn nak_codes_round_trip() {
        for imm in 0..=u32::from(u8::MAX) {
            if let Some(nak) = Nak::from_code(imm) {
                assert_eq!(nak as u32, imm);
                assert_eq!(
                    Nak::from_code(imm | 0x1f00),
                    Some(nak),
                    "the delay does not affect the code"
                );
            }
        }
    }
}
