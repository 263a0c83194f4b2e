//! The responder: takes requests from a link, decides, executes, answers.
//!
//! For reliable connections one rule keeps requesters honest about what happened: every message
//! that is not executed is answered. Pieces that belong to no message in progress are dropped
//! without a word, because the first piece of their message has been answered.

use crate::answer::find;
use crate::bulk::Bulk;
use crate::context::Context;
use crate::groups;
use crate::id::Table;
use crate::nak::Nak;
use crate::numbers::Numbers;
use crate::port::Meta;
use crate::qp::pair::{Inbound, MSN_MASK, Qp};
use crate::reach::{Asked, Counter, Trouble};
use crate::{
    Completion, CompletionFlags, CompletionOp, Event, QpState, QpType, Side, Status, ud, xrc,
};
use rkey_base::memory::Memory;
use rkey_base::shared::Foreign;
use rkey_core::{
    Access, Attempt, Denial, Key, LocalUse, NamedKey, Operation, Reason, WIRE_LEN, WireKey,
};
use rkey_link::{Head, HeadFlags, Incoming, NodeId, Op, Payload};

/// A response to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) head: Head,
    pub(crate) wire: [u8; WIRE_LEN],
}

/// What is to be done about a request.
pub(crate) enum Reply {
    /// Nothing more.
    Done,
    /// Send this, then it is done.
    Answer(Answer),
    /// Work through this, then it is done.
    Bulk(Bulk),
    /// It cannot be decided yet: leave it, and what is behind it, on the link.
    Hold,
}

impl Reply {
    /// A refusal of the message that `head` belongs to.
    pub(crate) fn nak(head: &Head, code: Nak) -> Self {
        Self::nak_with(head, code as u32, None)
    }

    /// Memory that the requester named could not be touched, from `address` on.
    pub(crate) fn fault_of_requester(head: &Head, address: u64) -> Self {
        let mut answer = Answer {
            head: back(head, Op::Nak),
            wire: [0; WIRE_LEN],
        };
        answer.head.imm = Nak::RequesterFault as u32;
        answer.head.addr = address;
        Self::Answer(answer)
    }

    pub(crate) fn nak_with(head: &Head, imm: u32, denial: Option<&Denial>) -> Self {
        let mut answer = Answer {
            head: back(head, Op::Nak),
            wire: [0; WIRE_LEN],
        };
        answer.head.imm = imm;
        if let Some(denial) = denial {
            answer.wire = denial.to_wire();
            answer.head.len = WIRE_LEN as u32;
            answer.head.total = WIRE_LEN as u32;
        }
        Self::Answer(answer)
    }
}

/// The head of a response to `head`.
pub(crate) fn back(head: &Head, op: Op) -> Head {
    Head {
        dst_qp: head.src_qp,
        src_qp: head.dst_qp,
        msn: head.msn,
        ..Head::new(op)
    }
}

/// Takes a request.
#[inline(always)]
pub(crate) fn on_request<M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    numbers: &Numbers,
    meta: &mut Meta,
    incoming: &Incoming<'_>,
) -> Reply {
    let head = &incoming.head;
    let Some(qp) = find(qps, numbers, &mut meta.last, head.dst_qp) else {
        return nobody(x, qps, incoming);
    };
    if qp.config.qp_type.is_datagram() {
        ud::on_datagram(x, qp, incoming);
        return Reply::Done;
    }
    if (qp.inbound != Some(meta.id) && !recognise(qp, meta))
        || !qp.state.responds()
        || qp.peer.is_none_or(|peer| peer.qpn != head.src_qp)
    {
        return unrecognised(qp, head);
    }
    if !qp.resp.established {
        establish(x, qp);
    }
    if !qp.config.qp_type.is_plain_connection()
        && let Err(reply) = xrc::find_queue(x, qp, meta.node, head)
    {
        return reply;
    }
    const HOW: HeadFlags = HeadFlags::FIRST
        .union(HeadFlags::LAST)
        .union(HeadFlags::IMMEDIATE)
        .union(HeadFlags::BY_REFERENCE);
    if head.op == Op::Write
        && head.flags.intersection(HOW) == HeadFlags::FIRST.union(HeadFlags::LAST)
        && head.msn == qp.resp.msn
        && head.len == head.total
        && head.len > 0
        && qp.resp.current.is_none()
        && qp.settings.access.contains(Access::REMOTE_WRITE)
        && let Payload::Bytes(bytes) = &incoming.payload
    {
        return small_write(x, qp, meta.node, head, *bytes);
    }
    request_of_peer(x, qp, meta.node, incoming)
}

