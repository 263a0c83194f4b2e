//! Positions in the stream of packets of one direction.

use crate::packet::Psn;

/// A packet sequence number that does not wrap around: the number of wraps, with the PSN in the low 24 bits. Positions
/// are compared as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sequence(u64);

impl Sequence {
    /// The position of a queue pair's first packet: one wrap above 0, so that earlier PSNs have positions, too.
    pub(crate) const fn first(psn: Psn) -> Self {
        Self(1 << 24 | psn.get() as u64)
    }

    /// The PSN in a packet's header.
    pub(crate) const fn psn(self) -> Psn {
        Psn::new(self.0 as u32)
    }

    /// The position with this PSN that is nearest to this one. At most half of all PSNs are outstanding, so the peer
    /// cannot mean any other.
    pub(crate) const fn near(self, psn: Psn) -> Self {
        Self(
            self.0
                .wrapping_add_signed(psn.distance_from(self.psn()) as i64),
        )
    }

    /// The position `packets` later.
    pub(crate) const fn plus(self, packets: u32) -> Self {
        Self(self.0 + packets as u64)
    }

    /// The position after this one.
    pub(crate) const fn next(self) -> Self {
        self.plus(1)
    }

    /// The position before this one.
    pub(crate) const fn previous(self) -> Self {
        Self(self.0 - 1)
    }

    /// How many packets there are from `earlier` to this position; 0 if it is not earlier. Positions in use are less
    /// than 2³² apart.
    pub(crate) const fn since(self, earlier: Self) -> u32 {
        self.0.saturating_sub(earlier.0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_continue_where_psns_wrap() {
        let last = Sequence::first(Psn::new(0xff_ffff));
        let next = last.next();
        assert_eq!(next.psn(), Psn::new(0));
        assert!(last < next && next.since(last) == 1 && last.since(next) == 0);
        assert_eq!(last.near(Psn::new(0)), next);
        assert_eq!(next.near(Psn::new(0xff_ffff)), last);
        assert_eq!(next.previous(), last);
    }

    #[test]
    fn a_psn_before_the_first_has_an_earlier_position() {
        let first = Sequence::first(Psn::new(0));
        let old = first.near(Psn::new(0x80_0000));
        assert!(old < first && first.since(old) == 0x80_0000);
        assert!(first.near(Psn::new(0x7f_ffff)) > first);
    }
}
