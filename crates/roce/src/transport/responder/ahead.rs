//! Requests that arrive before earlier ones: they are kept, and executed when their turn comes.
//!
//! Only a requester that has agreed to reports marks its packets, and only marked packets are kept. They go through the same
//! checks as all others, in their turn. If one of them cannot be executed, the rest is dropped: the requester sends everything again.

use super::Responder;
use super::replies::Replies;
use crate::packet::{Body, Headers, Mtu, Request};
use crate::transport::budget::{KeepBudget, Share};
use crate::transport::deadline::earlier;
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
    /// Whether the peer waits for an acknowledgement of what is being executed.
    is_asked: bool,
    budget: Option<KeepBudget>,
}

#[derive(Debug)]
struct Kept {
    headers: Headers,
    /// How many positions the packet takes.
    positions: u32,
    payload: Box<[u8]>,
    _share: Option<Share>,
}

/// What a kept packet takes besides its payload, in bytes: at least its entry in the map.
const ENTRY: usize = 192;

impl Ahead {
    pub(super) fn new(mtu: Mtu, first: Sequence) -> Self {
        Self {
            mtu,
            packets: BTreeMap::new(),
            positions: 0,
            gaps: Gaps::new(first),
            is_asked: false,
            budget: None,
        }
    }

    /// Shares this budget with other connections.
    pub(super) fn limit(&mut self, budget: KeepBudget) {
        self.budget = Some(budget);
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
        self.is_asked = false;
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
        let share = (self.budget.as_ref()).map(|budget| budget.take(payload.len() + ENTRY));
        let is_affordable = share.as_ref().is_none_or(Option::is_some);
        let has_room = self.gaps.has_room() || self.gaps.is_at_an_edge(at, at.plus(positions));
        if !is_near || !is_valid || !is_affordable || !has_room {
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
            _share: share.flatten(),
        };
        self.packets.insert(at, kept);
    }

    /// Whether the next packet to execute is kept.
    fn is_next(&self, expected: Sequence) -> bool {
        self.packets.contains_key(&expected)
    }

    /// Removes the packet at `expected`. The peer waits for an acknowledgement: it has sent a packet again.
    fn take(&mut self, expected: Sequence) -> Option<Kept> {
        let kept = self.packets.remove(&expected)?;
        self.positions -= kept.positions;
        self.is_asked = true;
        Some(kept)
    }

    /// Forgets what is before `expected`: it has been executed.
    fn forget_before(&mut self, expected: Sequence) {
        while let Some(first) = self.packets.first_entry()
            && *first.key() < expected
        {
            self.positions -= first.remove().positions;
        }
        self.gaps.forget_before(expected);
    }

    /// Reports what is missing and looks lost, and if `always`, at least what has arrived.
    fn report(&mut self, now: u64, expected: Sequence, always: bool, replies: &mut Replies) {
        let again = self.gaps.again();
        if self.gaps.expiry(again).is_some_and(|time| time <= now) {
            // The peer has stopped. If it goes on, it sends everything again.
            self.clear(expected);
            return;
        }
        let most = GAPS * replies.room_for_reports();
        let lost = self.gaps.take_lost(now, again, most);
        for gaps in lost.chunks(GAPS) {
            replies.report(expected, Report::new(expected, self.positions, gaps));
        }
        if always && lost.is_empty() {
            replies.report(expected, Report::new(expected, self.positions, &[]));
        }
    }

    /// When something that is missing looks lost, if it `may` be reported now, or when to give up.
    pub(super) fn deadline(&self, may: bool) -> Option<u64> {
        let again = self.gaps.again();
        let report = self.gaps.deadline(again).filter(|_| may);
        earlier(report, self.gaps.expiry(again))
    }
}

impl Responder {
    /// Shares a budget for kept packets with other connections.
    pub(crate) fn limit_kept(&mut self, budget: KeepBudget) {
        if let Some(ahead) = &mut self.ahead {
            ahead.limit(budget);
        }
    }

    /// Keeps a marked packet at `at`, before which something is missing. Returns `false` if nothing is kept: the peer must send everything
    /// again.
    #[cold]
    pub(super) fn keep<H>(
        &mut self,
        step: &mut Step<'_, H>,
        at: Sequence,
        headers: &Headers,
        payload: &[u8],
    ) -> bool {
        let (now, expected) = (step.now, self.expected);
        let Some(ahead) = &mut self.ahead else {
            return false;
        };
        let counters = &mut step.out.counters;
        ahead.keep(now, expected, at, headers, payload, counters);
        if ahead.len() > 0 {
            ahead.report(now, expected, headers.ack_request, &mut self.replies);
        }
        self.has_kept = ahead.len() > 0;
        self.has_kept
    }

    /// The packet at `at` has been executed, or could not be.
    #[cold]
    pub(super) fn closed_gap(&mut self, now: u64, at: Sequence, headers: &Headers) {
        if let Some(ahead) = &mut self.ahead {
            let copy = Copy::of(headers.becn);
            ahead.gaps.fill(now, at, self.expected, copy);
            ahead.is_asked |= headers.ack_request;
        }
        self.after_execution(now);
    }

    /// Whether the turn of a kept packet has come.
    pub(crate) fn may_receive_kept(&self) -> bool {
        let ahead = self.ahead.as_deref().filter(|_| self.has_kept);
        ahead.is_some_and(|ahead| ahead.is_next(self.expected))
    }

    /// Executes the kept packet whose turn has come, if there is one. Returns whether there was.
    #[cold]
    pub(crate) fn execute_kept<H: Host>(&mut self, step: &mut Step<'_, H>) -> bool {
        let Some(kept) = self.ahead.as_mut().and_then(|it| it.take(self.expected)) else {
            return false;
        };
        if let Body::Request(_, request) = &kept.headers.body {
            self.execute(step, &kept.headers, request, &kept.payload);
        }
        self.after_execution(step.now);
        true
    }

    /// Tells the peer what has arrived when no kept packet has its turn. Drops the kept packets if the last one could not be executed.
    fn after_execution(&mut self, now: u64) {
        if self.is_reported || self.has_refused() {
            self.drop_kept();
            return;
        }
        let expected = self.expected;
        let Some(ahead) = self.ahead.as_mut().filter(|it| !it.is_next(expected)) else {
            return;
        };
        ahead.forget_before(expected);
        self.has_kept = ahead.len() > 0;
        let is_asked = std::mem::take(&mut ahead.is_asked);
        if self.has_kept {
            ahead.report(now, expected, is_asked, &mut self.replies);
            self.has_kept = ahead.len() > 0;
        } else if is_asked {
            self.acknowledge_all();
        }
    }

    /// A packet that was executed has arrived again: tells the peer what has arrived.
    #[cold]
    pub(super) fn report_again(&mut self, now: u64) {
        if let Some(ahead) = &mut self.ahead {
            ahead.report(now, self.expected, true, &mut self.replies);
            self.has_kept = ahead.len() > 0;
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
            self.has_kept = ahead.len() > 0;
        }
    }
}
