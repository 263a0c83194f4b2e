//! Responses that arrive before earlier ones, if both sides have agreed to that ([`Config::selective`]).
//!
//! The data of a read is stored where it belongs, whenever it arrives, and only what is missing is requested again. A request still
//! ends when all requests before it have ended.
//!
//! [`Config::selective`]: crate::transport::Config::selective

use super::Requester;
use crate::packet::{AtomicAckEth, Response, Syndrome};
use crate::transport::event::Status;
use crate::transport::gaps::{AGAIN_MIN, Copy, Gaps};
use crate::transport::host::Host;
use crate::transport::report::Report;
use crate::transport::sequence::Sequence;
use crate::transport::step::{Output, Step};
use crate::transport::work::{Operation, Part, Work};
use std::collections::BTreeSet;

/// What is known of responses that arrived early.
#[derive(Debug)]
pub(super) struct Returned {
    /// The positions whose responses have arrived before earlier ones.
    arrived: BTreeSet<Sequence>,
    gaps: Gaps,
    /// The peer has executed everything before this position.
    executed: Sequence,
}

impl Returned {
    pub(super) fn new(first: Sequence) -> Self {
        Self {
            arrived: BTreeSet::new(),
            gaps: Gaps::new(first),
            executed: first,
        }
    }

    /// How many responses have arrived before earlier ones.
    pub(super) fn len(&self) -> usize {
        self.arrived.len()
    }

    /// Forgets what has arrived, and what is missing: everything from `next` on is requested again.
    pub(super) fn clear(&mut self, next: Sequence) {
        self.arrived.clear();
        self.gaps.clear(next);
    }

    /// Removes the positions from `at` on, as far as there is no gap and at most `most`. Returns how many there are.
    fn take_run(&mut self, at: Sequence, most: u32) -> u32 {
        let mut count = 0;
        while count < most && self.arrived.remove(&at.plus(count)) {
            count += 1;
        }
        count
    }
}

impl Requester {
    /// Whether something has arrived before earlier responses.
    #[inline]
    pub(super) fn has_returned(&self) -> bool {
        let Returned {
            arrived,
            gaps,
            executed,
        } = &self.returned;
        *executed > self.unacked || !arrived.is_empty() || !gaps.is_empty()
    }

