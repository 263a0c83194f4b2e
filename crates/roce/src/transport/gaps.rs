//! Gaps in what has arrived from the peer, and when a gap looks like a loss.
//!
//! A network may reorder packets, so a packet that is missing may only be late. A gap counts as a loss if several later packets have
//! arrived, or if some time has passed. How many packets, and how much time, follows what the network does: packets say whether they are
//! sent again, so a gap that an original packet closes was none, and then both grow.
//!
//! A loss is reported again, after longer and longer times, until the gap closes: the report or the repetition may have been lost.

use super::sequence::Sequence;
use std::collections::BTreeMap;

/// The length of the longest gap. A longer one counts as several.
pub(super) const LONGEST: u32 = 127;
/// The maximum number of gaps. While there are as many, further packets are treated as lost.
const GAPS_MAX: usize = 256;
/// How often a gap is reported. After that, only timeouts help.
const REPORTS_MAX: u8 = 8;
/// The first report is repeated after this time, in nanoseconds, if no repair has been measured.
const AGAIN_FIRST: u64 = 20_000_000;
/// The shortest time after which a report, or a request for lost data, is repeated, in nanoseconds.
pub(super) const AGAIN_MIN: u64 = 1_000_000;

/// Gaps between positions that have arrived.
#[derive(Debug)]
pub(crate) struct Gaps {
    /// The gaps, by their first position.
    gaps: BTreeMap<Sequence, Gap>,
    /// The position after the last one that has arrived out of order.
    end: Sequence,
    /// The number of packets that have arrived out of order, modulo 2³².
    arrivals: u32,
    patience: Patience,
    /// The time from a report to the arrival of the packet, in nanoseconds: the longest of the recent ones.
    repair: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Gap {
    /// The position after the gap.
    end: Sequence,
    /// When the first packet after the gap arrived.
    since: u64,
    /// How many packets had arrived out of order before that.
    began: u32,
    /// When the gap was reported for the first and the last time.
    reported: Option<(u64, u64)>,
    reports: u8,
}

impl Gaps {
    /// No gaps; nothing before `first` will be missing.
    pub(crate) fn new(first: Sequence) -> Self {
        Self {
            gaps: BTreeMap::new(),
            end: first,
            arrivals: 0,
            patience: Patience::default(),
            repair: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.gaps.is_empty()
    }

    /// Whether there is room for the gaps that a packet may leave.
    pub(crate) fn has_room(&self) -> bool {
        self.gaps.len() < GAPS_MAX
    }

    /// The position after the last one that is known to have arrived, and at least `least`.
    pub(crate) fn end(&self, least: Sequence) -> Sequence {
        self.end.max(least)
    }

    /// Forgets all gaps. What has arrived after `end` is forgotten, too.
    pub(crate) fn clear(&mut self, end: Sequence) {
        self.gaps.clear();
        self.end = end;
    }

    /// Whether a packet with the positions from `first` to before `end` needs no room: it opens no gap, and divides none.
    pub(crate) fn is_at_an_edge(&self, first: Sequence, end: Sequence) -> bool {
        let gap = self.last_before(end).filter(|(_, gap)| gap.end > first);
        match gap {
            Some((start, gap)) => start >= first || gap.end <= end,
            None => first <= self.end,
        }
    }

    /// Records that nothing from `first` to before `end` has arrived, although something later has.
    pub(crate) fn open(&mut self, now: u64, first: Sequence, end: Sequence) {
        let mut first = first;
        while first < end && self.has_room() {
            let next = end.min(first.plus(LONGEST));
            let gap = Gap {
                end: next,
                since: now,
                began: self.arrivals,
                reported: None,
                reports: 0,
            };
            self.gaps.insert(first, gap);
            first = next;
        }
        self.end = self.end.max(first);
    }

    /// Records that a packet has arrived out of order, which has the positions from `first` to before `end`.
    pub(crate) fn arrived(&mut self, now: u64, first: Sequence, end: Sequence, copy: Copy) {
        self.arrivals = self.arrivals.wrapping_add(1);
        self.end = self.end.max(end);
        self.fill(now, first, end, copy);
    }

    /// Records that the positions from `first` to before `end` have arrived.
    pub(crate) fn fill(&mut self, now: u64, first: Sequence, end: Sequence, copy: Copy) {
        while let Some((start, gap)) = self.last_before(end)
            && gap.end > first
        {
            self.gaps.remove(&start);
            self.learn(now, &gap, copy);
            if gap.end > end {
                self.gaps.insert(end, gap);
            }
            if start < first {
                self.gaps.insert(start, Gap { end: first, ..gap });
                break;
            }
        }
    }

    /// The last gap that begins before `end`.
    fn last_before(&self, end: Sequence) -> Option<(Sequence, Gap)> {
        let (start, gap) = self.gaps.range(..end).next_back()?;
        Some((*start, *gap))
    }

    /// Forgets what is missing before `position`.
    pub(crate) fn forget_before(&mut self, position: Sequence) {
        while let Some(first) = self.gaps.first_entry()
            && *first.key() < position
        {
            let gap = first.remove();
            if gap.end > position {
                self.gaps.insert(position, gap);
            }
        }
    }

    /// Learns from a gap in which a packet has arrived.
    fn learn(&mut self, now: u64, gap: &Gap, copy: Copy) {
        match (copy, gap.reported) {
            (Copy::First, reported) => {
                let later = self.arrivals.wrapping_sub(gap.began);
                let time = now.saturating_sub(gap.since);
                self.patience.was_late(later, time, reported.is_some());
            }
            (Copy::Again, Some((reported, _))) => {
                self.patience.was_lost();
                let time = now.saturating_sub(reported);
                let before = self.repair.unwrap_or(0);
                self.repair = Some(time.max(before - before / 8));
            }
            (Copy::Again, None) => {}
        }
    }

    /// How long to wait before a gap is reported again, in nanoseconds.
    pub(crate) fn again(&self) -> u64 {
        let twice = self.repair.map(|time| time.saturating_mul(2));
        twice.unwrap_or(AGAIN_FIRST).max(AGAIN_MIN)
    }

    /// When a gap is to be reported next; `None` if none is. `again`: how long to wait for a repair, in nanoseconds.
    pub(crate) fn deadline(&self, again: u64) -> Option<u64> {
        let times = self.gaps.values();
        times
            .filter_map(|gap| gap.due(self.patience.time, again))
            .min()
    }

    /// When a gap that has been reported as often as possible counts as permanent; `None` if there is none. `again`: how long to wait for a
    /// repair, in nanoseconds.
    pub(crate) fn expiry(&self, again: u64) -> Option<u64> {
        let gaps = self.gaps.values().filter(|gap| gap.reports >= REPORTS_MAX);
        gaps.filter_map(|gap| gap.wait(again)).min()
    }

    /// The gaps that look like losses, and are to be reported now, at most `most`: their first positions, and those after them.
    pub(crate) fn take_lost(
        &mut self,
        now: u64,
        again: u64,
        most: usize,
    ) -> Vec<(Sequence, Sequence)> {
        let mut lost = Vec::new();
        for (first, gap) in &mut self.gaps {
            if lost.len() >= most {
                break;
            }
            let later = self.arrivals.wrapping_sub(gap.began);
            let is_passed = self
                .patience
                .packets
                .is_some_and(|packets| later >= packets);
            let is_passed = gap.reported.is_none() && is_passed;
            let due = gap.due(self.patience.time, again);
            if is_passed || due.is_some_and(|time| time <= now) {
                gap.reported = Some((gap.reported.map_or(now, |(first, _)| first), now));
                gap.reports += 1;
                lost.push((*first, gap.end));
            }
        }
        lost
    }
}

impl Gap {
    /// When to report the gap, at the latest.
    fn due(&self, patience: u64, again: u64) -> Option<u64> {
        match self.reported {
            None => Some(self.since.saturating_add(patience)),
            Some(_) if self.reports < REPORTS_MAX => self.wait(again),
            Some(_) => None,
        }
    }

