//! Request packets: which packet is next, and what it contains.

use super::Requester;
use crate::packet::{
    AtomicEth, Body, Headers, Ieth, ImmDt, Position, Request, Reth, Service, Tail,
};
use crate::transport::buffer::{PacketBuffer, write_packet};
use crate::transport::event::Status;
use crate::transport::host::{Atomic, Host, LocalFault};
use crate::transport::step::Step;
use crate::transport::work::{Operation, Part, Target, Work, WorkRequest};

/// At most half of all PSNs are in use, so that an old PSN cannot be mistaken for a new one (IBA volume 1, 9.7.2).
const POSITIONS_MAX: u32 = 1 << 23;

impl Requester {
    /// Writes the next packet to `to` if one may be sent now, and returns its length.
    pub(crate) fn transmit<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        to: &mut PacketBuffer,
    ) -> Option<usize> {
        if std::mem::take(&mut self.sends_probe)
            && let Some(length) = self.write_probe(step, to)
        {
            return Some(length);
        }
        if self.repairs.is_due()
            && !self.retry.is_waiting(step.now)
            && let Some(length) = self.write_repair(step, to)
        {
            return Some(length);
        }
        while self.may_send(step.now) {
            let index = self.cursor;
            if index == self.started {
                self.start(index);
            }
            let work = *self.works.get(index)?;
            let packet = self.packet(&work);
            match self.write(step, &work, &packet, to) {
                Ok(length) => return length,
                Err(LocalFault) => self.fail_load(step, index),
            }
        }
        None
    }

    /// Writes the oldest packet once more, without going back to it. For a read, it requests the rest of a part.
    fn write_probe<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        to: &mut PacketBuffer,
    ) -> Option<usize> {
        let work = *self.works.front()?;
        let next = self.next;
        self.next = self.unacked;
        let packet = self.packet(&work);
        let mut headers = self.headers(&work, &packet);
        self.next = next;
        headers.ack_request = !packet.is_answered;
        headers.becn = self.is_selective;
        let length = write_packet(to, &headers, packet.length, |payload| {
            step.host.load(work.request.id, packet.offset, payload)
        });
        // If the memory is no longer accessible, the timeout sends the packet again, and fails.
        let length = length.ok()?;
        step.out.counters.retransmitted += 1;
        length
    }

    /// The headers of the packet of `work` at `next`.
    pub(super) fn headers(&self, work: &Work, packet: &Packet) -> Headers {
        let mut headers = Headers::new(self.peer, self.next.psn(), packet.body);
        (headers.pkey, headers.migrated) = (self.pkey, self.is_selective);
        headers.reserved = self.mark;
        // The bit is set in the last packet only, as in Soft-RoCE.
        headers.solicited =
            packet.is_last && work.request.solicited && work.request.operation.consumes_receive();
        headers
    }

    /// Writes the packet of `work` at `next`, and moves on.
    fn write<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        work: &Work,
        packet: &Packet,
        to: &mut PacketBuffer,
    ) -> Result<Option<usize>, LocalFault> {
        let is_again = self.next < self.top;
        let mut headers = self.headers(work, packet);
        self.pass(packet);
        self.retry.leaves(step.now, packet.positions);
        headers.ack_request = self.must_request_ack(step.now, packet);
        headers.becn = is_again && self.is_selective;
        let (host, id) = (&mut *step.host, work.request.id);
        let length = write_packet(to, &headers, packet.length, |payload| {
            host.load(id, packet.offset, payload)
        })?;
        step.out.counters.retransmitted += u64::from(is_again);
        if !is_again && (headers.ack_request || packet.is_answered) {
            let is_loaded = 2 * self.next.since(self.unacked) >= self.retry.window();
            self.retry.probe.measure(step.now, self.next, is_loaded);
        }
        self.sent(step, &headers);
        Ok(length)
    }

    /// Whether a packet waits to be sent.
    #[inline]
    pub(crate) fn may_transmit(&self) -> bool {
        self.sends_probe || self.repairs.is_due() || self.cursor < self.works.len()
    }

    /// Whether a packet may be sent now.
    fn may_send(&self, now: u64) -> bool {
        let Some(work) = self.works.get(self.cursor) else {
            return false;
        };
        if self.has_failed || work.failed.is_some() || self.retry.is_waiting(now) {
            return false;
        }
        let outstanding = self.next.since(self.unacked);
        if outstanding >= self.retry.window().saturating_add(self.kept) || outstanding >= self.span
        {
            return false;
        }
        let asks = work.request.operation.needs_response();
        if asks && (self.response_ends.len() >= self.max_reads_out || !self.has_room_for_part(work))
        {
            return false;
        }
        self.cursor < self.started || self.may_start(work)
    }

    /// Whether the next part of a read would not exceed the window by more than a quarter. Its response fills the receive buffer of this
    /// side. A part that is larger than the window is requested alone.
    fn has_room_for_part(&self, work: &Work) -> bool {
        let part = match self.cursor < self.started {
            true => {
                let index = self.next.since(work.first);
                Self::part_end(work, index) - index
            }
            false => self.retry.window.read_part().min(work.packets),
        };
        let outstanding = self.next.since(self.unacked);
        let most = self.retry.window().saturating_add(self.kept);
        outstanding == 0 || outstanding + part <= most.saturating_add(self.retry.quarter())
    }

    /// Whether the next request may be started.
    fn may_start(&self, work: &Work) -> bool {
        let fits = self.next.since(self.unacked) + work.packets <= POSITIONS_MAX;
        let fenced = work.request.fence && self.reads_out > 0;
        fits && !fenced
    }

    /// Assigns positions to the request at `index`, the first one that has none.
    fn start(&mut self, index: usize) {
        let part = self.retry.window.read_part();
        let Some(work) = self.works.get_mut(index) else {
            return;
        };
        // The same for all of the request: a response that is requested again must have the same parts.
        (work.first, work.part) = (self.next, part);
        self.reads_out += u32::from(work.request.operation.needs_response());
        self.started += 1;
    }

    /// Builds the packet of `work` at `next`.
    pub(super) fn packet(&self, work: &Work) -> Packet {
        let request = &work.request;
        let index = self.next.since(work.first);
        match request.operation {
            Operation::Read { target } => self.read_request(work, index, target),
            Operation::Atomic { target, operation } => Packet::whole(atomic(target, operation)),
            Operation::Send { .. } | Operation::Write { .. } => {
                let part = Part::of(request.length, index, self.mtu);
                let service = if self.is_reliable {
                    Service::Rc
                } else {
                    Service::Uc
                };
                Packet {
                    body: Body::Request(service, fragment(request, part.position)),
                    offset: part.offset,
                    length: part.length,
                    positions: 1,
                    is_last: part.position.ends(),
                    is_answered: false,
                }
            }
        }
    }

    /// Requests the data of a read from packet `index` to the end of the part that contains it. So the peer never sends much
    /// more than a window at once, and data that has arrived is not requested again.
    fn read_request(&self, work: &Work, index: u32, target: Target) -> Packet {
        let end = Self::part_end(work, index);
        let offset = Part::of(work.request.length, index, self.mtu).offset;
        let last = Part::of(work.request.length, end - 1, self.mtu);
        let mut packet = Packet::whole(Request::Read(Reth {
            address: target.address.wrapping_add(offset.into()),
            rkey: target.rkey,
            length: last.offset + last.length - offset,
        }));
        packet.positions = end - index;
        packet.is_last = end == work.packets;
        packet
    }

    /// The index of the first packet after the part of a response that contains packet `index`.
    pub(super) fn part_end(work: &Work, index: u32) -> u32 {
        let end = (index / work.part + 1).saturating_mul(work.part);
        end.min(work.packets)
    }

    /// Moves on to the packet after `packet`.
    fn pass(&mut self, packet: &Packet) {
        self.next = self.next.plus(packet.positions);
        if packet.is_answered {
            self.response_ends.push_back(self.next);
        }
        self.cursor += usize::from(packet.is_last);
    }

    /// Whether the packet before `next` must request an acknowledgement: if no packet follows now, or if a quarter of the
    /// window or of a burst has been sent without a request. So a peer that acknowledges only on request never leaves the last packet
    /// unacknowledged.
    fn must_request_ack(&self, now: u64, packet: &Packet) -> bool {
        let many = self.unrequested + 1 >= self.retry.quarter();
        self.is_reliable && !packet.is_answered && (many || !self.may_send(now))
    }

    /// Records that a packet was sent.
    fn sent<H>(&mut self, step: &mut Step<'_, H>, headers: &Headers) {
        self.top = self.top.max(self.next);
        if !self.is_reliable {
            self.advance(step.now, self.next, step.out);
            return;
        }
        self.unrequested = if headers.ack_request {
            0
        } else {
            self.unrequested + 1
        };
        self.retry.sent(step.now);
    }

    /// Handles unreadable memory of the request at `index`. The request ends after those before it, which the peer may not
    /// have been asked to acknowledge yet.
    pub(super) fn fail_load<H>(&mut self, step: &mut Step<'_, H>, index: usize) {
        if let Some(work) = self.works.get_mut(index) {
            work.failed = Some(Status::LocalProtection);
        }
        self.rewind();
        self.end_failed(step.out);
    }
}

