//! The window: how many packets may be outstanding, and how fast they leave.
//!
//! Up to its first size, a window is a burst that every peer's receive buffer holds. That fills a short path. On a path with a long round
//! trip, the window grows beyond it: by the packets that are acknowledged until the first loss or mark (slow start, RFC 5681), and
//! then by a few packets in each round trip. Its packets are spread over the round trip, so the peer gets no longer burst than before.
//!
//! The limit follows the *shortest* round trip that was measured, because queues make the others longer: a window that fills a queue
//! must not take the delay of the queue for a long path. Nor does the window grow while a queue does.

use super::probe::RoundTrip;

/// The minimum window after losses, in packets, unless it was smaller from the start: one packet that is lost and one
/// that reveals the loss.
const MIN: u32 = 2;
/// The shortest time between two bursts, in nanoseconds. On average, no more than a burst leaves in this time.
const PERIOD: u64 = 1_000_000;
/// After slow start, windows grow as if the round trip were at most this long, in nanoseconds ("TCP Hybla: a TCP enhancement for
/// heterogeneous networks", 2004): the rate grows by as much as that of a connection with this round trip.
const REFERENCE: u64 = 10_000_000;

/// By how many packets a lost packet lowers the window, if only what is lost is sent again. A sixteenth of the window halves it.
const LOSS: u32 = 8;
/// At most one lost packet in so many does not end slow start, as in BBR.
const RARE: u32 = 50;

/// The window of a requester. Sizes are in packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// The first size, and the longest burst.
    burst: u32,
    /// The limit on paths with long round trips.
    longest: u32,
    size: u32,
    /// Slow start ends at this size.
    threshold: u32,
    /// Positions acknowledged since the size last changed.
    acknowledged: u32,
    pace: Pace,
}

impl Window {
    pub(super) fn new(burst: u32, longest: u32) -> Self {
        let burst = burst.max(1);
        Self {
            burst,
            longest: longest.max(burst),
            size: burst,
            threshold: u32::MAX,
            acknowledged: 0,
            pace: Pace::default(),
        }
    }

    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// After how many packets an acknowledgement is requested: at least four times for a window or a burst.
    pub(super) fn quarter(&self) -> u32 {
        self.size.min(self.burst).div_ceil(4)
    }

    /// The maximum number of packets of a response that one request asks for. A responder sends them without pause, so it is a burst at
    /// most. Large parts leave in fewer system calls, and the number of outstanding requests is limited. Reads that start while the window
    /// is lowered have smaller parts, because at least one part is always outstanding.
    pub(super) fn read_part(&self) -> u32 {
        let parts = if self.size < self.burst { 4 } else { 2 };
        (self.burst / parts).max(1)
    }

    /// The largest size on a path with this shortest round trip.
    fn max(&self, path: Option<RoundTrip>) -> u32 {
        let bursts = path.map_or(0, |path| path.shortest / PERIOD);
        let max = bursts.saturating_mul(self.burst.into());
        u32::try_from(max)
            .unwrap_or(u32::MAX)
            .clamp(self.burst, self.longest)
    }

    /// Records that the peer has executed `positions` packets. Before that, `outstanding` packets were.
    pub(super) fn acknowledged(
        &mut self,
        positions: u32,
        outstanding: u32,
        path: Option<RoundTrip>,
    ) {
        let max = self.max(path);
        // The path may be shorter than it seemed.
        self.size = self.size.min(max);
        let is_used = outstanding >= self.size / 2;
        if self.size >= self.burst {
            // What the path holds beyond what has been sent is unknown.
            if !is_used {
                return;
            }
            // A larger window would only make a queue longer.
            if path.is_some_and(|path| !path.is_free()) {
                return;
            }
            if self.size < self.threshold {
                let larger = self.size.saturating_add(positions);
                self.size = larger.min(max).min(self.threshold);
                return;
            }
        }
        self.acknowledged = self.acknowledged.saturating_add(positions);
        if self.acknowledged >= self.size {
            self.acknowledged = 0;
            self.size = (self.size + self.step(path)).min(max);
        }
    }