/// A write of one piece: most of what arrives.
#[inline(always)]
fn small_write<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    head: &Head,
    bytes: Foreign<'_>,
) -> Reply {
    match x.reach.store_remote(&asked(qp, head), bytes) {
        Ok(counter) => {
            hit(x, qp, counter, head.len, true);
            qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
            Reply::Done
        }
        Err(trouble) => failed(x, qp, node, head, trouble),
    }
}

/// Any other request of the connected peer.
fn request_of_peer<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    incoming: &Incoming<'_>,
) -> Reply {
    let head = &incoming.head;
    if head.flags.contains(HeadFlags::FIRST) {
        if (qp.resp.current.is_some() || head.msn != qp.resp.msn)
            && let Err(reply) = resynchronise(x, qp, node, head)
        {
            return reply;
        }
        match head.op {
            Op::Send | Op::Write => {
                if let Err(reply) = begin(x, qp, node, head) {
                    return reply;
                }
            }
            Op::Read => return read(x, qp, node, incoming),
            Op::CompareSwap | Op::FetchAdd => return atomic(x, qp, node, head),
            _ => return Reply::Done,
        }
    } else if qp
        .resp
        .current
        .is_none_or(|now| now.msn != head.msn || now.op != head.op)
    {
        return Reply::Done;
    }
    piece(x, qp, node, incoming)
}

/// A request that is for no queue pair: for a group, or for one that is not there (yet).
#[cold]
fn nobody<M: Memory>(x: &mut Context<M>, qps: &mut Table<Qp>, incoming: &Incoming<'_>) -> Reply {
    if incoming.head.dst_qp == groups::GROUP_QPN {
        return groups::deliver(x, qps, incoming);
    }
    not_ready(&incoming.head)
}

#[cold]
fn not_ready(head: &Head) -> Reply {
    Reply::nak(head, Nak::NotReady)
}

/// A request that did not come from the peer of its queue pair, or came too early.
///
/// A peer that knows our number may send before we have found out which device it is on. A reliable
/// connection asks it to try again. An unreliable one cannot ask, and nobody would send again what it
/// drops: it holds the request until the search, which does not need this link, has ended.
#[cold]
fn unrecognised(qp: &Qp, head: &Head) -> Reply {
    if qp.config.qp_type.is_reliable() {
        return not_ready(head);
    }
    let may_be_peer = qp
        .peer
        .is_some_and(|peer| peer.qpn == head.src_qp && peer.node.is_none());
    if may_be_peer && qp.req.asked && qp.state.responds() {
        Reply::Hold
    } else {
        Reply::Done
    }
}

/// Whether the link comes from the peer of the queue pair; remembers it.
#[cold]
fn recognise(qp: &mut Qp, meta: &Meta) -> bool {
    let known = qp.peer.and_then(|peer| peer.node) == Some(meta.node);
    if known {
        qp.inbound = Some(meta.id);
    }
    known
}

#[cold]
fn establish<M>(x: &mut Context<M>, qp: &mut Qp) {
    qp.resp.established = true;
    if qp.state == QpState::Rtr {
        x.events.push_back(Event::CommEstablished {
            qp: qp.id,
            qpn: qp.qpn,
        });
    }
}

/// A first piece came where it was not expected.
#[cold]
fn resynchronise<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    head: &Head,
) -> Result<(), Reply> {
    let abandoned = qp.resp.current.take().is_some();
    if qp.config.qp_type == QpType::Uc {
        // The message in progress is dropped; its receive serves this one (IBA 9.8.2.2).
        qp.resp.msn = head.msn & MSN_MASK;
        return Ok(());
    }
    if abandoned {
        if !qp.config.survive_remote_error {
            return Err(refuse(x, qp, node, head, Nak::InvalidRequest, None));
        }
        qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
    }
    if head.msn == qp.resp.msn {
        Ok(())
    } else {
        Err(Reply::nak(head, Nak::Sequence))
    }
}

