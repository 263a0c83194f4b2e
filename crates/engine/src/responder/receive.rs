//! The receive that a message consumes: where it is taken from, and how it completes.
//!
//! A send takes a receive for its payload; a write with immediate data takes one only for the notification. Between the
//! first and the last fragment of the message, the receive is in `qp.resp.recv`.

use super::Reply;
use crate::context::Context;
use crate::nak::Nak;
use crate::qp::pair::Qp;
use crate::{AsyncEvent, Completion, CompletionFlags, CompletionOp, Event, QpType, Status};
use rkey_link::{Header, HeaderFlags, Op};

/// Takes a receive from the queue pair's own queue or the shared one.
#[inline(always)]
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
        x.events
            .push_back(Event::Async(AsyncEvent::SrqLimit(srq.id)));
    }
    taken
}

#[cold]
pub(super) fn no_receive(qp: &Qp, header: &Header) -> Reply {
    if qp.config.qp_type == QpType::Uc {
        return Reply::Done;
    }
    let delay = u32::from(qp.settings.min_rnr_timer & 31) << 8;
    Reply::nak_with(header, Nak::ReceiverNotReady as u32 | delay)
}

/// Completes the receive that the message took.
#[inline(always)]
pub(crate) fn complete_receive<M>(
    x: &mut Context<M>,
    qp: &mut Qp,
    header: &Header,
    bytes: u32,
    mut flags: CompletionFlags,
) {
    qp.resp.recv.taken = false;
    let solicited = header.flags.contains(HeaderFlags::SOLICITED);
    flags.set(
        CompletionFlags::IMM,
        header.flags.contains(HeaderFlags::IMMEDIATE),
    );
    flags.set(
        CompletionFlags::INVALIDATED,
        header.flags.contains(HeaderFlags::INVALIDATE),
    );
    flags.set(CompletionFlags::SOLICITED, solicited);
    let opcode = if header.op == Op::Send {
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
        imm: header.imm,
        qpn: qp.qpn,
        src_qpn: header.src_qp,
        vendor: 0,
    };
    x.push_recv_completion(qp.config.recv_cq, entry, solicited);
}
