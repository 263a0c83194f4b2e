//! Extended reliable connections: one connection to a device, many shared receive queues behind it.
//!
//! The sending half is a requester like that of a reliable connection, except that each request names a shared receive
//! queue of the peer. The receiving half is a responder without a protection domain: a request is executed in the
//! domain of the queue that it names, and completes where that queue's receives complete (IBA annex A14). On a link,
//! the number of the queue is in the upper half of the key field; a device key fits in the lower half.

use crate::post::{aim, immediate, prepare_other};
use crate::qp::pair::Qp;
use crate::send_queue::WqeFlags;
use crate::{CompletionOp, PostError, QpType, SendRequest, SrqId, Work};
use rkey_core::RKey;

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
