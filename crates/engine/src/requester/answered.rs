//! Cut-through for short requests that get a response: reads whose data fit into a slot, and atomics.
//!
//! As in `cut_through.rs`, everything unusual goes through the send queue instead.

use super::SHORT_MAX;
use super::cut_through::{WorkFields, enter, is_clear};
use super::remote_iovec::may_use_remote_iovec;
use crate::context::Context;
use crate::link_state::LinkState;
use crate::qp::pair::Qp;
use crate::send_queue::Detail;
use crate::{CompletionOp, SendFlags, SendRequest, Sge, Work};
use rkey_base::memory::Memory;
use rkey_core::LocalUse;
use rkey_link::{Header, HeaderFlags, Link, Op};

/// A read or an atomic without extras.
struct Answered {
    fields: WorkFields,
    op: Op,
    /// Of an atomic.
    operands: Option<[u64; 2]>,
    want: LocalUse,
}

impl Answered {
    /// `None` for all other work.
    #[inline(always)]
    fn of(work: &Work) -> Option<Self> {
        let (completes, op, remote, operands) = match work {
            Work::Read { remote } => (CompletionOp::Read, Op::Read, remote, None),
            Work::CompareSwap {
                remote,
                compare,
                swap,
            } => {
                let operands = Some([*compare, *swap]);
                (CompletionOp::CompareSwap, Op::CompareSwap, remote, operands)
            }
            Work::FetchAdd { remote, add } => (
                CompletionOp::FetchAdd,
                Op::FetchAdd,
                remote,
                Some([*add, 0]),
            ),
            _ => return None,
        };
        Some(Self {
            fields: WorkFields::to(completes, remote),
            op,
            operands,
            want: match operands {
                Some(_) => LocalUse::AtomicResult,
                None => LocalUse::ReadSink,
            },
        })
    }
}

/// The one scatter/gather entry of a request that needs no other way to its data.
#[inline(always)]
fn sink<L: Link>(
    link_state: &LinkState<L>,
    qp: &Qp,
    request: &SendRequest<'_>,
    is_atomic: bool,
) -> Option<Sge> {
    const PLAIN: SendFlags = SendFlags::SIGNALED.union(SendFlags::MORE);
    let in_slot = link_state.meta.caps.in_slot_max.min(SHORT_MAX);
    let [sge] = *request.sges else { return None };
    let fits = match is_atomic {
        true => sge.len == 8,
        false => {
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
    let Some(work) = Answered::of(&request.work) else {
        return false;
    };
    let Some(sge) = sink(link_state, qp, request, work.operands.is_some()) else {
        return false;
    };
    // Do not request data that could not be stored on arrival.
    let (domain, len) = (qp.config.domain, u64::from(sge.len));
    let section = &x.checked.section;
    if section
        .fast_check_local(domain, sge.key, sge.addr, len, work.want)
        .is_none()
    {
        return false;
    }
    let mut flags = HeaderFlags::FIRST.union(HeaderFlags::LAST);
    flags.set(HeaderFlags::REQUESTED_KEY, work.fields.requested);
    let header = Header {
        op: work.op,
        flags,
        dst_qp: qp.peer_qpn(),
        src_qp: qp.qpn,
        msn: qp.req.msn,
        len: 0,
        total: sge.len,
        addr: work.fields.addr,
        key: work.fields.key,
        imm: 0,
        operands: work.operands.unwrap_or_default(),
    };
    // The path through the send queue finds a full link again, and handles it.
    if link_state.link.send_request(&header, |_| Ok(())).is_err() {
        return false;
    }
    if let Some(operands) = work.operands {
        qp.sq.set_next_detail(Detail::Atomic(operands));
    }
    let seq = qp.sq.tail;
    qp.sq.tail_mut().received = 0;
    enter(link_state, qp, request, &work.fields, sge.len);
    qp.req.reads.push_back(seq);
    true
}
