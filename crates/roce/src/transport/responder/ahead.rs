//! Requests that arrive before earlier ones: they are kept, and executed when their turn comes.
//!
//! Only a requester that has agreed to reports marks its packets, and only marked packets are kept. They go through the same
//! checks as all others, in their turn. If one of them cannot be executed, the rest is dropped: the requester sends everything again.

use super::Responder;
use super::replies::Replies;
use crate::packet::{Body, Headers, Mtu, Request};
use crate::transport::event::Counters;
use crate::transport::gaps::{Copy, Gaps};
use crate::transport::host::Host;
use crate::transport::report::{GAPS, Report, span};
use crate::transport::sequence::Sequence;
use crate::transport::step::Step;
use std::collections::BTreeMap;

/// The packets that wait for earlier ones.
#[derive(Debug)]
pub(super) struct Ahead {
    mtu: Mtu,
    packets: BTreeMap<Sequence, Kept>,
    /// How many positions the packets take.
    positions: u32,
    gaps: Gaps,
}

#[derive(Debug)]
struct Kept {
    headers: Headers,
    /// How many positions the packet takes.
    positions: u32,
    payload: Box<[u8]>,
}

impl Ahead {
    pub(super) fn new(mtu: Mtu, first: Sequence) -> Self {
        Self {
            mtu,
            packets: BTreeMap::new(),
            positions: 0,
            gaps: Gaps::new(first),
        }
    }

    /// How many packets are kept.
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Drops all packets. `expected` is the position of the next packet to execute.
    fn clear(&mut self, expected: Sequence) {
        self.packets.clear();
        self.positions = 0;
        self.gaps.clear(expected);
    }

    /// Keeps a packet at `at`. Does nothing if it is too far ahead, or could not be executed; it is then lost.
    fn keep(
        &mut self,
        now: u64,
        expected: Sequence,
        at: Sequence,
        headers: &Headers,
        payload: &[u8],
        counters: &mut Counters,
    ) {
        if self.packets.contains_key(&at) {
            counters.duplicates += 1;
            return;
        }
        let positions = match headers.body {
            Body::Request(_, Request::Read(reth)) => self.mtu.packets(reth.length),
            _ => 1,
        };
        let span = span(self.mtu);
        let is_near = at.since(expected) < span && positions <= span;
        let is_valid = headers.body.check_length(payload.len(), self.mtu).is_ok();
        if !is_near || !is_valid || !self.gaps.has_room() {
            counters.dropped += 1;
            return;
        }
        self.gaps.open(now, self.gaps.end(expected), at);
        let copy = Copy::of(headers.becn);
        self.gaps.arrived(now, at, at.plus(positions), copy);
        self.positions += positions;
        let kept = Kept {
            headers: *headers,
            positions,
            payload: payload.into(),
        };
        self.packets.insert(at, kept);
    }

    /// Removes the packet at `expected`. What is before it has been executed.
    fn take(&mut self, expected: Sequence) -> Option<Kept> {
        while let Some(first) = self.packets.first_entry()
            && *first.key() <= expected
        {
            let is_next = *first.key() == expected;
            let kept = first.remove();
            self.positions -= kept.positions;
            if is_next {
                return Some(kept);
            }
        }
        None
    }

    /// Reports what is missing and looks lost, and if `always`, at least what has arrived.
    fn report(&mut self, now: u64, expected: Sequence, always: bool, replies: &mut Replies) {
        let lost = self.gaps.take_lost(now, self.gaps.again());
        for gaps in lost.chunks(GAPS) {
            replies.report(expected, Report::new(expected, self.positions, gaps));
        }
        if always && lost.is_empty() {
            replies.report(expected, Report::new(expected, self.positions, &[]));
        }
    }

    /// When something that is missing looks lost.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.gaps.deadline(self.gaps.again())
    }
}

impl Responder {
    /// Keeps a marked packet at `at`, before which something is missing.
    #[cold]
    pub(super) fn keep<H>(
        &mut self,
        step: &mut Step<'_, H>,
        at: Sequence,
        headers: &Headers,
        payload: &[u8],
    ) {
        let (now, expected) = (step.now, self.expected);
        let Some(ahead) = &mut self.ahead else {
            return;
        };
        let counters = &mut step.out.counters;
        ahead.keep(now, expected, at, headers, payload, counters);
        self.has_kept = ahead.len() > 0;
        if self.has_kept {
            ahead.report(now, expected, headers.ack_request, &mut self.replies);
        }
    }

    /// The packet at `at` has been executed, or could not be: executes the kept packets that follow.
    #[cold]
    pub(super) fn execute_kept<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        at: Sequence,
        headers: &Headers,
    ) {
        let Some(mut ahead) = self.ahead.take() else {
            return;
        };
        let mut asks = headers.ack_request;
        let copy = Copy::of(headers.becn);
        ahead.gaps.fill(step.now, at, self.expected, copy);
        while !self.is_reported
            && !self.has_refused()
            && let Some(kept) = ahead.take(self.expected)
        {
            asks = true;
            if let Body::Request(_, request) = &kept.headers.body {
                self.execute(step, &kept.headers, request, &kept.payload);
            }
        }
        if self.is_reported || self.has_refused() {
            ahead.clear(self.expected);
        }
        ahead.gaps.forget_before(self.expected);
        self.has_kept = ahead.len() > 0;
        if self.has_kept {
            ahead.report(step.now, self.expected, asks, &mut self.replies);
        } else if asks && !self.is_reported && !self.has_refused() {
            self.acknowledge_all();
        }
        self.ahead = Some(ahead);
    }

    /// A packet that was executed has arrived again: tells the peer what has arrived.
    #[cold]
    pub(super) fn report_again(&mut self, now: u64) {
        if let Some(ahead) = &mut self.ahead {
            ahead.report(now, self.expected, true, &mut self.replies);
        }
    }

    /// Drops all kept packets.
    pub(super) fn drop_kept(&mut self) {
        if let Some(ahead) = &mut self.ahead {
            ahead.clear(self.expected);
        }
        self.has_kept = false;
    }

    /// Reports what looks lost by now.
    pub(super) fn report_lost(&mut self, now: u64) {
        if let Some(ahead) = self.ahead.as_deref_mut().filter(|it| it.len() > 0) {
            ahead.report(now, self.expected, false, &mut self.replies);
        }
    }
}
