//! Congestion: how the window follows the notifications (CNPs) that the peer sends when routers mark our packets.
//!
//! The share of round trips in which packets met congestion is estimated, as in DCQCN and DCTCP (RFC 8257, 3.3). A notification lowers
//! the window by half of that share, at most once in a round trip: much when congestion begins, and little when it comes and
//! goes. Between notifications, the window grows as it always does, by one packet for each window. So queues stay short, and
//! neither empty nor overflow. As with TCP, a loss halves the window, and notifications of the same round trip add nothing.

use super::Requester;
use crate::transport::sequence::Sequence;
use crate::transport::step::Output;

/// The fixed-point representation of 1.
const ONE: u32 = 1 << 10;
/// The weight of the newest round trip is one part in so many.
const WEIGHT: u32 = 16;

/// Congestion on the path to the peer.
#[derive(Debug)]
pub(super) struct Congestion {
    /// The estimated share of round trips with congestion, in units of 1 / [`ONE`].
    share: u32,
    /// The end of the round trip in progress: when everything before this position is acknowledged.
    round_end: Sequence,
    /// Whether a notification has arrived in this round trip.
    is_marked: bool,
    /// What had been sent when the window was last lowered. Notifications that arrive before that is acknowledged, and before more
    /// is sent, concern packets of the larger window.
    lowered_at: Sequence,
}

impl Congestion {
    /// Nothing before `first` has been sent.
    pub(super) fn new(first: Sequence) -> Self {
        Self {
            share: ONE,
            round_end: first,
            is_marked: false,
            lowered_at: first,
        }
    }

    /// Records that everything before `unacked` is acknowledged, and that packets before `top` have been sent.
    pub(super) fn acknowledged(&mut self, unacked: Sequence, top: Sequence) {
        if unacked < self.round_end {
            return;
        }
        let newest = if std::mem::take(&mut self.is_marked) {
            ONE
        } else {
            0
        };
        self.share = self.share - self.share.div_ceil(WEIGHT) + newest / WEIGHT;
        self.round_end = top;
    }

    /// Records a loss, after which the window is lowered.
    pub(super) fn lost(&mut self, top: Sequence) {
        self.lowered_at = top;
    }

    /// Records a notification. Returns the new window, if the window has to be lowered.
    pub(super) fn notified(
        &mut self,
        window: u32,
        unacked: Sequence,
        top: Sequence,
    ) -> Option<u32> {
        self.is_marked = true;
        if unacked < self.lowered_at || top <= self.lowered_at {
            return None;
        }
        self.lowered_at = top;
        let less = (u64::from(window) * u64::from(self.share) / u64::from(2 * ONE)) as u32;
        Some(window - less.clamp(1, window))
    }
}

impl Requester {
    /// Packets that the peer received from this side, or packets of a response to this side, have met congestion.
    pub(crate) fn slow_down(&mut self, out: &mut Output) {
        if self.retry.notified(self.unacked, self.top) {
            out.counters.slowed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Psn;

    const FIRST: Sequence = Sequence::first(Psn::new(7));

    #[test]
    fn the_first_notification_halves_the_window_once_in_a_round_trip() {
        let mut congestion = Congestion::new(FIRST);
        assert_eq!(congestion.notified(64, FIRST, FIRST), None, "nothing sent");
        let top = FIRST.plus(64);
        assert_eq!(congestion.notified(64, FIRST, top), Some(32));
        for acknowledged in 0..64 {
            let unacked = FIRST.plus(acknowledged);
            let top = unacked.plus(64);
            assert_eq!(congestion.notified(32, unacked, top), None);
        }
        assert_eq!(congestion.notified(32, top, top), None, "nothing new sent");
        assert!(congestion.notified(32, top, top.plus(32)).is_some());
    }

    #[test]
    fn the_less_often_packets_meet_congestion_the_less_the_window_is_lowered() {
        // The window after a notification in every `every`-th round trip.
        let after = |every: u32| {
            let (mut congestion, mut at, mut last) = (Congestion::new(FIRST), FIRST, 0);
            for round in 1..=1000 {
                let top = at.plus(1000);
                if round % every == 0 {
                    last = congestion.notified(1000, at, top).unwrap();
                }
                congestion.acknowledged(top, top);
                at = top;
            }
            last
        };
        assert!((500..=510).contains(&after(1)), "{}", after(1));
        let [often, seldom] = [2, 20].map(after);
        assert!(often > 700 && seldom > often + 100, "{often} {seldom}");
        assert!(after(999) == 999, "at least one packet");
    }

    #[test]
    fn a_notification_after_a_loss_in_the_same_round_trip_changes_nothing() {
        let mut congestion = Congestion::new(FIRST);
        let top = FIRST.plus(64);
        congestion.lost(top);
        assert_eq!(congestion.notified(32, FIRST, top), None);
        assert_eq!(congestion.notified(32, top, top.next()), Some(16));
    }
}
