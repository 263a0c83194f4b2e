//! The responses that have not been sent, in request order.
//!
//! Acknowledgements are cumulative: of several in a row, only the last is sent. The queue is bounded by the number of
//! reads and atomics that a responder remembers, with at most one acknowledgement between each two.

use super::pace::is_long;
use crate::packet::{
    Aeth, AtomicAckEth, Body, Credits, Headers, Mtu, Position, Reliable, Response, Reth, Syndrome,
};
use crate::transport::attached::ATTACHABLE;
use crate::transport::buffer::{PacketBuffer, write_packet};
use crate::transport::config::Config;
use crate::transport::host::{Host, Refusal, RemoteRange};
use crate::transport::report::Report;
use crate::transport::sequence::Sequence;
use crate::transport::step::Step;
use crate::transport::work::Part;
use std::collections::VecDeque;

/// The maximum number of reports with gaps that wait. What others would say is reported again later.
const REPORTS_MAX: usize = 4;

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Replies {
    queue: VecDeque<QueuedReply>,
}

#[derive(Clone, Copy, Debug)]
enum QueuedReply {
    Acknowledge {
        at: Sequence,
        aeth: Aeth,
    },
    Report {
        at: Sequence,
        report: Report,
    },
    Read(QueuedRead),
    Atomic {
        at: Sequence,
        original: u64,
        msn: u32,
    },
}

/// The response to a read, or the rest of one.
#[derive(Clone, Copy, Debug)]
struct QueuedRead {
    /// The first position of the whole read.
    first: Sequence,
    /// The first position of this response.
    start: Sequence,
    /// The range to read from there on.
    reth: Reth,
    msn: u32,
    /// How many packets of this response have been sent.
    sent: u32,
    /// Whether the response says that it is sent again, because the peer has agreed to selective retransmission.
    is_again: bool,
}

/// A response to send now.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    Acknowledge {
        at: Sequence,
        aeth: Aeth,
    },
    Report {
        at: Sequence,
        report: Report,
    },
    Read(ReadPart),
    Atomic {
        at: Sequence,
        original: u64,
        msn: u32,
    },
}

/// One packet of a read response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadPart {
    /// The first position of the whole read.
    pub(super) first: Sequence,
    pub(super) at: Sequence,
    pub(super) part: Part,
    range: RemoteRange,
    msn: u32,
    is_again: bool,
}

impl Replies {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Adds an acknowledgement or a NAK of the packet at `at`. It replaces a queued one, unless the queued one says more.
    pub(super) fn acknowledge(&mut self, at: Sequence, aeth: Aeth) {
        if let Some(QueuedReply::Acknowledge {
            at: before,
            aeth: older,
        }) = self.queue.back()
        {
            let is_ack = matches!(aeth.syndrome, Syndrome::Ack(_));
            let (old, new) = (covered(*before, older), covered(at, &aeth));
            if new < old || (new == old && is_ack) {
                return;
            }
            self.queue.pop_back();
        } else if let Some(QueuedReply::Report { at: before, report }) = self.queue.back()
            && !report.has_gaps()
        {
            if *before <= covered(at, &aeth) {
                self.queue.pop_back();
            } else if matches!(aeth.syndrome, Syndrome::Ack(_)) {
                return;
            }
        }
        self.queue.push_back(QueuedReply::Acknowledge { at, aeth });
    }

    /// How many reports of gaps may be added.
    pub(super) fn room_for_reports(&self) -> usize {
        let named = |reply: &&QueuedReply| matches!(reply, QueuedReply::Report { report, .. } if report.has_gaps());
        REPORTS_MAX.saturating_sub(self.queue.iter().filter(named).count())
    }

    /// Adds a report whose oldest missing packet is at `at`. It replaces a queued acknowledgement or report that says less.
    pub(super) fn report(&mut self, at: Sequence, report: Report) {
        if report.has_gaps() && self.room_for_reports() == 0 {
            return;
        }
        let is_less = |reply: &QueuedReply| match reply {
            QueuedReply::Acknowledge { at: before, aeth } => {
                matches!(aeth.syndrome, Syndrome::Ack(_)) && covered(*before, aeth) <= at
            }
            QueuedReply::Report { report, .. } => !report.has_gaps(),
            _ => false,
        };
        while self.queue.back().is_some_and(is_less) {
            self.queue.pop_back();
        }
        self.queue.push_back(QueuedReply::Report { at, report });
    }

