//! The requester: work requests in, request packets out, responses in.
//!
//! Each request takes as many PSNs as it, or its response, has packets. Three positions describe the send state:
//!
//! ```text
//!   unacked          next            top
//!      │ may have been │ to be sent    │
//!      │ sent again    │ again         │ not sent yet
//! ```
//!
//! A response moves `unacked` forward. Loss, detected by a timeout or a response, moves `next` back to `unacked`:
//! everything from there on is rebuilt from the work requests and sent again (go-back-N). No packet is kept.
//!
//! If both sides have agreed ([`Config::selective`]), the peer keeps packets that arrive after a gap, and reports the gap: then only what
//! is missing is sent again ([`repair`]), and responses are taken in any order ([`returned`]).
//!
//! [`send`] builds packets, [`response`] handles responses, [`retry`] handles missing ones, [`congestion`] handles the peer's
//! congestion notifications, and [`window`] says how much may be outstanding.

mod congestion;
mod probe;
mod repair;
mod response;
mod retry;
mod returned;
mod send;
mod window;

use crate::packet::Mtu;
use crate::transport::config::{Config, ConnectionType, early_mark};
use crate::transport::event::{Event, Status};
use crate::transport::report::span;
use crate::transport::sequence::Sequence;
use crate::transport::step::Output;
use crate::transport::work::{MESSAGE_MAX, Operation, Work, WorkRequest};
use repair::Repairs;
use retry::Retry;
use returned::Returned;
use std::collections::VecDeque;

/// The requesting half of a connected queue pair.
#[derive(Debug)]
pub(crate) struct Requester {
    is_reliable: bool,
    mtu: Mtu,
    peer: u32,
    pkey: u16,
    /// The reserved bits of packets: 0, or the [mark](early_mark) of a side that has agreed to selective retransmission.
    mark: u16,
    max_reads_out: usize,
    /// Requests that have not ended, in posting order.
    works: VecDeque<Work>,
    /// The number of `works` that have been assigned positions.
    started: usize,
    /// The index of the request that the packet at `next` belongs to.
    cursor: usize,
    /// The oldest unacknowledged position.
    unacked: Sequence,
    /// The position of the next packet to send.
    next: Sequence,
    /// The position after the last one that has been sent.
    top: Sequence,
    /// The number of started reads and atomics that have not ended.
    reads_out: u32,
    /// The end positions of the responses requested so far: a long read is requested in parts.
    response_ends: VecDeque<Sequence>,
    /// The number of packets sent since the last one that requested an acknowledgement.
    unrequested: u32,
    /// Whether to send the packet at `unacked` once more, besides the others.
    sends_probe: bool,
    retry: Retry,
    has_failed: bool,
    /// Whether both sides have agreed to selective retransmission, as far as this side knows.
    is_selective: bool,
    /// The maximum distance between `unacked` and `next`.
    span: u32,
    /// How many packets after `unacked` the peer has kept: they are no longer in the network.
    kept: u32,
    repairs: Repairs,
    returned: Returned,
}

impl Requester {
    pub(crate) fn new(config: &Config) -> Self {
        let first = Sequence::first(config.send_psn);
        let is_reliable = config.connection == ConnectionType::Reliable;
        let is_selective = is_reliable && config.selective;
        Self {
            is_reliable,
            mtu: config.mtu,
            peer: config.peer,
            pkey: config.pkey,
            mark: if config.selective {
                early_mark(config.send_psn)
            } else {
                0
            },
            max_reads_out: config.max_reads_out.into(),
            works: VecDeque::new(),
            started: 0,
            cursor: 0,
            unacked: first,
            next: first,
            top: first,
            reads_out: 0,
            response_ends: VecDeque::new(),
            unrequested: 0,
            sends_probe: false,
            retry: Retry::new(config),
            has_failed: false,
            is_selective,
            span: if is_selective {
                span(config.mtu)
            } else {
                u32::MAX
            },
            kept: 0,
            repairs: Repairs::default(),
            returned: Returned::new(first),
        }
    }

    /// Changes the timeout, the retry counts and the limit of outstanding reads.
    pub(crate) fn update(&mut self, config: &Config) {
        self.max_reads_out = config.max_reads_out.into();
        self.retry.update(config);
    }

    /// Accepts requests again after a failure.
    pub(crate) fn resume(&mut self) {
        self.has_failed = false;
    }

