//! Posting work requests: checks that need no peer, then into the queue, then out if possible.

use crate::qp::pair::Qp;
use crate::requester::pump;
use crate::send_queue::{BindWork, Detail, Wqe, WqeFlags};
use crate::work::MESSAGE_MAX;
use crate::{
    CompletionOp, Engine, PostError, QpId, QpState, QpType, RecvRequest, SendFlags, SendRequest,
    SrqId, Status, Target, Work,
};
use rkey_base::memory::Memory;
use rkey_core::WireKey;
use rkey_link::Link;

impl<L: Link, M: Memory> Engine<L, M> {
    /// Posts to the send queue. What can be sent at once is sent before this returns.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted. In the error states posts are accepted and complete as
    /// flushed.
    pub fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qp).ok_or(PostError::NoSuchQp)?;
        let wqe = accept(qp, request)?;
        qp.sq.push(wqe, request.sges, request.inline);
        if !qp.req.watched && qp.config.qp_type == QpType::Rc {
            let patience = qp.patience();
            if patience > 0 {
                qp.req.watched = true;
                qp.req.seen = None;
                self.x.timers.watch(qp.id.index, patience);
            }
        }
        if matches!(qp.state, QpState::Error | QpState::Sqe) {
            self.x.flush_sends(qp);
        } else {
            pump(&mut self.x, &mut self.links, qp);
            if !request.flags.contains(SendFlags::MORE) {
                let link = match (qp.out, request.ud) {
                    (Some(link), _) => Some(link),
                    (None, Some(to)) => to.link.or_else(|| self.x.routes.get(&to.qpn).copied()),
                    (None, None) => None,
                };
                if let Some(port) = link.and_then(|link| self.links.get_mut(link)) {
                    port.link.flush();
                }
            }
        }
        self.settle_broken();
        Ok(())
    }

    /// Posts to the receive queue.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted. In the error state posts are accepted and complete as
    /// flushed.
    pub fn post_recv(&mut self, qp: QpId, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qp).ok_or(PostError::NoSuchQp)?;
        if qp.config.srq.is_some() {
            return Err(PostError::UsesSrq);
        }
        if !qp.state.takes_receives() {
            return Err(PostError::WrongState(qp.state));
        }
        check_sges(request.sges.len(), qp.config.max_recv_sge)?;
        if qp.rq.is_full() {
            return Err(PostError::QueueFull(qp.rq.limit()));
        }
        qp.rq.push(request);
        if qp.state == QpState::Error && qp.rq.take(&mut qp.resp.recv) {
            self.x.fail_receive(qp, Status::Flushed, 0);
            self.settle_broken();
        }
        Ok(())
    }

    /// Posts to a shared receive queue.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_srq_recv(
        &mut self,
        srq: SrqId,
        request: &RecvRequest<'_>,
    ) -> Result<(), PostError> {
        let srq = self.x.srqs.get_mut(srq).ok_or(PostError::NoSuchSrq)?;
        check_sges(request.sges.len(), srq.max_sge)?;
        if srq.queue.is_full() {
            return Err(PostError::QueueFull(srq.queue.limit()));
        }
        srq.queue.push(request);
        Ok(())
    }
}

fn check_sges(given: usize, max: u32) -> Result<(), PostError> {
    if given > max as usize {
        Err(PostError::TooManySges { given, max })
    } else {
        Ok(())
    }
}

