//! Cut-through for short requests that get a response: reads whose data fit into a slot, and atomics.
//!
//! As in `cut_through.rs`, everything unusual goes through the send queue instead.

use super::SHORT_MAX;
use super::cut_through::is_clear;
use super::fragment::record;
use super::remote_iovec::may_use_remote_iovec;
use crate::context::Context;
use crate::link_state::LinkState;
use crate::qp::pair::{MSN_MASK, Qp};
use crate::send_queue::{Detail, WqeFlags};
use crate::{CompletionOp, SendFlags, SendRequest, Sge, Status, Target, Work};
use rkey_base::memory::Memory;
use rkey_core::{LocalUse, RKey};
use rkey_link::{Header, HeaderFlags, Link, Op};

/// What a read or an atomic contributes to its header and to its entry in the send queue.
struct WorkFields {
    op: CompletionOp,
    link_op: Op,
    remote: Target,
    operands: Option<[u64; 2]>,
    want: LocalUse,
}

impl WorkFields {
    /// `None` for all other work.
    #[inline(always)]
    fn of(work: &Work) -> Option<Self> {
        let atomic = |op, link_op, remote, operands| Self {
            op,
            link_op,
            remote,
            operands: Some(operands),
            want: LocalUse::AtomicResult,
        };
        match *work {
            Work::Read { remote } => Some(Self {
                op: CompletionOp::Read,
                link_op: Op::Read,
                remote,
                operands: None,
                want: LocalUse::ReadSink,
            }),
            Work::CompareSwap {
                remote,
                compare,
                swap,
            } => {
                let (op, link_op) = (CompletionOp::CompareSwap, Op::CompareSwap);
                Some(atomic(op, link_op, remote, [compare, swap]))
            }
            Work::FetchAdd { remote, add } => {
                let (op, link_op) = (CompletionOp::FetchAdd, Op::FetchAdd);
                Some(atomic(op, link_op, remote, [add, 0]))
            }
            _ => None,
        }
    }
}

/// The one scatter/gather entry of a request that needs no other way to its data.
#[inline(always)]
fn sink<L: Link>(
    link_state: &LinkState<L>,
    qp: &Qp,
    request: &SendRequest<'_>,
    fields: &WorkFields,
) -> Option<Sge> {
    const PLAIN: SendFlags = SendFlags::SIGNALED.union(SendFlags::MORE);
    let in_slot = link_state.meta.caps.in_slot_max.min(SHORT_MAX);
    let [sge] = *request.sges else { return None };
    let fits = match fields.operands {
        Some(_) => sge.len == 8,
        None => {
            (1..=in_slot).contains(&sge.len)
                && !may_use_remote_iovec(link_state, qp, u64::from(sge.len))
        }
    };
    let is_plain = PLAIN.contains(request.flags)
        && request.inline.is_none()
        && request.prefix.is_empty()
        && qp.config.max_send_sge > 0;
    let may_start = is_clear(qp)
        && qp.config.qp_type.is_reliable()
        && qp.req.reads.len() < usize::from(qp.settings.max_reads_out)
        && link_state.meta.down.is_none();
    (fits && is_plain && may_start).then_some(sge)
}

/// Sends a request at once, then enters it into the send queue. Returns false, with nothing changed, if the request
/// must go through the send queue.
#[inline(never)]
pub(crate) fn cut_through_answered<L: Link, M: Memory>(
    x: &Context<M>,
    link_state: &mut LinkState<L>,
    qp: &mut Qp,
    request: &SendRequest<'_>,
) -> bool {
    let Some(fields) = WorkFields::of(&request.work) else {
        return false;
    };
    let Some(sge) = sink(link_state, qp, request, &fields) else {
        return false;
    };
    // Do not request data that could not be stored on arrival.
    let (domain, len) = (qp.config.domain, u64::from(sge.len));
    let section = &x.checked.section;
    if section
        .fast_check_local(domain, sge.key, sge.addr, len, fields.want)
        .is_none()
    {
        return false;
    }
    let (key, requested) = match fields.remote.key {
        RKey::Device(key) => (u64::from(key.0), false),
        RKey::Requested(key) => (key, true),
    };
    let mut header_flags = HeaderFlags::FIRST.union(HeaderFlags::LAST);
    header_flags.set(HeaderFlags::REQUESTED_KEY, requested);
    let header = Header {
        op: fields.link_op,
        flags: header_flags,
        dst_qp: qp.peer_qpn(),
        src_qp: qp.qpn,
        msn: qp.req.msn,
        len: 0,
        total: sge.len,
        addr: fields.remote.addr,
        key,
        imm: 0,
        operands: fields.operands.unwrap_or_default(),
    };
    // The path through the send queue finds a full link again, and handles it.
    if link_state.link.send_request(&header, |_| Ok(())).is_err() {
        return false;
    }
    let (msn, seq) = (qp.req.msn, qp.sq.tail);
    let mut flags = WqeFlags::of(request);
    flags.set(WqeFlags::REQUESTED_KEY, requested);
    if let Some(operands) = fields.operands {
        qp.sq.set_next_detail(Detail::Atomic(operands));
    }
    let wqe = qp.sq.tail_mut();
    (wqe.op, wqe.addr, wqe.key, wqe.imm) = (fields.op, fields.remote.addr, key, 0);
    (wqe.id, wqe.status, wqe.flags) = (request.id, Status::Success, flags);
    (wqe.total, wqe.vendor, wqe.msn) = (sge.len, 0, msn);
    (wqe.received, wqe.prefix_len, wqe.sges) = (0, 0, 1);
    qp.sq.push(&[sge], None, &[]);
    record(link_state, qp, seq, true);
    qp.req.reads.push_back(seq);
    qp.req.msn = (msn + 1) & MSN_MASK;
    qp.sq.next = seq + 1;
    true
}
