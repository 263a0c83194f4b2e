//! A connected queue pair: a requester and a responder.

use super::attached;
use super::budget::KeepBudget;
use super::buffer::PacketBuffer;
use super::config::{Config, ConnectionType};
use super::deadline::earlier;
use super::event::{Counters, Event};
use super::host::Host;
use super::notify::Notifier;
use super::requester::Requester;
use super::responder::{Responder, UnreliableResponder};
use super::step::{Output, Step};
use super::work::WorkRequest;
use crate::packet::{Body, Packet, Psn, Reliable, Response, Service};

/// A queue pair of a reliable or unreliable connection that is ready to send and receive.
///
/// Calls never block. After each [`post`](Self::post), [`receive`](Self::receive) and [`advance`](Self::advance), the owner
/// calls [`transmit`](Self::transmit) until no packet is left, fetches the [events](Self::next_event), and then waits for a
/// packet or for [`next_deadline`](Self::next_deadline). After [`receive`](Self::receive), packets that have been kept may have their turn:
/// see [`receive_kept`](Self::receive_kept). It may stop early and send the rest later: a peer may request a 2 GiB
/// read at once.
///
/// The owner looks up the queue pair by the number in the packet, and drops packets that did not come from the peer's address or
/// that have another partition key.
#[derive(Debug)]
pub struct Connection {
    requester: Requester,
    responder: Responding,
    notifier: Notifier,
    out: Output,
    /// Whether the last packet was a response: responses and requests alternate.
    answered_last: bool,
    is_flushed: bool,
}

#[derive(Debug)]
enum Responding {
    Reliable(Box<Responder>),
    Unreliable(UnreliableResponder),
}

