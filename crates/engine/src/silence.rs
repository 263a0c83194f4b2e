//! When to give up on a silent peer.
//!
//! A NIC responds as long as its host runs, regardless of what the program does. Here, a thread of the peer's process must
//! run to respond, and on a busy host that thread may wait for a processor longer than a timeout. The engine cannot see
//! this. So the engine asks its owner, if the owner wants that, before it gives up on a peer
//! ([`Event::PeerSilent`](crate::Event::PeerSilent)). A peer that had no chance to respond gets its whole timeout again, but
//! only up to a limit, because a peer can also pretend to have had no chance.

/// How long a silent peer may be excused in total, in nanoseconds.
pub(crate) const EXCUSED_MAX_NS: u64 = 60_000_000_000;

/// What is known about a silent peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Silence {
    verdict: Verdict,
    /// The time for which the peer has been excused.
    excused: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The owner was not asked.
    None,
    /// The owner was asked and has not replied.
    Asked,
    /// The peer could not respond.
    Excused,
    /// The peer could have responded.
    Guilty,
}

/// What to do about a peer whose time has run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Ask the owner whether the peer could have responded.
    Ask,
    /// Wait for the owner's reply.
    Wait,
    /// Give the peer its whole timeout again.
    Again,
    /// Give up on the peer.
    GiveUp,
}

impl Silence {
    /// Not silent.
    pub(crate) const NONE: Self = Self {
        verdict: Verdict::None,
        excused: 0,
    };

    /// Decides what to do when the peer has been silent for `silent` nanoseconds, which is at least `patience`.
    pub(crate) fn next(&mut self, asks: bool, silent: u64, patience: u64) -> Next {
        if !asks || self.excused + silent >= EXCUSED_MAX_NS.max(patience) {
            return Next::GiveUp;
        }
        match self.verdict {
            Verdict::None => {
                self.verdict = Verdict::Asked;
                Next::Ask
            }
            Verdict::Asked => Next::Wait,
            Verdict::Excused => {
                self.verdict = Verdict::None;
                self.excused += silent;
                Next::Again
            }
            Verdict::Guilty => Next::GiveUp,
        }
    }

    pub(crate) fn answer(&mut self, had_its_chance: bool) {
        if self.verdict == Verdict::Asked {
            self.verdict = if had_its_chance {
                Verdict::Guilty
            } else {
                Verdict::Excused
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_gives_up_on_a_peer_that_could_respond() {
        let mut silence = Silence::NONE;
        assert_eq!(silence.next(true, 10, 10), Next::Ask);
        assert_eq!(silence.next(true, 11, 10), Next::Wait);
        silence.answer(true);
        assert_eq!(silence.next(true, 12, 10), Next::GiveUp);
        let mut silence = Silence::NONE;
        assert_eq!(
            silence.next(false, 10, 10),
            Next::GiveUp,
            "the owner is not asked"
        );
    }

    #[test]
    fn the_engine_gives_up_on_a_silent_peer_after_a_minute() {
        let mut silence = Silence::NONE;
        let (second, mut seconds) = (1_000_000_000, 0);
        while silence.next(true, second, second) == Next::Ask {
            silence.answer(false);
            assert_eq!(silence.next(true, second, second), Next::Again);
            seconds += 1;
        }
        assert_eq!(seconds, 59);
        assert_eq!(silence.next(true, second, second), Next::GiveUp);
        // An owner that never replies does not keep the peer alive, either.
        let mut silence = Silence::NONE;
        assert_eq!(silence.next(true, second, second), Next::Ask);
        assert_eq!(silence.next(true, EXCUSED_MAX_NS, second), Next::GiveUp);
    }

    #[test]
    fn an_unsolicited_reply_has_no_effect() {
        let mut silence = Silence::NONE;
        silence.answer(true);
        assert_eq!(silence, Silence::NONE);
    }
}
