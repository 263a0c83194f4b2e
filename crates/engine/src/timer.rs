//! Deadlines: exact ones for retries, coarse ones for silent peers.
//!
//! A queue pair that waits before a retry (receiver not ready, peer not ready) has an entry in a heap. A queue pair
//! that waits for its peer has no entry: it is on a list that is scanned occasionally, so that posting and completing
//! cost nothing. The scan interval is a quarter of the shortest timeout, between 1 ms and 100 ms, so a failure is
//! reported up to about that much late.

use crate::QpId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const SCAN_MIN_NS: u64 = 1_000_000;
const SCAN_MAX_NS: u64 = 100_000_000;

/// A scan of the coarse list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// The time by which silence is measured.
    pub(crate) watching: u64,
    /// Whether this scan is the first since the list was empty or got a shorter interval. A first scan leaves idle queue
    /// pairs on the list: most likely they are between two requests.
    pub(crate) is_first: bool,
}

/// A queue pair by index, with its life when the timer was set.
pub(crate) type Who = (u32, u32);

pub(crate) struct Timers {
    exact: BinaryHeap<Reverse<(u64, Who)>>,
    /// Queue pairs with a timeout running, each once.
    pub(crate) watched: Vec<QpId>,
    scan_every: u64,
    next_scan: Option<u64>,
    last_scan: u64,
    /// The earliest time at which a request that waits may be executed.
    request_waits_until: Option<u64>,
    /// The time that measures silence: only scans of the list advance it.
    watching: u64,
    /// The earliest time at which an exact deadline or a scan may be due.
    next_run: u64,
}

impl Timers {
    pub(crate) const fn new() -> Self {
        Self {
            exact: BinaryHeap::new(),
            watched: Vec::new(),
            scan_every: SCAN_MAX_NS,
            next_scan: None,
            last_scan: 0,
            request_waits_until: None,
            watching: 0,
            next_run: u64::MAX,
        }
    }

    /// Whether an exact deadline may have passed or a scan may be due. If not, there is nothing to run.
    #[inline]
    pub(crate) fn may_be_due(&self, now: u64) -> bool {
        now >= self.next_run
    }

    /// Computes when to run next. Call it after everything that was due has been handled.
    pub(crate) fn have_run(&mut self) {
        let exact = self.exact.peek();
        let exact = exact.map_or(u64::MAX, |Reverse((deadline, _))| *deadline);
        // If no time is set for the next scan, it is due at once.
        let scan = match self.watched.is_empty() {
            true => u64::MAX,
            false => self.next_scan.unwrap_or(0),
        };
        self.next_run = exact.min(scan);
    }

    /// Forgets the time until which requests must wait; each round determines it again.
    #[inline]
    pub(crate) fn no_request_waits(&mut self) {
        self.request_waits_until = None;
    }

    /// Records that a request must wait until this time.
    pub(crate) fn request_waits(&mut self, until: u64) {
        self.request_waits_until = Some(
            self.request_waits_until
                .map_or(until, |request_waits_until| request_waits_until.min(until)),
        );
    }

    pub(crate) fn at(&mut self, deadline: u64, who: Who) {
        self.next_run = self.next_run.min(deadline);
        self.exact.push(Reverse((deadline, who)));
    }

    /// Takes the next queue pair whose exact deadline has passed, with that deadline.
    pub(crate) fn due(&mut self, now: u64) -> Option<(u64, Who)> {
        let Reverse((deadline, _)) = *self.exact.peek()?;
        if deadline > now {
            return None;
        }
        self.exact.pop().map(|Reverse(entry)| entry)
    }

    /// Adds a queue pair to the coarse list.
    pub(crate) fn watch_silence(&mut self, qp: QpId, patience: u64) {
        let every = (patience / 4).clamp(SCAN_MIN_NS, SCAN_MAX_NS);
        if self.watched.is_empty() || every < self.scan_every {
            self.scan_every = every;
            self.next_scan = None;
            self.next_run = 0;
        }
        self.watched.push(qp);
    }

