//! Extended reliable connections at the responder: a request switches the queue pair to the shared receive queue that
//! it names (IBA annex A14).

use super::{Reply, refuse};
use crate::context::Context;
use crate::nak::Nak;
use crate::qp::pair::Qp;
use crate::xrc::INDEX_BITS;
use crate::{CqId, QpType, SrqId, Status};
use rkey_base::memory::Memory;
use rkey_core::DomainId;
use rkey_link::{Header, HeaderFlags, NodeId};

/// Selects, for the receiving half, the shared receive queue that a request names. The sending half takes no requests.
#[cold]
pub(super) fn find_queue<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    header: &Header,
) -> Result<(), Reply> {
    if header.msn != qp.resp.msn {
        return Ok(()); // it will be dropped, or refused with a NAK
    }
    let number = (header.key >> 32) as u32;
    let found = x
        .srqs
        .at(number & ((1 << INDEX_BITS) - 1))
        .filter(|srq| srq.id.number() == number);
    let named = found.and_then(|srq| Some((srq.id, srq.domain, srq.serves?)));
    let ours = |xrcd| qp.config.qp_type == QpType::XrcRecv && xrcd == qp.config.xrcd;
    let Some((srq, domain, (_, cq))) = named.filter(|(.., serves)| ours(serves.0)) else {
        return Err(refuse(x, qp, node, header, Nak::InvalidRequest, None));
    };
    let goes_on = qp.resp.current.is_some() && !header.flags.contains(HeaderFlags::FIRST);
    if goes_on && qp.config.srq != Some(srq) {
        // A message is for one queue, so its receive cannot change halfway.
        return Err(refuse(x, qp, node, header, Nak::InvalidRequest, None));
    }
    turn_to(x, qp, srq, domain, cq);
    Ok(())
}

/// Makes a queue pair take its receives from another queue.
pub(super) fn turn_to<M>(x: &mut Context<M>, qp: &mut Qp, srq: SrqId, domain: DomainId, cq: CqId) {
    if qp.config.srq != Some(srq) {
        // The queue pair may still have a receive of the previous queue, whose message was abandoned.
        x.fail_receive(qp, Status::Flushed, 0);
        (qp.config.srq, qp.config.domain, qp.config.recv_cq) = (Some(srq), domain, cq);
    }
}