    /// Handles a marked response, if it is a report, or if it or an earlier one has come early. Otherwise returns `false`.
    pub(super) fn receive_early<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        at: Sequence,
        response: &Response,
        payload: &[u8],
        is_again: bool,
    ) -> bool {
        if let Response::AtomicAcknowledge(aeth, result) = *response
            && let Some(report) = Report::decode(aeth, result)
        {
            self.on_report(step, at, &report);
            return true;
        }
        // An acknowledgement covers the packet at `at`, data is from there.
        let end = match response {
            Response::Acknowledge(_) => at.next(),
            _ => at,
        };
        let awaited = self.awaited().map(Work::awaited);
        if !self.has_returned() && awaited.is_none_or(|awaited| end <= awaited) {
            return false;
        }
        match *response {
            Response::Acknowledge(aeth) => {
                if !matches!(aeth.syndrome, Syndrome::Ack(_)) {
                    return false;
                }
                self.kept = 0;
                self.executed_before(step.now, at.next(), step.out);
            }
            Response::AtomicAcknowledge(_, AtomicAckEth { original }) => {
                self.on_early_data(step, at, None, &original.to_ne_bytes());
            }
            _ => self.on_early_data(step, at, Some(Copy::of(is_again)), payload),
        }
        self.request_lost(step.now, step.out);
        true
    }

    /// The peer has executed everything before `position`. Ends the requests whose responses have arrived.
    pub(super) fn executed_before(&mut self, now: u64, position: Sequence, out: &mut Output) {
        let executed = self.returned.executed.max(position);
        self.returned.executed = executed;
        self.note_missing(now, position);
        self.catch_up(now, out);
    }

    /// Stores the data of a read, or (without `copy`) the result of an atomic, which may have come early.
    fn on_early_data<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        at: Sequence,
        copy: Option<Copy>,
        bytes: &[u8],
    ) {
        let index = self.work_at(at);
        let found = index.and_then(|index| self.works.get(index)).copied();
        let Some((index, work)) = index.zip(found).filter(|(_, it)| it.awaited() <= at) else {
            step.out.counters.stale_responses += 1;
            return;
        };
        let (offset, length) = match (work.request.operation, copy) {
            (Operation::Read { .. }, Some(_)) => {
                let part = Part::of(work.request.length, at.since(work.first), self.mtu);
                (part.offset, part.length as usize)
            }
            (Operation::Atomic { .. }, None) => (0, bytes.len()),
            (Operation::Read { .. } | Operation::Atomic { .. }, _) => {
                return self.on_bad_response(step);
            }
            _ => {
                step.out.counters.stale_responses += 1;
                return;
            }
        };
        if bytes.len() != length {
            return self.on_bad_response(step);
        }
        if self.returned.arrived.contains(&at) {
            step.out.counters.stale_responses += 1;
            return;
        }
        let stored = bytes.is_empty() || step.host.store(work.request.id, offset, bytes).is_ok();
        if let Some(work) = self.works.get_mut(index).filter(|_| !stored) {
            work.failed = Some(Status::LocalProtection);
            self.end_failed(step.out);
            return;
        }
        self.repairs.arrived(at);
        self.note_missing(step.now, at);
        // The result of an atomic does not say whether it is sent again.
        let copy = copy.unwrap_or(Copy::Again);
        self.returned.gaps.arrived(step.now, at, at.next(), copy);
        self.returned.arrived.insert(at);
        self.executed_before(step.now, work.first, step.out);
    }

    /// Notes which responses before `until` have not arrived, although something later has.
    fn note_missing(&mut self, now: u64, until: Sequence) {
        // What is to be sent again has not been requested.
        let until = until.min(self.next);
        let from = self.returned.gaps.end(self.unacked);
        if until <= from {
            return;
        }
        for work in self.works.iter().take(self.started) {
            if work.first >= until {
                break;
            }
            let (first, end) = (work.awaited().max(from), work.end().min(until));
            if work.request.operation.needs_response() && first < end {
                self.returned.gaps.open(now, first, end);
            }
        }
    }

    /// Moves on to the first response that has not arrived.
    fn catch_up(&mut self, now: u64, out: &mut Output) {
        loop {
            let awaited = self.awaited().map(Work::awaited);
            let executed = self.returned.executed;
            self.advance(now, awaited.map_or(executed, |at| at.min(executed)), out);
            if awaited != Some(self.unacked) {
                break;
            }
            // The oldest request.
            let Some(work) = self.works.front_mut() else {
                break;
            };
            let left = work.packets - work.answered;
            let count = self.returned.take_run(self.unacked, left);
            if count == 0 {
                break;
            }
            work.answered += count;
            self.advance(now, self.unacked.plus(count), out);
        }
        self.returned.gaps.forget_before(self.unacked);
    }

    /// Requests again what looks lost.
    pub(super) fn request_lost(&mut self, now: u64, out: &mut Output) {
        if self.returned.gaps.is_empty() {
            return;
        }
        let lost = self
            .returned
            .gaps
            .take_lost(now, self.wait_for_data(), usize::MAX);
        if !lost.is_empty() {
            out.counters.implied_naks += 1;
            self.repair(now, lost.into_iter(), true);
        }
    }

    /// When data looks lost; `None` if none is missing.
    #[inline]
    pub(super) fn lost_at(&self) -> Option<u64> {
        if self.returned.gaps.is_empty() {
            return None;
        }
        self.returned.gaps.deadline(self.wait_for_data())
    }

    /// How long requested data may take, in nanoseconds.
    fn wait_for_data(&self) -> u64 {
        let usual = self.retry.probe.usual();
        usual
            .unwrap_or_else(|| self.returned.gaps.again())
            .max(AGAIN_MIN)
    }
}
