//! The requester: work requests in, request packets out, responses in.
//!
//! Each request takes as many PSNs as it has packets, or its response has. Three positions describe everything:
//!
//! ```text
//!   unacked          next            top
//!      │ may have been │ to be sent    │
//!      │ sent again    │ again         │ not sent yet
//! ```
//!
//! An answer moves `unacked` forward. Loss, which a timeout or an answer shows, moves `next` back to `unacked`: everything
//! from there on is built again from the work requests and sent again (go-back-N). No packet is kept.
//!
//! [`send`] builds packets, [`response`] handles answers, and [`retry`] decides what follows from their absence.

mod response;
mod retry;
mod send;

use crate::packet::Mtu;
use crate::transport::config::{Config, ConnectionType};
use crate::transport::event::{Event, Status};
use crate::transport::sequence::Sequence;
use crate::transport::step::Output;
use crate::transport::work::{MESSAGE_MAX, Operation, Work, WorkRequest};
use retry::Retry;
use std::collections::VecDeque;

/// The requesting half of a connected queue pair.
#[derive(Debug)]
pub(crate) struct Requester {
    is_reliable: bool,
    mtu: Mtu,
    peer: u32,
    pkey: u16,
    max_reads_out: usize,
    /// Requests that have not ended, in order.
    works: VecDeque<Work>,
    /// How many of them have positions.
    started: usize,
    /// The request that the packet at `next` belongs to.
    cursor: usize,
    /// The oldest position that is not acknowledged.
    unacked: Sequence,
    /// The position of the next packet.
    next: Sequence,
    /// The position after the last one that has been sent.
    top: Sequence,
    /// Started reads and atomics that have not ended.
    reads_out: u32,
    /// The positions after the responses to the requests for them that have been sent: a long read is requested in parts.
    response_ends: VecDeque<Sequence>,
    /// How many packets of a response one request asks for.
    read_part: u32,
    /// Packets sent since the last one that asked for an acknowledgement.
    unrequested: u32,
    retry: Retry,
    has_failed: bool,
}

impl Requester {
    pub(crate) fn new(config: &Config) -> Self {
        let first = Sequence::first(config.send_psn);
        Self {
            is_reliable: config.connection == ConnectionType::Reliable,
            mtu: config.mtu,
            peer: config.peer,
            pkey: config.pkey,
            max_reads_out: config.max_reads_out.into(),
            works: VecDeque::new(),
            started: 0,
            cursor: 0,
            unacked: first,
            next: first,
            top: first,
            reads_out: 0,
            response_ends: VecDeque::new(),
            read_part: (config.window / 4).max(1),
            unrequested: 0,
            retry: Retry::new(config),
            has_failed: false,
        }
    }

    /// Changes timeout, retry counts and the limit of reads.
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
            answered: 0,
            failed: self.refusal(&request),
        };
        self.works.push_back(work);
        self.end_failed(out);
    }

    /// Why a request cannot be sent at all.
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

    /// Whether the peer owes an answer.
    fn awaits_answer(&self) -> bool {
        self.top > self.unacked
    }

    /// Everything before `position` has been executed: ends the requests there.
    fn advance(&mut self, now: u64, position: Sequence, out: &mut Output) {
        if position <= self.unacked {
            return;
        }
        self.retry.progress(position.since(self.unacked));
        self.unacked = position;
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
        if self.next < position {
            self.rewind();
        }
        self.retry.watch(now, self.awaits_answer());
        self.end_failed(out);
    }

    /// Ends the oldest request if it has failed on this side, and with it all others.
    fn end_failed(&mut self, out: &mut Output) {
        if let Some(status) = self.works.front().and_then(|work| work.failed) {
            self.fail(status, out);
        }
    }

    /// The next packet is the oldest that is not acknowledged, which belongs to the oldest request.
    fn rewind(&mut self) {
        (self.next, self.cursor) = (self.unacked, 0);
        self.response_ends.clear();
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

    /// Ends everything; nothing is sent any more.
    pub(crate) fn flush(&mut self, out: &mut Output) {
        for work in self.works.drain(..) {
            out.complete(work.request.id, Status::Flushed);
        }
        (self.started, self.cursor, self.reads_out) = (0, 0, 0);
        self.response_ends.clear();
        (self.next, self.unacked) = (self.top, self.top);
        self.retry.stop();
        self.has_failed = true;
    }
}