impl Connection {
    /// Creates a queue pair. The peer has the same attributes, with sender and receiver swapped.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let responder = match config.connection {
            ConnectionType::Reliable => Responding::Reliable(Box::new(Responder::new(config))),
            ConnectionType::Unreliable => Responding::Unreliable(UnreliableResponder::new(config)),
        };
        Self {
            requester: Requester::new(config),
            responder,
            notifier: Notifier::new(config),
            out: Output::default(),
            answered_last: false,
            is_flushed: false,
        }
    }

    /// Shares a budget for packets that arrive before earlier ones with other connections. Without one, only the limits of
    /// [`kept`](Self::kept) apply. A packet that exceeds the budget counts as lost.
    pub fn limit_kept(&mut self, budget: KeepBudget) {
        if let Responding::Reliable(responder) = &mut self.responder {
            responder.limit_kept(budget);
        }
    }

    /// Configures the requesting half, if its attributes were not known when the responding half started (`ibv_modify_qp(3)`
    /// sets them later). Nothing may have been posted.
    pub fn prepare_to_send(&mut self, config: &Config) {
        self.requester = Requester::new(config);
    }

    /// Changes the attributes that may change while the queue pair is in service: the timeout, the retry counts, the RNR timer,
    /// and how many reads this side may have outstanding.
    pub fn update(&mut self, config: &Config) {
        self.requester.update(config);
        if let Responding::Reliable(responder) = &mut self.responder {
            responder.set_min_rnr_timer(config.min_rnr_timer);
        }
    }

    /// Resumes sending after a work request of an unreliable connection has failed. Everything posted in the meantime has been
    /// flushed.
    pub fn resume_sending(&mut self) {
        self.requester.resume();
    }

    /// Adds a work request to the send queue. Its completion is an [event](Self::next_event), even if it is invalid. The queue
    /// itself is unbounded.
    pub fn post(&mut self, request: WorkRequest) {
        self.requester.post(request, &mut self.out);
    }

    /// Handles a packet that arrived at `now`, in nanoseconds of any monotonic clock.
    pub fn receive<H: Host>(&mut self, now: u64, host: &mut H, packet: &Packet<'_>) {
        let has_attached = match (&packet.headers.body, &self.responder) {
            (Body::Request(Service::Rc, request), Responding::Reliable(responder)) => {
                responder.has_attached(&packet.headers, request)
            }
            _ => false,
        };
        if !has_attached {
            return self.receive_one(now, host, packet);
        }
        let Some((request, acknowledgement)) = attached::detach(packet) else {
            self.out.counters.dropped += 1;
            return;
        };
        // First: programs expect that a request has ended when its answer arrives.
        self.receive_one(now, host, &acknowledgement);
        if self.requester.has_failed() {
            self.out.counters.dropped += 1;
            return;
        }
        self.receive_one(now, host, &request);
    }

    fn receive_one<H: Host>(&mut self, now: u64, host: &mut H, packet: &Packet<'_>) {
        let Self {
            requester,
            responder,
            out,
            is_flushed,
            ..
        } = self;
        let mut step = Step { now, host, out };
        let (headers, payload) = (&packet.headers, packet.payload);
        match (&headers.body, responder) {
            (Body::Request(Service::Rc, request), Responding::Reliable(responder))
                if !*is_flushed || responder.has_refused() =>
            {
                responder.receive(&mut step, headers, request, payload);
                fail_together(requester, responder, step.out);
            }
            (Body::Request(Service::Uc, request), Responding::Unreliable(responder))
                if !*is_flushed =>
            {
                responder.receive(&mut step, headers, request, payload);
            }
            (Body::Response(Reliable::Rc, response), Responding::Reliable(_)) => {
                requester.receive(&mut step, headers, response, payload);
            }
            (Body::Congestion, Responding::Reliable(responder)) if !*is_flushed => {
                step.out.counters.cnps_received += 1;
                requester.slow_down(step.out);
                responder.slow_down(now);
            }
            _ => step.out.counters.dropped += 1,
        }
    }

    /// Whether a packet has its turn that has arrived before earlier ones (only with [`Config::selective`]).
    #[must_use]
    pub fn may_receive_kept(&self) -> bool {
        match &self.responder {
            Responding::Reliable(responder) => !self.is_flushed && responder.may_receive_kept(),
            Responding::Unreliable(_) => false,
        }
    }

    /// Handles the packet that [has its turn](Self::may_receive_kept), and returns whether there was one. The owner calls it after each
    /// [`receive`](Self::receive) until it returns false, and fetches the [events](Self::next_event) before each call: so no call takes more than
    /// one receive.
    pub fn receive_kept<H: Host>(&mut self, now: u64, host: &mut H) -> bool {
        let Responding::Reliable(responder) = &mut self.responder else {
            return false;
        };
        let out = &mut self.out;
        let is_executed = !self.is_flushed && responder.execute_kept(&mut Step { now, host, out });
        fail_together(&mut self.requester, responder, &mut self.out);
        is_executed
    }

    /// Handles the mark of a packet that also goes to [`receive`](Self::receive): in its IP header, a router has reported congestion
    /// ("congestion experienced"). The peer gets a congestion notification. If the packet has data of a read, which this side
    /// requested, this side requests less at once.
    pub fn receive_mark(&mut self, now: u64, packet: &Packet<'_>) {
        let is_reliable = matches!(self.responder, Responding::Reliable(_));
        let is_answered = match packet.headers.body {
            Body::Request(Service::Rc, _) => is_reliable,
            Body::Request(Service::Uc, _) => !is_reliable,
            Body::Response(Reliable::Rc, response) => {
                let is_data = !matches!(
                    response,
                    Response::Acknowledge(_) | Response::AtomicAcknowledge(..)
                );
                if is_reliable && is_data && !self.is_flushed {
                    self.requester.slow_down(&mut self.out);
                }
                is_reliable && is_data
            }
            _ => false,
        };
        self.out.counters.marked += 1;
        if is_answered && !self.is_flushed {
            self.notifier.marked(now, packet);
        }
    }

    /// Writes the next packet to `to`: headers, payload and padding. Returns its length; the owner appends the invariant
    /// checksum. `None` if there is nothing to send at `now`.
    pub fn transmit<H: Host>(
        &mut self,
        now: u64,
        host: &mut H,
        to: &mut PacketBuffer,
    ) -> Option<usize> {
        if let Some(length) = self.notifier.transmit(now, to) {
            self.out.counters.cnps_sent += 1;
            return Some(length);
        }
        for _ in 0..2 {
            self.answered_last = !self.answered_last;
            let length = if self.answered_last {
                self.answer(now, host, to)
            } else {
                let out = &mut self.out;
                self.requester.transmit(&mut Step { now, host, out }, to)
            };
            if length.is_some() {
                return length;
            }
        }
        None
    }

    /// Whether [`transmit`](Self::transmit) may have a packet, now or at a later time. If not, it has none before the next call of
    /// [`post`](Self::post), [`receive`](Self::receive), [`receive_mark`](Self::receive_mark), [`advance`](Self::advance) or
    /// [`repeat_acknowledgement`](Self::repeat_acknowledgement).
    #[must_use]
    pub fn may_transmit(&self) -> bool {
        let answers = match &self.responder {
            Responding::Reliable(responder) => responder.may_transmit(),
            Responding::Unreliable(_) => false,
        };
        answers || self.requester.may_transmit() || self.notifier.may_transmit()
    }

    fn answer<H: Host>(&mut self, now: u64, host: &mut H, to: &mut PacketBuffer) -> Option<usize> {
        let Responding::Reliable(responder) = &mut self.responder else {
            return None;
        };
        let out = &mut self.out;
        let length = responder.transmit(&mut Step { now, host, out }, to);
        fail_together(&mut self.requester, responder, &mut self.out);
        length
    }

    /// Advances the time: runs the timers up to `now`. The next deadline is later.
    pub fn advance(&mut self, now: u64) {
        self.requester.on_time(now, &mut self.out);
        if let Responding::Reliable(responder) = &mut self.responder {
            responder.on_time(now);
        }
    }

    /// When to call [`advance`](Self::advance) next; `None` if no timer runs.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let answer = match &self.responder {
            Responding::Reliable(responder) => responder.next_deadline(),
            Responding::Unreliable(_) => None,
        };
        earlier(self.requester.next_deadline(), answer)
    }

    /// Removes the oldest event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// Moves the queue pair to the error state: all work requests end with [`Status::Flushed`](super::Status::Flushed), and so
    /// does a partly filled receive. Nothing more is executed or sent, except for a refusal and the responses that precede it.
    pub fn flush(&mut self) {
        self.is_flushed = true;
        self.notifier.stop();
        self.requester.flush(&mut self.out);
        match &mut self.responder {
            Responding::Reliable(responder) => responder.flush(&mut self.out),
            Responding::Unreliable(responder) => responder.flush(&mut self.out),
        }
    }

    /// The PSN of the peer's last request packet that was executed, or the PSN before its first: an acknowledgement of this PSN
    /// covers everything that this side has executed. `None` if a request was refused, or the connection is unreliable.
    #[must_use]
    pub fn executed(&self) -> Option<Psn> {
        match &self.responder {
            Responding::Reliable(responder) => responder.executed(),
            Responding::Unreliable(_) => None,
        }
    }

    /// Acknowledges everything that this side has executed once more, except reads and atomics at the end, which have responses: the
    /// last acknowledgement may have been lost, and a connection that ends does not answer the peer's retransmission. Does nothing
    /// and returns false if no message was executed, a request was refused, the connection has been flushed, or it is unreliable.
    pub fn repeat_acknowledgement(&mut self) -> bool {
        match &mut self.responder {
            Responding::Reliable(responder) if !self.is_flushed => {
                responder.repeat_acknowledgement()
            }
            _ => false,
        }
    }

    /// The network counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.out.counters
    }

    /// The number of work requests, and the number of responses and remembered requests of the peer. The second number
    /// depends on the peer, but is at most three times `max_reads_in`, plus two (plus eight with [`Config::selective`]).
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        let answers = match &self.responder {
            Responding::Reliable(responder) => responder.outstanding(),
            Responding::Unreliable(_) => 0,
        };
        (self.requester.outstanding(), answers)
    }

    /// What this side remembers because something before it is missing, or because it was lost (only with [`Config::selective`]): the number
    /// of request packets of the peer that are kept, and the number of own packets that are to be sent again or whose responses came
    /// early. The first is at most 8192, and the packets have at most 8 MiB. The second is at most 1024, plus the outstanding positions of reads.
    #[must_use]
    pub fn kept(&self) -> (usize, usize) {
        let kept = match &self.responder {
            Responding::Reliable(responder) => responder.kept(),
            Responding::Unreliable(_) => 0,
        };
        (kept, self.requester.remembered())
    }
}

/// If the responder has refused a request, the whole queue pair fails.
#[inline]
fn fail_together(requester: &mut Requester, responder: &Responder, out: &mut Output) {
    if responder.has_refused() {
        requester.flush(out);
    }
}
