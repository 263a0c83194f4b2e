//! The responder: takes requests from a link, checks and executes them, and responds.
//!
//! Every request arrives here; `short.rs` and `answered.rs` execute the short ones, unless something about them is unusual. Other requests
//! that take one step are executed in this file: a write of one fragment, an atomic. `message.rs` assembles messages of
//! several fragments, `receive.rs` has the receives that they consume, and `bulk.rs` handles requests that take several
//! steps. The possible outcomes are in `reply.rs`, final refusals in `refusal.rs`.
//!
//! For reliable connections, every message that is not executed gets a response, so that the requester knows what
//! happened. Fragments that belong to no message in progress are dropped silently, because the first fragment of
//! their message got a response.

mod answered;
mod bulk;
mod datagram;
mod message;
mod multicast;
mod receive;
mod refusal;
mod reply;
mod rss;
mod short;
mod xrc;

use crate::checked_memory::{Atomic, Counter, RequestedRange};
use crate::context::Context;
use crate::groups::GROUP_QPN;
use crate::id::Table;
use crate::inbox::OpenInbox;
use crate::link_state::{Bulk, Meta, Response};
use crate::nak::Nak;
use crate::numbers::Numbers;
use crate::qp::pair::{MSN_MASK, Qp};
use crate::{AsyncEvent, Event, QpState};
use rkey_base::memory::Memory;
use rkey_base::shared::PeerBytes;
use rkey_core::{Access, DENIAL_LEN, Denial, Key, Operation, RKey};
use rkey_link::{Header, HeaderFlags, NodeId, Op, Payload, ReceivedFragment};

pub(crate) use bulk::{Stepped, bulk_step};
pub(crate) use datagram::fits;
pub(crate) use message::finish_fragment;
use message::{begin_message, resynchronise, store_fragment};
pub(crate) use receive::{complete_receive, take_receive};
pub(crate) use refusal::{refuse, refuse_failed_access};
pub(crate) use reply::{Reply, response_header};
pub(crate) use short::take_short_requests;

/// Handles a request that has arrived on a link.
#[inline(always)]
pub(crate) fn on_request<M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    numbers: &Numbers,
    meta: &mut Meta,
    incoming: &ReceivedFragment<'_>,
    inbox: &mut Option<OpenInbox<'_, M>>,
) -> Reply {
    let header = &incoming.header;
    let Some(qp) = numbers.find(qps, &mut meta.last, header.dst_qp) else {
        return unaddressed(x, qps, incoming);
    };
    if qp.config.qp_type.is_datagram() {
        datagram::on_datagram(x, qp, incoming);
        return Reply::Done;
    }
    if (qp.inbound != Some(meta.id) && !recognise(qp, meta))
        || !qp.state.responds()
        || qp.peer.is_none_or(|peer| peer.qpn != header.src_qp)
    {
        return unrecognised(qp, header);
    }
    if !qp.resp.established {
        establish(x, qp);
    }
    if !qp.config.qp_type.is_plain_connection()
        && let Err(reply) = xrc::find_queue(x, qp, meta.node, header)
    {
        return reply;
    }
    const HOW: HeaderFlags = HeaderFlags::FIRST
        .union(HeaderFlags::LAST)
        .union(HeaderFlags::IMMEDIATE)
        .union(HeaderFlags::INVALIDATE)
        .union(HeaderFlags::REMOTE_IOVEC);
    // A message of one fragment, in order, that is not short, or is behind a request in this round that is not.
    if header.flags.intersection(HOW) == HeaderFlags::FIRST.union(HeaderFlags::LAST)
        && header.msn == qp.resp.msn
        && header.len == header.total
        && header.len > 0
        && qp.resp.current.is_none()
        && let Payload::Bytes(bytes) = &incoming.payload
    {
        if header.op == Op::Write && qp.settings.access.contains(Access::REMOTE_WRITE) {
            return write_of_one_fragment(x, qp, meta.node, header, *bytes);
        }
        if header.op == Op::Send
            && !qp.resp.recv.taken
            && let Some(inbox) = inbox
            && inbox.offer(x, qp, *bytes)
        {
            qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
            return Reply::Done;
        }
    }
    if x.acks_first
        && qp.sq.head != qp.sq.next
        && (header.op == Op::Send || header.flags.contains(HeaderFlags::IMMEDIATE))
    {
        x.is_deferred = true;
        return Reply::Hold;
    }
    request_of_peer(x, qp, meta.node, incoming)
}

