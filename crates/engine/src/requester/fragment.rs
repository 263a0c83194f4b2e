//! Passes each request to the link in one or more fragments.
//!
//! A short message is one fragment and takes a fast path, because most requests are small. Any other request is split
//! into as many fragments as its link needs; `qp.req.offset` is the progress. A read or an atomic is one fragment
//! without payload. A large payload may be sent as a remote iovec instead (`remote_iovec.rs`).

use super::datagram::send_datagram;
use super::remote_iovec::{may_use_remote_iovec, send_remote_iovec, try_remote_iovec};
use super::{SHORT_MAX, fail};
use crate::checked_memory::{AccessError, CheckedMemory};
use crate::context::Context;
use crate::link_state::{FragmentRecord, LinkState};
use crate::qp::pair::{MSN_MASK, Qp};
use crate::send_queue::{Detail, WqeFlags};
use crate::{CompletionOp, QpType, Status};
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::shared::OwnBytes;
use rkey_core::LocalUse;
use rkey_link::{Header, HeaderFlags, Link, Op, SendError, Ticket};

/// Sends the next fragment of the request at `next`, or fails the request.
#[inline(always)]
pub(super) fn send_fragment<L: Link, M: Memory>(
    x: &mut Context<M>,
    link_state: &mut LinkState<L>,
    qp: &mut Qp,
) -> Result<(), SendError> {
    let wqe = qp.sq.wqe(qp.sq.next);
    let short = wqe.total <= SHORT_MAX.min(link_state.meta.caps.in_slot_max)
        && matches!(wqe.op, CompletionOp::Write | CompletionOp::Send)
        && !qp.config.qp_type.is_datagram();
    if short {
        send_short(x, link_state, qp)
    } else {
        send_any(x, link_state, qp)
    }
}

