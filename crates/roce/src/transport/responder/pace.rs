//! The pace of the responses to long reads.
//!
//! A peer may request a long read at once, and acknowledges none of the response's packets, so the responder has no window. Sent
//! without pause, they overflow the buffers of a slow peer. It requests the rest again, and loses most of that, too. So after a
//! peer has requested a long read again, responses to its long reads are sent in bursts with pauses between them. A burst is
//! halved each time the peer has lost packets or reports congestion, and grows slowly until then.

use crate::transport::sequence::Sequence;

/// The response to a read of more packets is long. A requester of this crate requests no long reads: it requests them in parts.
const LONG: u32 = 64;
/// The time between the beginnings of two bursts, in nanoseconds.
const PERIOD: u64 = 1_000_000;
/// The size of a burst, in packets: 8 MB/s with a path MTU of 1024.
const BURST_MIN: u32 = 8;
/// The largest first burst, after a peer has lost packets for the first time.
const BURST_FIRST: u32 = 64;
/// A burst of this size is no longer a limit.
const BURST_MAX: u32 = 512;
/// A burst grows by one packet after so many bursts without loss.
const BURSTS_TO_GROW: u32 = 8;

/// Whether a read is long that begins at `first`, and of which this many packets are requested from `start` on.
pub(super) fn is_long(first: Sequence, start: Sequence, packets: u32) -> bool {
    start.since(first) + packets > LONG
}

/// The pace of one queue pair's responses to long reads.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The size of a burst; `None` while the peer has lost nothing.
    burst: Option<u32>,
    /// How many packets of the current burst have been sent.
    sent: u32,
    /// When the current burst began.
    begun: u64,
    /// How many bursts have been sent since the size changed.
    bursts: u32,
    /// Where the response to the last long read, and its last repetition, began.
    last: Option<(Sequence, Sequence)>,
    /// When congestion last made the bursts smaller.
    slowed: Option<u64>,
}

impl Pace {
    /// Records that the peer has requested again, from `start` on, the long read that begins at `first`. If it has taken packets
    /// since the last time, it has lost the packet at `start`. Otherwise the request may be a duplicate, or early.
    pub(super) fn requested_again(&mut self, first: Sequence, start: Sequence) {
        let before = self.last.filter(|(read, _)| *read == first);
        let taken = start.since(before.map_or(first, |(_, start)| start));
        if taken == 0 {
            return;
        }
        self.last = Some((first, start));
        let burst = match self.burst {
            // The peer had room for what it has taken.
            None => (taken / 2).min(BURST_FIRST),
            Some(burst) => burst / 2,
        };
        self.burst = Some(burst.max(BURST_MIN));
        (self.sent, self.bursts) = (0, 0);
    }

    /// Records that packets of a long read have met congestion: halves the burst, at most once in a period.
    pub(super) fn congested(&mut self, now: u64) {
        let is_early = self
            .slowed
            .is_some_and(|time| now < time.saturating_add(PERIOD));
        if is_early {
            return;
        }
        self.slowed = Some(now);
        let burst = self.burst.map_or(BURST_FIRST, |burst| burst / 2);
        self.burst = Some(burst.max(BURST_MIN));
        self.bursts = 0;
    }

    /// Whether the next packet of a long read may be sent now.
    pub(super) fn may_send(&self) -> bool {
        self.resumes_at().is_none()
    }

    /// When the next burst begins, if the current one has been sent.
    pub(super) fn resumes_at(&self) -> Option<u64> {
        let is_sent = self.burst.is_some_and(|burst| self.sent >= burst);
        is_sent.then(|| self.begun.saturating_add(PERIOD))
    }

    /// Ends the pause if it is over at `now`.
    pub(super) fn advance(&mut self, now: u64) {
        if self.resumes_at().is_none_or(|time| now < time) {
            return;
        }
        self.sent = 0;
        self.bursts += 1;
        if self.bursts >= BURSTS_TO_GROW {
            self.bursts = 0;
            let larger = self.burst.map(|burst| burst + 1);
            self.burst = larger.filter(|burst| *burst < BURST_MAX);
        }
    }

    /// Records that a packet of a long read is sent at `now`.
    pub(super) fn sent(&mut self, now: u64) {
        if self.burst.is_none() {
            return;
        }
        if self.sent == 0 {
            self.begun = now;
        }
        self.sent += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Psn;

    /// How many packets may be sent at `now`, at most 10,000.
    fn burst(pace: &mut Pace, now: u64) -> u32 {
        let mut count = 0;
        pace.advance(now);
        while count < 10_000 && pace.may_send() {
            pace.sent(now);
            count += 1;
        }
        count
    }

    #[test]
    fn responses_are_sent_at_once_until_packets_are_lost() {
        let mut pace = Pace::default();
        assert_eq!(burst(&mut pace, 0), 10_000);
        assert_eq!(pace.resumes_at(), None);
    }

    #[test]
    fn each_loss_halves_the_burst() {
        let first = Sequence::first(Psn::new(100));
        let mut pace = Pace::default();
        let mut now = 0;
        for (start, expected) in [
            (100, 50),
            (150, 25),
            (150, 25),
            (120, 25),
            (160, 12),
            (170, 8),
            (190, 8),
        ] {
            pace.requested_again(first, first.plus(start));
            assert_eq!(burst(&mut pace, now), expected);
            assert_eq!(pace.resumes_at(), Some(now + PERIOD));
            assert_eq!(burst(&mut pace, now + PERIOD - 1), 0);
            assert_eq!(burst(&mut pace, now + PERIOD), expected);
            now += 2 * PERIOD;
        }
        // A loss in another read counts from its beginning.
        pace.requested_again(first.plus(1000), first.plus(1500));
        assert_eq!(burst(&mut pace, now), 8);
    }

    #[test]
    fn congestion_halves_the_burst_once_in_a_period() {
        let (mut pace, mut now) = (Pace::default(), 0);
        for expected in [64, 32, 16, 8, 8] {
            for early in [0, 1, PERIOD - 1] {
                pace.congested(now + early);
            }
            assert_eq!(burst(&mut pace, now + PERIOD - 1), expected);
            now += 2 * PERIOD;
        }
    }

    #[test]
    fn bursts_without_loss_grow_until_they_are_no_limit() {
        let first = Sequence::first(Psn::new(0));
        let mut pace = Pace::default();
        pace.requested_again(first, first);
        assert_eq!(burst(&mut pace, 0), 10_000, "nothing was lost");
        pace.requested_again(first, first.plus(1));
        let mut last = 0;
        for period in 1..u64::from(BURST_MAX * BURSTS_TO_GROW) {
            let now = burst(&mut pace, period * PERIOD);
            assert!(
                now == 10_000 || now - last <= 1 || last == 0,
                "{last}, then {now}"
            );
            last = now;
        }
        assert_eq!(last, 10_000);
    }
}
