//! Pieces: what of a request goes to the link at once.
//!
//! A small message is one piece and takes a short way of its own, because most requests are small. Any other request
//! is sent as as many pieces as its link needs; `qp.req.offset` says how far that has come. Reads and atomics are one
//! piece that asks for the bytes. What is large enough may go by reference instead (`reference.rs`).

use super::datagram::tell_datagram;
use super::fail;
use super::reference::{by_reference, may_reference, tell_large};
use crate::context::Context;
use crate::port::{Port, Record};
use crate::qp::pair::{MSN_MASK, Qp};
use crate::reach::{Reach, Trouble};
use crate::send_queue::{Detail, WqeFlags};
use crate::{CompletionOp, QpType, Status};
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::shared::Place;
use rkey_core::LocalUse;
use rkey_link::{Head, HeadFlags, Link, Op, SendError, Ticket};

/// The most bytes of a small message. A constant lets the compiler see that a small message takes
/// the short way through the link.
const SMALL: u32 = 208;

/// Sends the next piece of the request at `next`, or fails the request.
#[inline(always)]
pub(super) fn send_piece<L: Link, M: Memory>(
    x: &mut Context<M>,
    port: &mut Port<L>,
    qp: &mut Qp,
) -> Result<(), SendError> {
    let wqe = qp.sq.wqe(qp.sq.next);
    let small = wqe.total <= SMALL.min(port.meta.caps.inline_max)
        && matches!(wqe.op, CompletionOp::Write | CompletionOp::Send)
        && !qp.config.qp_type.is_datagram();
    if small {
        send_small(x, port, qp)
    } else {
        send_any(x, port, qp)
    }
}

/// Sends a write or send that fits into one slot. The head is made here and goes nowhere else, so
/// that it can stay in registers.
#[inline(always)]
fn send_small<L: Link, M: Memory>(
    x: &mut Context<M>,
    port: &mut Port<L>,
    qp: &mut Qp,
) -> Result<(), SendError> {
    let seq = qp.sq.next;
    let wqe = qp.sq.wqe(seq);
    let write = wqe.op == CompletionOp::Write;
    let mut flags = HeadFlags::FIRST.union(HeadFlags::LAST);
    if wqe.flags.intersects(EXTRAS) {
        flags |= extras(wqe.flags);
    }
    // A program that has nothing else outstanding waits for this one.
    if seq == qp.sq.head {
        flags |= HeadFlags::ACK_NOW;
    }
    let head = Head {
        op: if write { Op::Write } else { Op::Send },
        flags,
        dst_qp: qp.peer_qpn(),
        src_qp: qp.qpn,
        msn: qp.req.msn,
        len: wqe.total,
        total: wqe.total,
        addr: wqe.addr,
        key: wqe.key,
        imm: wqe.imm,
        operands: [0; 2],
    };
    let mut trouble = None;
    let queue = &qp.sq;
    if head.len > SMALL {
        return Err(SendError::Full); // for the compiler: the caller has asked
    }
    let inline = wqe.flags.contains(WqeFlags::INLINE);
    let domain = qp.config.domain;
    let sent = port.link.request(&head, |place| {
        if inline {
            put(place, queue.inline(seq));
            return Ok(());
        }
        let want = if write {
            LocalUse::WriteSource
        } else {
            LocalUse::Send
        };
        let (place, skip) = put_front(queue.front(seq), 0, place);
        let gathered = x.reach.gather(domain, queue.sges(seq), skip, place, want);
        gathered.map_err(|found| keep(&mut trouble, found))
    });
    match sent {
        Ok(_) => {
            record(port, qp, seq, true);
            qp.sq.wqe_mut(seq).msn = qp.req.msn;
            qp.req.msn = (qp.req.msn + 1) & MSN_MASK;
            qp.sq.next = seq + 1;
            Ok(())
        }
        Err(error) => refused_here(x, qp, error, trouble),
    }
}

