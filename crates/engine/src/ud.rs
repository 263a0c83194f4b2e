//! Datagrams at the receiver: the header in front, the queue key, and silence about everything
//! that does not fit (IBA 9.8.3).

use crate::CompletionFlags;
use crate::context::Context;
use crate::qp::pair::Qp;
use crate::responder::{complete_receive, take_receive};
use rkey_base::memory::Memory;
use rkey_base::shared::Foreign;
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
