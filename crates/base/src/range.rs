//! Ranges of addresses that cannot wrap around.
//!
//! All arithmetic on addresses that come from a program or a peer goes through [`VaRange`]: once a range exists, its
//! end is known to be representable, and "is this access inside that memory" is a comparison that cannot overflow.

use std::fmt;

/// The half-open range of addresses `start .. start + len`.
///
/// The end is at most `u64::MAX`: a range that would reach or pass the end of the address space cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VaRange {
    start: u64,
    end: u64,
}

impl VaRange {
    /// The range of `len` bytes from `start`, or `None` when it would wrap around the end of the address space.
    #[must_use]
    #[inline]
    pub const fn new(start: u64, len: u64) -> Option<Self> {
        match start.checked_add(len) {
            Some(end) => Some(Self { start, end }),
            None => None,
        }
    }

    /// The first address.
    #[must_use]
    #[inline]
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// The number of bytes.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> u64 {
        self.end - self.start
    }

    /// The first address past the end of the range.
    #[must_use]
    #[inline]
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Whether the range has no byte.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether every byte of `inner` lies in this range. An empty `inner` must still start inside this range or
    /// exactly at its end.
    #[must_use]
    #[inline]
    pub const fn contains(&self, inner: &Self) -> bool {
        self.start <= inner.start && inner.end <= self.end
    }

    /// Whether the byte at `address` lies in this range.
    #[must_use]
    #[inline]
    pub const fn contains_address(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// The `len` bytes that begin `offset` bytes into this range, or `None` when they are not all inside it.
    #[must_use]
    #[inline]
    pub const fn slice(&self, offset: u64, len: u64) -> Option<Self> {
        match offset.checked_add(len) {
            // `offset + len <= self.len()`, hence neither sum can pass `self.end`.
            Some(stop) if stop <= self.len() => Some(Self {
                start: self.start + offset,
                end: self.start + stop,
            }),
            _ => None,
        }
    }

    /// Whether at least one byte lies in both ranges. An empty range overlaps nothing.
    #[must_use]
    #[inline]
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.intersection(other).is_some()
    }

    /// The bytes that lie in both ranges, or `None` when there are none.
    #[must_use]
    #[inline]
    pub const fn intersection(&self, other: &Self) -> Option<Self> {
        let start = if self.start > other.start {
            self.start
        } else {
            other.start
        };
        let end = if self.end < other.end {
            self.end
        } else {
            other.end
        };
        if start < end {
            Some(Self { start, end })
        } else {
            None
        }
    }
}

impl fmt::Display for VaRange {
    /// `0x1000..0x2000`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, len: u64) -> VaRange {
        VaRange::new(start, len).unwrap()
    }

    #[test]
    fn ranges_that_wrap_cannot_be_built() {
        assert!(VaRange::new(u64::MAX, 1).is_none());
        assert!(VaRange::new(1, u64::MAX).is_none());
        assert!(VaRange::new(u64::MAX - 4095, 4096).is_none());
        assert_eq!(VaRange::new(u64::MAX, 0).map(|r| r.len()), Some(0));
        assert_eq!(VaRange::new(0, u64::MAX).map(|r| r.end()), Some(u64::MAX));
    }

    #[test]
    fn slices_and_addresses_must_lie_inside_the_range() {
        let whole = range(0x1000, 0x100);
        assert_eq!(whole.to_string(), "0x1000..0x1100");
        assert_eq!(whole.slice(0x10, 0xF0), Some(range(0x1010, 0xF0)));
        assert_eq!(whole.slice(0x100, 0), Some(range(0x1100, 0)));
        assert_eq!(whole.slice(0x10, 0xF1), None);
        assert_eq!(whole.slice(0x101, 0), None);
        assert_eq!(whole.slice(u64::MAX, 1), None);
        assert_eq!(whole.slice(2, u64::MAX), None);
        assert!(whole.contains_address(0x1000) && whole.contains_address(0x10FF));
        assert!(!whole.contains_address(0x1100) && !whole.contains_address(0xFFF));
    }

    /// All pairs of small ranges, against sets of addresses.
    #[test]
    fn overlap_and_intersection_of_ranges_match_sets_of_addresses() {
        let ranges = || (0..6).flat_map(|start| (0..6).map(move |len| range(start, len)));
        for a in ranges() {
            let in_a = |x: u64| (a.start()..a.end()).contains(&x);
            assert_eq!(a.is_empty(), a.start() == a.end());
            for b in ranges() {
                let in_b = |x: u64| (b.start()..b.end()).contains(&x);
                let common: Vec<u64> = (0..12).filter(|&x| in_a(x) && in_b(x)).collect();
                assert_eq!(a.overlaps(&b), !common.is_empty());
                let both: Option<Vec<u64>> =
                    a.intersection(&b).map(|r| (r.start()..r.end()).collect());
                assert_eq!(both.unwrap_or_default(), common);
                if !b.is_empty() {
                    assert_eq!(a.contains(&b), (0..12).all(|x| !in_b(x) || in_a(x)));
                }
            }
        }
    }
}