/// Sends the next piece of any request.
#[inline(never)]
fn send_any<L: Link, M: Memory>(
    x: &mut Context<M>,
    port: &mut Port<L>,
    qp: &mut Qp,
) -> Result<(), SendError> {
    let seq = qp.sq.next;
    let mut head = head_of(qp, seq);
    let mut trouble = None;
    let sent = if qp.sq.wqe(seq).needs_response() {
        ask(&x.reach, port, qp, &mut head, &mut trouble)
    } else if qp.config.qp_type == QpType::Ud
        && let Detail::Datagram(to) = *qp.sq.detail(seq)
    {
        head.flags |= HeadFlags::LAST;
        tell_datagram(&x.reach, port, qp, &to, 0, &mut trouble)
    } else {
        tell(&x.reach, port, qp, &mut head, &mut trouble)
    };
    if let Err(error) = sent {
        return refused_here(x, qp, error, trouble);
    }
    if qp.sq.wqe(seq).flags.contains(WqeFlags::REFERENCE) {
        x.exposure.set_named(true);
    }
    let last = head.flags.contains(HeadFlags::LAST);
    record(port, qp, seq, last);
    let wqe = qp.sq.wqe_mut(seq);
    wqe.msn = head.msn;
    if !last {
        qp.req.offset += u64::from(head.len);
        return Ok(());
    }
    if wqe.needs_response() {
        wqe.received = 0;
        qp.req.reads.push_back(seq);
    }
    qp.req.offset = 0;
    qp.req.msn = (head.msn + 1) & MSN_MASK;
    qp.sq.next = seq + 1;
    if qp.config.qp_type == QpType::Ud {
        // A datagram is complete when it has left: its bytes have been copied.
        qp.sq.wqe_mut(seq).end(Status::Success, 0);
        x.retire(qp);
    }
    Ok(())
}

/// Sends a piece of a send or a write.
fn tell<L: Link, M: Memory>(
    reach: &Reach<M>,
    port: &mut Port<L>,
    qp: &mut Qp,
    head: &mut Head,
    trouble: &mut Option<Trouble>,
) -> Result<Ticket, SendError> {
    let seq = qp.sq.next;
    let offset = qp.req.offset;
    let inline = qp.sq.wqe(seq).flags.contains(WqeFlags::INLINE);
    let want = if head.op == Op::Write {
        LocalUse::WriteSource
    } else {
        LocalUse::Send
    };
    if head.total <= port.meta.caps.inline_max {
        head.flags |= HeadFlags::FIRST | HeadFlags::LAST;
        head.len = head.total;
    } else {
        if offset == 0 {
            head.flags |= HeadFlags::FIRST;
        }
        if head.op == Op::Write {
            head.addr = head.addr.wrapping_add(offset);
        }
        let whole = inline || qp.sq.wqe(seq).front > 0;
        if !whole && let Some(sent) = tell_large(reach, port, qp, head, trouble) {
            return sent;
        }
        let rest = u64::from(head.total) - offset;
        head.len = rest.min(u64::from(port.meta.caps.piece_max)) as u32;
        if u64::from(head.len) == rest {
            head.flags |= HeadFlags::LAST;
        }
    }
    // A program that has nothing else outstanding waits for this one. Others can hear of it later,
    // together with what comes behind it.
    if seq == qp.sq.head && head.flags.contains(HeadFlags::LAST) {
        head.flags |= HeadFlags::ACK_NOW;
    }
    let queue = &qp.sq;
    if queue.wqe(seq).op == CompletionOp::AtomicWrite
        && let Detail::Atomic([value, _]) = *queue.detail(seq)
    {
        return port.link.request(head, |mut place| {
            place.put(0, &value.to_ne_bytes());
            Ok(())
        });
    }
    if inline {
        return port.link.request(head, |mut place| {
            let from = offset as usize;
            place.put(0, &queue.inline(seq)[from..from + place.len()]);
            Ok(())
        });
    }
    let domain = qp.config.domain;
    port.link.request(head, |place| {
        let (place, skip) = put_front(queue.front(seq), offset, place);
        reach
            .gather(domain, queue.sges(seq), skip, place, want)
            .map_err(|found| keep(trouble, found))
    })
}

/// Sends a read or an atomic.
fn ask<L: Link, M: Memory>(
    reach: &Reach<M>,
    port: &mut Port<L>,
    qp: &mut Qp,
    head: &mut Head,
    trouble: &mut Option<Trouble>,
) -> Result<Ticket, SendError> {
    let seq = qp.sq.next;
    head.flags |= HeadFlags::FIRST | HeadFlags::LAST;
    if head.op == Op::Read {
        qp.sq.wqe_mut(seq).flags -= WqeFlags::REFERENCE;
        let total = u64::from(head.total);
        if !reach.held_back
            && may_reference(port, qp, total)
            && !port.link.prefers_pieces_back(qp.reads_in_pieces() + total)
            && let Some(ticket) = by_reference(reach, port, qp, head, 0, trouble)
        {
            return ticket;
        }
    } else {
        head.total = 8;
        if let Detail::Atomic(operands) = qp.sq.detail(seq) {
            head.operands = *operands;
        }
    }
    // Ask for nothing that could not be put down when it comes.
    let want = qp.sq.wqe(seq).local_use();
    reach
        .check_sges(
            qp.config.domain,
            qp.sq.sges(seq),
            u64::from(head.total),
            want,
        )
        .map_err(|found| SendError::Fault(keep(trouble, found)))?;
    port.link.request(head, |_| Ok(()))
}

