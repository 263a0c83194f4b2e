//! Memory that is known to be watched by this monitor's own descriptor, so that a miss need not watch it again.

use parking_lot::Mutex;
use rkey_base::range::VaRange;

/// How many ranges are known at a time.
const RANGES: usize = 8;

/// Ranges that were watched when a certain number of events had been applied. While no further event has been applied, and the kernel
/// reports no change in progress, they are still watched: each way in which memory stops being watched causes an event first. There are two
/// exceptions: `shmat` over it, which the kernel's answer shows, and before Linux 6.17, another descriptor that stops our watching.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Ranges>);

#[derive(Debug, Default)]
struct Ranges {
    ranges: [Option<(VaRange, u64)>; RANGES],
    /// The range that the next one replaces.
    oldest: usize,
}

impl Known {
    /// `range` was found to be watched after that many events had been applied.
    pub(super) fn add(&self, range: VaRange, events: u64) {
        let mut it = self.0.lock();
        let oldest = it.oldest;
        it.ranges[oldest] = Some((range, events));
        it.oldest = (oldest + 1) % RANGES;
    }

    /// Whether all of the range is watched, if no change is in progress.
    pub(super) fn contains(&self, range: &VaRange, events: u64) -> bool {
        let it = self.0.lock();
        let mut known = it.ranges.iter().flatten();
        known.any(|(known, then)| *then == events && known.contains(range))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_known_until_the_next_event() {
        let page = |number: u64| VaRange::new(number << 12, 0x1000).unwrap();
        let known = Known::default();
        known.add(page(1), 5);
        assert!(known.contains(&page(1), 5) && !known.contains(&page(2), 5));
        assert!(!known.contains(&page(1), 6));
        for number in 2..2 + RANGES as u64 {
            known.add(page(number), 6);
        }
        assert!(!known.contains(&page(1), 5) && known.contains(&page(2), 6));
    }
}
