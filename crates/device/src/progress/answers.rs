//! Whether a program answers what its polls receive.
//!
//! If it does, the acknowledgement of what has arrived can leave together with the answer, in one system call: on a short path, sending a
//! packet takes longer than everything else. Otherwise the acknowledgement must leave at once, because the peer waits for it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An answer is posted at most this many nanoseconds after the request has arrived.
const SOON: u64 = 20_000;
/// The time of arrival if no request waits for its answer.
const NOTHING: u64 = 0;

/// Observes a program, and expects it to do what it did the last time.
#[derive(Debug, Default)]
pub(super) struct AnswerForecast {
    /// When a poll received a request, and the program has neither posted nor polled since.
    arrived_at: AtomicU64,
    is_expected: AtomicBool,
}

impl AnswerForecast {
    /// A poll has received a request at `now`, in nanoseconds. Returns whether the program will soon post an answer.
    pub(super) fn arrived(&self, now: u64) -> bool {
        self.arrived_at.store(now.max(1), Ordering::Relaxed);
        self.is_expected.load(Ordering::Relaxed)
    }

    /// The program posts at `now`.
    pub(super) fn posted(&self, now: u64) {
        let at = self.arrived_at.load(Ordering::Relaxed);
        if at != NOTHING {
            self.settle(now.saturating_sub(at) < SOON);
        }
    }

    /// The program polls for packets.
    pub(super) fn polled(&self) {
        if self.arrived_at.load(Ordering::Relaxed) != NOTHING {
            self.settle(false);
        }
    }

    #[cold]
    fn settle(&self, has_answered: bool) {
        self.arrived_at.store(NOTHING, Ordering::Relaxed);
        self.is_expected.store(has_answered, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_answers_is_expected_to_answer_again() {
        let forecast = AnswerForecast::default();
        assert!(!forecast.arrived(0), "nothing is known");
        forecast.posted(SOON - 1);
        assert!(forecast.arrived(50_000));
        forecast.posted(50_001);
        assert!(forecast.arrived(60_000));
    }

    #[test]
    fn a_program_that_polls_again_or_posts_late_does_not_answer() {
        let forecast = AnswerForecast::default();
        let answers = |forecast: &AnswerForecast, at| {
            forecast.arrived(at);
            forecast.posted(at + 10);
        };
        answers(&forecast, 1_000);
        assert!(forecast.arrived(2_000));
        forecast.polled();
        forecast.posted(2_010);
        assert!(!forecast.arrived(3_000), "it posts, but polls first");
        answers(&forecast, 4_000);
        assert!(forecast.arrived(5_000));
        forecast.posted(5_000 + SOON);
        assert!(!forecast.arrived(90_000), "the peer would have waited long");
    }
}
