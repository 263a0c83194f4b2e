//! Requests from other hosts that briefly wait for a listener, like requests on this host: programs that exchange their addresses
//! out of band (perftest) may connect just before the other side listens.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rkey_cm::wire::MAD;

use crate::cm::packet::Protection;

/// How long a request waits.
const TIME: Duration = Duration::from_millis(500);
/// The pause between two checks for a listener.
pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// The maximum number of waiting requests. Further ones are refused at once.
const MAX: usize = 64;

/// A request to a port without a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) mad: [u8; MAD],
    pub(super) protection: Protection,
    /// When to refuse the request.
    until: Instant,
}

impl Request {
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until <= now
    }
}

/// The waiting requests, oldest first.
#[derive(Debug, Default)]
pub(super) struct WaitingRequests(VecDeque<Request>);

impl WaitingRequests {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a request; `false` if it cannot wait.
    pub(super) fn push(
        &mut self,
        now: Instant,
        (from, to): (IpAddr, IpAddr),
        mad: &[u8; MAD],
        protection: Protection,
    ) -> bool {
        if self.0.len() >= MAX {
            return false;
        }
        self.0.push_back(Request {
            from,
            to,
            mad: *mad,
            protection,
            until: now + TIME,
        });
        true
    }

    /// Removes the requests for which `keeps_waiting` returns false.
    pub(super) fn retain(&mut self, keeps_waiting: impl FnMut(&Request) -> bool) {
        self.0.retain(keeps_waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_and_the_waiting_time_of_requests_are_limited() {
        let (mut waiting, now) = (WaitingRequests::default(), crate::time::now());
        let here: IpAddr = [127, 0, 0, 1].into();
        let mut push = |at| waiting.push(at, (here, here), &[7; MAD], Protection::default());
        for _ in 1..MAX {
            assert!(push(now));
        }
        assert!(push(now + TIME));
        assert!(!push(now + TIME));
        let mut count = 0;
        waiting.retain(|it| {
            count += 1;
            !it.is_over(now + TIME)
        });
        assert_eq!(count, MAX);
        waiting.retain(|it| it.is_over(now + 2 * TIME));
        assert!(!waiting.is_empty(), "the last one has waited");
        waiting.retain(|_| false);
        assert!(waiting.is_empty());
    }
}
