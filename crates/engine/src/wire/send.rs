//! Turns send queue entries into packets.
//!
//! A request of a connected queue pair moves to its machine as soon as it may start. A datagram stays in the send queue until the
//! owner fetches its packet, so that datagrams to this host and to others leave in posting order.

use super::host::WireHost;
use super::machine::{Machine, Wire};
use super::receive::origin_of;
use super::settings::of_datagrams;
use super::{WirePeer, outcome};
use crate::context::Context;
use crate::qp::pair::Qp;
use crate::requester::{self, Start, send_queued, start_any};
use crate::send_queue::{Detail, WqeFlags};
use crate::{CompletionOp, Engine, QpType, Status, UdAddress};
use rkey_base::memory::Memory;
use rkey_link::Link;
use rkey_roce::transport::{Atomic, DatagramRequest, Operation, PacketBuffer, Target, WorkRequest};

/// How many packets a queue pair may send before the next one has its turn. A socket sends consecutive packets to one peer in one
/// call.
const TURN: u32 = 16;

impl<L: Link, M: Memory> Engine<L, M> {
    /// Whether [`Self::wire_transmit`] may have a packet to send.
    #[inline]
    pub fn has_wire_output(&self) -> bool {
        !self.x.wire.turns.is_empty()
    }

    /// Writes the next packet to `to`: headers, payload and padding. Returns its destination and its length without the invariant
    /// checksum, for which `to` has room after the packet; `None` if there is nothing to send at `now_ns`. Queue pairs take
    /// turns. An owner that lets other threads destroy queue pairs must fetch all packets before, or the last acknowledgement is
    /// lost.
    pub fn wire_transmit(
        &mut self,
        now_ns: u64,
        to: &mut PacketBuffer,
    ) -> Option<(WirePeer, usize)> {
        self.x.now = now_ns;
        let mut packet = None;
        while packet.is_none()
            && let Some(&index) = self.x.wire.turns.front()
        {
            packet = self.take_turn(index, to);
        }
        self.fail_users_of_overrun_cqs();
        packet
    }

    /// Writes a packet of the queue pair whose turn it is. The turn ends with its last packet, or when it has sent enough.
    fn take_turn(&mut self, index: u32, to: &mut PacketBuffer) -> Option<(WirePeer, usize)> {
        let qp = self.qps.at_mut(index).filter(|qp| qp.wire.is_some());
        let Some(qp) = qp else {
            self.x.wire.turns.pop_front();
            return None;
        };
        let is_ud = qp.config.qp_type == QpType::Ud;
        let packet = if is_ud {
            transmit_datagram(&mut self.x, qp, to)
        } else {
            transmit(&mut self.x, qp, to)
        };
        let wire = qp.wire.as_deref_mut()?;
        wire.sent += 1;
        let has_more = packet.is_some() && wire.may_transmit();
        if !has_more || wire.sent == TURN {
            wire.sent = 0;
            wire.has_turn = has_more;
            self.x.wire.turns.pop_front();
            if has_more {
                self.x.wire.turns.push_back(index);
            }
        }
        if is_ud {
            self.send_datagrams_to_this_host(index);
        }
        packet
    }

    /// Sends the datagrams that were queued after one to another host.
    fn send_datagrams_to_this_host(&mut self, index: u32) {
        let Some(qp) = self.qps.at_mut(index) else {
            return;
        };
        let before = qp.sq.next;
        send_queued(&mut self.x, &mut self.links, qp);
        if qp.sq.next != before {
            for link_state in self.links.iter_mut() {
                link_state.link.end_burst();
            }
        }
    }
}

/// Adds a queue pair to the list of those that may have a packet to send.
pub(super) fn await_turn_of(turns: &mut super::WireQueue, index: u32, wire: &mut Wire) {
    if !wire.has_turn {
        wire.has_turn = true;
        turns.turns.push_back(index);
    }
}

/// The datagram at the front of the send queue goes to another host, so it waits until the owner fetches its packet.
#[cold]
pub(crate) fn await_turn<M: Memory>(x: &mut Context<M>, qp: &mut Qp) {
    if qp.wire.is_none() {
        qp.wire = Some(of_datagrams(qp));
    }
    if let Some(wire) = qp.wire.as_deref_mut() {
        await_turn_of(&mut x.wire, qp.id.index, wire);
    }
}

/// Moves requests of a connected queue pair from the send queue to its machine, as far as they may start.
#[cold]
pub(crate) fn send_queued_on_wire<M: Memory>(x: &mut Context<M>, qp: &mut Qp) {
    if post_queued(x, qp) {
        outcome::drain_events(x, qp);
        if let Some(wire) = qp.wire.as_deref_mut() {
            await_turn_of(&mut x.wire, qp.id.index, wire);
        }
    }
}

