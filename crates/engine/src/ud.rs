//! Datagrams. At the receiver: the header in front, the queue key, and silence about everything that does
//! not fit (IBA 9.8.3). At the sender: the payload of those that wait until their receiver has been found.

use crate::CompletionFlags;
use crate::context::Context;
use crate::qp::pair::Qp;
use crate::responder::{complete_receive, take_receive};
use crate::send_queue::WqeFlags;
use rkey_base::memory::Memory;
use rkey_base::shared::{Foreign, Place};
use rkey_core::LocalUse;
use rkey_link::{HeadFlags, Incoming, Op, Payload};

/// Bytes of the global route header in front of a datagram.
pub const GRH_LEN: u32 = 40;

/// Receives a datagram, or drops it.
pub(crate) fn on_datagram<M: Memory>(x: &mut Context<M>, qp: &mut Qp, incoming: &Incoming<'_>) {
    let head = &incoming.head;
    let whole = head.flags.contains(HeadFlags::FIRST | HeadFlags::LAST) && head.len == head.total;
    let Payload::Bytes(bytes) = &incoming.payload else {
        return;
    };
    if !qp.state.responds()
        || head.op != Op::Send
        || !whole
        || head.flags.contains(HeadFlags::INVALIDATE)
        || head.addr != u64::from(qp.settings.qkey)
        || head.len > qp.settings.path_mtu
        || (!qp.resp.recv.held && !take_receive(x, qp))
    {
        return;
    }
    let len = u64::from(GRH_LEN) + u64::from(head.len);
    if len > qp.resp.recv.capacity {
        return; // the receive stays held for the next one
    }
    let domain = qp.resp.recv.domain;
    let sges = &qp.resp.recv.sges;
    let grh = x.config.grh;
    let mut placed = x
        .reach
        .scatter(domain, sges, 0, Foreign::from_slice(&grh), LocalUse::Recv);
    if placed.is_ok() && head.len > 0 {
        placed = x
            .reach
            .scatter(domain, sges, u64::from(GRH_LEN), *bytes, LocalUse::Recv);
    }
    match placed {
        Ok(()) => complete_receive(x, qp, head, len as u32, CompletionFlags::GRH),
        Err(trouble) => {
            let vendor = x.report_local(qp, qp.resp.recv.id, trouble);
            x.fail_receive(qp, crate::Status::LocalProtection, vendor);
            x.enter_error(qp);
        }
    }
}

/// Takes the payloads of datagrams that wait for a link.
///
/// Programs know that a datagram leaves within microseconds, whoever it is for, and some (UCX) use its
/// memory again when they hear from the peer, before they have seen the completion. Finding a peer takes
/// longer than that.
#[cold]
pub(crate) fn take_payloads<M: Memory>(x: &mut Context<M>, qp: &mut Qp) {
    for seq in qp.sq.kept_to.max(qp.sq.next)..qp.sq.tail {
        let wqe = qp.sq.wqe(seq);
        let there_already = wqe.flags.contains(WqeFlags::INLINE) || wqe.total == 0;
        if there_already || wqe.total > qp.settings.path_mtu {
            continue;
        }
        let mut bytes = vec![0; wqe.total as usize].into_boxed_slice();
        let domain = qp.config.domain;
        let place = Place::from_slice(&mut bytes);
        let taken = x
            .reach
            .gather(domain, qp.sq.sges(seq), 0, place, LocalUse::Send);
        // What cannot be read is told when its turn comes.
        if taken.is_ok() {
            qp.sq.keep(seq, bytes);
        }
    }
    qp.sq.kept_to = qp.sq.tail;
}