/// A write of one fragment.
#[inline(always)]
fn write_of_one_fragment<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    header: &Header,
    bytes: PeerBytes<'_>,
) -> Reply {
    match x.checked.store_remote(&requested_range(qp, header), bytes) {
        Ok(counter) => {
            count_access(x, qp, counter, header.len, true);
            qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
            Reply::Done
        }
        Err(trouble) => refuse_failed_access(x, qp, node, header, trouble),
    }
}

/// Handles any other request from the connected peer.
fn request_of_peer<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    incoming: &ReceivedFragment<'_>,
) -> Reply {
    let header = &incoming.header;
    if header.flags.contains(HeaderFlags::FIRST) {
        if (qp.resp.current.is_some() || header.msn != qp.resp.msn)
            && let Err(reply) = resynchronise(x, qp, node, header)
        {
            return reply;
        }
        match header.op {
            Op::Send | Op::Write => {
                if let Err(reply) = begin_message(x, qp, node, header) {
                    return reply;
                }
            }
            Op::Read => return read(x, qp, node, incoming),
            Op::CompareSwap | Op::FetchAdd => return atomic(x, qp, node, header),
            _ => return Reply::Done,
        }
    } else if qp
        .resp
        .current
        .is_none_or(|now| now.msn != header.msn || now.op != header.op)
    {
        return Reply::Done;
    } else if let Err(reply) = qp_still_allows(x, qp, node, header) {
        return reply;
    }
    store_fragment(x, qp, node, incoming)
}

/// A request that is not for an existing queue pair: for a group, or for a queue pair that does not exist (yet).
#[cold]
fn unaddressed<M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    incoming: &ReceivedFragment<'_>,
) -> Reply {
    if incoming.header.dst_qp == GROUP_QPN {
        return multicast::deliver_to_group(x, qps, incoming);
    }
    not_ready(&incoming.header)
}

#[cold]
fn not_ready(header: &Header) -> Reply {
    Reply::nak(header, Nak::NotReady)
}

/// A request that did not come from the peer of its queue pair, or arrived too early.
///
/// A peer that has our number may send before we have determined which device it is on. On a reliable connection, the peer
/// retries. An unreliable connection has no retries, so dropping the request would lose it. Such a request stays on the link
/// until the search for the peer's device ends; that search does not need this link.
#[cold]
fn unrecognised(qp: &Qp, header: &Header) -> Reply {
    let may_be_peer = qp
        .peer
        .is_some_and(|peer| peer.qpn == header.src_qp && peer.node.is_none());
    let searches = may_be_peer && qp.req.link_requested && qp.state.responds();
    match (qp.config.qp_type.is_reliable(), searches) {
        (true, true) => Reply::nak(header, Nak::Searching),
        (true, false) => not_ready(header),
        (false, true) => Reply::Hold,
        (false, false) => Reply::Done,
    }
}

/// Whether the link comes from the peer of the queue pair. If so, records the link.
#[cold]
fn recognise(qp: &mut Qp, meta: &Meta) -> bool {
    let known = qp.peer.and_then(|peer| peer.node) == Some(meta.node);
    if known {
        qp.inbound = Some(meta.id);
    }
    known
}

#[cold]
pub(crate) fn establish<M>(x: &mut Context<M>, qp: &mut Qp) {
    qp.resp.established = true;
    if qp.state == QpState::Rtr {
        x.events
            .push_back(Event::Async(AsyncEvent::CommEstablished {
                qp: qp.id,
                qpn: qp.qpn,
            }));
    }
}

