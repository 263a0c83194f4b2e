//! Probes: when a response is late compared with those before it, the oldest packet is sent again, long before the timeout.
//!
//! A responder reports a gap only when a later packet arrives, and only once. If the last packet of a burst is lost, or the report,
//! or the packet that would close the gap, only the timeout helps, which programs set for the worst case: tens of
//! milliseconds. A probe is one packet and uses up no retry, so probing a peer that is merely slow costs little. The timing
//! is that of TCP (RFC 6298): the smoothed round-trip time plus four times its variation, doubled with each probe that gets no
//! response. Packets that were sent twice are not measured.
//!
//! Before anything is measured, the first probe comes after [`INITIAL`], as RFC 6298 has a first timeout. If packets get lost, the
//! first measurement can take long, because those that are sent again do not count. So the time from the first packet to the first
//! response stands in for it: no round trip since then was longer.

use crate::transport::sequence::Sequence;

/// The maximum number of doublings of the interval.
const DOUBLINGS_MAX: u32 = 10;
/// The first interval, in nanoseconds: longer than most round trips, and shorter than most programs' timeouts.
const INITIAL: u64 = 20_000_000;
/// The longest interval before anything is measured, in nanoseconds. The first response may have taken long because the peer was not
/// there yet.
const UNMEASURED_MAX: u64 = 1_000_000_000;

/// Measures round trips, and says when to probe. Times are in nanoseconds.
#[derive(Debug)]
pub(super) struct Probe {
    /// The shortest interval; `None` turns probes off.
    min: Option<u64>,
    round_trip: Option<RoundTrip>,
    /// Whether `round_trip` is only a limit, and nothing has been measured.
    is_limit: bool,
    /// When the first packet was sent.
    first_sent: Option<u64>,
    /// A packet whose response is awaited.
    sample: Option<Sample>,
    /// A packet behind half a window of others.
    loaded: Option<Sample>,
    /// The packet of `sample`, which a probe has sent again.
    aside: Option<Sample>,
    deadline: Option<u64>,
    doublings: u32,
    /// When the last probe was sent.
    probed: u64,
}

/// A packet that is being measured: the position after it, and when it was sent.
type Sample = (Sequence, u64);

/// The round trips that were measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    pub(super) smoothed: u64,
    variation: u64,
    pub(super) shortest: u64,
    /// The last round trip of a packet that left behind half a window of others.
    loaded: Option<u64>,
}

impl RoundTrip {
    /// RFC 6298, section 2.
    pub(super) fn first(sample: u64) -> Self {
        Self {
            smoothed: sample,
            variation: sample / 2,
            shortest: sample,
            loaded: None,
        }
    }

    fn then(self, sample: u64) -> Self {
        let Self {
            smoothed,
            variation,
            shortest,
            loaded,
        } = self;
        Self {
            smoothed: smoothed - smoothed / 8 + sample / 8,
            variation: variation - variation / 4 + smoothed.abs_diff(sample) / 4,
            shortest: shortest.min(sample),
            loaded,
        }
    }

    /// This round trip was also that of a packet that left behind half a window of others.
    pub(super) fn loaded(self, sample: u64) -> Self {
        let loaded = Some(sample);
        Self { loaded, ..self }
    }

    /// Whether packets behind half a window of others take hardly longer than those behind few others: no queue grows. (The shortest
    /// round trip includes the time in which a link sends a quarter of a burst, so a slow link makes a short path seem long.)
    pub(super) fn is_free(self) -> bool {
        (self.loaded).is_some_and(|loaded| loaded <= self.shortest + self.shortest / 4)
    }

    /// A response that takes longer is late.
    fn usual(self) -> u64 {
        self.smoothed + 4 * self.variation
    }
}

impl Probe {
    pub(super) fn new(min: Option<u64>) -> Self {
        Self {
            min,
            round_trip: None,
            is_limit: false,
            first_sent: None,
            sample: None,
            loaded: None,
            aside: None,
            deadline: None,
            doublings: 0,
            probed: 0,
        }
    }

    /// When to send the next probe; `None` if no timer runs.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// The round trips that were measured; `None` if none was.
    pub(super) fn measured(&self) -> Option<RoundTrip> {
        self.round_trip.filter(|_| !self.is_limit)
    }

    /// What arrives in less time after a packet is sent does not answer it, in nanoseconds. If nothing has been measured, half of the limit.
    pub(super) fn shortest(&self) -> u64 {
        let shortest = self.round_trip.map_or(0, |it| it.shortest);
        if self.is_limit {
            shortest / 2
        } else {
            shortest
        }
    }

    /// A response that takes longer than this, in nanoseconds, is late. `None` if there was no response yet, or without probes.
    pub(super) fn usual(&self) -> Option<u64> {
        let usual = self.min.and(self.round_trip)?.usual();
        Some(if self.is_limit {
            usual.min(UNMEASURED_MAX)
        } else {
            usual
        })
    }

    /// Records that a packet is sent.
    pub(super) fn sent(&mut self, now: u64) {
        self.first_sent.get_or_insert(now);
    }