    /// How long to wait for a repair after the last report.
    fn wait(&self, again: u64) -> Option<u64> {
        let (_, reported) = self.reported?;
        let doublings = self.reports.saturating_sub(1);
        Some(reported.saturating_add(again.saturating_mul(1 << doublings)))
    }
}

/// Whether a packet is sent for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    First,
    Again,
}

/// How long to take a gap for a reordering.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// A gap is a loss if so many later packets have arrived. `None`: packets are overtaken by so many that only time counts.
    packets: Option<u32>,
    /// A gap is a loss after this time, in nanoseconds.
    time: u64,
    /// How many packets were lost since one was only late.
    lost: u8,
}

/// The minimum number of packets, as in TCP (RFC 5681), and the maximum. Until a packet has been late, one later packet is enough.
const PACKETS: (u32, u32) = (3, 64);
/// The minimum and the maximum time, in nanoseconds.
const TIME: (u64, u64) = (200_000, 10_000_000);
/// After so many losses, packets count again, as in RACK (RFC 8985).
const LOSSES: u8 = 16;

impl Copy {
    /// Whether a packet of an agreed pair is sent again: it has the bit of a congestion notification, which is not used in others.
    pub(crate) fn of(is_again: bool) -> Self {
        if is_again { Self::Again } else { Self::First }
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            packets: Some(1),
            time: TIME.0,
            lost: 0,
        }
    }
}

impl Patience {
    /// A packet that was missing was only late: overtaken by so many later packets, for so much time.
    fn was_late(&mut self, later: u32, time: u64, is_reported: bool) {
        self.lost = 0;
        let least = later.saturating_mul(2).max(PACKETS.0);
        let packets = self.packets.map(|it| it.max(least));
        self.packets = packets.filter(|it| !is_reported && *it <= PACKETS.1);
        self.time = self.time.max(time.saturating_mul(2)).min(TIME.1);
    }

