//! The requester: starts work requests in order, cuts them into pieces, hands them to the link.
//!
//! What comes back is handled in `answer.rs`. A queue pair is pumped when something was posted,
//! when its link has room again, when a delay is over, and when an answer lets a request start
//! that waited for it.

use crate::UdAddress;
use crate::bind;
use crate::context::Context;
use crate::groups::{self, Copied};
use crate::id::Table;
use crate::port::{Port, Record};
use crate::qp::pair::{MSN_MASK, Qp};
use crate::reach::{Reach, Trouble};
use crate::send_queue::{Detail, WqeFlags};
use crate::{CompletionOp, Event, QpType, Status, ud};
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::shared::Place;
use rkey_core::LocalUse;
use rkey_link::link::REFERENCES_MAX;
use rkey_link::{DownReason, Head, HeadFlags, Link, Op, SendError, Ticket};

/// The most bytes of a small message. A constant lets the compiler see that a small message takes
/// the short way through the link.
const SMALL: u32 = 208;

/// The most bytes that one piece by reference moves. The peer acknowledges pieces, and so shows
/// that it is alive, in the middle of a long message.
const REFERENCE_PIECE: u64 = 16 << 20;

/// Sends what can be sent.
pub(crate) fn pump<L: Link, M: Memory>(
    x: &mut Context<M>,
    links: &mut Table<Port<L>>,
    qp: &mut Qp,
) {
    if qp.config.qp_type.is_datagram() {
        pump_datagrams(x, links, qp);
    } else {
        let port = qp.out.and_then(|id| links.get_mut(id));
        pump_connected(x, port, qp);
    }
}

/// Sends what can be sent over the link of a connected queue pair, which may not have one yet.
#[inline(always)]
pub(crate) fn pump_connected<L: Link, M: Memory>(
    x: &mut Context<M>,
    mut port: Option<&mut Port<L>>,
    qp: &mut Qp,
) {
    while qp.sq.next != qp.sq.tail && qp.may_send() {
        if qp.req.offset == 0 {
            match start(x, qp) {
                Start::Send => {}
                Start::Ended => continue,
                Start::Wait => return,
            }
        }
        let Some(port) = port.as_deref_mut().filter(|port| port.meta.down.is_none()) else {
            ask_for_link(x, qp, qp.peer_qpn());
            return;
        };
        if let Err(error) = send_piece(x, port, qp) {
            hold(port, qp, error);
            return;
        }
    }
}

fn pump_datagrams<L: Link, M: Memory>(x: &mut Context<M>, links: &mut Table<Port<L>>, qp: &mut Qp) {
    while qp.sq.next != qp.sq.tail && qp.may_send() {
        match start(x, qp) {
            Start::Send => {}
            Start::Ended => continue,
            Start::Wait => return,
        }
        if let Detail::Datagram(to) = *qp.sq.detail(qp.sq.next)
            && let Some(group) = groups::group_of(qp, &to)
        {
            match groups::send(x, links, qp, &to, group) {
                Copied::Ended => continue,
                Copied::Wait => return ud::take_payloads(x, qp),
            }
        }
        let port = match datagram_path(x, links, qp) {
            Path::Port(port) => port,
            Path::Ended => continue,
            Path::Wait => return ud::take_payloads(x, qp),
        };
        if let Err(error) = send_piece(x, port, qp) {
            hold(port, qp, error);
            return;
        }
    }
}

/// The link did not take a piece.
#[cold]
fn hold<L: Link>(port: &mut Port<L>, qp: &mut Qp, error: SendError) {
    if error == SendError::Full {
        qp.req.blocked = true;
        port.meta.blocked.push_back((qp.id.index, qp.id.generation));
    } else {
        let reason = port.link.is_up().err().unwrap_or(DownReason::Closed);
        port.meta.down.get_or_insert(reason);
    }
}

enum Start {
    /// It may be sent.
    Send,
    /// It has ended here.
    Ended,
    /// Not yet.
    Wait,
}