/// Keeps account of a piece that the link took.
#[inline(always)]
pub(crate) fn record<L: Link>(port: &mut Port<L>, qp: &mut Qp, seq: u64, last: bool) {
    port.meta.outstanding.push(Record {
        qp: qp.id.index,
        life: qp.life,
        seq_last: seq << 1 | u64::from(last),
    });
    qp.req.in_flight += 1;
}

/// The link did not take it, or local memory stood in the way, and then the request has failed.
#[cold]
fn refused_here<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    error: SendError,
    trouble: Option<Trouble>,
) -> Result<(), SendError> {
    let SendError::Fault(fault) = error else {
        return Err(error);
    };
    let seq = qp.sq.next;
    let trouble = trouble.unwrap_or(Trouble::Fault(fault));
    let vendor = x.report_local(qp, qp.sq.wqe(seq).id, trouble);
    fail(x, qp, seq, Status::LocalProtection, vendor);
    Ok(())
}

/// A fault that stands for `trouble`, which is told in its place.
pub(super) fn keep(trouble: &mut Option<Trouble>, found: Trouble) -> Fault {
    let fault = match &found {
        Trouble::Fault(fault) => *fault,
        _ => Fault::at(0),
    };
    *trouble = Some(found);
    fault
}

/// What a head says of a request besides the operation.
const EXTRAS: WqeFlags = WqeFlags::IMMEDIATE
    .union(WqeFlags::INVALIDATE)
    .union(WqeFlags::SOLICITED)
    .union(WqeFlags::REQUESTED_KEY);

fn extras(from: WqeFlags) -> HeadFlags {
    let mut flags = HeadFlags::empty();
    flags.set(HeadFlags::IMMEDIATE, from.contains(WqeFlags::IMMEDIATE));
    flags.set(HeadFlags::INVALIDATE, from.contains(WqeFlags::INVALIDATE));
    flags.set(HeadFlags::SOLICITED, from.contains(WqeFlags::SOLICITED));
    flags.set(
        HeadFlags::REQUESTED_KEY,
        from.contains(WqeFlags::REQUESTED_KEY),
    );
    flags
}

/// The head of a piece of the request at `next`; `len` and the marks are still to be set.
#[inline]
pub(super) fn head_of(qp: &Qp, seq: u64) -> Head {
    let wqe = qp.sq.wqe(seq);
    let op = match wqe.op {
        CompletionOp::Write | CompletionOp::AtomicWrite => Op::Write,
        CompletionOp::Read => Op::Read,
        CompletionOp::CompareSwap => Op::CompareSwap,
        CompletionOp::FetchAdd => Op::FetchAdd,
        _ => Op::Send,
    };
    let flags = extras(wqe.flags);
    Head {
        op,
        flags,
        dst_qp: qp.peer_qpn(),
        src_qp: qp.qpn,
        msn: qp.req.msn,
        len: 0,
        total: wqe.total,
        addr: wqe.addr,
        key: wqe.key,
        imm: wqe.imm,
        operands: [0; 2],
    }
}

/// Puts inline data into its place; 8 bytes are what most of it is.
#[inline]
fn put(mut place: Place<'_>, bytes: &[u8]) {
    match <[u8; 8]>::try_from(bytes) {
        Ok(eight) => place.put_u64(0, u64::from_le_bytes(eight)),
        Err(_) => place.put(0, bytes),
    }
}

/// Puts the bytes in front into the place of a piece that begins at `offset` of its message: what is left of the
/// place, and where in the memory behind them that begins.
#[inline]
fn put_front<'a>(front: &[u8], offset: u64, place: Place<'a>) -> (Place<'a>, u64) {
    let before = offset.min(front.len() as u64);
    let front = &front[before as usize..];
    if front.is_empty() {
        return (place, offset - before);
    }
    let len = front.len().min(place.len());
    let (mut first, rest) = place.split(len);
    first.put(0, &front[..len]);
    (rest, 0)
}