    /// Adds the response to a read, starting with the packet at `start`. It replaces a queued response to the same read.
    pub(super) fn read(&mut self, first: Sequence, start: Sequence, reth: Reth, msn: u32) {
        let read = QueuedReply::Read(QueuedRead {
            first,
            start,
            reth,
            msn,
            sent: 0,
            is_again: false,
        });
        let mut waiting = self.queue.iter_mut();
        let same =
            waiting.find(|reply| matches!(reply, QueuedReply::Read(read) if read.first == first));
        match same {
            Some(reply) => *reply = read,
            None => self.queue.push_back(read),
        }
    }

    /// Adds the response to a part of a read that is requested again: from `start` on, and perhaps not to its end. A queued response to
    /// the same read is extended.
    pub(super) fn read_again(
        &mut self,
        first: Sequence,
        start: Sequence,
        reth: Reth,
        msn: u32,
        mtu: Mtu,
    ) {
        let mut waiting = self.queue.iter_mut().filter_map(|reply| match reply {
            QueuedReply::Read(read) if read.first == first => Some(read),
            _ => None,
        });
        if let Some(read) = waiting.next() {
            read.extend(start, &reth, mtu);
            return;
        }
        self.queue.push_back(QueuedReply::Read(QueuedRead {
            first,
            start,
            reth,
            msn,
            sent: 0,
            is_again: true,
        }));
    }

    /// Adds the response to an atomic, unless it is already queued.
    pub(super) fn atomic(&mut self, at: Sequence, original: u64, msn: u32) {
        let same = |reply: &QueuedReply| matches!(reply, QueuedReply::Atomic { at: other, .. } if *other == at);
        if !self.queue.iter().any(same) {
            self.queue
                .push_back(QueuedReply::Atomic { at, original, msn });
        }
    }

    /// Removes the response to the read or atomic at `first`.
    pub(super) fn remove(&mut self, first: Sequence) {
        self.queue.retain(|reply| match reply {
            QueuedReply::Acknowledge { .. } | QueuedReply::Report { .. } => true,
            QueuedReply::Read(read) => read.first != first,
            QueuedReply::Atomic { at, .. } => *at != first,
        });
    }

    /// Whether the next packet to send belongs to the response to a [long](is_long) read.
    pub(super) fn begins_with_long(&self, mtu: Mtu) -> bool {
        match self.queue.front() {
            Some(QueuedReply::Read(read)) => {
                is_long(read.first, read.start, mtu.packets(read.reth.length))
            }
            _ => false,
        }
    }

    /// Removes the next packet to send.
    pub(super) fn pop(&mut self, mtu: Mtu) -> Option<Reply> {
        let reply = match self.queue.front_mut()? {
            QueuedReply::Read(read) => {
                let part = read.next(mtu);
                if !part.part.position.ends() {
                    return Some(Reply::Read(part));
                }
                Reply::Read(part)
            }
            QueuedReply::Acknowledge { at, aeth } => Reply::Acknowledge {
                at: *at,
                aeth: *aeth,
            },
            QueuedReply::Report { at, report } => Reply::Report {
                at: *at,
                report: *report,
            },
            QueuedReply::Atomic { at, original, msn } => Reply::Atomic {
                at: *at,
                original: *original,
                msn: *msn,
            },
        };
        self.queue.pop_front();
        Some(reply)
    }
}

