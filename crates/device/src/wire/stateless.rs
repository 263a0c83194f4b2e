//! Stateless answers to messages without a receiver on this host: a request to a port without a listener is refused, and
//! a DREQ for an unknown connection is confirmed. Any process may answer, because that needs no state. An answer is as long as
//! the message it answers, and the number of answers per second is limited.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use rkey_cm::Manager;
use rkey_cm::address::Guid;
use rkey_cm::manager::{Config, Transmit};
use rkey_cm::time::Nanos;
use rkey_cm::wire::MAD;

/// The maximum number of answers per second.
const ANSWERS: u32 = 1024;
const SECOND: Duration = Duration::from_secs(1);

/// A connection manager without listeners.
#[derive(Debug)]
pub(super) struct StatelessReplies {
    manager: Manager,
    started: Instant,
    second: Instant,
    asked: u32,
}

impl StatelessReplies {
    pub(super) fn new(guid: Guid, secret: u128, now: Instant) -> Self {
        Self {
            manager: Manager::new(Config::new(guid, secret)),
            started: now,
            second: now,
            asked: 0,
        }
    }

    /// The answer to a message from `from` to our address `to`, if there is one. `Err` if the limit is reached.
    pub(super) fn answer(
        &mut self,
        now: Instant,
        (from, to): (IpAddr, IpAddr),
        mad: &[u8; MAD],
    ) -> Result<Option<Transmit>, ()> {
        if now.saturating_duration_since(self.second) >= SECOND {
            (self.second, self.asked) = (now, 0);
        }
        if self.asked >= ANSWERS {
            return Err(());
        }
        self.asked += 1;
        let since = now.saturating_duration_since(self.started).as_nanos();
        let now = Nanos::try_from(since).unwrap_or(Nanos::MAX);
        self.manager.advance(now);
        self.manager.receive(now, from, to, mad);
        while self.manager.next_event().is_some() {}
        let answer = self.manager.next_transmit();
        // Send at most one message: discard the others, because the peer retransmits its own.
        while self.manager.next_transmit().is_some() {}
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rkey_cm::wire::{Dreq, Mad, Message, PrivateData};

    fn replies(now: Instant) -> StatelessReplies {
        StatelessReplies::new(Guid([2; 8]), 7, now)
    }

    fn addresses() -> (IpAddr, IpAddr) {
        let pair = ["10.0.0.2", "10.0.0.1"].map(|it| it.parse().unwrap());
        (pair[0], pair[1])
    }

    fn dreq() -> [u8; MAD] {
        let dreq = Dreq {
            local: 5,
            remote: 6,
            remote_qpn: 7,
            data: PrivateData::default(),
        };
        Mad::new(3, Message::Dreq(dreq)).encode()
    }

    #[test]
    fn a_dreq_for_an_unknown_connection_is_confirmed() {
        let now = crate::time::now();
        let answer = replies(now).answer(now, addresses(), &dreq());
        let answer = answer.unwrap().expect("an answer");
        let (from, to) = addresses();
        assert_eq!((answer.from, answer.to), (to, from));
        let mad = Mad::decode(&answer.mad).unwrap();
        assert!(matches!(mad.message, Message::Drep(drep) if (drep.local, drep.remote) == (6, 5)));
    }

    #[test]
    fn garbage_gets_no_answer() {
        let now = crate::time::now();
        let answer = replies(now).answer(now, addresses(), &[0; MAD]);
        assert_eq!(answer, Ok(None));
    }

    #[test]
    fn the_number_of_answers_per_second_is_limited() {
        let now = crate::time::now();
        let mut replies = replies(now);
        let mut ask = |now| replies.answer(now, addresses(), &dreq());
        for _ in 0..ANSWERS {
            assert!(ask(now).unwrap().is_some());
        }
        assert_eq!(ask(now + SECOND / 2), Err(()));
        assert!(ask(now + SECOND).unwrap().is_some());
    }
}
