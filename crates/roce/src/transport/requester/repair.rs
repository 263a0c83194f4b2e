//! Packets that the peer has reported as lost, and parts of responses that were lost: only they are sent, or requested, again.
//!
//! A packet that is reported again is sent again if the repetition should have arrived by now. That uses up no retry; only timeouts do.

use super::Requester;
use super::send::Packet;
use crate::packet::{Body, Mtu, Request, Reth};
use crate::transport::buffer::{PacketBuffer, write_packet};
use crate::transport::host::{Host, LocalFault};
use crate::transport::report::Report;
use crate::transport::sequence::Sequence;
use crate::transport::step::Step;
use crate::transport::work::Operation;
use std::collections::BTreeMap;

/// The maximum number of packets to repair. Others are reported again.
const REPAIRS_MAX: usize = 1024;
/// How long a repair takes, in nanoseconds, if nothing has been measured.
const UNMEASURED: u64 = 1_000_000;

/// The lost packets.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    packets: BTreeMap<Sequence, Repair>,
    /// How many of them are to be sent.
    due: usize,
}

#[derive(Clone, Copy, Debug)]
struct Repair {
    /// When the packet was sent again; `None` if it is to be sent.
    sent: Option<u64>,
    /// Whether the peer has executed the request: a part of its response was lost.
    is_executed: bool,
}

impl Repairs {
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether a packet is to be sent.
    pub(super) fn is_due(&self) -> bool {
        self.due > 0
    }

    /// Adds the packet at `at`, unless it was sent again less than `time` ago. Returns whether it is to be sent.
    fn add(&mut self, at: Sequence, now: u64, time: u64, is_executed: bool) -> bool {
        let known = self.packets.get(&at);
        let is_lost = match known {
            None => self.packets.len() < REPAIRS_MAX,
            Some(repair) => repair.sent.is_some_and(|sent| now >= sent + time),
        };
        if is_lost {
            let sent = None;
            self.packets.insert(at, Repair { sent, is_executed });
            self.due += 1;
        }
        is_lost
    }

    /// The first packet to send, whether the peer has executed it, and how many follow without a gap.
    fn first(&self) -> Option<(Sequence, bool, u32)> {
        let mut due = self.packets.iter().filter(|(_, it)| it.sent.is_none());
        let (first, repair) = due.next()?;
        let mut length = 1;
        while due.next().is_some_and(|(at, _)| *at == first.plus(length)) {
            length += 1;
        }
        Some((*first, repair.is_executed, length))
    }

    /// The packets from `first` to before `end` are sent.
    fn sent(&mut self, now: u64, first: Sequence, end: Sequence) {
        for (_, repair) in self.packets.range_mut(first..end) {
            self.due -= usize::from(repair.sent.is_none());
            repair.sent = Some(now);
        }
    }

    /// The packet at `at` has arrived.
    pub(super) fn arrived(&mut self, at: Sequence) {
        if let Some(repair) = self.packets.remove(&at) {
            self.due -= usize::from(repair.sent.is_none());
        }
    }

    /// Everything before `position` has arrived. Returns how many packets were only late: those that have not been sent again, or less than
    /// `shortest` ago.
    pub(super) fn forget_before(&mut self, position: Sequence, now: u64, shortest: u64) -> u32 {
        let mut late = 0;
        while let Some(first) = self.packets.first_entry()
            && *first.key() < position
        {
            let sent = first.remove().sent;
            self.due -= usize::from(sent.is_none());
            late += u32::from(sent.is_none_or(|sent| now < sent.saturating_add(shortest)));
        }
        late
    }

    pub(super) fn clear(&mut self) {
        self.packets.clear();
        self.due = 0;
    }

    /// All packets are to be sent again.
    fn renew(&mut self) {
        for repair in self.packets.values_mut() {
            repair.sent = None;
        }
        self.due = self.packets.len();
    }
}

impl Requester {
    /// The peer has executed everything before `base`, has kept packets after it, and misses others.
    #[cold]
    pub(super) fn on_report<H>(&mut self, step: &mut Step<'_, H>, base: Sequence, report: &Report) {
        self.kept = report.kept;
        self.executed_before(step.now, base, step.out);
        self.request_lost(step.now, step.out);
        // Everything after the oldest missing packet may have been kept, but that one was not.
        let limit = self.next.since(self.unacked).saturating_sub(1);
        self.kept = report.kept.min(limit);
        if report.has_gaps() {
            step.out.counters.sequence_naks += 1;
            self.repair(step.now, report.gaps(base), false);
        }
    }

