//! The peer's responses: acknowledgements, NAKs, read data, results of atomics.
//!
//! A responder executes in order, so a response to one packet implies that every packet before it has been executed. But
//! reads and atomics end only with their own response: a response to something later shows that theirs was lost (an
//! implied NAK, IBA volume 1, 9.7.5.1.2), and the request is sent again.
//!
//! The message sequence number (MSN) in a response adds nothing to its PSN and is ignored. Credits are ignored: a peer
//! that runs out of receives sends an RNR NAK.

use super::Requester;
use crate::packet::{Aeth, AtomicAckEth, Headers, NakCode, Response, RnrTimer, Syndrome};
use crate::transport::event::Status;
use crate::transport::host::Host;
use crate::transport::sequence::Sequence;
use crate::transport::step::Step;
use crate::transport::work::{Operation, Part, Work};

impl Requester {
    /// Handles a response.
    pub(crate) fn receive<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        headers: &Headers,
        response: &Response,
        payload: &[u8],
    ) {
        let at = self.unacked.near(headers.psn);
        if at < self.unacked || at >= self.top {
            step.out.counters.stale_responses += 1;
            return;
        }
        self.retry.probe.responded(step.now);
        // Only a sender that has agreed to selective retransmission marks its packets.
        let is_agreed = headers.migrated && self.is_selective;
        if is_agreed && self.receive_early(step, at, response, payload, headers.becn) {
            return;
        }
        match *response {
            Response::Acknowledge(aeth) => self.on_acknowledge(step, at, aeth),
            Response::AtomicAcknowledge(_, AtomicAckEth { original }) => {
                self.on_atomic(step, at, original);
            }
            Response::ReadFirst(_)
            | Response::ReadMiddle
            | Response::ReadLast(_)
            | Response::ReadOnly(_) => {
                self.on_read_data(step, at, response, payload);
            }
        }
    }

    fn on_acknowledge<H>(&mut self, step: &mut Step<'_, H>, at: Sequence, aeth: Aeth) {
        match aeth.syndrome {
            Syndrome::Ack(_) => {
                if !self.acknowledge(step, at.next()) {
                    self.on_lost_response(step);
                }
            }
            Syndrome::Nak(code) => self.on_nak(step, at, code),
            Syndrome::RnrNak(timer) => self.on_rnr_nak(step, at, timer),
            Syndrome::Reserved(_) => self.on_bad_response(step),
        }
    }

    /// Handles an acknowledgement of everything before `position`. Returns `false` if a response before it is missing.
    fn acknowledge<H>(&mut self, step: &mut Step<'_, H>, position: Sequence) -> bool {
        if self.has_returned() {
            self.executed_before(step.now, position, step.out);
            return self.unacked >= position;
        }
        let awaited = self.awaited().map(Work::awaited);
        let until = awaited.map_or(position, |awaited| awaited.min(position));
        self.advance(step.now, until, step.out);
        until == position
    }

    /// The oldest request whose response has not arrived completely.
    pub(super) fn awaited(&self) -> Option<&Work> {
        if self.reads_out == 0 {
            return None;
        }
        let mut started = self.works.iter().take(self.started);
        started.find(|work| work.request.operation.needs_response())
    }

    fn on_lost_response<H>(&mut self, step: &mut Step<'_, H>) {
        step.out.counters.implied_naks += 1;
        self.go_back(step);
    }

    fn on_nak<H>(&mut self, step: &mut Step<'_, H>, at: Sequence, code: NakCode) {
        if !self.acknowledge(step, at) {
            self.on_lost_response(step);
            return;
        }
        let status = match code {
            NakCode::PsnSequenceError => {
                step.out.counters.sequence_naks += 1;
                self.go_back(step);
                return;
            }
            NakCode::InvalidRequest | NakCode::InvalidRdRequest => Status::RemoteInvalidRequest,
            NakCode::RemoteAccessError => Status::RemoteAccess,
            NakCode::RemoteOperationalError => Status::RemoteOperation,
        };
        self.fail(status, step.out);
    }

    fn on_rnr_nak<H>(&mut self, step: &mut Step<'_, H>, at: Sequence, timer: RnrTimer) {
        if !self.acknowledge(step, at) {
            self.on_lost_response(step);
            return;
        }
        if self.next == self.unacked {
            return; // a response to an earlier attempt
        }
        step.out.counters.rnr_naks += 1;
        if self.retry.wait_for_receive(step.now, timer.nanoseconds()) {
            self.rewind();
        } else {
            self.fail(Status::RnrRetryExceeded, step.out);
        }
    }

    pub(super) fn on_bad_response<H>(&mut self, step: &mut Step<'_, H>) {
        self.fail(Status::BadResponse, step.out);
    }

    /// Whether the response at `at` is the next missing one. If so, it belongs to the oldest request.
    fn is_next<H>(&mut self, step: &mut Step<'_, H>, at: Sequence) -> bool {
        let Some(awaited) = self.awaited().map(Work::awaited) else {
            step.out.counters.stale_responses += 1;
            return false;
        };
        if at < awaited {
            // The response refers to a send or write, but these have no responses.
            step.out.counters.stale_responses += 1;
            return false;
        }
        self.advance(step.now, awaited, step.out);
        if at > awaited {
            self.on_lost_response(step);
        }
        at == awaited && !self.has_failed
    }

    fn on_read_data<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        at: Sequence,
        response: &Response,
        payload: &[u8],
    ) {
        if !self.is_next(step, at) {
            return;
        }
        let Some(work) = self.works.front().copied() else {
            return;
        };
        let part = Part::of(work.request.length, work.answered, self.mtu);
        let is_end = Self::part_end(&work, work.answered) == work.answered + 1;
        // A part of the part may have been requested again.
        let fits = matches!(work.request.operation, Operation::Read { .. })
            && (is_end == response.position().ends() || self.is_selective)
            && part.length as usize == payload.len();
        if !fits {
            self.on_bad_response(step);
            return;
        }
        let is_stored =
            payload.is_empty() || (step.host.store(work.request.id, part.offset, payload)).is_ok();
        self.answered(step, is_stored);
    }

    fn on_atomic<H: Host>(&mut self, step: &mut Step<'_, H>, at: Sequence, original: u64) {
        if !self.is_next(step, at) {
            return;
        }
        let Some(work) = self.works.front().copied() else {
            return;
        };
        if !matches!(work.request.operation, Operation::Atomic { .. }) {
            self.on_bad_response(step);
            return;
        }
        let stored = step.host.store(work.request.id, 0, &original.to_ne_bytes());
        self.answered(step, stored.is_ok());
    }

    /// Records that the next packet of the oldest request's response has arrived.
    fn answered<H>(&mut self, step: &mut Step<'_, H>, is_stored: bool) {
        if !is_stored {
            self.fail(Status::LocalProtection, step.out);
            return;
        }
        if let Some(work) = self.works.front_mut() {
            work.answered += 1;
        }
        self.advance(step.now, self.unacked.next(), step.out);
    }
}