    /// A packet that was reported was lost. If a network loses packets and does not reorder them, later losses are reported sooner.
    fn was_lost(&mut self) {
        self.lost = self.lost.saturating_add(1);
        self.packets = match self.packets {
            None => (self.lost >= LOSSES).then_some(PACKETS.1),
            Some(packets) => Some(packets - packets.saturating_sub(PACKETS.0).div_ceil(16)),
        };
        self.time -= (self.time - TIME.0).div_ceil(16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Psn;

    fn at(distance: u32) -> Sequence {
        Sequence::first(Psn::new(0xff_ff00)).plus(distance)
    }

    /// A packet at this distance arrives early, at `now`.
    fn early(gaps: &mut Gaps, now: u64, distance: u32) {
        gaps.open(now, gaps.end(at(0)), at(distance));
        gaps.arrived(now, at(distance), at(distance + 1), Copy::First);
    }

    fn lost(gaps: &mut Gaps, now: u64) -> Vec<(u32, u32)> {
        let lost = gaps.take_lost(now, gaps.again(), usize::MAX).into_iter();
        let distances = lost.map(|(first, end)| (first.since(at(0)), end.since(at(0))));
        distances.collect()
    }

    #[test]
    fn arrivals_divide_and_close_gaps() {
        let mut gaps = Gaps::new(at(0));
        early(&mut gaps, 0, 10);
        early(&mut gaps, 0, 3);
        early(&mut gaps, 0, 7);
        gaps.fill(0, at(9), at(10), Copy::First);
        gaps.fill(0, at(0), at(2), Copy::First);
        assert_eq!(lost(&mut gaps, u64::MAX), [(2, 3), (4, 7), (8, 9)]);
        gaps.forget_before(at(5));
        gaps.fill(0, at(0), at(7), Copy::Again);
        gaps.forget_before(at(9));
        assert!(gaps.is_empty() && gaps.deadline(1).is_none());
    }

    #[test]
    fn long_gaps_are_divided_and_their_number_is_limited() {
        let mut gaps = Gaps::new(at(0));
        early(&mut gaps, 0, 300);
        assert_eq!(lost(&mut gaps, 0), [(0, 127), (127, 254), (254, 300)]);
        for distance in 151..1000 {
            early(&mut gaps, 0, 2 * distance);
        }
        assert!(!gaps.has_room());
        assert_eq!(gaps.gaps.len(), GAPS_MAX);
        gaps.clear(at(2000));
        assert!(gaps.is_empty() && gaps.has_room() && gaps.end(at(0)) == at(2000));
    }

    /// One of each ten packets is overtaken by up to ten others.
    #[test]
    fn reorderings_are_learned() {
        let (mut gaps, mut now, mut reported) = (Gaps::new(at(0)), 0, 0);
        for round in 0..1000 {
            let first = 20 * round;
            let later = 1 + round % 10;
            for distance in 1..=later {
                now += 1000;
                early(&mut gaps, now, first + distance);
                reported += lost(&mut gaps, now).len();
            }
            gaps.fill(now, at(first), at(first + 1), Copy::First);
            gaps.forget_before(at(first + 20));
            gaps.clear(at(first + 20));
        }
        assert!(reported <= 3, "{reported}");
        // Without reorderings, losses are noticed sooner again.
        assert_eq!(gaps.patience.packets, None);
        for round in 1000..1100 {
            let first = 20 * round;
            early(&mut gaps, now, first + 1);
            now += gaps.patience.time;
            assert_eq!(lost(&mut gaps, now), [(first, first + 1)]);
            gaps.fill(now, at(first), at(first + 1), Copy::Again);
            gaps.clear(at(first + 20));
        }
        assert_eq!(gaps.patience.packets, Some(PACKETS.0));
        assert_eq!(gaps.patience.time, TIME.0);
    }

    #[test]
    fn a_loss_is_reported_again_when_its_repair_is_late() {
        let mut gaps = Gaps::new(at(0));
        early(&mut gaps, 0, 1);
        assert_eq!(lost(&mut gaps, 5), [(0, 1)]);
        assert_eq!(lost(&mut gaps, AGAIN_FIRST), []);
        gaps.fill(3_000_005, at(0), at(1), Copy::Again);
        assert_eq!(gaps.again(), 6_000_000, "twice the time of a repair");
        let mut now = 10_000_000;
        early(&mut gaps, now, 3);
        let mut times = Vec::new();
        assert_eq!(lost(&mut gaps, now), [(2, 3)]);
        while let Some(deadline) = gaps.deadline(gaps.again()) {
            times.push((deadline - now) / 1_000_000);
            now = deadline;
            assert_eq!(lost(&mut gaps, now - 1), []);
            assert_eq!(lost(&mut gaps, now), [(2, 3)]);
        }
        assert_eq!(times, [6, 12, 24, 48, 96, 192, 384]);
    }
}