    /// Sends lost packets again, and lowers the window. `is_executed`: what was lost are responses.
    pub(super) fn repair(
        &mut self,
        now: u64,
        lost: impl Iterator<Item = (Sequence, Sequence)>,
        is_executed: bool,
    ) {
        let time = self.retry.probe.usual().unwrap_or(UNMEASURED);
        let (mut count, mut last, mut has_oldest) = (0, None, false);
        for (first, end) in lost {
            let mut at = first.max(self.unacked);
            let mut here = 0;
            while at < end.min(self.next) {
                if self.repairs.add(at, now, time, is_executed) {
                    has_oldest |= at == self.unacked;
                    last = last.max(Some(at));
                    here += 1;
                }
                at = at.next();
            }
            // The request of a read is one packet.
            let is_one = !is_executed && self.asks_for_data(first);
            count += if is_one { here.min(1) } else { here };
        }
        let Some(last) = last else {
            return;
        };
        self.retry.probe.forget();
        // Reports need no retries: the timeout limits how long the oldest packet may take. Its repetition has as much time as it had.
        if has_oldest {
            self.retry.repairs_oldest(now, self.unacked);
        }
        self.retry.lost(count, last, self.top);
    }

    /// Sends the lost packets again that the peer has not acknowledged. Returns `false` if the oldest packet is not among them, or if the
    /// peer has kept none after it.
    pub(super) fn repairs_again(&mut self) -> bool {
        let is_known = self.kept > 0 && self.repairs.packets.contains_key(&self.unacked);
        if is_known {
            self.repairs.renew();
            self.retry.probe.forget();
        }
        is_known
    }

    /// Everything before `position` has arrived. If nothing of a loss was lost, the window becomes what it was.
    #[cold]
    pub(super) fn forget_repairs(&mut self, now: u64, position: Sequence) {
        let shortest = self.retry.probe.shortest();
        let late = self.repairs.forget_before(position, now, shortest);
        if late > 0 {
            self.retry.were_late(late);
        }
    }

    fn asks_for_data(&self, at: Sequence) -> bool {
        self.work_at(at)
            .and_then(|index| self.works.get(index))
            .is_some_and(|work| matches!(work.request.operation, Operation::Read { .. }))
    }

    /// The index of the started request that the packet at `at` belongs to.
    pub(super) fn work_at(&self, at: Sequence) -> Option<usize> {
        let (mut from, mut to) = (0, self.started);
        while from < to {
            let middle = usize::midpoint(from, to);
            let work = self.works.get(middle)?;
            if work.end() <= at {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        let work = self.works.get(from).filter(|_| from < self.started)?;
        (work.first <= at).then_some(from)
    }

    /// Writes the first lost packet to `to`, if there is one that can be sent.
    #[cold]
    pub(super) fn write_repair<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        to: &mut PacketBuffer,
    ) -> Option<usize> {
        while let Some((at, is_executed, length)) = self.repairs.first() {
            let work = self.work_at(at).and_then(|index| self.works.get(index));
            let Some(work) = work.copied() else {
                self.repairs.arrived(at);
                continue;
            };
            let next = std::mem::replace(&mut self.next, at);
            let mut packet = self.packet(&work);
            if is_executed {
                packet.shorten(length, self.mtu);
            }
            let mut headers = self.headers(&work, &packet);
            self.next = next;
            headers.ack_request = !packet.is_answered;
            headers.becn = true;
            self.repairs.sent(step.now, at, at.plus(packet.positions));
            let length = write_packet(to, &headers, packet.length, |payload| {
                step.host.load(work.request.id, packet.offset, payload)
            });
            match length {
                Ok(Some(length)) => {
                    self.retry.leaves(step.now, packet.positions);
                    step.out.counters.retransmitted += 1;
                    return Some(length);
                }
                Ok(None) => {}
                Err(LocalFault) => {
                    let index = self.work_at(at).unwrap_or(0);
                    self.fail_load(step, index);
                    return None;
                }
            }
        }
        None
    }
}

impl Packet {
    /// Requests at most this many packets of a read's response.
    fn shorten(&mut self, packets: u32, mtu: Mtu) {
        let Body::Request(service, Request::Read(reth)) = self.body else {
            return;
        };
        if packets < self.positions {
            let length = packets * mtu.bytes() as u32;
            self.body = Body::Request(service, Request::Read(Reth { length, ..reth }));
            self.positions = packets;
        }
    }
}