/// Checks a request and makes the entry for it; its detail, if any, is put in place.
#[inline]
fn accept(qp: &mut Qp, request: &SendRequest<'_>) -> Result<Wqe, PostError> {
    if qp.state != QpState::Rts && !qp.state.takes_sends() {
        return Err(PostError::WrongState(qp.state));
    }
    check_sges(request.sges.len(), qp.config.max_send_sge)?;
    let total = match request.inline {
        None => request.sges.iter().map(|sge| u64::from(sge.len)).sum(),
        Some(bytes) => {
            if bytes.len() > qp.config.max_inline as usize {
                let (given, max) = (bytes.len(), qp.config.max_inline);
                return Err(PostError::InlineTooLong { given, max });
            }
            bytes.len() as u64
        }
    };
    if total > MESSAGE_MAX {
        return Err(PostError::TooLong(total));
    }
    if qp.sq.is_full() {
        return Err(PostError::QueueFull(qp.config.max_send));
    }
    let mut flags = WqeFlags::empty();
    flags.set(
        WqeFlags::SIGNALED,
        request.flags.contains(SendFlags::SIGNALED),
    );
    flags.set(WqeFlags::FENCE, request.flags.contains(SendFlags::FENCE));
    flags.set(
        WqeFlags::SOLICITED,
        request.flags.contains(SendFlags::SOLICITED),
    );
    flags.set(WqeFlags::INLINE, request.inline.is_some());
    let mut wqe = Wqe {
        id: request.id,
        flags,
        total: total as u32,
        sges: if request.inline.is_some() {
            0
        } else {
            request.sges.len() as u32
        },
        ..Wqe::EMPTY
    };
    match request.work {
        Work::Write { remote, imm } if qp.config.qp_type != QpType::Ud => {
            wqe.op = CompletionOp::Write;
            aim(&mut wqe, &remote);
            immediate(&mut wqe, imm);
        }
        Work::Send {
            imm,
            invalidate: None,
        } => {
            wqe.op = CompletionOp::Send;
            immediate(&mut wqe, imm);
            if qp.config.qp_type == QpType::Ud {
                let to = request.ud.ok_or(PostError::NoAddress)?;
                qp.sq.set_next_detail(Detail::Datagram(to));
            }
        }
        _ => accept_rare(qp, request, &mut wqe)?,
    }
    Ok(wqe)
}

#[inline]
fn aim(wqe: &mut Wqe, remote: &Target) {
    wqe.addr = remote.addr;
    match remote.key {
        WireKey::Device(key) => wqe.key = u64::from(key.0),
        WireKey::Requested(key) => {
            wqe.key = key;
            wqe.flags |= WqeFlags::REQUESTED_KEY;
        }
    }
}

#[inline]
fn immediate(wqe: &mut Wqe, imm: Option<u32>) {
    if let Some(imm) = imm {
        wqe.imm = imm;
        wqe.flags |= WqeFlags::IMMEDIATE;
    }
}

/// Everything but sends and writes (VB-I07).
fn accept_rare(qp: &mut Qp, request: &SendRequest<'_>, wqe: &mut Wqe) -> Result<(), PostError> {
    let not = |what| Err(PostError::NotSupported(what));
    let kind = qp.config.qp_type;
    match request.work {
        Work::Send { imm, invalidate } => {
            if kind == QpType::Ud {
                return not("datagrams cannot invalidate");
            }
            if imm.is_some() {
                return not("immediate data together with an invalidation");
            }
            wqe.op = CompletionOp::Send;
            wqe.imm = invalidate.map_or(0, |key| key.0);
            wqe.flags |= WqeFlags::INVALIDATE;
            return Ok(());
        }
        Work::Write { .. } => return not("RDMA write of datagrams"),
        _ if request.inline.is_some() => return not("inline data"),
        Work::Read { .. } | Work::CompareSwap { .. } | Work::FetchAdd { .. }
            if kind != QpType::Rc =>
        {
            return not("reads and atomics need a reliable connection");
        }
        Work::Bind { .. } | Work::Invalidate { .. } if kind == QpType::Ud => {
            return not("windows are for connections");
        }
        Work::Read { remote } => {
            wqe.op = CompletionOp::Read;
            aim(wqe, &remote);
        }
        Work::CompareSwap {
            remote,
            compare,
            swap,
        } => {
            wqe.op = CompletionOp::CompareSwap;
            aim(wqe, &remote);
            qp.sq.set_next_detail(Detail::Atomic([compare, swap]));
        }
        Work::FetchAdd { remote, add } => {
            wqe.op = CompletionOp::FetchAdd;
            aim(wqe, &remote);
            qp.sq.set_next_detail(Detail::Atomic([add, 0]));
        }
        Work::Bind {
            window,
            region,
            range,
            access,
            zero_based,
            key,
            rules,
        } => {
            wqe.op = CompletionOp::Bind;
            let bind = BindWork {
                window,
                region,
                range,
                access,
                zero_based,
                key,
                rules,
            };
            qp.sq.set_next_detail(Detail::Bind(bind));
        }
        Work::Invalidate { key } => {
            wqe.op = CompletionOp::Invalidate;
            wqe.imm = key.0;
        }
    }
    Ok(())
}
