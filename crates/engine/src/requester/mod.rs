//! The requester: starts work requests in order, one send queue at a time.
//!
//! [`send_queued_connected`] runs when a request is posted to a connected queue pair that has a link. [`send_queued`] runs
//! for all other posts, when the queue pair's link has room again, when a delay ends, and when a response unblocks a
//! request. `fragment.rs` splits requests into fragments and passes them to the link; `datagram.rs`
//! does so for datagrams; `response.rs` handles responses. `cut_through.rs` sends a short request at once if nothing
//! delays it, and enters it into the queue afterwards; `answered.rs` does so for reads and atomics. `push.rs` executes a write
//! here, if the target has issued a warrant for it.

mod answered;
mod cut_through;
mod datagram;
mod fragment;
mod multicast;
mod push;
mod remote_iovec;
pub(crate) mod response;

use crate::bind;
use crate::context::Context;
use crate::id::Table;
use crate::link_state::LinkState;
use crate::qp::pair::{MSN_MASK, Qp};
use crate::send_queue::WqeFlags;
use crate::{CompletionOp, Event, Status, wire};
use rkey_base::memory::Memory;
use rkey_link::{DownReason, Link, SendError};

pub(crate) use answered::cut_through_answered;
pub(crate) use cut_through::cut_through;
pub(crate) use datagram::drop_datagram;
use datagram::send_queued_datagrams;
pub(crate) use fragment::put_prefix;
use fragment::{record, send_fragment};
pub(crate) use multicast::group_of;
pub use push::WarrantedRegion;
pub(crate) use push::push;

/// The maximum length of a short message: it fits into one slot. A constant lets the compiler see that a short message
/// takes the fast path through the link.
const SHORT_MAX: u32 = 208;

/// Sends what is in the send queue, as far as possible.
pub(crate) fn send_queued<L: Link, M: Memory>(
    x: &mut Context<M>,
    links: &mut Table<LinkState<L>>,
    qp: &mut Qp,
) {
    if qp.config.qp_type.is_datagram() {
        send_queued_datagrams(x, links, qp);
    } else if qp.wire.is_some() {
        wire::send_queued_on_wire(x, qp);
    } else {
        let link_state = qp.out.and_then(|id| links.get_mut(id));
        send_queued_connected(x, link_state, qp);
    }
}

/// Sends what is in the send queue of a connected queue pair, as far as possible. Without a link, requests one.
#[inline(always)]
pub(crate) fn send_queued_connected<L: Link, M: Memory>(
    x: &mut Context<M>,
    mut link_state: Option<&mut LinkState<L>>,
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
        let Some(link_state) = link_state
            .as_deref_mut()
            .filter(|link_state| link_state.meta.down.is_none())
        else {
            request_link(x, qp, qp.peer_qpn());
            return;
        };
        if let Err(error) = send_fragment(x, link_state, qp) {
            wait_for_room(link_state, qp, error);
            return;
        }
    }
}

/// Handles a fragment that the link did not accept: the queue pair waits for room, or the link is down.
#[cold]
pub(crate) fn wait_for_room<L: Link>(link_state: &mut LinkState<L>, qp: &mut Qp, error: SendError) {
    if error == SendError::Full {
        qp.req.blocked = true;
        link_state
            .meta
            .blocked
            .push_back((qp.id.index, qp.id.generation));
    } else {
        let reason = link_state.link.is_up().err().unwrap_or(DownReason::Closed);
        link_state.meta.down.get_or_insert(reason);
    }
}

pub(crate) enum Start {
    /// The request may be sent.
    Send,
    /// The request has ended on this side.
    Ended,
    /// The request must wait.
    Wait,
}

/// Whether the request at `next` may start; executes it if it is local.
#[inline(always)]
fn start<M: Memory>(x: &mut Context<M>, qp: &mut Qp) -> Start {
    const NOT_PLAIN: WqeFlags = WqeFlags::FENCE.union(WqeFlags::DONE);
    let wqe = qp.sq.wqe(qp.sq.next);
    if wqe.op == CompletionOp::Write && !wqe.flags.intersects(NOT_PLAIN) {
        return Start::Send;
    }
    start_any(x, qp)
}

/// Like [`start`], for any request.
#[inline(never)]
pub(crate) fn start_any<M: Memory>(x: &mut Context<M>, qp: &mut Qp) -> Start {
    let seq = qp.sq.next;
    let wqe = qp.sq.wqe(seq);
    if wqe.flags.intersects(WqeFlags::FENCE.union(WqeFlags::DONE)) {
        if wqe.flags.contains(WqeFlags::DONE) {
            // The request had already ended when the queue was rewound to resend earlier requests.
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
            // All earlier requests must be complete: if one of them failed, this one would have to be flushed, but it
            // cannot be undone.
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
            x.complete_ended_sends(qp);
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

/// Fails the request at `seq`, which is `next` or earlier, on this side.
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
            // The peer may not have acknowledged the fragments already sent.
            x.leave_orphans(qp, seq..seq + 1);
        }
        qp.req.offset = 0;
    }
    // Earlier requests complete first, then this one. Unless the queue pair has `survive_remote_error`, no later one is
    // started.
    qp.req.stopped = !qp.config.survive_remote_error;
    x.complete_ended_sends(qp);
}

#[cold]
pub(crate) fn request_link<M>(x: &mut Context<M>, qp: &mut Qp, peer: u32) {
    if !qp.req.link_requested {
        qp.req.link_requested = true;
        x.events.push_back(Event::LinkNeeded { qp: qp.id, peer });
    }
}