    /// Records that a response has arrived to some packet that was sent.
    pub(super) fn responded(&mut self, now: u64) {
        if self.round_trip.is_none()
            && let Some(sent) = self.first_sent
        {
            self.round_trip = Some(RoundTrip::first(now.saturating_sub(sent)));
            self.is_limit = true;
        }
    }

    /// Records that a packet that requests a response was sent for the first time; `end` is the position after it. `is_loaded`: it is
    /// behind half a window of others.
    pub(super) fn measure(&mut self, now: u64, end: Sequence, is_loaded: bool) {
        self.sample.get_or_insert((end, now));
        if is_loaded {
            self.loaded.get_or_insert((end, now));
        }
    }

    /// Forgets the measurement: packets are sent again, and a response does not show which copy it answers.
    pub(super) fn forget(&mut self) {
        (self.sample, self.loaded, self.aside) = (None, None, None);
    }

    /// Records that everything before `position` is acknowledged.
    pub(super) fn progress(&mut self, now: u64, position: Sequence) {
        self.doublings = 0;
        let ended = |sample: &mut Option<Sample>| {
            let taken = sample.take_if(|(end, _)| *end <= position);
            taken.map(|(_, sent)| now.saturating_sub(sent))
        };
        let (usual, loaded) = (ended(&mut self.sample), ended(&mut self.loaded));
        if let Some(time) = usual {
            let before = self.measured();
            self.round_trip = Some(before.map_or(RoundTrip::first(time), |it| it.then(time)));
            self.is_limit = false;
        }
        if let (Some(time), Some(before)) = (loaded, self.measured()) {
            self.round_trip = Some(before.loaded(time));
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

    /// The response up to `position` comes too soon to answer the last probe, so it answers what was sent before: the path has become
    /// longer.
    pub(super) fn measure_first_copy(&mut self, now: u64, position: Sequence) {
        let sample = self.aside.take_if(|(end, _)| *end <= position);
        if let (Some((_, sent)), Some(before)) = (sample, self.measured()) {
            self.round_trip = Some(before.then(now.saturating_sub(sent)));
        }
    }

    /// A probe is sent: a response does not show which copy it answers.
    pub(super) fn probed(&mut self, now: u64) {
        self.aside = self.sample.take().or(self.aside);
        self.loaded = None;
        self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        self.probed = now;
        self.watch(now);
    }

    /// Whether a response that arrives at `now` can answer the last probe: it comes no sooner than after the shortest round trip. `None` if
    /// none was measured.
    pub(super) fn may_be_answered(&self, now: u64) -> Option<bool> {
        let shortest = self.measured()?.shortest;
        Some(now.saturating_sub(self.probed) >= shortest)
    }

    fn interval(&self) -> Option<u64> {
        let min = self.min?;
        let usual = self.usual().unwrap_or(INITIAL);
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
        assert_eq!(probe.deadline(), Some(INITIAL), "nothing has been measured");
        probe.measure(0, first.plus(2), false);
        probe.measure(10, first.plus(9), false);
        probe.progress(400, first.next());
        assert_eq!(probe.interval(), Some(INITIAL));
        probe.progress(800, first.plus(2));
        assert_eq!(probe.interval(), Some(800 + 4 * 400));
        for _ in 0..100 {
            probe.measure(1000, first, false);
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
        probe.measure(0, first, false);
        probe.forget();
        probe.progress(100, first);
        assert_eq!(probe.interval(), Some(INITIAL));
        assert_eq!(Probe::new(None).interval(), None);
    }

    #[test]
    fn until_the_first_measurement_the_first_response_limits_the_round_trip() {
        let first = Sequence::first(Psn::new(5));
        let mut probe = Probe::new(Some(0));
        probe.responded(10);
        assert_eq!(probe.interval(), Some(INITIAL), "nothing was sent");
        probe.sent(100);
        probe.sent(5000);
        probe.responded(300);
        assert_eq!(probe.interval(), Some(200 + 4 * 100));
        probe.responded(9000);
        let mut late = Probe::new(Some(0));
        late.sent(0);
        late.responded(10 * UNMEASURED_MAX);
        assert_eq!(late.interval(), Some(UNMEASURED_MAX));
        assert_eq!(probe.interval(), Some(200 + 4 * 100));
        assert!(probe.measured().is_none() && probe.usual() == Some(600));
        probe.measure(9000, first.next(), false);
        probe.progress(9050, first.next());
        assert_eq!(
            probe.interval(),
            Some(50 + 4 * 25),
            "not smoothed with the limit"
        );
        assert_eq!(probe.measured().map(|it| it.shortest), Some(50));
        for round_trip in [70, 40, 60] {
            probe.measure(0, first, false);
            probe.progress(round_trip, first);
        }
        assert_eq!(probe.measured().map(|it| it.shortest), Some(40));
        probe.probed(1000);
        let answers = [1000, 1039, 1040].map(|now| probe.may_be_answered(now));
        assert_eq!(answers, [Some(false), Some(false), Some(true)]);
        assert_eq!(Probe::new(Some(0)).may_be_answered(7), None);
    }
}
