//! What a queue pair keeps for pushes: warrants from its target, and how often its writes were slow.

use crate::{LinkId, Target};
use rkey_base::range::VaRange;
use rkey_core::RKey;
use rkey_link::peer::PeerWarrant;

/// A queue pair asks for a warrant when this many of its writes were slow, and again after 4 times as many.
const SLOW_WRITES: u32 = 4;
/// If more messages than this pass without a slow write, the count starts again.
const SLOW_WITHIN: u64 = 64;

/// The writes of a queue pair that waited long for the target's engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlowWrites {
    count: u32,
    /// The sequence number of the last one.
    last: u64,
    /// Whether a warrant has been asked for.
    pub(crate) asked: bool,
}

impl SlowWrites {
    pub(crate) const NONE: Self = Self {
        count: 0,
        last: 0,
        asked: false,
    };

    /// Counts the request at `seq`; returns whether to ask for a warrant.
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
    fn rare_slow_writes_do_not_count() {
        let mut slow = SlowWrites::NONE;
        assert!((0..100).all(|n| !slow.note(n * (SLOW_WITHIN + 1))));
    }
}
