//! The responder: requests of the peer in, responses out.
//!
//! Requests are executed exactly once, in PSN order. A packet after a gap is dropped, and the gap is reported once (NAK
//! sequence error). A duplicate packet gets another response: sends and writes an acknowledgement of everything so far, reads
//! the current data, atomics the remembered result.
//!
//! If both sides have agreed ([`Config::selective`]), a packet after a gap is kept instead, and the responder reports what is
//! missing, in [`ahead`].
//!
//! [`assembly`] assembles messages, [`remembered`] has the reads and atomics that the peer may retransmit, [`replies`] is
//! the queue of responses, and [`pace`] says when packets of a long read may be sent. Unreliable connections have their own sequence rules, in [`unreliable`].

mod ahead;
mod assembly;
mod pace;
mod remembered;
mod replies;
mod unreliable;

use crate::packet::{
    Aeth, AtomicEth, Credits, Headers, Mtu, NakCode, Psn, Request, Reth, RnrTimer, Syndrome,
};
use crate::transport::attached;
use crate::transport::buffer::PacketBuffer;
use crate::transport::config::{Config, early_mark};
use crate::transport::deadline::earlier;
use crate::transport::event::{Event, Status};
use crate::transport::host::{Access, Atomic, Host, RemoteRange};
use crate::transport::sequence::Sequence;
use crate::transport::step::{Output, Step};
use crate::transport::work::MESSAGE_MAX;
use ahead::Ahead;
use assembly::{Assembly, ExecuteError};
use pace::Pace;
use remembered::{Kind, Remembered};
use replies::{Replies, Reply, Sender};

pub(crate) use unreliable::UnreliableResponder;

/// Message numbers have 24 bits.
const MSN_MASK: u32 = 0xff_ffff;

/// The responding half of a reliable connection.
#[derive(Debug)]
pub(crate) struct Responder {
    mtu: Mtu,
    min_rnr_timer: RnrTimer,
    sender: Sender,
    /// The position of the next packet to execute.
    expected: Sequence,
    /// The number of executed messages, modulo 2²⁴.
    msn: u32,
    /// Whether the peer has been told that the packet at `expected` is missing or has no receive.
    is_reported: bool,
    assembly: Assembly,
    remembered: Remembered,
    replies: Replies,
    pace: Pace,
    /// Packets that have arrived before earlier ones. `None`: the sides have not agreed to keep them.
    ahead: Option<Box<Ahead>>,
    /// Whether `ahead` has packets.
    has_kept: bool,
    /// The [mark](early_mark) of the peer's packets.
    mark: u16,
    /// The refused packet. Nothing after it is executed.
    refused: Option<(Sequence, NakCode)>,
}

impl Responder {
    pub(crate) fn new(config: &Config) -> Self {
        let expected = Sequence::first(config.receive_psn);
        let ahead = || Box::new(Ahead::new(config.mtu, expected));
        Self {
            mtu: config.mtu,
            min_rnr_timer: config.min_rnr_timer,
            sender: Sender::new(config),
            expected,
            msn: 0,
            is_reported: false,
            assembly: Assembly::default(),
            remembered: Remembered::new(config.max_reads_in),
            replies: Replies::default(),
            pace: Pace::default(),
            ahead: config.selective.then(ahead),
            has_kept: false,
            mark: early_mark(config.receive_psn),
            refused: None,
        }
    }

    /// Changes how long a peer waits after an RNR NAK.
    pub(crate) fn set_min_rnr_timer(&mut self, timer: RnrTimer) {
        self.min_rnr_timer = timer;
    }

    /// Whether a request has been refused: the queue pair has failed.
    pub(crate) fn has_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// The PSN of the last request packet that was executed, or the PSN before the first. `None` if a request was refused.
    pub(crate) fn executed(&self) -> Option<Psn> {
        (self.refused.is_none()).then(|| self.expected.previous().psn())
    }

    /// How many responses and remembered requests are held.
    pub(crate) fn outstanding(&self) -> usize {
        self.replies.len() + self.remembered.len()
    }

    /// How many packets are kept because earlier ones are missing.
    pub(crate) fn kept(&self) -> usize {
        self.ahead.as_ref().map_or(0, |ahead| ahead.len())
    }

    /// Whether an acknowledgement is [`attached`] to a request.
    pub(crate) fn has_attached(&self, headers: &Headers, request: &Request) -> bool {
        self.ahead.is_some() && attached::has_attached(headers, request, self.mark)
    }