/// Sends a write or send that fits into one slot. The header is built here and passed on directly, so that it can
/// stay in registers.
#[inline(always)]
fn send_short<L: Link, M: Memory>(
    x: &mut Context<M>,
    link_state: &mut LinkState<L>,
    qp: &mut Qp,
) -> Result<(), SendError> {
    let seq = qp.sq.next;
    let wqe = qp.sq.wqe(seq);
    let write = wqe.op == CompletionOp::Write;
    let mut flags = HeaderFlags::FIRST.union(HeaderFlags::LAST);
    if wqe.flags.intersects(EXTRAS) {
        flags |= extras(wqe.flags);
    }
    // If nothing else is outstanding, the program is probably waiting for this one.
    if seq == qp.sq.head {
        flags |= HeaderFlags::ACK_NOW;
    }
    let header = Header {
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
    if header.len > SHORT_MAX {
        return Err(SendError::Full); // for the compiler: the caller has checked
    }
    let inline = wqe.flags.contains(WqeFlags::INLINE);
    let domain = qp.config.domain;
    let sent = link_state.link.send_request(&header, |into| {
        if inline {
            put(into, queue.inline(seq));
            return Ok(());
        }
        let want = if write {
            LocalUse::WriteSource
        } else {
            LocalUse::Send
        };
        let (into, skip) = put_prefix(queue.prefix(seq), 0, into);
        let gathered = x.checked.gather(domain, queue.sges(seq), skip, into, want);
        gathered.map_err(|found| keep(&mut trouble, found))
    });
    match sent {
        Ok(_) => {
            record(link_state, qp, seq, true);
            qp.sq.wqe_mut(seq).msn = qp.req.msn;
            qp.req.msn = (qp.req.msn + 1) & MSN_MASK;
            qp.sq.next = seq + 1;
            Ok(())
        }
        Err(error) => refused_here(x, qp, error, trouble),
    }
}

/// Sends the next fragment of any request.
#[inline(never)]
fn send_any<L: Link, M: Memory>(
    x: &mut Context<M>,
    link_state: &mut LinkState<L>,
    qp: &mut Qp,
) -> Result<(), SendError> {
    let seq = qp.sq.next;
    let mut header = header_of(qp, seq);
    let mut trouble = None;
    let sent = if qp.sq.wqe(seq).needs_response() {
        send_read_or_atomic(&x.checked, link_state, qp, &mut header, &mut trouble)
    } else if qp.config.qp_type == QpType::Ud
        && let Detail::Datagram(to) = *qp.sq.detail(seq)
    {
        header.flags |= HeaderFlags::LAST;
        send_datagram(&x.checked, link_state, qp, &to, 0, &mut trouble)
    } else {
        send_message_fragment(&x.checked, link_state, qp, &mut header, &mut trouble)
    };
    if let Err(error) = sent {
        return refused_here(x, qp, error, trouble);
    }
    if qp.sq.wqe(seq).flags.contains(WqeFlags::REMOTE_IOVEC) {
        x.exposure.set_named(true);
    }
    let last = header.flags.contains(HeaderFlags::LAST);
    record(link_state, qp, seq, last);
    let wqe = qp.sq.wqe_mut(seq);
    wqe.msn = header.msn;
    if !last {
        qp.req.offset += u64::from(header.len);
        return Ok(());
    }
    if wqe.needs_response() {
        wqe.received = 0;
        qp.req.reads.push_back(seq);
    }
    qp.req.offset = 0;
    qp.req.msn = (header.msn + 1) & MSN_MASK;
    qp.sq.next = seq + 1;
    if qp.config.qp_type == QpType::Ud {
        // A datagram is complete when it has been sent: its bytes have been copied.
        qp.sq.wqe_mut(seq).end(Status::Success, 0);
        x.complete_ended_sends(qp);
    }
    Ok(())
}

/// Sends a fragment of a send or a write.
fn send_message_fragment<L: Link, M: Memory>(
    checked: &CheckedMemory<M>,
    link_state: &mut LinkState<L>,
    qp: &mut Qp,
    header: &mut Header,
    trouble: &mut Option<AccessError>,
) -> Result<Ticket, SendError> {
    let seq = qp.sq.next;
    let offset = qp.req.offset;
    let inline = qp.sq.wqe(seq).flags.contains(WqeFlags::INLINE);
    let want = if header.op == Op::Write {
        LocalUse::WriteSource
    } else {
        LocalUse::Send
    };
    if header.total <= link_state.meta.caps.in_slot_max {
        header.flags |= HeaderFlags::FIRST | HeaderFlags::LAST;
        header.len = header.total;
    } else {
        if offset == 0 {
            header.flags |= HeaderFlags::FIRST;
        }
        if header.op == Op::Write {
            header.addr = header.addr.wrapping_add(offset);
        }
        let whole = inline || qp.sq.wqe(seq).prefix_len > 0;
        if !whole && let Some(sent) = try_remote_iovec(checked, link_state, qp, header, trouble) {
            return sent;
        }
        let rest = u64::from(header.total) - offset;
        header.len = rest.min(u64::from(link_state.meta.caps.fragment_max)) as u32;
        if u64::from(header.len) == rest {
            header.flags |= HeaderFlags::LAST;
        }
    }
    // If nothing else is outstanding, the program is probably waiting for this one. Others can be acknowledged later,
    // together with the fragments that follow.
    if seq == qp.sq.head && header.flags.contains(HeaderFlags::LAST) {
        header.flags |= HeaderFlags::ACK_NOW;
    }
    let queue = &qp.sq;
    if queue.wqe(seq).op == CompletionOp::AtomicWrite
        && let Detail::Atomic([value, _]) = *queue.detail(seq)
    {
        return link_state.link.send_request(header, |mut into| {
            into.put(0, &value.to_ne_bytes());
            Ok(())
        });
    }
    if inline {
        return link_state.link.send_request(header, |mut into| {
            let from = offset as usize;
            into.put(0, &queue.inline(seq)[from..from + into.len()]);
            Ok(())
        });
    }
    let domain = qp.config.domain;
    link_state.link.send_request(header, |into| {
        let (into, skip) = put_prefix(queue.prefix(seq), offset, into);
        checked
            .gather(domain, queue.sges(seq), skip, into, want)
            .map_err(|found| keep(trouble, found))
    })
}

/// Sends a read or an atomic.
fn send_read_or_atomic<L: Link, M: Memory>(
    checked: &CheckedMemory<M>,
    link_state: &mut LinkState<L>,
    qp: &mut Qp,
    header: &mut Header,
    trouble: &mut Option<AccessError>,
) -> Result<Ticket, SendError> {
    let seq = qp.sq.next;
    header.flags |= HeaderFlags::FIRST | HeaderFlags::LAST;
    if header.op == Op::Read {
        qp.sq.wqe_mut(seq).flags -= WqeFlags::REMOTE_IOVEC;
        let total = u64::from(header.total);
        if !checked.no_remote_iovecs
            && may_use_remote_iovec(link_state, qp, total)
            && !link_state
                .link
                .prefers_fragments_for_read(qp.reads_in_fragments() + total)
            && let Some(ticket) = send_remote_iovec(checked, link_state, qp, header, 0, trouble)
        {
            return ticket;
        }
    } else {
        header.total = 8;
        if let Detail::Atomic(operands) = qp.sq.detail(seq) {
            header.operands = *operands;
        }
    }
    // Do not request data that could not be stored on arrival.
    let want = qp.sq.wqe(seq).local_use();
    checked
        .check_sges(
            qp.config.domain,
            qp.sq.sges(seq),
            u64::from(header.total),
            want,
        )
        .map_err(|found| SendError::Fault(keep(trouble, found)))?;
    link_state.link.send_request(header, |_| Ok(()))
}

/// Records a fragment that the link accepted.
#[inline(always)]
pub(crate) fn record<L: Link>(link_state: &mut LinkState<L>, qp: &mut Qp, seq: u64, last: bool) {
    link_state.meta.outstanding.push(FragmentRecord {
        qp: qp.id.index,
        life: qp.life,
        seq_last: seq << 1 | u64::from(last),
    });
    qp.req.in_flight += 1;
}

/// Handles a fragment that was not sent: returns the link's error, or fails the request if local memory was not
/// accessible.
#[cold]
fn refused_here<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    error: SendError,
    trouble: Option<AccessError>,
) -> Result<(), SendError> {
    let SendError::Fault(fault) = error else {
        return Err(error);
    };
    let seq = qp.sq.next;
    let trouble = trouble.unwrap_or(AccessError::Fault(fault));
    let vendor = x.report_local(qp, qp.sq.wqe(seq).id, qp.sq.sges(seq), trouble);
    fail(x, qp, seq, Status::LocalProtection, vendor);
    Ok(())
}