fn read<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    incoming: &ReceivedFragment<'_>,
) -> Reply {
    let header = &incoming.header;
    if !qp.config.qp_type.is_reliable() || qp.settings.max_reads_in == 0 {
        return refuse(x, qp, node, header, Nak::InvalidRequest, None);
    }
    if header.total > 0 {
        if let Err(reply) = qp_allows(x, qp, node, header, Operation::Read) {
            return reply;
        }
        let range = requested_range(qp, header);
        let whole = x
            .checked
            .grant(&range, u64::from(header.total), Operation::Read)
            .map(drop);
        if let Err(denial) = whole {
            return refuse(x, qp, node, header, Nak::RemoteAccess, Some(denial));
        }
    }
    Reply::Bulk(Bulk::of_read(qp, header, &incoming.payload))
}

fn atomic<M: Memory>(x: &mut Context<M>, qp: &mut Qp, node: NodeId, header: &Header) -> Reply {
    let valid = qp.config.qp_type.is_reliable() && qp.settings.max_reads_in > 0;
    if !valid || !header.addr.is_multiple_of(8) {
        return refuse(x, qp, node, header, Nak::InvalidRequest, None);
    }
    if let Err(reply) = qp_allows(x, qp, node, header, Operation::Atomic) {
        return reply;
    }
    let [a, b] = header.operands;
    let what = match header.op {
        Op::CompareSwap => Atomic::CompareSwap(a, b),
        _ => Atomic::FetchAdd(a),
    };
    let done = x.checked.atomic(&requested_range(qp, header), what);
    match done {
        Ok((old, counter)) => {
            count_access(x, qp, counter, 8, true);
            qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
            let mut result = response_header(header, Op::AtomicResult);
            result.operands = [old, 0];
            Reply::Response(Response {
                header: result,
                denial: [0; DENIAL_LEN],
            })
        }
        Err(trouble) => refuse_failed_access(x, qp, node, header, trouble),
    }
}

/// Whether the queue pair itself allows the operation (VB-I06).
#[inline]
fn qp_allows<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    header: &Header,
    want: Operation,
) -> Result<(), Reply> {
    if qp.settings.access.contains(want.needs()) {
        return Ok(());
    }
    let len = u64::from(header.total);
    let granted = qp.settings.access & Access::REMOTE;
    let (who, key) = (qp.accessor(), rkey(header));
    let api = who.domain.api();
    let denial = Denial::by_queue_pair(&who, key, header.addr, len, want, granted, api);
    Err(refuse(x, qp, node, header, Nak::RemoteAccess, Some(denial)))
}

/// Like [`qp_allows`], for a message in progress: the queue pair's rights may have been revoked since the message
/// began, and the rest of a message can be up to 4 GiB, which arrive as slowly as the peer likes. The key is checked
/// again with each access to memory.
#[inline]
pub(crate) fn qp_still_allows<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    header: &Header,
) -> Result<(), Reply> {
    match header.op {
        Op::Write => qp_allows(x, qp, node, header, Operation::Write),
        Op::Read if header.total > 0 => qp_allows(x, qp, node, header, Operation::Read),
        _ => Ok(()),
    }
}

#[inline]
fn rkey(header: &Header) -> RKey {
    named_key(
        header.flags.contains(HeaderFlags::REQUESTED_KEY),
        header.key,
    )
}

/// The key that a request names by this number.
#[inline(always)]
fn named_key(requested: bool, key: u64) -> RKey {
    match requested {
        true => RKey::Requested(key),
        false => RKey::Device(Key(key as u32)),
    }
}

#[inline]
pub(crate) fn requested_range(qp: &Qp, header: &Header) -> RequestedRange {
    RequestedRange {
        who: qp.accessor(),
        key: rkey(header),
        addr: header.addr,
    }
}

#[inline]
pub(crate) fn count_access<M>(
    x: &mut Context<M>,
    qp: &Qp,
    counter: Counter,
    bytes: u32,
    write: bool,
) {
    if let Some(counter) = counter {
        x.count(counter, qp.counted_as(), bytes, write);
    }
}
