//! Short requests that get a response: reads whose data fit into a slot, and atomics, executed straight from the ring.
//!
//! As in `short.rs`, a request that is unusual in any way stays at the front for the long way (`on_request`), the only one that
//! refuses, holds or drops requests.

use super::short::is_next;
use super::{count_access, named_key};
use crate::checked_memory::{Atomic, RequestedRange};
use crate::context::Context;
use crate::id::Table;
use crate::link_state::{LinkState, Meta};
use crate::numbers::Numbers;
use crate::qp::pair::{MSN_MASK, Qp};
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_core::Access;
use rkey_link::{AnsweredKind, AnsweredRequest, DownReason, Header, Link, Op};

/// What [`take_answered_request`] has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Nothing: the request stays at the front.
    Nothing,
    /// A request. There is room for the response to another one.
    One,
    /// A request, whose response took the last room.
    Last,
}

/// Takes the request at the front of the ring, if it is one of these. The caller has checked that nothing waits there, and that
/// there is room for a response.
// Out of line, so that sends and writes need no more registers.
#[inline(never)]
pub(super) fn take_answered_request<L: Link, M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    numbers: &Numbers,
    link_state: &mut LinkState<L>,
) -> Taken {
    let LinkState { link, meta } = link_state;
    let Some(request) = link.next_answered() else {
        return Taken::Nothing;
    };
    let Some(qp) = numbers.find(qps, &mut meta.last, request.dst_qp) else {
        return Taken::Nothing;
    };
    let may_answer = is_next(qp, meta.id, request.src_qp, request.msn)
        && qp.config.qp_type.is_reliable()
        && qp.settings.max_reads_in > 0;
    if !may_answer || !execute(x, qp, link, meta, &request) {
        return Taken::Nothing;
    }
    qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
    link.request_done();
    match link.room_to_respond() && meta.down.is_none() {
        true => Taken::One,
        false => Taken::Last,
    }
}

/// Executes a request and sends its response. Returns false, with nothing changed, if the request must stay at the front.
#[inline]
fn execute<L: Link, M: Memory>(
    x: &mut Context<M>,
    qp: &Qp,
    link: &mut L,
    meta: &mut Meta,
    request: &AnsweredRequest,
) -> bool {
    let range = RequestedRange {
        who: qp.accessor(),
        key: named_key(request.requested, request.key),
        addr: request.addr,
    };
    let what = match request.kind {
        AnsweredKind::Read(len) => return read(x, qp, link, &range, request, len),
        AnsweredKind::CompareSwap(compare, swap) => Atomic::CompareSwap(compare, swap),
        AnsweredKind::FetchAdd(add) => Atomic::FetchAdd(add),
    };
    // The check below looks at the address of the memory, which differs in regions with addresses of their own.
    if !qp.settings.access.contains(Access::REMOTE_ATOMIC) || !request.addr.is_multiple_of(8) {
        return false;
    }
    let Some((old, counter)) = x.checked.try_atomic(&range, what) else {
        return false;
    };
    count_access(x, qp, counter, 8, true);
    let mut answer = answer_to(request, Op::AtomicResult);
    answer.operands = [old, 0];
    if link.send_response(&answer, |_| Ok(())).is_err() {
        // There was room, so the link is down. The atomic must not be executed again.
        let reason = link.is_up().err().unwrap_or(DownReason::Closed);
        meta.down.get_or_insert(reason);
    }
    true
}

#[inline]
fn read<L: Link, M: Memory>(
    x: &mut Context<M>,
    qp: &Qp,
    link: &mut L,
    range: &RequestedRange,
    request: &AnsweredRequest,
    len: u32,
) -> bool {
    if !qp.settings.access.contains(Access::REMOTE_READ) {
        return false;
    }
    let mut answer = answer_to(request, Op::ReadData);
    (answer.len, answer.total) = (len, len);
    let mut loaded = None;
    let sent = link.send_response(&answer, |into| {
        loaded = x.checked.try_load_remote(range, into);
        loaded.map(drop).ok_or(Fault::at(range.addr))
    });
    let (Ok(()), Some(counter)) = (sent, loaded) else {
        return false;
    };
    count_access(x, qp, counter, len, false);
    true
}

#[inline(always)]
fn answer_to(request: &AnsweredRequest, op: Op) -> Header {
    Header {
        dst_qp: request.src_qp,
        src_qp: request.dst_qp,
        msn: request.msn,
        ..Header::new(op)
    }
}