/// Stores `found` in `trouble`, to be reported; returns the fault that represents it in the link's interface.
pub(super) fn keep(trouble: &mut Option<AccessError>, found: AccessError) -> Fault {
    let fault = match &found {
        AccessError::Fault(fault) => *fault,
        _ => Fault::at(0),
    };
    *trouble = Some(found);
    fault
}

/// The flags of a work request that its header repeats.
const EXTRAS: WqeFlags = WqeFlags::IMMEDIATE
    .union(WqeFlags::INVALIDATE)
    .union(WqeFlags::SOLICITED)
    .union(WqeFlags::REQUESTED_KEY);

fn extras(from: WqeFlags) -> HeaderFlags {
    let mut flags = HeaderFlags::empty();
    flags.set(HeaderFlags::IMMEDIATE, from.contains(WqeFlags::IMMEDIATE));
    flags.set(HeaderFlags::INVALIDATE, from.contains(WqeFlags::INVALIDATE));
    flags.set(HeaderFlags::SOLICITED, from.contains(WqeFlags::SOLICITED));
    flags.set(
        HeaderFlags::REQUESTED_KEY,
        from.contains(WqeFlags::REQUESTED_KEY),
    );
    flags
}

/// The header of a fragment of the request at `next`; `len` and the first and last flags are set later.
#[inline]
pub(super) fn header_of(qp: &Qp, seq: u64) -> Header {
    let wqe = qp.sq.wqe(seq);
    let op = match wqe.op {
        CompletionOp::Write | CompletionOp::AtomicWrite => Op::Write,
        CompletionOp::Read => Op::Read,
        CompletionOp::CompareSwap => Op::CompareSwap,
        CompletionOp::FetchAdd => Op::FetchAdd,
        _ => Op::Send,
    };
    let flags = extras(wqe.flags);
    Header {
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

/// Copies inline data to the slot; usually 8 bytes.
#[inline]
fn put(mut into: OwnBytes<'_>, bytes: &[u8]) {
    match <[u8; 8]>::try_from(bytes) {
        Ok(eight) => into.put_u64(0, u64::from_le_bytes(eight)),
        Err(_) => into.put(0, bytes),
    }
}

/// Copies a prefix to the slot of a fragment that begins at `offset` of its message; returns the rest of the slot, and
/// its offset in the memory that follows the prefix.
#[inline(always)]
pub(crate) fn put_prefix<'a>(
    prefix: &[u8],
    offset: u64,
    into: OwnBytes<'a>,
) -> (OwnBytes<'a>, u64) {
    let before = offset.min(prefix.len() as u64);
    let prefix = &prefix[before as usize..];
    if prefix.is_empty() {
        return (into, offset - before);
    }
    let len = prefix.len().min(into.len());
    let (mut first, rest) = into.split(len);
    first.put(0, &prefix[..len]);
    (rest, 0)
}