    /// Executes, answers or drops a request.
    pub(crate) fn receive<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        headers: &Headers,
        request: &Request,
        payload: &[u8],
    ) {
        let at = self.expected.near(headers.psn);
        if let Some((refused, code)) = self.refused {
            // The peer has not received the refusal.
            if at == refused {
                self.acknowledge(at, Syndrome::Nak(code));
            }
        } else if at > self.expected {
            step.out.counters.out_of_sequence += 1;
            if self.is_reported {
                return;
            }
            let is_marked = headers.migrated && headers.reserved == self.mark;
            if !(is_marked && self.keep(step, at, headers, payload)) {
                self.is_reported = true;
                self.acknowledge(self.expected, Syndrome::Nak(NakCode::PsnSequenceError));
            }
        } else if at < self.expected {
            step.out.counters.duplicates += 1;
            self.answer_again(at, request);
            if self.has_kept {
                self.report_again(step.now);
            }
        } else if headers.body.check_length(payload.len(), self.mtu).is_err() {
            self.refuse(step, at, NakCode::InvalidRequest, Status::Flushed);
        } else {
            self.execute(step, headers, request, payload);
            if self.has_kept {
                self.closed_gap(step.now, at, headers);
            }
        }
    }

    /// Executes the expected request.
    #[inline]
    fn execute<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        headers: &Headers,
        request: &Request,
        payload: &[u8],
    ) {
        let at = self.expected;
        self.sender.peer_agrees |=
            self.ahead.is_some() && attached::is_of_agreed_peer(headers, self.mark);
        let result = match *request {
            Request::Read(reth) => self.read(step, &reth),
            Request::CompareSwap(atomic) => {
                let operation = Atomic::CompareSwap {
                    compare: atomic.compare,
                    swap: atomic.swap_or_add,
                };
                self.atomic(step, request, &atomic, operation)
            }
            Request::FetchAdd(atomic) => {
                let operation = Atomic::FetchAdd {
                    add: atomic.swap_or_add,
                };
                self.atomic(step, request, &atomic, operation)
            }
            _ => self.fragment(step, headers, request, payload),
        };
        match result {
            Ok(()) => self.is_reported = false,
            Err(ExecuteError::NoReceive) => {
                step.out.counters.rnr_naks_sent += 1;
                self.is_reported = true;
                self.acknowledge(at, Syndrome::RnrNak(self.min_rnr_timer));
            }
            Err(ExecuteError::Refused { code, receive }) => self.refuse(step, at, code, receive),
        }
    }

    fn fragment<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        headers: &Headers,
        request: &Request,
        payload: &[u8],
    ) -> Result<(), ExecuteError> {
        let has_ended = (self.assembly).accept(step, request, headers.solicited, payload)?;
        let at = self.expected;
        self.expected = at.next();
        self.msn = self.msn.wrapping_add(has_ended.into()) & MSN_MASK;
        if headers.ack_request {
            self.acknowledge(at, Syndrome::Ack(Credits::UNLIMITED));
        }
        Ok(())
    }

    fn read<H: Host>(&mut self, step: &mut Step<'_, H>, reth: &Reth) -> Result<(), ExecuteError> {
        let possible = !self.assembly.is_active()
            && reth.length <= MESSAGE_MAX
            && self.remembered.make_room(&mut self.replies);
        if !possible {
            return Err(ExecuteError::INVALID);
        }
        if reth.length > 0 {
            step.host.check(&range(reth), Access::Read)?;
        }
        let (first, packets) = (self.expected, self.mtu.packets(reth.length));
        self.msn = self.msn.wrapping_add(1) & MSN_MASK;
        let kind = Kind::Read {
            reth: *reth,
            packets,
        };
        self.remembered.add(first, self.msn, kind);
        self.replies.read(first, first, *reth, self.msn);
        self.expected = first.plus(packets);
        Ok(())
    }

    fn atomic<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        request: &Request,
        atomic: &AtomicEth,
        operation: Atomic,
    ) -> Result<(), ExecuteError> {
        let possible = !self.assembly.is_active()
            && atomic.address.is_multiple_of(8)
            && self.remembered.make_room(&mut self.replies);
        if !possible {
            return Err(ExecuteError::INVALID);
        }
        let word = RemoteRange {
            address: atomic.address,
            rkey: atomic.rkey,
            length: 8,
        };
        let original = step.host.atomic(&word, operation)?;
        let at = self.expected;
        self.msn = self.msn.wrapping_add(1) & MSN_MASK;
        let kind = Kind::Atomic {
            request: *request,
            original,
        };
        self.remembered.add(at, self.msn, kind);
        self.replies.atomic(at, original, self.msn);
        self.expected = at.next();
        Ok(())
    }

    /// Answers a duplicate of a request that has been executed.
    fn answer_again(&mut self, at: Sequence, request: &Request) {
        match request {
            Request::Read(reth) => {
                let is_part = self.ahead.is_some();
                let found = self.remembered.find_read(at, reth, self.mtu, is_part);
                if let Some((first, msn)) = found {
                    if pace::is_long(first, at, self.mtu.packets(reth.length)) {
                        self.pace.requested_again(first, at);
                    }
                    match is_part {
                        true => self.replies.read_again(first, at, *reth, msn, self.mtu),
                        false => self.replies.read(first, at, *reth, msn),
                    }
                }
            }
            Request::CompareSwap(_) | Request::FetchAdd(_) => {
                if let Some((original, msn)) = self.remembered.find_atomic(at, request) {
                    self.replies.atomic(at, original, msn);
                }
            }
            _ => self.acknowledge_all(),
        }
    }

    pub(crate) fn repeat_acknowledgement(&mut self) -> bool {
        let repeats = self.msn > 0 && self.refused.is_none();
        if repeats {
            self.acknowledge_all();
        }
        repeats
    }

    /// Acknowledges everything that has been executed, except reads and atomics at the end.
    fn acknowledge_all(&mut self) {
        let (end, msn) = self.remembered.acknowledgeable(self.expected, self.msn);
        let syndrome = Syndrome::Ack(Credits::UNLIMITED);
        (self.replies).acknowledge(end.previous(), Aeth { syndrome, msn });
    }

    fn acknowledge(&mut self, at: Sequence, syndrome: Syndrome) {
        let msn = self.msn;
        self.replies.acknowledge(at, Aeth { syndrome, msn });
    }

    /// Refuses the packet at `at` permanently. Responses to earlier requests are still sent, and then the refusal.
    fn refuse<H>(&mut self, step: &mut Step<'_, H>, at: Sequence, code: NakCode, receive: Status) {
        step.out.counters.refused += 1;
        self.drop_kept();
        let is_first = self.refused.replace((at, code)).is_none();
        self.acknowledge(at, Syndrome::Nak(code));
        self.assembly.fail_receive(step.out, receive);
        if is_first {
            step.out.events.push_back(Event::Refused(code));
        }
    }

    /// The peer reports congestion: sends long reads more slowly.
    pub(crate) fn slow_down(&mut self, now: u64) {
        if self.replies.begins_with_long(self.mtu) {
            self.pace.congested(now);
        }
    }

    /// Advances the time.
    pub(crate) fn on_time(&mut self, now: u64) {
        self.pace.advance(now);
        if self.has_kept {
            self.report_lost(now);
        }
    }

    /// When the next response may be sent, if it must not be sent yet, or when something that is missing looks lost.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let resumes_at = self.pace.resumes_at();
        let resumes_at = resumes_at.filter(|_| self.replies.begins_with_long(self.mtu));
        match &self.ahead {
            Some(ahead) if self.has_kept => {
                let may_report = self.replies.room_for_reports() > 0;
                earlier(resumes_at, ahead.deadline(may_report))
            }
            _ => resumes_at,
        }
    }

    /// Whether a response waits to be sent.
    pub(crate) fn may_transmit(&self) -> bool {
        self.replies.len() > 0
    }

    /// Writes the next response to `to`, if there is one that may be sent now, and returns its length.
    pub(crate) fn transmit<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        to: &mut PacketBuffer,
    ) -> Option<usize> {
        if self.replies.begins_with_long(self.mtu) {
            self.pace.advance(step.now);
            if !self.pace.may_send() {
                return None;
            }
            self.pace.sent(step.now);
        }
        match self.replies.pop(self.mtu)? {
            Reply::Acknowledge { at, aeth } => self.sender.acknowledge(at, aeth, to),
            Reply::Report { at, report } => self.sender.report(at, &report, to),
            Reply::Atomic { at, original, msn } => {
                self.remembered.answered(at);
                self.sender.atomic(at, original, msn, to)
            }
            Reply::Read(read) => {
                let result = self.sender.read(step, &read, to);
                // Whether this is the end of the first answer does not matter to a read that works.
                let is_repeated = result.is_err() && self.remembered.is_answered(read.first);
                if read.part.position.ends() {
                    self.remembered.answered(read.first);
                }
                match result {
                    Ok(length) => length,
                    // The memory was deregistered after the first answer. Usually the request is a late duplicate, and the peer has
                    // that answer. If the answer was lost, the peer's retries are used up.
                    Err(_) if is_repeated => {
                        self.replies.remove(read.first);
                        self.transmit(step, to)
                    }
                    Err(refusal) => {
                        // The memory was deregistered after the request arrived. Later requests get no response.
                        self.replies.clear();
                        self.refuse(step, read.at, refusal.into(), Status::Flushed);
                        self.transmit(step, to)
                    }
                }
            }
        }
    }

    /// Drops the message in progress, and the unsent responses unless they end in a refusal.
    pub(crate) fn flush(&mut self, out: &mut Output) {
        self.assembly.fail_receive(out, Status::Flushed);
        self.drop_kept();
        if self.refused.is_none() {
            self.replies.clear();
        }
    }
}

fn range(reth: &Reth) -> RemoteRange {
    RemoteRange {
        address: reth.address,
        rkey: reth.rkey,
        length: reth.length,
    }
}