    /// By how much the window grows in a round trip, after slow start.
    fn step(&self, path: Option<RoundTrip>) -> u32 {
        let times = path.map_or(0, |path| path.shortest / REFERENCE);
        let step = u32::try_from(times.saturating_mul(times)).unwrap_or(u32::MAX);
        step.min(self.size / 4).max(1)
    }

    /// Halves the window: the network or the peer's receive buffer holds less.
    pub(super) fn halve(&mut self) {
        self.lower(self.size / 2);
    }

    /// Lowers the window, not below `floor`, because `newly` packets were lost, and `all` packets within a round trip.
    ///
    /// If no queue grows, packets were lost at random, or as many as were too many. Then each of them lowers the window by a few packets,
    /// and slow start continues while they are few. Otherwise, the window falls to `floor`.
    pub(super) fn lost(&mut self, newly: u32, all: u32, floor: u32, path: Option<RoundTrip>) {
        let is_free = path.is_some_and(RoundTrip::is_free);
        let less = match is_free {
            true => newly.saturating_mul(LOSS),
            false => self.size,
        };
        let threshold = self.threshold;
        let is_rare = is_free && all <= self.size / RARE;
        self.lower(self.size.saturating_sub(less).max(floor.min(self.size)));
        if is_rare {
            self.threshold = self.threshold.max(threshold);
        }
    }

    /// Becomes as large as it was `before` it was lowered, and continues slow start if it was in it.
    pub(super) fn restore(&mut self, before: &Self) {
        self.size = self.size.max(before.size);
        self.threshold = self.threshold.max(before.threshold);
    }

    /// Lowers the window to this size, and ends slow start.
    pub(super) fn lower(&mut self, size: u32) {
        self.size = size.max(MIN.min(self.burst));
        self.threshold = self.size;
        self.acknowledged = 0;
    }

    /// Whether a packet may leave now. The window is checked elsewhere.
    pub(super) fn may_send(&self, now: u64) -> bool {
        self.pace.resumes_at.is_none_or(|time| time <= now)
    }

    /// When packets may leave again, if they must not leave yet.
    pub(super) fn resumes_at(&self) -> Option<u64> {
        self.pace.resumes_at
    }

    /// Advances the time.
    pub(super) fn advance(&mut self, now: u64) {
        self.pace.resumes_at = self.pace.resumes_at.filter(|time| now < *time);
    }

    /// Records that a packet leaves that takes this many positions.
    pub(super) fn sent(&mut self, now: u64, positions: u32, path: Option<RoundTrip>) {
        let Some(path) = path.filter(|_| self.size > self.burst) else {
            self.pace = Pace::default();
            return;
        };
        // A little faster than the window allows, so that the pace does not limit it; in slow start, as fast as it grows.
        let faster = if self.size < self.threshold {
            u64::from(self.size) * 2
        } else {
            u64::from(self.size) * 5 / 4
        };
        let each = i64::try_from(path.smoothed / faster).unwrap_or(i64::MAX);
        self.pace.sent(now, positions, each, self.burst);
    }

    /// Stops the pause.
    pub(super) fn stop(&mut self) {
        self.pace = Pace::default();
    }
}

/// Spreads packets over time, in bursts: a timer for each packet would cost more than the packet.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// For how long packets may leave, in nanoseconds of their time. Negative: the last packet took more.
    credit: i64,
    /// When the credit was computed. `None`: a whole burst may leave.
    since: Option<u64>,
    resumes_at: Option<u64>,
}