/// One packet of a request.
pub(super) struct Packet {
    pub(super) body: Body,
    pub(super) offset: u32,
    pub(super) length: u32,
    /// The number of positions that the packet takes.
    pub(super) positions: u32,
    /// Whether the packet is the request's last one.
    is_last: bool,
    /// Whether the packet gets a response of its own.
    pub(super) is_answered: bool,
}

impl Packet {
    /// A single-packet request that has a response.
    fn whole(request: Request) -> Self {
        Self {
            body: Body::Request(Service::Rc, request),
            offset: 0,
            length: 0,
            positions: 1,
            is_last: true,
            is_answered: true,
        }
    }
}

fn atomic(target: Target, operation: Atomic) -> Request {
    let Target { address, rkey } = target;
    let with = |swap_or_add, compare| AtomicEth {
        address,
        rkey,
        swap_or_add,
        compare,
    };
    match operation {
        Atomic::CompareSwap { compare, swap } => Request::CompareSwap(with(swap, compare)),
        Atomic::FetchAdd { add } => Request::FetchAdd(with(add, 0)),
    }
}

/// The operation of a packet of a send or write.
fn fragment(request: &WorkRequest, position: Position) -> Request {
    match request.operation {
        Operation::Write { target, immediate } => {
            let reth = Reth {
                address: target.address,
                rkey: target.rkey,
                length: request.length,
            };
            let immediate = immediate.map(|data| ImmDt { data });
            match position {
                Position::First => Request::WriteFirst(reth),
                Position::Middle => Request::WriteMiddle,
                Position::Last => Request::WriteLast(immediate),
                Position::Only => Request::WriteOnly(reth, immediate),
            }
        }
        _ => match position {
            Position::First => Request::SendFirst,
            Position::Middle => Request::SendMiddle,
            Position::Last => Request::SendLast(tail(request)),
            Position::Only => Request::SendOnly(tail(request)),
        },
    }
}

fn tail(request: &WorkRequest) -> Tail {
    match request.operation {
        Operation::Send {
            invalidate: Some(rkey),
            ..
        } => Tail::Invalidate(Ieth { rkey }),
        Operation::Send {
            immediate: Some(data),
            ..
        } => Tail::Immediate(ImmDt { data }),
        _ => Tail::None,
    }
}
