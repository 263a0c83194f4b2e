//! What a queue pair keeps for pushes: warrants from its target, how often its writes were slow, and when it tries the ring again.

use crate::{LinkId, Target};
use rkey_base::range::VaRange;
use rkey_core::RKey;
use rkey_link::peer::PeerWarrant;

/// A write is slow if it waits this long for the target's engine, in nanoseconds, and half a nanosecond more for each byte: a target
/// that polls copies at least 2 GB/s.
const SLOW_AFTER: u64 = 50_000;
/// A queue pair asks for a warrant when this many of its writes were slow, and again after 4 times as many.
const SLOW_WRITES: u32 = 4;
/// If more messages than this pass without a slow write, the count starts again.
const SLOW_WITHIN: u64 = 64;
/// After how many pushes a queue pair tries the ring again, the first time, and at most.
const TRIALS: (u32, u32) = (1 << 10, 1 << 16);

/// The writes of a queue pair that waited long for the target's engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlowWrites {
    /// The write that was last seen waiting.
    waiting: Option<Waiting>,
    count: u32,
    /// The sequence number of the last one.
    last: u64,
    /// Whether a warrant has been asked for.
    pub(crate) asked: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    seq: u64,
    /// When it was first seen.
    since: u64,
    /// Whether it has been found slow.
    is_slow: bool,
}

impl SlowWrites {
    pub(crate) const NONE: Self = Self {
        waiting: None,
        count: 0,
        last: 0,
        asked: false,
    };

    /// Records that the write of `len` bytes at `seq` is waiting at this time. Returns whether it has become slow by that, which happens
    /// once.
    pub(crate) fn becomes_slow(&mut self, seq: u64, len: u64, now_ns: u64) -> bool {
        let waiting = self.waiting.get_or_insert(Waiting {
            seq,
            since: now_ns,
            is_slow: false,
        });
        if waiting.seq != seq {
            *waiting = Waiting {
                seq,
                since: now_ns,
                is_slow: false,
            };
        }
        if waiting.is_slow || now_ns.saturating_sub(waiting.since) < SLOW_AFTER + len / 2 {
            return false;
        }
        waiting.is_slow = true;
        true
    }

    /// Counts the slow write at `seq`; returns whether to ask for a warrant.
    pub(crate) fn note(&mut self, seq: u64) -> bool {
        if seq.wrapping_sub(self.last) > SLOW_WITHIN {
            self.count = 0;
        }
        self.last = seq;
        self.count = self.count.saturating_add(1);
        let is_due = self.count >= SLOW_WRITES
            && self.count.is_power_of_two()
            && self.count.trailing_zeros().is_multiple_of(2);
        self.asked |= is_due;
        is_due
    }
}

/// Whether the target's engine has become fast again: now and then, a queue pair with warrants sends a write through the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trials {
    /// How many writes to push before the next trial.
    left: u32,
    interval: u32,
    /// The sequence number of the write that goes through the ring, and whether it was slow.
    trial: Option<(u64, bool)>,
}

/// What to do with a write that may be pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextWrite {
    Push,
    /// Send it through the ring, as a trial.
    Send,
    /// The last trial was fast: no longer push.
    SendAll,
}

impl Trials {
    pub(crate) const NONE: Self = Self {
        left: TRIALS.0,
        interval: TRIALS.0,
        trial: None,
    };

    /// What to do with a write that gets the sequence number `seq` if it is sent. All earlier requests are complete.
    pub(crate) fn next(&mut self, seq: u64) -> NextWrite {
        match self.trial {
            // Something prevented the trial: the request of this number is still to come.
            Some((trial, _)) if trial >= seq => return NextWrite::Send,
            Some((_, true)) => {
                self.interval = self.interval.saturating_mul(2).min(TRIALS.1);
                self.left = self.interval;
                self.trial = None;
            }
            Some((_, false)) => return NextWrite::SendAll,
            None => {}
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.trial = Some((seq, false));
            return NextWrite::Send;
        }
        NextWrite::Push
    }

    /// Records that the write at `seq` is slow.
    pub(crate) fn is_slow(&mut self, seq: u64) {
        if let Some((trial, is_slow)) = &mut self.trial {
            *is_slow |= *trial == seq;
        }
    }
}

/// A warrant from the target, and what it is for.
#[derive(Debug)]
pub(crate) struct HeldWarrant {
    pub(crate) link: LinkId,
    pub(crate) key: RKey,
    /// The address that requests use for the first byte.
    pub(crate) base: u64,
    /// The memory in the target's process.
    pub(crate) memory: VaRange,
    pub(crate) warrant: PeerWarrant,
    /// How many writes the queue pair had pushed when it last used the warrant.
    pub(crate) used: u64,
}

impl HeldWarrant {
    /// The address in the target's process of a write, if the warrant is for it.
    pub(crate) fn address_of(&self, link: Option<LinkId>, to: &Target, len: u64) -> Option<u64> {
        if link != Some(self.link) || to.key != self.key {
            return None;
        }
        let offset = to.addr.checked_sub(self.base)?;
        Some(self.memory.slice(offset, len)?.start())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warrant_is_asked_for_after_4_16_and_64_slow_writes() {
        let mut slow = SlowWrites::NONE;
        let asked: Vec<u64> = (0..300).filter(|seq| slow.note(*seq)).collect();
        assert_eq!(asked, [3, 15, 63, 255]);
    }

    #[test]
    fn a_write_becomes_slow_once_after_50_us() {
        let mut slow = SlowWrites::NONE;
        for (seq, now, becomes_slow) in [
            (0, 1_000_000, false),
            (0, 1_049_999, false),
            (0, 1_050_000, true),
            (0, 1_050_001, false),
            (0, 9_000_000, false),
            (1, 9_000_000, false),
            (2, 9_060_000, false),
            (2, 9_110_000, true),
            (2, 9_200_000, false),
        ] {
            assert_eq!(
                slow.becomes_slow(seq, 1, now),
                becomes_slow,
                "{seq} at {now}"
            );
        }
    }

    #[test]
    fn longer_writes_have_more_time() {
        let mut slow = SlowWrites::NONE;
        let len = 1 << 18;
        assert!(!slow.becomes_slow(0, len, 0));
        assert!(!slow.becomes_slow(0, len, SLOW_AFTER + len / 2 - 1));
        assert!(slow.becomes_slow(0, len, SLOW_AFTER + len / 2));
    }

    #[test]
    fn slow_trials_become_rarer_and_a_fast_one_ends_the_pushes() {
        let mut trials = Trials::NONE;
        let (mut seq, mut gaps) = (7, Vec::new());
        for _ in 0..9 {
            let mut pushes = 0;
            while trials.next(seq) == NextWrite::Push {
                pushes += 1;
            }
            gaps.push(pushes + 1);
            // The request was not sent.
            assert_eq!(trials.next(seq), NextWrite::Send);
            trials.is_slow(seq - 1);
            trials.is_slow(seq);
            seq += 1;
        }
        // The first push after a trial ends it, and counts.
        let expected = [1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15];
        assert_eq!(gaps[..6], expected);
        assert_eq!(gaps[6..], [1 << 16; 3]);
        while trials.next(seq) == NextWrite::Push {}
        trials.is_slow(seq + 1);
        assert_eq!(trials.next(seq + 1), NextWrite::SendAll);
    }

    #[test]
    fn rare_slow_writes_do_not_count() {
        let mut slow = SlowWrites::NONE;
        assert!((0..100).all(|n| !slow.note(n * (SLOW_WITHIN + 1))));
    }
}
