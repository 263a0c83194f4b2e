//! Cut-through: a short send or write goes from the program's request straight to its slot in the link's ring.
//!
//! Usually no earlier request waits in the send queue, and the link has room. The slot is then filled from the request
//! itself, and the entry that `post.rs` and `fragment.rs` would have written is added to the send queue afterwards.
//! Every other request goes through the send queue; only there are requests refused, delayed or failed. If a request
//! cannot cut through, nothing has changed.

use super::SHORT_MAX;
use super::fragment::{put_prefix, record};
use crate::context::Context;
use crate::link_state::LinkState;
use crate::qp::pair::{MSN_MASK, Qp};
use crate::send_queue::WqeFlags;
use crate::{CompletionOp, QpState, SendFlags, SendRequest, Status, Target, Work};
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_core::{LocalUse, RKey};
use rkey_link::{Header, HeaderFlags, Link, Op};

/// What a request without extras contributes to its header: the operation, and the peer's memory that it names.
pub(super) struct WorkFields {
    pub(super) op: CompletionOp,
    pub(super) addr: u64,
    pub(super) key: u64,
    pub(super) requested: bool,
}

impl WorkFields {
    /// Those of a one-sided operation.
    #[inline(always)]
    pub(super) fn to(op: CompletionOp, remote: &Target) -> Self {
        let (key, requested) = match remote.key {
            RKey::Device(key) => (u64::from(key.0), false),
            RKey::Requested(key) => (key, true),
        };
        Self {
            op,
            addr: remote.addr,
            key,
            requested,
        }
    }

    /// Those of a send or a write; `None` if the work is something else, or has extras.
    #[inline(always)]
    fn of(work: &Work) -> Option<Self> {
        match work {
            Work::Write { remote, imm: None } => Some(Self::to(CompletionOp::Write, remote)),
            Work::Send {
                imm: None,
                invalidate: None,
            } => Some(Self {
                op: CompletionOp::Send,
                addr: 0,
                key: 0,
                requested: false,
            }),
            _ => None,
        }
    }
}

/// Whether a request posted to this queue pair would start at once.
#[inline(always)]
pub(super) fn is_clear(qp: &Qp) -> bool {
    qp.state == QpState::Rts
        && qp.config.qp_type.is_plain_connection()
        && qp.sq.next == qp.sq.tail
        && qp.may_send()
        && !qp.sq.is_full()
}

/// The length of a short message that is inline or has one scatter/gather entry, perhaps after a prefix; `None` for
/// others, and if the queue pair does not accept it.
#[inline(always)]
fn length(qp: &Qp, request: &SendRequest<'_>, op: CompletionOp) -> Option<usize> {
    let (len, copied) = match (request.inline, request.sges) {
        (Some(bytes), []) if request.prefix.is_empty() => (bytes.len(), bytes.len()),
        (None, [one]) => (
            request.prefix.len().checked_add(one.len as usize)?,
            request.prefix.len(),
        ),
        _ => return None,
    };
    let fits = (1..=SHORT_MAX as usize).contains(&len) && copied <= qp.config.max_inline as usize;
    let plain = request.prefix.is_empty() || op == CompletionOp::Send;
    let elements = request.inline.is_some() || qp.config.max_send_sge > 0;
    (fits && plain && elements).then_some(len)
}

/// Sends a request at once, then enters it into the send queue. Returns false, with nothing changed, if the request
/// must go through the send queue.
#[inline(always)]
pub(crate) fn cut_through<L: Link, M: Memory>(
    x: &Context<M>,
    link_state: &mut LinkState<L>,
    qp: &mut Qp,
    request: &SendRequest<'_>,
) -> bool {
    const PLAIN: SendFlags = SendFlags::SIGNALED.union(SendFlags::MORE);
    let Some(fields) = WorkFields::of(&request.work) else {
        return false;
    };
    if !PLAIN.contains(request.flags) || !is_clear(qp) || link_state.meta.down.is_some() {
        return false;
    }
    let len = match length(qp, request, fields.op) {
        Some(len) if len as u64 <= u64::from(link_state.meta.caps.in_slot_max) => len,
        _ => return false,
    };
    let write = fields.op == CompletionOp::Write;
    let mut flags = HeaderFlags::FIRST.union(HeaderFlags::LAST);
    flags.set(HeaderFlags::REQUESTED_KEY, fields.requested);
    // If nothing else is outstanding, the program is probably waiting for this one.
    flags.set(HeaderFlags::ACK_NOW, qp.sq.next == qp.sq.head);
    let header = Header {
        op: if write { Op::Write } else { Op::Send },
        flags,
        dst_qp: qp.peer_qpn(),
        src_qp: qp.qpn,
        msn: qp.req.msn,
        len: len as u32,
        total: len as u32,
        addr: fields.addr,
        key: fields.key,
        imm: 0,
        operands: [0; 2],
    };
    let usage = if write {
        LocalUse::WriteSource
    } else {
        LocalUse::Send
    };
    let domain = qp.config.domain;
    // The path through the send queue finds a full link or unreadable memory again, and handles it.
    let sent = link_state.link.send_request(&header, |mut into| {
        if let Some(bytes) = request.inline {
            into.put(0, bytes);
            return Ok(());
        }
        let (into, _) = put_prefix(request.prefix, 0, into);
        let gathered = x.checked.gather(domain, request.sges, 0, into, usage);
        gathered.map_err(|_| Fault::at(0))
    });
    if sent.is_err() {
        return false;
    }
    enter(link_state, qp, request, &fields, len as u32);
    true
}

/// Enters a request that has been sent into the send queue.
#[inline(always)]
pub(super) fn enter<L: Link>(
    link_state: &mut LinkState<L>,
    qp: &mut Qp,
    request: &SendRequest<'_>,
    fields: &WorkFields,
    len: u32,
) {
    let seq = qp.sq.tail;
    let mut flags = WqeFlags::of(request);
    flags.set(WqeFlags::REQUESTED_KEY, fields.requested);
    let msn = qp.req.msn;
    let wqe = qp.sq.tail_mut();
    (wqe.op, wqe.addr, wqe.key, wqe.imm) = (fields.op, fields.addr, fields.key, 0);
    (wqe.id, wqe.status, wqe.flags) = (request.id, Status::Success, flags);
    (wqe.total, wqe.vendor, wqe.msn) = (len, 0, msn);
    wqe.prefix_len = request.prefix.len() as u32;
    wqe.sges = u32::from(request.inline.is_none());
    qp.sq.push(request.sges, request.inline, request.prefix);
    record(link_state, qp, seq, true);
    qp.req.msn = (msn + 1) & MSN_MASK;
    qp.sq.next = seq + 1;
}
