//! The responder: takes requests from a link, decides, executes, answers.
//!
//! A request comes in here. One that needs a single step is executed here: a write of one piece, an atomic. Messages
//! of several pieces are put together in `message.rs`, the receives that they use up are in `receive.rs`, and what
//! takes longer than a step goes to `bulk.rs`. `reply.rs` is what a request can come to, `refusal.rs` how one is
//! turned down for good.
//!
//! For reliable connections one rule keeps requesters honest about what happened: every message
//! that is not executed is answered. Pieces that belong to no message in progress are dropped
//! without a word, because the first piece of their message has been answered.

mod message;
mod receive;
mod refusal;
mod reply;

use crate::answer::find;
use crate::bulk::Bulk;
use crate::context::Context;
use crate::groups;
use crate::id::Table;
use crate::inbox::Desk;
use crate::nak::Nak;
use crate::numbers::Numbers;
use crate::port::Meta;
use crate::qp::pair::{MSN_MASK, Qp};
use crate::reach::{Asked, Counter};
use crate::{Event, QpState, ud, xrc};
use rkey_base::memory::Memory;
use rkey_base::shared::Foreign;
use rkey_core::{Access, Denial, Key, Operation, WIRE_LEN, WireKey};
use rkey_link::{Head, HeadFlags, Incoming, NodeId, Op, Payload};

pub(crate) use message::arrived;
use message::{begin, piece, resynchronise};
pub(crate) use receive::{complete_receive, take_receive};
pub(crate) use refusal::{failed, refuse};
pub(crate) use reply::{Answer, Reply, back};

/// Takes a request.
#[inline(always)]
pub(crate) fn on_request<M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    numbers: &Numbers,
    meta: &mut Meta,
    incoming: &Incoming<'_>,
    desk: &mut Option<Desk<'_, M>>,
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
        .union(HeadFlags::INVALIDATE)
        .union(HeadFlags::BY_REFERENCE);
    // A message of one piece, and the next in its order: most of what arrives.
    if head.flags.intersection(HOW) == HeadFlags::FIRST.union(HeadFlags::LAST)
        && head.msn == qp.resp.msn
        && head.len == head.total
        && head.len > 0
        && qp.resp.current.is_none()
        && let Payload::Bytes(bytes) = &incoming.payload
    {
        if head.op == Op::Write && qp.settings.access.contains(Access::REMOTE_WRITE) {
            return small_write(x, qp, meta.node, head, *bytes);
        }
        if head.op == Op::Send
            && !qp.resp.recv.held
            && let Some(desk) = desk
            && desk.take(x, qp, *bytes)
        {
            qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
            return Reply::Done;
        }
    }
    request_of_peer(x, qp, meta.node, incoming)
}

/// A write of one piece.
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
    } else if let Err(reply) = still_allowed(x, qp, node, head) {
        return reply;
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
    let api = x.reach.protection.api();
    let denial = Denial::by_queue_pair(&who, key, head.addr, len, want, granted, api);
    Err(refuse(x, qp, node, head, Nak::RemoteAccess, Some(denial)))
}

/// [`allow`] for a message that has begun: the rights of a queue pair may have been taken away since, and what is left
/// of a message can be 4 GiB and as long in coming as the peer likes.
#[inline]
pub(crate) fn still_allowed<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    head: &Head,
) -> Result<(), Reply> {
    match head.op {
        Op::Write => allow(x, qp, node, head, Operation::Write),
        Op::Read if head.total > 0 => allow(x, qp, node, head, Operation::Read),
        _ => Ok(()),
    }
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

#[inline]
pub(crate) fn hit<M>(x: &mut Context<M>, qp: &Qp, counter: Counter, bytes: u32, write: bool) {
    if let Some(counter) = counter {
        x.count(counter, qp.accessor().qp, bytes, write);
    }
}