impl QueuedRead {
    /// Also covers `reth`, which starts at `start` and belongs to the same read.
    fn extend(&mut self, start: Sequence, reth: &Reth, mtu: Mtu) {
        let sent = Part::of(self.reth.length, self.sent, mtu).offset;
        let mut all = Reth {
            address: self.reth.address.wrapping_add(sent.into()),
            length: self.reth.length - sent,
            ..self.reth
        };
        // Distances from the start, because addresses may wrap around.
        let last = if start.since(self.start.plus(self.sent)) > 0 {
            let skipped = reth.address.wrapping_sub(all.address);
            (u64::from(all.length)).max(skipped + u64::from(reth.length))
        } else {
            let skipped = all.address.wrapping_sub(reth.address);
            all.address = reth.address;
            (u64::from(reth.length)).max(skipped + u64::from(all.length))
        };
        all.length = last as u32;
        self.start = self.start.plus(self.sent).min(start);
        (self.reth, self.sent, self.is_again) = (all, 0, true);
    }

    /// The next packet of the response.
    fn next(&mut self, mtu: Mtu) -> ReadPart {
        let part = Part::of(self.reth.length, self.sent, mtu);
        let at = self.start.plus(self.sent);
        self.sent += 1;
        ReadPart {
            first: self.first,
            at,
            part,
            range: RemoteRange {
                address: self.reth.address.wrapping_add(part.offset.into()),
                rkey: self.reth.rkey,
                length: part.length,
            },
            msn: self.msn,
            is_again: self.is_again,
        }
    }
}

/// The position before which an acknowledgement covers everything.
fn covered(at: Sequence, aeth: &Aeth) -> Sequence {
    match aeth.syndrome {
        Syndrome::Ack(_) => at.next(),
        _ => at,
    }
}

/// Writes answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    peer: u32,
    pkey: u16,
    /// Whether packets are marked: this side keeps what arrives early.
    is_marked: bool,
    /// Whether the peer has agreed to selective retransmission, too, as its requests have shown.
    pub(super) peer_agrees: bool,
}

impl Sender {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            peer: config.peer,
            pkey: config.pkey,
            is_marked: config.selective,
            peer_agrees: false,
        }
    }

    fn headers(self, at: Sequence, response: Response) -> Headers {
        let body = Body::Response(Reliable::Rc, response);
        let mut headers = Headers::new(self.peer, at.psn(), body);
        (headers.pkey, headers.migrated) = (self.pkey, self.is_marked);
        headers
    }

    pub(super) fn acknowledge(
        self,
        at: Sequence,
        aeth: Aeth,
        to: &mut PacketBuffer,
    ) -> Option<usize> {
        let mut headers = self.headers(at, Response::Acknowledge(aeth));
        headers.reserved = if self.peer_agrees { ATTACHABLE } else { 0 };
        write_packet::<Refusal>(to, &headers, 0, |_| Ok(())).ok()?
    }

    pub(super) fn report(
        self,
        at: Sequence,
        report: &Report,
        to: &mut PacketBuffer,
    ) -> Option<usize> {
        let (aeth, result) = report.encode();
        let headers = self.headers(at, Response::AtomicAcknowledge(aeth, result));
        write_packet::<Refusal>(to, &headers, 0, |_| Ok(())).ok()?
    }

    pub(super) fn atomic(
        self,
        at: Sequence,
        original: u64,
        msn: u32,
        to: &mut PacketBuffer,
    ) -> Option<usize> {
        let result = AtomicAckEth { original };
        let headers = self.headers(at, Response::AtomicAcknowledge(executed(msn), result));
        write_packet::<Refusal>(to, &headers, 0, |_| Ok(())).ok()?
    }

    /// Writes a packet of read data.
    pub(super) fn read<H: Host>(
        self,
        step: &mut Step<'_, H>,
        read: &ReadPart,
        to: &mut PacketBuffer,
    ) -> Result<Option<usize>, Refusal> {
        let aeth = executed(read.msn);
        let response = match read.part.position {
            Position::First => Response::ReadFirst(aeth),
            Position::Middle => Response::ReadMiddle,
            Position::Last => Response::ReadLast(aeth),
            Position::Only => Response::ReadOnly(aeth),
        };
        let mut headers = self.headers(read.at, response);
        headers.becn = read.is_again;
        let host = &mut *step.host;
        write_packet(to, &headers, read.part.length, |payload| {
            host.read(&read.range, payload)
        })
    }
}

fn executed(msn: u32) -> Aeth {
    Aeth {
        syndrome: Syndrome::Ack(Credits::UNLIMITED),
        msn,
    }
}