/// A message of sends or writes begins: checks it as a whole.
#[inline]
fn begin<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    head: &Head,
) -> Result<(), Reply> {
    if head.op == Op::Write && head.total > 0 {
        allow(x, qp, node, head, Operation::Write)?;
        if head.len < head.total {
            let asked = asked(qp, head);
            let whole = x
                .reach
                .lease(&asked, u64::from(head.total), Operation::Write)
                .map(drop);
            if let Err(denial) = whole {
                return Err(refuse(x, qp, node, head, Nak::RemoteAccess, Some(denial)));
            }
        }
    }
    if head.op == Op::Send || head.flags.contains(HeadFlags::IMMEDIATE) {
        if !qp.resp.recv.held && !take_receive(x, qp) {
            return Err(no_receive(qp, head));
        }
        if head.op == Op::Send && u64::from(head.total) > qp.resp.recv.capacity {
            x.fail_receive(qp, Status::LocalLength, 0);
            return Err(refuse(x, qp, node, head, Nak::InvalidRequest, None));
        }
    }
    let (msn, op, total) = (head.msn, head.op, head.total);
    qp.resp.current = Some(Inbound {
        msn,
        op,
        total,
        received: 0,
    });
    Ok(())
}

/// Takes a receive from the queue pair's own queue or the shared one.
#[inline]
pub(crate) fn take_receive<M>(x: &mut Context<M>, qp: &mut Qp) -> bool {
    qp.resp.recv.domain = qp.config.domain;
    let Some(srq) = qp.config.srq else {
        return qp.rq.take(&mut qp.resp.recv);
    };
    let Some(srq) = x.srqs.get_mut(srq) else {
        return false;
    };
    // Keys in a shared receive queue are those of its own domain (IBA 10.2.9.3).
    qp.resp.recv.domain = srq.domain;
    let taken = srq.queue.take(&mut qp.resp.recv);
    if taken && srq.queue.len() < srq.limit {
        srq.limit = 0;
        x.events.push_back(Event::SrqLimit(srq.id));
    }
    taken
}

#[cold]
fn no_receive(qp: &Qp, head: &Head) -> Reply {
    if qp.config.qp_type == QpType::Uc {
        return Reply::Done;
    }
    let delay = u32::from(qp.settings.min_rnr_timer & 31) << 8;
    Reply::nak_with(head, Nak::ReceiverNotReady as u32 | delay, None)
}

/// Whether the queue pair itself allows the operation (VB-I06).
#[inline]
fn allow<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    head: &Head,
    want: Operation,
) -> Result<(), Reply> {
    if qp.settings.access.contains(want.needs()) {
        return Ok(());
    }
    let len = u64::from(head.total);
    let granted = qp.settings.access & Access::REMOTE;
    let (who, key) = (qp.accessor(), wire_key(head));
    let denial = Denial::by_queue_pair(&who, key, head.addr, len, want, granted);
    Err(refuse(x, qp, node, head, Nak::RemoteAccess, Some(denial)))
}

#[inline]
fn wire_key(head: &Head) -> WireKey {
    if head.flags.contains(HeadFlags::REQUESTED_KEY) {
        WireKey::Requested(head.key)
    } else {
        WireKey::Device(Key(head.key as u32))
    }
}

#[inline]
pub(crate) fn asked(qp: &Qp, head: &Head) -> Asked {
    Asked {
        who: qp.accessor(),
        key: wire_key(head),
        addr: head.addr,
    }
}

