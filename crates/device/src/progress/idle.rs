//! How long pollers have found nothing, and when to wake peers for that reason.

use std::sync::atomic::{AtomicU64, Ordering};

/// After this many nanoseconds without work, pollers wake peers with unacknowledged requests, even if their sleep words say
/// that they are awake.
const KICK_AFTER: u64 = 50_000;
/// How long pollers wait before they wake these peers again, in nanoseconds.
const KICK_AGAIN: u64 = 10_000_000;

/// How long polls have found nothing, as the pollers themselves record it. Times are nanoseconds of the monotonic clock.
#[derive(Debug, Default)]
pub(super) struct IdleTime {
    /// When pollers started to find nothing; 0 if they have just found work.
    since: AtomicU64,
    /// When to wake peers next; meaningless while `since` is 0.
    kick_at: AtomicU64,
}

/// The idle time when the clock was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Idle {
    /// How long pollers have found nothing.
    pub(super) ns: u64,
    /// Whether to wake peers now.
    pub(super) kick_peers: bool,
}

impl IdleTime {
    /// Records that a poller has found work.
    #[inline]
    pub(super) fn found(&self) {
        // `since` is usually 0 already, and a load is cheaper than a store.
        if self.since.load(Ordering::Relaxed) != 0 {
            self.since.store(0, Ordering::Relaxed);
        }
    }

    /// Records the time for a poller that found nothing. Called under the engine's lock.
    pub(super) fn at(&self, now: u64) -> Idle {
        let since = self.since.load(Ordering::Relaxed);
        if since == 0 {
            self.since.store(now, Ordering::Relaxed);
            let kick_at = now.saturating_add(KICK_AFTER);
            self.kick_at.store(kick_at, Ordering::Relaxed);
            return Idle {
                ns: 0,
                kick_peers: false,
            };
        }
        let kick_peers = now >= self.kick_at.load(Ordering::Relaxed);
        if kick_peers {
            let again = now.saturating_add(KICK_AGAIN);
            self.kick_at.store(again, Ordering::Relaxed);
        }
        Idle {
            ns: now.saturating_sub(since),
            kick_peers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_polling_wakes_peers_after_50_us_and_then_every_10_ms() {
        let idle = IdleTime::default();
        let mut kicks = Vec::new();
        for now in (1_000..=21_000_000).step_by(1_000) {
            if idle.at(now).kick_peers {
                kicks.push(now);
            }
        }
        assert_eq!(kicks, [51_000, 10_051_000, 20_051_000]);
    }

    #[test]
    fn idle_time_counts_from_the_first_empty_poll() {
        let idle = IdleTime::default();
        assert_eq!(idle.at(500).ns, 0);
        assert_eq!(idle.at(700).ns, 200);
        idle.found();
        assert_eq!(
            idle.at(90_000),
            Idle {
                ns: 0,
                kick_peers: false
            }
        );
        assert_eq!(
            idle.at(91_000),
            Idle {
                ns: 1_000,
                kick_peers: false
            }
        );
    }
}