impl Pace {
    /// A packet leaves that takes `positions` times `each` nanoseconds.
    fn sent(&mut self, now: u64, positions: u32, each: i64, burst: u32) {
        let most = each.saturating_mul(burst.into());
        let earned = self.since.map_or(i64::MAX, |since| {
            i64::try_from(now.saturating_sub(since)).unwrap_or(i64::MAX)
        });
        let credit = self.credit.saturating_add(earned).min(most);
        self.credit = credit.saturating_sub(each.saturating_mul(positions.into()));
        self.since = Some(now);
        self.resumes_at = (self.credit <= 0).then(|| {
            let debt = self.credit.unsigned_abs();
            now.saturating_add(debt.max(PERIOD))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    fn path(milliseconds: u64) -> Option<RoundTrip> {
        let time = milliseconds * MILLISECOND;
        Some(RoundTrip::first(time).loaded(time))
    }

    /// The sizes of a window after each round trip in which all of it was used.
    fn sizes(window: &mut Window, round_trips: u32, path: Option<RoundTrip>) -> Vec<u32> {
        let round = |_| {
            let size = window.size();
            let mut left = size;
            while left > 0 {
                let positions = left.min(32);
                window.acknowledged(positions, size, path);
                left -= positions;
            }
            window.size()
        };
        (0..round_trips).map(round).collect()
    }

    #[test]
    fn losses_make_the_parts_of_reads_smaller() {
        let mut window = Window::new(128, 1024);
        assert_eq!(window.read_part(), 64);
        window.halve();
        assert_eq!(window.read_part(), 32);
        assert_eq!(Window::new(1, 1).read_part(), 1);
    }

    #[test]
    fn on_a_short_path_the_window_stays_a_burst() {
        for path in [
            None,
            path(0),
            Some(RoundTrip::first(1_900_000).loaded(1_900_000)),
        ] {
            let mut window = Window::new(128, 16_384);
            assert_eq!(sizes(&mut window, 50, path), [128; 50]);
            window.halve();
            assert_eq!(sizes(&mut window, 3, path), [65, 66, 67]);
            assert_eq!(sizes(&mut window, 70, path)[60..], [128; 10]);
        }
    }

    #[test]
    fn on_a_long_path_the_window_doubles_until_the_first_loss_and_then_grows_slowly() {
        let mut window = Window::new(128, 16_384);
        let grown = sizes(&mut window, 8, path(50));
        assert_eq!(grown, [256, 512, 1024, 2048, 4096, 6400, 6400, 6400]);
        window.halve();
        // As fast as five connections of 10 ms: 25 packets in a round trip.
        assert_eq!(sizes(&mut window, 3, path(50)), [3225, 3250, 3275]);
        assert_eq!(*sizes(&mut window, 200, path(50)).last().unwrap(), 6400);
        let mut window = Window::new(128, 1000);
        assert_eq!(*sizes(&mut window, 8, path(50)).last().unwrap(), 1000);
        assert_eq!(
            *sizes(&mut window, 1, path(3)).last().unwrap(),
            384,
            "it was shorter"
        );
    }

    #[test]
    fn a_window_that_fills_a_queue_does_not_grow_beyond_a_burst() {
        let first = RoundTrip::first(10 * MILLISECOND);
        for path in [first, first.loaded(13 * MILLISECOND)] {
            let mut window = Window::new(128, 16_384);
            assert_eq!(sizes(&mut window, 20, Some(path)), [128; 20]);
            window.halve();
            let grown = sizes(&mut window, 300, Some(path));
            assert_eq!(*grown.last().unwrap(), 128, "up to a burst, it grows again");
        }
        let mut window = Window::new(128, 16_384);
        let path = first.loaded(12 * MILLISECOND);
        assert_eq!(sizes(&mut window, 1, Some(path)), [256]);
    }

    #[test]
    fn a_small_window_grows_by_a_quarter_at_most() {
        let mut window = Window::new(128, 16_384);
        for _ in 0..20 {
            window.halve();
        }
        assert_eq!(window.size(), 2);
        let grown = sizes(&mut window, 40, path(1000));
        assert!(
            grown
                .windows(2)
                .all(|it| it[1] <= (it[0] + it[0] / 4).max(it[0] + 1))
        );
        assert!(grown[39] > 1000);
    }

    #[test]
    fn on_a_free_path_rare_losses_cost_little() {
        let mut window = Window::new(128, 16_384);
        sizes(&mut window, 4, path(50));
        assert_eq!(window.size(), 2048);
        window.lost(2, 2, 1024, path(50));
        assert_eq!(window.size(), 2048 - 16);
        assert_eq!(
            sizes(&mut window, 1, path(50)),
            [4064],
            "still in slow start"
        );
        let before = window;
        window.lost(100, 100, 2032, path(50));
        assert_eq!(window.size(), 4064 - 800);
        assert_eq!(sizes(&mut window, 1, path(50)), [3264 + 25]);
        window.lost(1000, 1100, 2032, path(50));
        assert_eq!(window.size(), 2032, "half at most");
        window.restore(&before);
        assert_eq!(sizes(&mut window, 1, path(50)), [6400]);
        // A queue grows, or nothing is known.
        let busy = RoundTrip::first(50 * MILLISECOND).loaded(70 * MILLISECOND);
        for path in [Some(busy), None] {
            let mut window = before;
            window.lost(1, 1, 2032, path);
            assert_eq!(window.size(), 2032);
        }
    }

    /// Otherwise, a program that sends little would get a window that no network has proved.
    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut window = Window::new(128, 16_384);
        for _ in 0..1000 {
            window.acknowledged(10, 63, path(50));
        }
        assert_eq!(window.size(), 128);
        window.acknowledged(64, 64, path(50));
        assert_eq!(window.size(), 192);
    }

    /// The packets that leave in each period, until as many have left as the window has.
    fn bursts(
        window: &mut Window,
        mut now: u64,
        positions: u32,
        path: Option<RoundTrip>,
    ) -> Vec<(u64, u32)> {
        let (mut left, mut all) = (window.size(), Vec::new());
        while left > 0 {
            let mut burst = 0;
            while left > 0 && window.may_send(now) {
                window.sent(now, positions, path);
                burst += positions;
                left = left.saturating_sub(positions);
            }
            all.push((now, burst));
            let Some(resumes_at) = window.resumes_at() else {
                break;
            };
            now = resumes_at;
            window.advance(now);
            assert!(window.may_send(now) && window.resumes_at().is_none());
        }
        all
    }

    #[test]
    fn a_large_window_leaves_in_bursts_within_a_round_trip() {
        let mut window = Window::new(128, 16_384);
        sizes(&mut window, 8, path(50));
        window.halve();
        for positions in [1, 64] {
            let all = bursts(&mut window, 7, positions, path(50));
            let (last, _) = all.last().unwrap();
            assert!(
                (35 * MILLISECOND..50 * MILLISECOND).contains(last),
                "{last}"
            );
            assert!(all.iter().all(|(_, burst)| *burst <= 192), "{all:?}");
            let gaps = all.windows(2).map(|it| it[1].0 - it[0].0);
            assert!(gaps.min().unwrap() >= PERIOD);
            window.stop();
        }
        // After a pause, there is no burst for all that could have been sent.
        let all = bursts(&mut window, 10_000 * MILLISECOND, 1, path(50));
        assert_eq!(all[0].1, 128);
    }

    #[test]
    fn a_window_of_a_burst_leaves_at_once() {
        let mut window = Window::new(128, 16_384);
        assert_eq!(bursts(&mut window, 0, 1, path(50)), [(0, 128)]);
    }

    #[test]
    fn a_timer_that_runs_late_sends_more_at_once() {
        let mut window = Window::new(128, 16_384);
        sizes(&mut window, 3, path(50));
        window.halve();
        let mut count = |now| {
            let mut count = 0;
            window.advance(now);
            while window.may_send(now) {
                window.sent(now, 1, path(50));
                count += 1;
            }
            count
        };
        // 512 packets in 50 ms, and a quarter more: 12.8 in a millisecond.
        assert_eq!(count(0), 128);
        assert_eq!(count(MILLISECOND), 13);
        assert_eq!(count(5 * MILLISECOND), 51);
        assert_eq!(count(100 * MILLISECOND), 128);
    }
}