/// Whether the request at `next` may start; executes it if it is a local one.
#[inline(always)]
fn start<M: Memory>(x: &mut Context<M>, qp: &mut Qp) -> Start {
    const NOT_PLAIN: WqeFlags = WqeFlags::FENCE.union(WqeFlags::DONE);
    let wqe = qp.sq.wqe(qp.sq.next);
    if wqe.op == CompletionOp::Write && !wqe.flags.intersects(NOT_PLAIN) {
        return Start::Send;
    }
    start_any(x, qp)
}

/// [`start`] for any request.
#[inline(never)]
fn start_any<M: Memory>(x: &mut Context<M>, qp: &mut Qp) -> Start {
    let seq = qp.sq.next;
    let wqe = qp.sq.wqe(seq);
    if wqe.flags.intersects(WqeFlags::FENCE.union(WqeFlags::DONE)) {
        if wqe.flags.contains(WqeFlags::DONE) {
            // It ended before the requests in front of it had to be sent again.
            qp.sq.next = seq + 1;
            return Start::Ended;
        }
        if !qp.req.reads.is_empty() {
            return Start::Wait;
        }
    }
    match wqe.op {
        CompletionOp::Write => Start::Send,
        CompletionOp::AtomicWrite => {
            // A write of 8 aligned bytes is one store at the target.
            if !wqe.addr.is_multiple_of(8) {
                fail(x, qp, seq, Status::RemoteInvalidRequest, 0);
                return Start::Ended;
            }
            Start::Send
        }
        CompletionOp::Send => {
            if qp.config.qp_type.is_datagram() && wqe.total > qp.settings.path_mtu {
                fail(x, qp, seq, Status::LocalLength, 0);
                return Start::Ended;
            }
            Start::Send
        }
        CompletionOp::Bind | CompletionOp::Invalidate => {
            // Everything before it has to be complete: were an earlier request to fail, this one
            // would have to be flushed, and it cannot be undone.
            if qp.sq.head != seq {
                return Start::Wait;
            }
            let (status, vendor) = bind::execute(x, qp, seq);
            if !status.is_success() {
                fail(x, qp, seq, status, vendor);
                return Start::Ended;
            }
            qp.sq.wqe_mut(seq).end(Status::Success, 0);
            qp.sq.next = seq + 1;
            x.retire(qp);
            Start::Ended
        }
        _ => {
            let allowed = usize::from(qp.settings.max_reads_out);
            if qp.req.reads.len() < allowed {
                if wqe.op != CompletionOp::Read && wqe.total < 8 {
                    fail(x, qp, seq, Status::LocalLength, 0);
                    return Start::Ended;
                }
                return Start::Send;
            }
            if allowed == 0 {
                fail(x, qp, seq, Status::LocalQpOperation, 0);
                return Start::Ended;
            }
            Start::Wait
        }
    }
}

/// The request at `seq`, which is `next` or before it, failed on this side.
#[cold]
pub(crate) fn fail<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    seq: u64,
    status: Status,
    vendor: u32,
) {
    qp.sq.wqe_mut(seq).end(status, vendor);
    if seq == qp.sq.next {
        qp.sq.next = seq + 1;
        if qp.req.offset > 0 {
            qp.req.msn = (qp.req.msn + 1) & MSN_MASK;
        }
        qp.req.offset = 0;
    }
    // Earlier requests complete first, then this one; nothing else is started.
    qp.req.stopped = !qp.config.survive_remote_error;
    x.retire(qp);
}

enum Path<'a, L> {
    Port(&'a mut Port<L>),
    /// It has ended here.
    Ended,
    /// There is no link yet.
    Wait,
}

#[cold]
pub(crate) fn ask_for_link<M>(x: &mut Context<M>, qp: &mut Qp, peer: u32) {
    if !qp.req.asked {
        qp.req.asked = true;
        x.events.push_back(Event::LinkNeeded { qp: qp.id, peer });
    }
}