/// A piece of a send or write whose message is in progress.
#[inline]
fn piece<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    incoming: &Incoming<'_>,
) -> Reply {
    let head = &incoming.head;
    let Some(now) = qp.resp.current else {
        return Reply::Done;
    };
    let end = u64::from(now.received) + u64::from(head.len);
    let last = head.flags.contains(HeadFlags::LAST);
    let right = if last {
        end == u64::from(now.total)
    } else {
        end < u64::from(now.total)
    };
    if !right || (head.len == 0 && !last) {
        return refuse(x, qp, node, head, Nak::InvalidRequest, None);
    }
    let bytes = match &incoming.payload {
        Payload::Bytes(bytes) => *bytes,
        Payload::Reference(list) => return Reply::Bulk(Bulk::pull(qp, head, list)),
    };
    if head.len > 0 {
        let stored = if head.op == Op::Write {
            x.reach.store_remote(&asked(qp, head), bytes)
        } else {
            place_send(x, qp, now.received, bytes)
        };
        match stored {
            // A message of several pieces counts once.
            Ok(counter) if last => hit(x, qp, counter, now.total, true),
            Ok(_) => {}
            Err(trouble) => return failed(x, qp, node, head, trouble),
        }
    }
    arrived(x, qp, node, head, last)
}

fn place_send<M: Memory>(
    x: &Context<M>,
    qp: &Qp,
    offset: u32,
    bytes: Foreign<'_>,
) -> Result<Counter, Trouble> {
    let sges = &qp.resp.recv.sges;
    x.reach.scatter(
        qp.resp.recv.domain,
        sges,
        u64::from(offset),
        bytes,
        LocalUse::Recv,
    )?;
    Ok(None)
}

#[inline]
pub(crate) fn hit<M>(x: &mut Context<M>, qp: &Qp, counter: Counter, bytes: u32, write: bool) {
    if let Some(counter) = counter {
        x.count(counter, qp.accessor().qp, bytes, write);
    }
}

/// The bytes of a piece are in place.
#[inline]
pub(crate) fn arrived<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    head: &Head,
    last: bool,
) -> Reply {
    if !last {
        if let Some(now) = &mut qp.resp.current {
            now.received += head.len;
        }
        return Reply::Done;
    }
    if head.op == Op::Send && head.flags.contains(HeadFlags::INVALIDATE) {
        let done = x
            .reach
            .protection
            .invalidate(Key(head.imm), &qp.accessor(), true);
        if let Err(denial) = done {
            x.fail_receive(qp, Status::LocalAccess, 0);
            return refuse(x, qp, node, head, Nak::RemoteAccess, Some(denial));
        }
    }
    qp.resp.current = None;
    qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
    if qp.resp.recv.held && (head.op == Op::Send || head.flags.contains(HeadFlags::IMMEDIATE)) {
        complete_receive(x, qp, head, head.total, CompletionFlags::empty());
    }
    Reply::Done
}

/// Completes the receive that is held.
#[inline]
pub(crate) fn complete_receive<M>(
    x: &mut Context<M>,
    qp: &mut Qp,
    head: &Head,
    bytes: u32,
    mut flags: CompletionFlags,
) {
    qp.resp.recv.held = false;
    let solicited = head.flags.contains(HeadFlags::SOLICITED);
    flags.set(
        CompletionFlags::IMM,
        head.flags.contains(HeadFlags::IMMEDIATE),
    );
    flags.set(
        CompletionFlags::INVALIDATED,
        head.flags.contains(HeadFlags::INVALIDATE),
    );
    flags.set(CompletionFlags::SOLICITED, solicited);
    let opcode = if head.op == Op::Send {
        CompletionOp::Recv
    } else {
        CompletionOp::RecvWriteImm
    };
    let entry = Completion {
        id: qp.resp.recv.id,
        status: Status::Success,
        opcode,
        flags,
        bytes,
        imm: head.imm,
        qpn: qp.qpn,
        src_qpn: head.src_qp,
        vendor: 0,
    };
    x.complete(qp.config.recv_cq, entry, solicited);
}

fn read<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    incoming: &Incoming<'_>,
) -> Reply {
    let head = &incoming.head;
    if !qp.config.qp_type.is_reliable() || qp.settings.max_reads_in == 0 {
        return refuse(x, qp, node, head, Nak::InvalidRequest, None);
    }
    if head.total > 0 {
        if let Err(reply) = allow(x, qp, node, head, Operation::Read) {
            return reply;
        }
        let asked = asked(qp, head);
        let whole = x
            .reach
            .lease(&asked, u64::from(head.total), Operation::Read)
            .map(drop);
        if let Err(denial) = whole {
            return refuse(x, qp, node, head, Nak::RemoteAccess, Some(denial));
        }
    }
    Reply::Bulk(Bulk::read(qp, head, &incoming.payload))
}

