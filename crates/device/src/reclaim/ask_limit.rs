//! How often a peer may ask for a warrant.
//!
//! Issuing a warrant takes tens of microseconds of the engine thread and a descriptor, and a peer needs few. So each link has a budget
//! that refills over time. A request beyond it is dropped like one that gets no warrant: before it takes the engine's lock, and without an
//! answer. The peer goes on to send its writes, and asks again after more slow ones.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_engine::LinkId;

/// How many requests a link may carry in a burst: twice the number of its warrants.
pub(super) const BURST: u32 = 32;
/// The time until a link may carry one more.
pub(super) const REFILL: Duration = Duration::from_millis(50);

/// What remains of the budget of each link that has carried a request.
#[derive(Debug, Default)]
pub(super) struct AskLimit(Mutex<HashMap<LinkId, Budget>>);

#[derive(Debug)]
struct Budget {
    left: u32,
    /// When `left` was computed.
    at: Instant,
    /// How many requests have been dropped since the budget was full.
    dropped: u64,
}

impl AskLimit {
    /// Takes a request from the budget of a link. Returns false if none is left. A series of dropped requests is logged once.
    pub(super) fn admits(&self, link: LinkId, now: Instant) -> bool {
        let mut budgets = self.0.lock();
        let budget = budgets.entry(link).or_insert(Budget {
            left: BURST,
            at: now,
            dropped: 0,
        });
        let more = now.saturating_duration_since(budget.at).as_nanos() / REFILL.as_nanos();
        if more >= u128::from(BURST - budget.left) {
            (budget.left, budget.at, budget.dropped) = (BURST, now, 0);
        } else {
            budget.left += more as u32;
            budget.at += REFILL * more as u32;
        }
        if let Some(left) = budget.left.checked_sub(1) {
            budget.left = left;
            return true;
        }
        budget.dropped += 1;
        if budget.dropped == 1 {
            tracing::debug!(
                ?link,
                "dropping requests for warrants: the peer sends more than one in {} ms",
                REFILL.as_millis()
            );
        }
        false
    }

    /// Forgets a link that has ended.
    pub(super) fn forget(&self, link: LinkId) {
        self.0.lock().remove(&link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_one_in_each_interval() {
        let (limit, start) = (AskLimit::default(), crate::time::now());
        let (one, other) = (LinkId::from((1, 1)), LinkId::from((2, 1)));
        let passed = |link, now| (0..1000).filter(|_| limit.admits(link, now)).count();
        assert_eq!(passed(one, start), BURST as usize);
        assert_eq!(passed(one, start + REFILL - Duration::from_nanos(1)), 0);
        assert_eq!(passed(one, start + REFILL * 7 / 2), 3);
        // The rest of the interval is not lost, and the clock may go back.
        assert_eq!(passed(one, start), 0);
        assert_eq!(passed(one, start + REFILL * 4), 1);
        assert_eq!(passed(other, start), BURST as usize, "another link");
        assert_eq!(passed(one, start + REFILL * 1000), BURST as usize);
        limit.forget(one);
        assert_eq!(passed(one, start), BURST as usize);
        assert_eq!(limit.0.lock().len(), 2);
    }
}
