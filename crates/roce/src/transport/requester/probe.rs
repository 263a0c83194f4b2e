//! Probes: when a response is late compared with those before it, the oldest packet is sent again, long before the timeout.
//!
//! A responder reports a gap only when a later packet arrives, and only once. If the last packet of a burst is lost, or the report,
//! or the packet that would close the gap, only the timeout helps, which programs set for the worst case: tens of
//! milliseconds. A probe is one packet and uses up no retry, so probing a peer that is merely slow costs little. The timing
//! is that of TCP (RFC 6298): the smoothed round-trip time plus four times its variation, doubled with each probe that gets no
//! response. Packets that were sent twice are not measured.

use crate::transport::sequence::Sequence;

/// The maximum number of doublings of the interval.
const DOUBLINGS_MAX: u32 = 10;

/// Measures round trips, and says when to probe. Times are in nanoseconds.
#[derive(Debug)]
pub(super) struct Probe {
    /// The shortest interval; `None` turns probes off.
    min: Option<u64>,
    round_trip: Option<RoundTrip>,
    /// The position after a packet whose response is awaited, and when it was sent.
    sample: Option<(Sequence, u64)>,
    deadline: Option<u64>,
    doublings: u32,
}

#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    smoothed: u64,
    variation: u64,
}

impl RoundTrip {
    /// RFC 6298, section 2.
    fn with(before: Option<Self>, sample: u64) -> Self {
        let Some(Self {
            smoothed,
            variation,
        }) = before
        else {
            return Self {
                smoothed: sample,
                variation: sample / 2,
            };
        };
        Self {
            smoothed: smoothed - smoothed / 8 + sample / 8,
            variation: variation - variation / 4 + smoothed.abs_diff(sample) / 4,
        }
    }
}

impl Probe {
    pub(super) fn new(min: Option<u64>) -> Self {
        Self {
            min,
            round_trip: None,
            sample: None,
            deadline: None,
            doublings: 0,
        }
    }

    /// When to send the next probe; `None` if no timer runs.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// Records that a packet that requests a response was sent for the first time; `end` is the position after it.
    pub(super) fn measure(&mut self, now: u64, end: Sequence) {
        self.sample.get_or_insert((end, now));
    }

    /// Forgets the measurement: packets are sent again, and a response does not show which copy it answers.
    pub(super) fn forget(&mut self) {
        self.sample = None;
    }

    /// Records that everything before `position` is acknowledged.
    pub(super) fn progress(&mut self, now: u64, position: Sequence) {
        self.doublings = 0;
        if let Some((_, sent)) = self.sample.take_if(|(end, _)| *end <= position) {
            let sample = now.saturating_sub(sent);
            self.round_trip = Some(RoundTrip::with(self.round_trip, sample));
        }
    }

    /// Restarts the timer.
    pub(super) fn watch(&mut self, now: u64) {
        self.deadline = self.interval().map(|interval| now.saturating_add(interval));
    }

    /// Stops the timer.
    pub(super) fn stop(&mut self) {
        self.deadline = None;
    }

    /// A probe is sent.
    pub(super) fn probed(&mut self, now: u64) {
        self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        self.watch(now);
    }

    fn interval(&self) -> Option<u64> {
        let (min, round_trip) = (self.min?, self.round_trip?);
        let usual = round_trip.smoothed + 4 * round_trip.variation;
        Some(usual.max(min).saturating_mul(1 << self.doublings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Psn;

    #[test]
    fn a_probe_is_sent_when_a_response_is_later_than_usual() {
        let first = Sequence::first(Psn::new(5));
        let mut probe = Probe::new(Some(1000));
        probe.watch(0);
        assert_eq!(probe.deadline(), None, "nothing has been measured");
        probe.measure(0, first.plus(2));
        probe.measure(10, first.plus(9));
        probe.progress(400, first.next());
        assert_eq!(probe.interval(), None);
        probe.progress(800, first.plus(2));
        assert_eq!(probe.interval(), Some(800 + 4 * 400));
        for _ in 0..100 {
            probe.measure(1000, first);
            probe.progress(1080, first);
        }
        assert_eq!(probe.interval(), Some(1000), "the minimum");
        probe.watch(2000);
        assert_eq!(probe.deadline(), Some(3000));
        probe.probed(3000);
        assert_eq!(probe.deadline(), Some(5000));
        probe.progress(5000, first);
        probe.watch(5000);
        assert_eq!(probe.deadline(), Some(6000));
        for _ in 0..100 {
            probe.probed(0);
        }
        assert_eq!(probe.deadline(), Some(1000 << DOUBLINGS_MAX));
    }

    #[test]
    fn packets_that_were_sent_twice_are_not_measured() {
        let first = Sequence::first(Psn::new(5));
        let mut probe = Probe::new(Some(0));
        probe.measure(0, first);
        probe.forget();
        probe.progress(100, first);
        assert_eq!(probe.interval(), None);
        assert_eq!(Probe::new(None).interval(), None);
    }
}
