//! Extended reliable connections: one connection to a device, many shared receive queues behind it.
//!
//! The sending half is a requester like that of a reliable connection, except that each request names a shared receive
//! queue of the peer. The receiving half is a responder without a protection domain: a request is executed in the
//! domain of the queue that it names, and completes where that queue's receives complete (IBA annex A14). On a link,
//! the number of the queue is in the upper half of the key field; a device key fits in the lower half.

use crate::post::{aim, immediate, prepare_other};
use crate::qp::pair::Qp;
use crate::send_queue::WqeFlags;
use crate::{
    CompletionOp, CqId, Engine, EngineError, PostError, QpType, SendRequest, SrqId, Work, XrcdId,
};
use rkey_base::memory::Memory;
use rkey_core::{DomainId, RKey};
use rkey_link::Link;

/// How many bits of the number of a shared receive queue are its index; the other 8 are its generation.
pub(crate) const INDEX_BITS: u32 = 16;
const GENERATION_MASK: u32 = 0xff;

impl SrqId {
    /// The number that requests of extended reliable connections use for it (24 bits).
    #[must_use]
    pub const fn number(self) -> u32 {
        self.index | (self.generation & GENERATION_MASK) << INDEX_BITS
    }
}

impl<L: Link, M: Memory> Engine<L, M> {
    /// Creates a shared receive queue for the extended reliable connections of an XRC domain. Its receives use keys
    /// of `domain` and complete in `cq`.
    ///
    /// # Errors
    /// Same as [`Engine::create_srq`]; there is no such completion queue.
    pub fn create_xrc_srq(
        &mut self,
        domain: DomainId,
        depth: u32,
        max_sge: u32,
        xrcd: XrcdId,
        cq: CqId,
    ) -> Result<SrqId, EngineError> {
        self.place_serving(domain, depth, max_sge, Some(xrcd), cq)
    }

    /// Creates a shared receive queue whose receives complete in `cq`.
    pub(crate) fn place_serving(
        &mut self,
        domain: DomainId,
        depth: u32,
        max_sge: u32,
        xrcd: Option<XrcdId>,
        cq: CqId,
    ) -> Result<SrqId, EngineError> {
        let none = EngineError::NoSuch("completion queue");
        self.x.cqs.get(cq).ok_or(none)?;
        let srq = self.place_srq(domain, depth, max_sge, Some((xrcd, cq)))?;
        if let Some(cq) = self.x.cqs.get_mut(cq) {
            cq.users += 1;
        }
        if srq.index >> INDEX_BITS != 0 {
            self.destroy_srq(srq)?;
            return Err(EngineError::Limit {
                what: "the number of shared receive queues",
                given: srq.index.into(),
                limit: 1 << INDEX_BITS,
            });
        }
        Ok(srq)
    }

    /// Takes the receives of this queue from queue pairs that have taken them; such queue pairs do not count as its
    /// users.
    pub(crate) fn forget_receives_of(&mut self, srq: SrqId) {
        for qp in self.qps.iter_mut() {
            if qp.config.srq == Some(srq) && qp.resp.recv.taken {
                qp.resp.recv.taken = false;
                // A pull into one of these receives stops.
                qp.life = self.x.life();
            }
        }
    }
}

/// Whether the type is one of the two halves of an extended reliable connection.
#[inline]
pub(crate) const fn is_half(qp_type: QpType) -> bool {
    matches!(qp_type, QpType::XrcSend | QpType::XrcRecv)
}

/// Fills in a request at the tail of the send queue.
#[cold]
pub(crate) fn prepare(
    qp: &mut Qp,
    request: &SendRequest<'_>,
    flags: &mut WqeFlags,
) -> Result<(), PostError> {
    if qp.config.qp_type == QpType::XrcRecv {
        return Err(PostError::NotSupported(
            "the receiving half of an extended reliable connection sends nothing",
        ));
    }
    match request.work {
        Work::Write { remote, imm } => {
            let wqe = qp.sq.tail_mut();
            wqe.op = CompletionOp::Write;
            aim(wqe, flags, &remote);
            immediate(wqe, flags, imm);
        }
        Work::Send {
            imm,
            invalidate: None,
        } => {
            let wqe = qp.sq.tail_mut();
            wqe.op = CompletionOp::Send;
            (wqe.addr, wqe.key) = (0, 0);
            immediate(wqe, flags, imm);
        }
        _ => prepare_other(qp, request, flags)?,
    }
    let wqe = qp.sq.tail_mut();
    if wqe.is_local() {
        return Ok(());
    }
    if let Some(RKey::Requested(_)) = request.work.key() {
        return Err(PostError::NotSupported(
            "extended reliable connections cannot use requested (64-bit) keys",
        ));
    }
    let to = request.ud.ok_or(PostError::NoAddress)?;
    wqe.key |= u64::from(to.qpn) << 32;
    Ok(())
}