    /// Adds a request to the queue.
    pub(crate) fn post(&mut self, request: WorkRequest, out: &mut Output) {
        if self.has_failed {
            out.complete(request.id, Status::Flushed);
            return;
        }
        let work = Work {
            request,
            first: self.top,
            packets: request.packets(self.mtu),
            part: request.packets(self.mtu),
            answered: 0,
            failed: self.refusal(&request),
        };
        self.works.push_back(work);
        self.end_failed(out);
    }

    /// The status of a request that is refused without being sent; `None` if the request may be sent.
    fn refusal(&self, request: &WorkRequest) -> Option<Status> {
        if request.length > MESSAGE_MAX {
            return Some(Status::LocalLength);
        }
        let supported = match request.operation {
            Operation::Read { .. } | Operation::Atomic { .. } => {
                self.is_reliable && self.max_reads_out > 0
            }
            Operation::Send {
                invalidate: Some(_),
                immediate,
            } => self.is_reliable && immediate.is_none(),
            _ => true,
        };
        (!supported).then_some(Status::LocalQpOperation)
    }

    /// How many requests have not ended.
    pub(crate) fn outstanding(&self) -> usize {
        self.works.len()
    }

    /// How many lost packets and early responses are remembered.
    pub(crate) fn remembered(&self) -> usize {
        self.repairs.len() + self.returned.len()
    }

    /// Whether the peer must still respond to a packet.
    fn awaits_response(&self) -> bool {
        self.top > self.unacked
    }

    /// Ends the requests before `position`, which have been executed.
    fn advance(&mut self, now: u64, position: Sequence, out: &mut Output) {
        if position <= self.unacked {
            return;
        }
        let positions = position.since(self.unacked);
        let replaced = (self.retry).progress(now, position, positions, self.top);
        self.unacked = position;
        self.sends_probe = false;
        while let Some(work) = self.works.front()
            && self.started > 0
            && work.end() <= position
        {
            out.complete(work.request.id, Status::Success);
            self.reads_out -= u32::from(work.request.operation.needs_response());
            self.works.pop_front();
            self.started -= 1;
            self.cursor = self.cursor.saturating_sub(1);
        }
        while let Some(end) = self.response_ends.front()
            && *end <= position
        {
            self.response_ends.pop_front();
        }
        if self.repairs.len() > 0 {
            self.forget_repairs(now, position);
        }
        let is_kept = std::mem::take(&mut self.kept) > 0 || self.has_returned();
        if self.next < position || (replaced && !is_kept) {
            self.rewind();
        }
        self.retry.watch(now, self.awaits_response());
        self.end_failed(out);
    }

    /// Ends the oldest request, and with it all others, if it has failed on this side.
    fn end_failed(&mut self, out: &mut Output) {
        if let Some(status) = self.works.front().and_then(|work| work.failed) {
            self.fail(status, out);
        }
    }

    /// Resets `next` to the oldest unacknowledged packet, which belongs to the oldest request.
    fn rewind(&mut self) {
        (self.next, self.cursor) = (self.unacked, 0);
        self.sends_probe = false;
        self.retry.probe.forget();
        self.response_ends.clear();
        self.forget_losses();
    }

    /// Forgets what has to be sent again, and what has arrived early: everything from `next` on is sent again.
    fn forget_losses(&mut self) {
        self.kept = 0;
        self.repairs.clear();
        self.returned.clear(self.next);
    }

    /// Whether a request has failed: all later ones are flushed.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Ends the oldest request with `status` and flushes all others.
    pub(crate) fn fail(&mut self, status: Status, out: &mut Output) {
        if self.has_failed {
            return;
        }
        if let Some(work) = self.works.pop_front() {
            out.complete(work.request.id, status);
        }
        self.flush(out);
        out.events.push_back(Event::Failed);
    }

    /// Ends all requests; nothing more is sent.
    pub(crate) fn flush(&mut self, out: &mut Output) {
        for work in self.works.drain(..) {
            out.complete(work.request.id, Status::Flushed);
        }
        (self.started, self.cursor, self.reads_out) = (0, 0, 0);
        self.response_ends.clear();
        (self.next, self.unacked) = (self.top, self.top);
        self.sends_probe = false;
        self.forget_losses();
        self.retry.stop();
        self.has_failed = true;
    }
}
