//! Reports: what a responder tells a requester of the same kind about packets that are missing.
//!
//! The specification has no packet for that. A report is an atomic acknowledgement with a reserved syndrome, 24 bytes long. Its PSN is that
//! of the oldest missing packet; everything before is acknowledged. Both sides have agreed on reports
//! ([`Config::selective`](super::Config::selective)), so no other device gets one.
//!
//! | field | content |
//! | --- | --- |
//! | syndrome | 0x7f, which the specification reserves |
//! | message number (24 bits) | how many packets after the oldest missing one the responder has kept |
//! | original value (64 bits) | up to three gaps of 21 bits, the first in the lowest bits: the length in 7 bits (0: no gap), and the distance from the PSN in 14 bits |

use super::gaps::LONGEST;
use super::sequence::Sequence;
use crate::packet::{Aeth, AtomicAckEth, Mtu, Syndrome};

/// The syndrome of a report.
const SYNDROME: u8 = 0x7f;
/// The maximum number of gaps in a report.
pub(super) const GAPS: usize = 3;
/// The number of bits of a gap's length, and of a gap.
const LENGTH_BITS: u32 = 7;
const GAP_BITS: u32 = 21;
const COUNT_MASK: u32 = 0xff_ffff;

/// A requester sends no packet that is further than this after the oldest unacknowledged one, and a responder keeps none: at most so many
/// packets, and so many bytes.
const SPAN: u32 = 8192;
pub(super) const SPAN_BYTES: usize = 8 << 20;

/// How many packets after the oldest missing one a responder may keep.
pub(super) const fn span(mtu: Mtu) -> u32 {
    let packets = (SPAN_BYTES / mtu.bytes()) as u32;
    if packets < SPAN { packets } else { SPAN }
}

/// The content of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// How many packets the responder has kept.
    pub(super) kept: u32,
    /// What it misses: the distance from the report's PSN, and the number of packets (0: no gap).
    gaps: [(u32, u32); GAPS],
}

impl Report {
    /// A report about the oldest missing packet `base`, and about these gaps, of which it has room for [`GAPS`].
    pub(super) fn new(base: Sequence, kept: u32, gaps: &[(Sequence, Sequence)]) -> Self {
        let mut report = Self {
            kept,
            gaps: [(0, 0); GAPS],
        };
        for (to, (first, end)) in report.gaps.iter_mut().zip(gaps) {
            *to = (first.since(base), end.since(*first).min(LONGEST));
        }
        report
    }

    /// Whether the report names something that is missing.
    pub(super) fn has_gaps(&self) -> bool {
        self.gaps[0].1 > 0
    }

    /// The gaps of a report with the PSN of `base`: their first positions, and those after them.
    pub(super) fn gaps(&self, base: Sequence) -> impl Iterator<Item = (Sequence, Sequence)> {
        let named = self.gaps.into_iter().filter(|(_, length)| *length > 0);
        named.map(move |(distance, length)| {
            let first = base.plus(distance);
            (first, first.plus(length))
        })
    }

    pub(super) fn encode(&self) -> (Aeth, AtomicAckEth) {
        let mut original = 0;
        for (distance, length) in self.gaps.iter().rev() {
            original = original << GAP_BITS | u64::from(distance << LENGTH_BITS | length);
        }
        let aeth = Aeth {
            syndrome: Syndrome::from_byte(SYNDROME),
            msn: self.kept & COUNT_MASK,
        };
        (aeth, AtomicAckEth { original })
    }

    /// Decodes a report; `None` if it is the result of an atomic.
    pub(super) fn decode(aeth: Aeth, result: AtomicAckEth) -> Option<Self> {
        if aeth.syndrome != Syndrome::from_byte(SYNDROME) {
            return None;
        }
        let mut gaps = [(0, 0); GAPS];
        for (index, gap) in (0..).zip(&mut gaps) {
            let bits = (result.original >> (index * GAP_BITS)) as u32 & ((1 << GAP_BITS) - 1);
            *gap = (bits >> LENGTH_BITS, bits & ((1 << LENGTH_BITS) - 1));
        }
        let kept = aeth.msn;
        Some(Self { kept, gaps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Psn;

    const BASE: Sequence = Sequence::first(Psn::new(0xff_fff0));

    #[test]
    fn a_report_survives_its_encoding() {
        let gaps = [(0, 1), (200, 127), (8191, 64)];
        let gaps = gaps.map(|(at, length)| (BASE.plus(at), BASE.plus(at + length)));
        for count in 0..=GAPS {
            let report = Report::new(BASE, 8000, &gaps[..count]);
            let (aeth, result) = report.encode();
            let decoded = Report::decode(aeth, result).unwrap();
            assert_eq!(decoded, report);
            assert_eq!(decoded.has_gaps(), count > 0);
            assert!(decoded.gaps(BASE).eq(gaps[..count].iter().copied()));
        }
    }

    #[test]
    fn the_result_of_an_atomic_is_no_report() {
        for byte in (0..=u8::MAX).filter(|byte| *byte != SYNDROME) {
            let aeth = Aeth {
                syndrome: Syndrome::from_byte(byte),
                msn: 7,
            };
            let result = AtomicAckEth { original: 7 };
            assert_eq!(Report::decode(aeth, result), None);
        }
    }

    /// A gap's distance has 14 bits, and a read may take 64 packets.
    #[test]
    fn every_packet_that_may_be_kept_can_be_named() {
        for mtu in Mtu::ALL {
            assert!(span(mtu) as usize * mtu.bytes() <= SPAN_BYTES);
            assert!(span(mtu) >= 2048 && span(mtu) + 64 < 1 << (GAP_BITS - LENGTH_BITS));
        }
    }
}