    /// The scan of the coarse list, if one is due.
    ///
    /// A scan advances [`Scan::watching`] by at most the interval between two scans. If the last scan was longer ago,
    /// this process or the machine was stopped. The peer may have been stopped too, and what it has done in the
    /// meantime has not been seen yet.
    #[inline]
    pub(crate) fn scan_due(&mut self, now: u64) -> Option<Scan> {
        if self.watched.is_empty() {
            return None;
        }
        // The first scan only records the time, which `watch_silence` does not know.
        let is_first = self.next_scan.is_none();
        if let Some(at) = self.next_scan {
            if now < at {
                return None;
            }
            let elapsed = now.saturating_sub(self.last_scan);
            self.watching += elapsed.min(self.scan_every);
        }
        self.last_scan = now;
        self.next_scan = Some(now + self.scan_every);
        Some(Scan {
            watching: self.watching,
            is_first,
        })
    }

    /// The latest time of the next run, if one is needed.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let mut first = self.request_waits_until.unwrap_or(u64::MAX);
        if let Some(Reverse((deadline, _))) = self.exact.peek() {
            first = first.min(*deadline);
        }
        if let (false, Some(scan)) = (self.watched.is_empty(), self.next_scan) {
            first = first.min(scan);
        }
        (first != u64::MAX).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(watching: u64, is_first: bool) -> Scan {
        Scan { watching, is_first }
    }

    #[test]
    fn exact_deadlines_expire_in_order_and_not_early() {
        let mut timers = Timers::new();
        timers.at(30, (3, 1));
        timers.at(10, (1, 1));
        assert_eq!(timers.next_deadline(), Some(10));
        assert_eq!(timers.due(9), None);
        assert_eq!(timers.due(20), Some((10, (1, 1))));
        assert_eq!(timers.due(20), None);
    }

    #[test]
    fn a_timer_run_is_due_at_its_earliest_deadline_or_scan() {
        let mut timers = Timers::new();
        assert!(!timers.may_be_due(u64::MAX - 1));
        timers.at(30, (3, 1));
        timers.at(40, (4, 1));
        assert!(!timers.may_be_due(29) && timers.may_be_due(30));
        assert!(timers.due(30).is_some() && timers.due(30).is_none());
        timers.have_run();
        assert!(!timers.may_be_due(39) && timers.may_be_due(40));
        // The first scan reads the clock, so it is due at once.
        timers.watch_silence(QpId::from((1, 1)), 40_000_000);
        assert!(timers.may_be_due(0));
        assert_eq!(timers.scan_due(5), Some(scan(0, true)));
        timers.have_run();
        assert!(timers.may_be_due(40) && timers.due(40).is_some());
        timers.have_run();
        assert!(!timers.may_be_due(10_000_004) && timers.may_be_due(10_000_005));
        timers.watched.clear();
        timers.have_run();
        assert!(!timers.may_be_due(u64::MAX - 1));
    }

    #[test]
    fn scans_repeat_only_while_queue_pairs_are_watched() {
        let mut timers = Timers::new();
        assert!(timers.scan_due(5).is_none() && timers.next_deadline().is_none());
        timers.watch_silence(QpId::from((1, 1)), 40_000_000);
        assert_eq!(timers.scan_due(5), Some(scan(0, true)));
        assert_eq!(timers.next_deadline(), Some(10_000_005));
        assert_eq!(timers.scan_due(6), None);
        assert_eq!(timers.scan_due(10_000_005), Some(scan(10_000_000, false)));
        assert_eq!(timers.scan_due(20_000_005), Some(scan(20_000_000, false)));
        timers.watched.clear();
        assert_eq!(timers.next_deadline(), None);
    }

    #[test]
    fn a_pause_of_this_process_is_not_silence_of_the_peer() {
        let mut timers = Timers::new();
        timers.watch_silence(QpId::from((1, 1)), 40_000_000);
        assert_eq!(timers.scan_due(0), Some(scan(0, true)));
        let later = timers.scan_due(3_600_000_000_000);
        assert_eq!(later, Some(scan(10_000_000, false)));
    }
}
