//! The reads and atomics that a responder remembers because it may have to answer them again.
//!
//! The peer may have `max_dest_rd_atomic` reads and atomics outstanding, so it can retransmit only the most recent ones, up to
//! this number.

use super::MSN_MASK;
use super::replies::Replies;
use crate::packet::{Mtu, Request, Reth};
use crate::transport::sequence::Sequence;
use std::collections::VecDeque;

/// The most recent reads and atomics, oldest first.
#[derive(Debug)]
pub(super) struct Remembered {
    limit: usize,
    requests: VecDeque<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    first: Sequence,
    /// The message number of the response.
    msn: u32,
    kind: Kind,
    /// Whether the whole response has been sent at least once.
    is_answered: bool,
}

/// A request that the peer may retransmit.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A read, and how many packets its response has.
    Read { reth: Reth, packets: u32 },
    /// An atomic and its result.
    Atomic { request: Request, original: u64 },
}

impl Remembered {
    pub(super) fn new(limit: u8) -> Self {
        Self {
            limit: limit.into(),
            requests: VecDeque::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Forgets the oldest request if there is no room for another. Returns `false` if the oldest has not even been
    /// answered: the peer has more outstanding than it may.
    pub(super) fn make_room(&mut self, replies: &mut Replies) -> bool {
        if self.requests.len() < self.limit {
            return true;
        }
        match self.requests.front() {
            Some(oldest) if oldest.is_answered => {
                // The peer has its response, or it could not send another request. So it no longer needs a pending answer
                // to a late duplicate.
                replies.remove(oldest.first);
                self.requests.pop_front();
                true
            }
            _ => false,
        }
    }

    /// Remembers a request.
    pub(super) fn add(&mut self, first: Sequence, msn: u32, kind: Kind) {
        self.requests.push_back(Entry {
            first,
            msn,
            kind,
            is_answered: false,
        });
    }

    /// Records that the response to the request at `first` has been sent.
    pub(super) fn answered(&mut self, first: Sequence) {
        for entry in self
            .requests
            .iter_mut()
            .filter(|entry| entry.first == first)
        {
            entry.is_answered = true;
        }
    }

    /// The position and message number up to which an acknowledgement may acknowledge, if everything before `expected` and up to `msn`
    /// was executed: a read or atomic at the end is answered by its own response. Soft-RoCE takes an acknowledgement of its packet for
    /// its end, although the data never came.
    pub(super) fn acknowledgeable(&self, expected: Sequence, msn: u32) -> (Sequence, u32) {
        let mut end = (expected, msn);
        for entry in self.requests.iter().rev() {
            let packets = match entry.kind {
                Kind::Read { packets, .. } => packets,
                Kind::Atomic { .. } => 1,
            };
            if entry.first.plus(packets) != end.0 {
                break;
            }
            end = (entry.first, entry.msn.wrapping_sub(1) & MSN_MASK);
        }
        end
    }

    /// Whether the whole response to the request at `first` has been sent at least once.
    pub(super) fn is_answered(&self, first: Sequence) -> bool {
        let mut entries = self.requests.iter();
        entries.any(|entry| entry.first == first && entry.is_answered)
    }

    /// Finds the read that `again` retransmits, as a whole or from a later packet on (`is_part`: and perhaps not to its end); returns the
    /// read's first position and the message number of the response.
    pub(super) fn find_read(
        &self,
        at: Sequence,
        again: &Reth,
        mtu: Mtu,
        is_part: bool,
    ) -> Option<(Sequence, u32)> {
        self.requests.iter().find_map(|entry| {
            let Kind::Read { reth, packets } = entry.kind else {
                return None;
            };
            if at < entry.first || at >= entry.first.plus(packets) {
                return None;
            }
            let skipped = u64::from(at.since(entry.first)) * mtu.bytes() as u64;
            let end = u64::from(again.length) + skipped;
            let whole = u64::from(reth.length);
            let same = again.rkey == reth.rkey
                && again.address == reth.address.wrapping_add(skipped)
                && (end == whole || (is_part && end < whole && again.length > 0));
            same.then_some((entry.first, entry.msn))
        })
    }

    /// Finds the atomic that `again` retransmits; returns its result and the message number of the response.
    pub(super) fn find_atomic(&self, at: Sequence, again: &Request) -> Option<(u64, u32)> {
        self.requests.iter().find_map(|entry| match entry.kind {
            Kind::Atomic { request, original } if entry.first == at && request == *again => {
                Some((original, entry.msn))
            }
            _ => None,
        })
    }
}
