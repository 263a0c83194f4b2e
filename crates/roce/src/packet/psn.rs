//! Packet sequence numbers: 24 bits that wrap around.

use core::cmp::Ordering;
use core::fmt;

const MASK: u32 = 0x00ff_ffff;
/// Half of the number space.
const HALF: u32 = 0x0080_0000;

/// A packet sequence number, modulo 2²⁴ (IBA volume 1, 9.7.1).
///
/// At most half of the number space may be outstanding, so any two numbers in use are ordered. That order is not
/// transitive over all numbers, so `Psn` does not implement `Ord`.
///
/// ```
/// use rkey_roce::packet::Psn;
///
/// let last = Psn::new(0xff_ffff);
/// assert_eq!(last.next(), Psn::new(0));
/// assert!(last.is_before(Psn::new(3)));
/// assert_eq!(Psn::new(3).distance_from(last), 4);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// Creates a PSN from the low 24 bits of a number.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK)
    }

    /// The number, below 2²⁴.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The next number.
    #[must_use]
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// The previous number.
    #[must_use]
    pub const fn previous(self) -> Self {
        self.minus(1)
    }

    /// The number `count` packets later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// The number `count` packets earlier.
    #[must_use]
    pub const fn minus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_sub(count))
    }

    /// How many packets this number is after `earlier`, from -2²³ to 2²³ - 1: negative if it is before. A number at a
    /// distance of exactly half of the number space counts as before.
    #[must_use]
    pub const fn distance_from(self, earlier: Self) -> i32 {
        let distance = self.0.wrapping_sub(earlier.0) & MASK;
        if distance < HALF {
            distance as i32
        } else {
            distance as i32 - (MASK as i32 + 1)
        }
    }

    /// Whether this number is strictly before `other`.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        self.distance_from(other) < 0
    }

    /// Whether this number is strictly after `other`.
    #[must_use]
    pub const fn is_after(self, other: Self) -> bool {
        self.distance_from(other) > 0
    }

    /// The order relative to `other`, by [`distance_from`](Self::distance_from).
    #[must_use]
    pub fn compare(self, other: Self) -> Ordering {
        self.distance_from(other).cmp(&0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn psns_wrap_around() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.next(), Psn::new(0));
        assert_eq!(Psn::new(0).previous(), last);
        assert_eq!(Psn::new(0x1ff_ffff), last);
        assert_eq!(last.to_string(), "0xffffff");
        assert_eq!(Psn::new(7).to_string(), "0x000007");
    }

    #[test]
    fn half_of_all_psns_are_before_a_psn_and_half_after() {
        let it = Psn::new(0x12_3456);
        assert_eq!(it.plus(HALF - 1).distance_from(it), 0x7f_ffff);
        assert_eq!(it.plus(HALF).distance_from(it), -0x80_0000);
        assert!(it.plus(HALF - 1).is_after(it));
        assert!(it.plus(HALF).is_before(it));
        assert!(!it.is_before(it) && !it.is_after(it));
    }

    proptest! {
        #[test]
        fn the_distance_equals_the_increment(start: u32, distance in -0x80_0000..0x80_0000_i32) {
            let start = Psn::new(start);
            let end = start.plus(distance as u32);
            prop_assert_eq!(end, start.minus(distance.wrapping_neg() as u32));
            prop_assert_eq!(end.distance_from(start), distance);
            prop_assert_eq!(end.compare(start), distance.cmp(&0));
            prop_assert_eq!(end.is_before(start), distance < 0);
            prop_assert_eq!(end.is_after(start), distance > 0);
        }
    }
}
