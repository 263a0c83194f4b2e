//! The responses that have not been sent, in request order.
//!
//! Acknowledgements are cumulative: of several in a row, only the last is sent. The queue is bounded by the number of
//! reads and atomics that a responder remembers, with at most one acknowledgement between each two.

use super::pace::is_long;
use crate::packet::{
    Aeth, AtomicAckEth, Body, Credits, Headers, Mtu, Position, Reliable, Response, Reth, Syndrome,
};
use crate::transport::buffer::{PacketBuffer, write_packet};
use crate::transport::config::Config;
use crate::transport::host::{Host, Refusal, RemoteRange};
use crate::transport::sequence::Sequence;
use crate::transport::step::Step;
use crate::transport::work::Part;
use std::collections::VecDeque;

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
}

/// A response to send now.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    Acknowledge {
        at: Sequence,
        aeth: Aeth,
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
        }
        self.queue.push_back(QueuedReply::Acknowledge { at, aeth });
    }

    /// Adds the response to a read, starting with the packet at `start`. It replaces a queued response to the same read.
    pub(super) fn read(&mut self, first: Sequence, start: Sequence, reth: Reth, msn: u32) {
        let read = QueuedReply::Read(QueuedRead {
            first,
            start,
            reth,
            msn,
            sent: 0,
        });
        let mut waiting = self.queue.iter_mut();
        let same =
            waiting.find(|reply| matches!(reply, QueuedReply::Read(read) if read.first == first));
        match same {
            Some(reply) => *reply = read,
            None => self.queue.push_back(read),
        }
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
            QueuedReply::Acknowledge { .. } => true,
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
}

impl Sender {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            peer: config.peer,
            pkey: config.pkey,
        }
    }

    fn headers(self, at: Sequence, response: Response) -> Headers {
        let body = Body::Response(Reliable::Rc, response);
        let mut headers = Headers::new(self.peer, at.psn(), body);
        headers.pkey = self.pkey;
        headers
    }

    pub(super) fn acknowledge(
        self,
        at: Sequence,
        aeth: Aeth,
        to: &mut PacketBuffer,
    ) -> Option<usize> {
        let headers = self.headers(at, Response::Acknowledge(aeth));
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
        let headers = self.headers(read.at, response);
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
