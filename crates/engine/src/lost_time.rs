//! How long pushes over a link may wait for the peer's memory.
//!
//! Only the peer can end such a wait, and all that the engine serves waits with it. So a link has a budget: a hostile peer costs
//! this side [`MOST`] and one wait, and then a hundredth of its time. A peer that is honest, but whose machine is busy, gets pushes again.

use rkey_base::process::coarse_time;
use rkey_link::peer::Stall;
use std::time::Duration;

/// The budget.
pub(crate) const MOST: Duration = Duration::from_millis(300);
/// The budget grows by one part in this many of the time that passes.
const PART: u32 = 100;

/// The time that a link's pushes have waited.
#[derive(Debug, Default)]
pub(crate) struct LostTime {
    lost: Duration,
    /// When `lost` was computed, in [`coarse_time`].
    at: Duration,
    was_reported: bool,
}

impl LostTime {
    /// Whether there may be no push now.
    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        !self.lost.is_zero() && self.lost_at(coarse_time()) >= MOST
    }

    /// A push has waited. Returns whether this has spent the budget for the first time.
    pub(crate) fn note(&mut self, stall: Stall) -> bool {
        self.lost = self.lost_at(stall.ended).saturating_add(stall.took);
        self.at = stall.ended;
        self.lost >= MOST && !std::mem::replace(&mut self.was_reported, true)
    }

    fn lost_at(&self, now: Duration) -> Duration {
        self.lost.saturating_sub(now.saturating_sub(self.at) / PART)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The attack: each wait is too short to be remarkable.
    #[test]
    fn many_short_waits_spend_the_budget_like_few_long_ones() {
        for took in [24 * MS, 85 * MS, 150 * MS, 5000 * MS] {
            let mut lost = LostTime::default();
            let (mut now, mut waited) = (Duration::ZERO, Duration::ZERO);
            let end = 3_600_000 * MS;
            while now < end {
                if lost.lost_at(now) >= MOST {
                    now += 10 * MS;
                    continue;
                }
                (now, waited) = (now + took, waited + took);
                lost.note(Stall { took, ended: now });
            }
            assert!(waited <= MOST + took + end / PART, "{took:?}: {waited:?}");
            assert!(waited >= end / PART / 2, "{took:?}: it gets pushes again");
        }
    }

    #[test]
    fn a_spent_budget_is_reported_once() {
        let mut lost = LostTime::default();
        let stall = |ended| Stall {
            took: 200 * MS,
            ended,
        };
        assert!(!lost.is_spent());
        let reports = [1, 2, 3, 4].map(|at| lost.note(stall(at * 1000 * MS)));
        assert_eq!(reports, [false, true, false, false]);
    }
}