/// Moves requests to the machine. Returns whether any of them could start.
pub(super) fn post_queued<M: Memory>(x: &mut Context<M>, qp: &mut Qp) -> bool {
    let mut did = false;
    while qp.sq.next != qp.sq.tail && qp.may_send() {
        let seq = qp.sq.next;
        if qp.sq.wqe(seq).is_local() {
            match start_any(x, qp) {
                Start::Wait => return did,
                Start::Ended | Start::Send => did = true,
            }
            continue;
        }
        did = true;
        match work_request(qp, seq) {
            Ok(request) => {
                qp.sq.next = seq + 1;
                if let Some(Machine::Connection(connection)) =
                    qp.wire.as_deref_mut().map(|wire| &mut wire.machine)
                {
                    connection.post(request);
                }
            }
            Err(status) => requester::fail(x, qp, seq, status, 0),
        }
    }
    did
}

/// Translates the request at `seq` for the machine; `Err` with its status if no packet can carry it.
fn work_request(qp: &Qp, seq: u64) -> Result<WorkRequest, Status> {
    let wqe = qp.sq.wqe(seq);
    // A requested key is refused when the request is posted, so this is a device key of 32 bits.
    let target = Target {
        address: wqe.addr,
        rkey: wqe.key as u32,
    };
    let immediate = wqe.flags.contains(WqeFlags::IMMEDIATE).then_some(wqe.imm);
    let operands = match *qp.sq.detail(seq) {
        Detail::Atomic(operands) => operands,
        _ => [0; 2],
    };
    let operation = match wqe.op {
        CompletionOp::Send => Operation::Send {
            immediate,
            invalidate: (wqe.flags.contains(WqeFlags::INVALIDATE)).then_some(wqe.imm),
        },
        CompletionOp::Write => Operation::Write { target, immediate },
        CompletionOp::Read => Operation::Read { target },
        CompletionOp::CompareSwap | CompletionOp::FetchAdd if wqe.total < 8 => {
            return Err(Status::LocalLength);
        }
        CompletionOp::CompareSwap => Operation::Atomic {
            target,
            operation: Atomic::CompareSwap {
                compare: operands[0],
                swap: operands[1],
            },
        },
        CompletionOp::FetchAdd => Operation::Atomic {
            target,
            operation: Atomic::FetchAdd { add: operands[0] },
        },
        _ => return Err(Status::LocalQpOperation),
    };
    Ok(WorkRequest {
        solicited: wqe.flags.contains(WqeFlags::SOLICITED),
        fence: wqe.flags.contains(WqeFlags::FENCE),
        ..WorkRequest::new(seq, operation, wqe.total)
    })
}

/// Writes the next packet of a connected queue pair.
fn transmit<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    to: &mut PacketBuffer,
) -> Option<(WirePeer, usize)> {
    let peer = qp.wire_peer?;
    // A read that is served again may be refused now.
    x.serving = origin_of(&peer);
    loop {
        let now = x.now;
        let length = with_machine(x, qp, |machine, host| match machine {
            Machine::Connection(connection) => connection.transmit(now, host, to),
            Machine::Datagrams(_) => None,
        });
        let more = outcome::drain_events(x, qp);
        match length.flatten() {
            Some(length) => return Some((peer, length)),
            None if more => {}
            None => return None,
        }
    }
}

/// Writes the packet of the datagram at the front of the send queue, if its destination is another host.
fn transmit_datagram<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    to: &mut PacketBuffer,
) -> Option<(WirePeer, usize)> {
    let seq = qp.sq.next;
    if seq == qp.sq.tail || !qp.may_send() {
        return None;
    }
    let request = match qp.sq.detail(seq) {
        Detail::Datagram(address) if address.wire => datagram(qp, seq, address),
        _ => return None,
    };
    qp.sq.next = seq + 1;
    let sent = with_machine(x, qp, |machine, host| match machine {
        Machine::Datagrams(datagrams) => {
            datagrams.post(request);
            datagrams.transmit(host, to)
        }
        Machine::Connection(_) => None,
    });
    outcome::drain_events(x, qp);
    let (length, peer) = sent.flatten()?;
    Some((peer, length))
}

fn datagram(qp: &Qp, seq: u64, address: &UdAddress) -> DatagramRequest<WirePeer> {
    let wqe = qp.sq.wqe(seq);
    DatagramRequest {
        id: seq,
        address: WirePeer::of(&address.route),
        destination: address.qpn,
        qkey: address.qkey,
        length: wqe.total,
        immediate: wqe.flags.contains(WqeFlags::IMMEDIATE).then_some(wqe.imm),
        solicited: wqe.flags.contains(WqeFlags::SOLICITED),
    }
}

/// Runs `work` on the machine of a queue pair. Meanwhile the machine is taken out of the queue pair, so that it can borrow the
/// other parts.
pub(super) fn with_machine<M: Memory, R>(
    x: &mut Context<M>,
    qp: &mut Qp,
    work: impl FnOnce(&mut Machine, &mut WireHost<'_, M>) -> R,
) -> Option<R> {
    let mut wire = qp.wire.take()?;
    let arriving = &mut wire.arriving;
    let result = work(&mut wire.machine, &mut WireHost { x, qp, arriving });
    qp.wire = Some(wire);
    Some(result)
}