fn atomic<M: Memory>(x: &mut Context<M>, qp: &mut Qp, node: NodeId, head: &Head) -> Reply {
    let valid = qp.config.qp_type.is_reliable() && qp.settings.max_reads_in > 0;
    if !valid || !head.addr.is_multiple_of(8) {
        return refuse(x, qp, node, head, Nak::InvalidRequest, None);
    }
    if let Err(reply) = allow(x, qp, node, head, Operation::Atomic) {
        return reply;
    }
    let [a, b] = head.operands;
    let compare = head.op == Op::CompareSwap;
    let done = x.reach.atomic(&asked(qp, head), |memory, va| {
        if compare {
            memory.compare_swap(va, a, b)
        } else {
            memory.fetch_add(va, a)
        }
    });
    match done {
        Ok((old, counter)) => {
            hit(x, qp, counter, 8, true);
            qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
            let mut result = back(head, Op::AtomicResult);
            result.operands = [old, 0];
            Reply::Answer(Answer {
                head: result,
                wire: [0; WIRE_LEN],
            })
        }
        Err(trouble) => failed(x, qp, node, head, trouble),
    }
}

/// The bytes of a request could not be moved.
#[cold]
pub(crate) fn failed<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    head: &Head,
    trouble: Trouble,
) -> Reply {
    match trouble {
        Trouble::Denied(denial) if head.op == Op::Send => {
            // Our own receive named memory that it may not.
            let work = qp.resp.recv.id;
            let vendor = x.report(Side::Local, qp, node, Some(work), *denial);
            x.fail_receive(qp, Status::LocalProtection, vendor);
            refuse(x, qp, node, head, Nak::RemoteOperation, None)
        }
        Trouble::Denied(denial) => {
            let code = if matches!(denial.reason, Reason::Misaligned) {
                Nak::InvalidRequest
            } else {
                Nak::RemoteAccess
            };
            refuse(x, qp, node, head, code, Some(denial))
        }
        Trouble::Fault(fault) => {
            let attempt = Attempt::Remote(match head.op {
                Op::Read => Operation::Read,
                Op::Write | Op::Send => Operation::Write,
                _ => Operation::Atomic,
            });
            let key = NamedKey::Remote(wire_key(head));
            let len = u64::from(head.total);
            let denial = Denial::fault(attempt, key, head.addr, len, fault.address);
            refuse(x, qp, node, head, Nak::RemoteOperation, Some(denial))
        }
        // What a pull could not reach has been dealt with by whoever pulled.
        Trouble::Pull(_) => refuse(x, qp, node, head, Nak::RemoteOperation, None),
    }
}

/// Refuses a message for good: tells the peer, tells here, and takes the queue pair out of
/// service if its policy says so. Unreliable connections drop the message instead.
#[cold]
pub(crate) fn refuse<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    head: &Head,
    code: Nak,
    denial: Option<Box<Denial>>,
) -> Reply {
    qp.resp.current = None;
    let reply = Reply::nak_with(head, code as u32, denial.as_deref());
    if let Some(denial) = denial {
        x.report(Side::Target, qp, node, None, *denial);
    }
    if qp.config.qp_type == QpType::Uc {
        return Reply::Done;
    }
    qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
    if qp.config.survive_remote_error {
        return reply;
    }
    let (id, qpn) = (qp.id, qp.qpn);
    x.events.push_back(match code {
        Nak::RemoteAccess => Event::AccessError { qp: id, qpn },
        Nak::InvalidRequest => Event::RequestError { qp: id, qpn },
        _ => Event::QpFatal { qp: id, qpn },
    });
    if qp.resp.recv.held && head.op == Op::Write {
        // A write with immediate data had taken a receive.
        x.fail_receive(qp, Status::LocalAccess, 0);
    }
    x.enter_error(qp);
    reply
}