fn datagram_path<'a, L: Link, M: Memory>(
    x: &mut Context<M>,
    links: &'a mut Table<Port<L>>,
    qp: &mut Qp,
) -> Path<'a, L> {
    let seq = qp.sq.next;
    let Detail::Datagram(to) = *qp.sq.detail(seq) else {
        return Path::Wait;
    };
    let Some(id) = to.link.or_else(|| x.routes.get(&to.qpn).copied()) else {
        ask_for_link(x, qp, to.qpn);
        return Path::Wait;
    };
    let len = ud::GRH_LEN + qp.sq.wqe(seq).total;
    if links
        .get(id)
        .is_none_or(|port| port.meta.down.is_some() || port.meta.caps.piece_max < len)
    {
        // The network lost it.
        drop_datagram(x, qp);
        return Path::Ended;
    }
    match links.get_mut(id) {
        Some(port) => Path::Port(port),
        None => Path::Wait,
    }
}

/// Ends the datagram at `next` as sent: nobody will ever know.
pub(crate) fn drop_datagram<M: Memory>(x: &mut Context<M>, qp: &mut Qp) {
    let seq = qp.sq.next;
    qp.sq.wqe_mut(seq).end(Status::Success, 0);
    qp.sq.next = seq + 1;
    x.retire(qp);
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
fn head_of(qp: &Qp, seq: u64) -> Head {
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

/// Sends the next piece of the request at `next`, or fails the request.
#[inline(always)]
fn send_piece<L: Link, M: Memory>(
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
        let gathered = x.reach.gather(domain, queue.sges(seq), 0, place, want);
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

/// Puts inline data into its place; 8 bytes are what most of it is.
#[inline]
fn put(mut place: Place<'_>, bytes: &[u8]) {
    match <[u8; 8]>::try_from(bytes) {
        Ok(eight) => place.put_u64(0, u64::from_le_bytes(eight)),
        Err(_) => place.put(0, bytes),
    }
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

pub(crate) const fn local_use(op: CompletionOp) -> LocalUse {
    match op {
        CompletionOp::Write => LocalUse::WriteSource,
        CompletionOp::Read => LocalUse::ReadSink,
        CompletionOp::CompareSwap | CompletionOp::FetchAdd => LocalUse::AtomicResult,
        _ => LocalUse::Send,
    }
}

/// A fault that stands for `trouble`, which is told in its place.
fn keep(trouble: &mut Option<Trouble>, found: Trouble) -> Fault {
    let fault = match &found {
        Trouble::Fault(fault) => *fault,
        _ => Fault::at(0),
    };
    *trouble = Some(found);
    fault
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
        if !inline && let Some(sent) = tell_large(reach, port, qp, head, trouble) {
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
        reach
            .gather(domain, queue.sges(seq), offset, place, want)
            .map_err(|found| keep(trouble, found))
    })
}

/// Sends a datagram, with its header in front, or a raw frame.
pub(crate) fn tell_datagram<L: Link, M: Memory>(
    reach: &Reach<M>,
    port: &mut Port<L>,
    qp: &Qp,
    to: &UdAddress,
    key: u64,
    trouble: &mut Option<Trouble>,
) -> Result<Ticket, SendError> {
    let seq = qp.sq.next;
    let mut head = head_of(qp, seq);
    let header = to.route.header(head.total);
    let header = if qp.config.qp_type == QpType::Raw {
        &[][..]
    } else {
        &header[..]
    };
    head.flags |= HeadFlags::FIRST | HeadFlags::LAST;
    head.dst_qp = to.qpn;
    // The highest bit asks for the queue pair's own key (IBA 10.2.5).
    head.addr = u64::from(if to.qkey >> 31 == 1 {
        qp.settings.qkey
    } else {
        to.qkey
    });
    head.key = key;
    head.total += header.len() as u32;
    head.len = head.total;
    if head.len > port.meta.caps.piece_max {
        return Err(SendError::Down);
    }
    let queue = &qp.sq;
    let flags = queue.wqe(seq).flags;
    let taken = if flags.contains(WqeFlags::INLINE) {
        Some(queue.inline(seq))
    } else if flags.contains(WqeFlags::KEPT) {
        queue.kept(seq)
    } else {
        None
    };
    port.link.request(&head, |place| {
        let (mut front, mut rest) = place.split(header.len());
        front.put(0, header);
        if let Some(bytes) = taken {
            rest.put(0, bytes);
            return Ok(());
        }
        reach
            .gather(qp.config.domain, queue.sges(seq), 0, rest, LocalUse::Send)
            .map_err(|found| keep(trouble, found))
    })
}

/// What a message that does not fit into a slot needs first: a check of the whole, and a try to
/// send it by reference. `None`: send a piece.
fn tell_large<L: Link, M: Memory>(
    reach: &Reach<M>,
    port: &mut Port<L>,
    qp: &mut Qp,
    head: &mut Head,
    trouble: &mut Option<Trouble>,
) -> Option<Result<Ticket, SendError>> {
    let seq = qp.sq.next;
    let offset = qp.req.offset;
    let rest = u64::from(head.total) - offset;
    if offset == 0 {
        qp.sq.wqe_mut(seq).flags -= WqeFlags::REFERENCE;
        if head.total > port.meta.caps.piece_max {
            // Rather refuse a message as a whole than in its middle.
            let want = local_use(qp.sq.wqe(seq).op);
            let whole = reach.check_sges(qp.config.domain, qp.sq.sges(seq), rest, want);
            if let Err(found) = whole {
                return Some(Err(SendError::Fault(keep(trouble, found))));
            }
        }
    }
    // What the ring has no room for is handed over all the same: nobody has to wait for us.
    if !reach.held_back
        && may_reference(port, qp, u64::from(head.total))
        && !port.link.prefers_pieces()
    {
        return by_reference(reach, port, qp, head, offset, trouble);
    }
    None
}

/// Whether parts of a message of this length may go by reference.
fn may_reference<L: Link>(port: &Port<L>, qp: &Qp, total: u64) -> bool {
    let meta = &port.meta;
    meta.caps.by_reference
        && total >= u64::from(meta.caps.reference_min.max(1))
        && qp.config.qp_type.is_reliable()
}

/// Sends the rest of the message, or a good part of it, as a list of places. `None` if the list
/// would be too long, or the peer cannot reach our memory.
fn by_reference<L: Link, M: Memory>(
    reach: &Reach<M>,
    port: &mut Port<L>,
    qp: &mut Qp,
    head: &mut Head,
    offset: u64,
    trouble: &mut Option<Trouble>,
) -> Option<Result<Ticket, SendError>> {
    let reads = head.op == Op::Read;
    if port.meta.no_reference && !reads {
        return None;
    }
    let seq = qp.sq.next;
    let mut list = [(0, 0); REFERENCES_MAX];
    let mut count = 0;
    let rest = u64::from(head.total) - offset;
    let want = local_use(qp.sq.wqe(seq).op);
    let len = if reads {
        rest
    } else {
        rest.min(REFERENCE_PIECE)
    };
    let sges = qp.sq.sges(seq);
    let walked = reach.each_local(qp.config.domain, sges, offset, len, want, |span, _| {
        if let Some(place) = list.get_mut(count) {
            *place = (span.start(), span.len());
        }
        count += 1;
        Ok(())
    });
    if let Err(found) = walked {
        return Some(Err(SendError::Fault(keep(trouble, found))));
    }
    let list = list.get(..count)?;
    head.len = if reads { 0 } else { len as u32 };
    if len == rest {
        head.flags |= HeadFlags::LAST;
        if seq == qp.sq.head && !reads {
            head.flags |= HeadFlags::ACK_NOW;
        }
    }
    let sent = port.link.request_by_reference(head, list);
    if sent.is_ok() {
        qp.sq.wqe_mut(seq).flags |= WqeFlags::REFERENCE;
    }
    Some(sent)
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
    let want = local_use(qp.sq.wqe(seq).op);
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
