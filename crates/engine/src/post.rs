//! Posting work requests: local checks, then the send queue, then the link if possible. Short requests go to the link
//! first, and then into the send queue (`requester/cut_through.rs`, `requester/answered.rs`).

use crate::context::Context;
use crate::groups::GROUP_QPN;
use crate::qp::pair::Qp;
use crate::requester::{
    cut_through, cut_through_answered, push, send_queued, send_queued_connected,
};
use crate::send_queue::{BindWork, Detail, Wqe, WqeFlags};
use crate::work::MESSAGE_MAX;
use crate::{
    CompletionOp, Engine, PostError, QpId, QpState, QpType, RecvRequest, SendFlags, SendRequest,
    Sge, SrqId, Status, Target, Work, xrc,
};
use crate::{Route, UdAddress};
use rkey_base::memory::Memory;
use rkey_core::RKey;
use rkey_link::Link;

impl<L: Link, M: Memory> Engine<L, M> {
    /// Posts to the send queue. Sends as much as possible before it returns.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted. In the error states, posts are accepted and complete as flushed.
    #[inline]
    pub fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), PostError> {
        match self.post_at_once(qp, request) {
            true => Ok(()),
            false => self.post_queued(qp, request),
        }
    }

    /// Sends a short message at once: `prefix`, then the bytes of `sge`. Returns false, with nothing changed, if the message
    /// must go through [`Engine::post_send`], which also decides whether to refuse it.
    #[inline]
    pub fn post_short<const N: usize>(
        &mut self,
        qp: QpId,
        id: u64,
        prefix: &[u8; N],
        sge: Sge,
    ) -> bool {
        let work = Work::Send {
            imm: None,
            invalidate: None,
        };
        let sges = [sge];
        let request = SendRequest {
            prefix,
            ..SendRequest::new(id, work, &sges)
        };
        self.post_at_once(qp, &request)
    }

    /// Sends a request without a detour through the send queue. Returns false, with nothing changed, if that is not
    /// possible.
    #[inline(always)]
    fn post_at_once(&mut self, qp: QpId, request: &SendRequest<'_>) -> bool {
        let Some(qp) = self.qps.get_mut(qp) else {
            return false;
        };
        let Some(link_state) = qp.out.and_then(|link| self.links.get_mut(link)) else {
            return false;
        };
        // The first condition is constant for `post_short`, whose request then need not be in memory.
        if matches!(request.work, Work::Write { .. })
            && !qp.req.warrants.is_empty()
            && push(&mut self.x, &mut link_state.meta, qp, request)
        {
            return true;
        }
        let is_sent = match request.work {
            Work::Read { .. } | Work::CompareSwap { .. } | Work::FetchAdd { .. } => {
                cut_through_answered(&self.x, link_state, qp, request)
            }
            _ => cut_through(&self.x, link_state, qp, request),
        };
        if !is_sent {
            return false;
        }
        if !qp.req.timeout_runs {
            start_timeout(&mut self.x, qp);
        }
        if !request.flags.contains(SendFlags::MORE) {
            link_state.link.end_burst();
        }
        true
    }

    /// Posts a request through the send queue.
    #[inline(never)]
    fn post_queued(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qp).ok_or(PostError::NoSuchQp)?;
        enqueue(qp, request)?;
        if !qp.req.timeout_runs {
            start_timeout(&mut self.x, qp);
        }
        if qp.state == QpState::Rts
            && !qp.config.qp_type.is_datagram()
            && let Some(link_state) = qp.out.and_then(|link| self.links.get_mut(link))
        {
            send_queued_connected(&mut self.x, Some(link_state), qp);
            if !request.flags.contains(SendFlags::MORE) {
                link_state.link.end_burst();
            }
        } else {
            let id = qp.id;
            self.send_otherwise(id, request);
        }
        self.fail_users_of_overrun_cqs();
        Ok(())
    }

    /// Whether [`Engine::post_send`] would accept all of these requests now, in order.
    ///
    /// # Errors
    /// The first one it would refuse, and why. Nothing is posted in either case.
    pub fn check_sends<'a>(
        &mut self,
        qp: QpId,
        requests: impl ExactSizeIterator<Item = SendRequest<'a>>,
    ) -> Result<(), (usize, PostError)> {
        let qp = self.qps.get_mut(qp).ok_or((0, PostError::NoSuchQp))?;
        let room = (qp.config.max_send - qp.sq.len()) as usize;
        if requests.len() > room {
            return Err((room, PostError::QueueFull(qp.config.max_send)));
        }
        for (index, request) in requests.enumerate() {
            // `prepare` writes only the entry at the tail, which is not part of the queue until it is pushed.
            prepare(qp, &request).map_err(|error| (index, error))?;
        }
        Ok(())
    }

    /// Finishes a post whose request cannot be sent directly to its link.
    #[cold]
    fn send_otherwise(&mut self, qp: QpId, request: &SendRequest<'_>) {
        let Some(qp) = self.qps.get_mut(qp) else {
            return;
        };
        if matches!(qp.state, QpState::Error | QpState::Sqe) {
            self.x.flush_sends(qp);
            return;
        }
        send_queued(&mut self.x, &mut self.links, qp);
        let Some(to) = request.ud else { return };
        let link = to.link.or_else(|| self.x.routes.get(&to.qpn).copied());
        if !request.flags.contains(SendFlags::MORE)
            && let Some(link_state) = link.and_then(|link| self.links.get_mut(link))
        {
            link_state.link.end_burst();
        }
    }

    /// Posts to the receive queue.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted. In the error state, posts are accepted and complete as flushed.
    pub fn post_recv(&mut self, qp: QpId, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qp).ok_or(PostError::NoSuchQp)?;
        if qp.config.srq.is_some() {
            return Err(PostError::UsesSrq);
        }
        if xrc::is_half(qp.config.qp_type) {
            return Err(PostError::NotSupported(
                "extended reliable connections receive from shared receive queues",
            ));
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
            self.fail_users_of_overrun_cqs();
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

/// Starts the timeout of a queue pair that was idle.
#[cold]
fn start_timeout<M>(x: &mut Context<M>, qp: &mut Qp) {
    if !qp.config.qp_type.is_reliable() || qp.wire.is_some() {
        return;
    }
    let patience = qp.patience();
    if patience > 0 {
        qp.req.timeout_runs = true;
        qp.req.seen = None;
        x.timers.watch_silence(qp.id, patience);
    }
}

#[inline]
fn check_sges(given: usize, max: u32) -> Result<(), PostError> {
    if given > max as usize {
        Err(PostError::TooManySges { given, max })
    } else {
        Ok(())
    }
}

/// Checks a request and writes it to the tail of the send queue, field by field: building an entry elsewhere and
/// copying it costs as much as everything else together.
#[inline]
fn enqueue(qp: &mut Qp, request: &SendRequest<'_>) -> Result<(), PostError> {
    prepare(qp, request)?;
    qp.sq.push(request.sges, request.inline, request.prefix);
    Ok(())
}

/// Checks a request and fills in the entry at the tail, which is not part of the queue yet.
#[inline(always)]
fn prepare(qp: &mut Qp, request: &SendRequest<'_>) -> Result<(), PostError> {
    if qp.state != QpState::Rts && !qp.state.takes_sends() {
        return Err(PostError::WrongState(qp.state));
    }
    check_sges(request.sges.len(), qp.config.max_send_sge)?;
    let total = match (request.inline, request.sges) {
        (None, [one]) => u64::from(one.len),
        (None, all) => all.iter().map(|sge| u64::from(sge.len)).sum(),
        (Some(bytes), _) => {
            if bytes.len() > qp.config.max_inline as usize {
                let (given, max) = (bytes.len(), qp.config.max_inline);
                return Err(PostError::InlineTooLong { given, max });
            }
            bytes.len() as u64
        }
    };
    let total = if request.prefix.is_empty() {
        total
    } else {
        total + check_prefix(qp, request)?
    };
    if total > MESSAGE_MAX {
        return Err(PostError::TooLong(total));
    }
    if qp.sq.is_full() {
        return Err(PostError::QueueFull(qp.config.max_send));
    }
    let mut flags = WqeFlags::of(request);
    let qp_type = qp.config.qp_type;
    match request.work {
        Work::Write { remote, imm } if qp_type.is_plain_connection() => {
            let wqe = qp.sq.tail_mut();
            wqe.op = CompletionOp::Write;
            aim(wqe, &mut flags, &remote);
            immediate(wqe, &mut flags, imm);
        }
        Work::Send {
            imm,
            invalidate: None,
        } if qp_type == QpType::Ud || qp_type.is_plain_connection() => {
            if qp_type == QpType::Ud {
                let to = request.ud.ok_or(PostError::NoAddress)?;
                qp.sq.set_next_detail(Detail::Datagram(to));
            }
            let wqe = qp.sq.tail_mut();
            wqe.op = CompletionOp::Send;
            (wqe.addr, wqe.key) = (0, 0);
            immediate(wqe, &mut flags, imm);
        }
        _ if xrc::is_half(qp_type) => xrc::prepare(qp, request, &mut flags)?,
        _ if qp_type == QpType::Raw => prepare_frame(qp, request)?,
        _ => prepare_other(qp, request, &mut flags)?,
    }
    if flags.contains(WqeFlags::REQUESTED_KEY) && qp.wire.is_some() {
        return Err(PostError::NotSupported(
            "packets to other hosts cannot carry keys that the peer's program chose",
        ));
    }
    let wqe = qp.sq.tail_mut();
    let total = if wqe.op == CompletionOp::AtomicWrite {
        8
    } else {
        total
    };
    wqe.id = request.id;
    wqe.status = Status::Success;
    wqe.flags = flags;
    wqe.total = total as u32;
    wqe.vendor = 0;
    wqe.prefix_len = request.prefix.len() as u32;
    wqe.sges = if request.inline.is_some() {
        0
    } else {
        request.sges.len() as u32
    };
    Ok(())
}

/// Checks that a request may have a prefix; returns its length.
#[inline]
fn check_prefix(qp: &Qp, request: &SendRequest<'_>) -> Result<u64, PostError> {
    let (given, max) = (request.prefix.len(), qp.config.max_inline);
    let plain = Work::Send {
        imm: None,
        invalidate: None,
    };
    if request.work != plain || !qp.config.qp_type.is_plain_connection() || request.inline.is_some()
    {
        return Err(PostError::NotSupported(
            "only a plain send of a connected queue pair can have a prefix",
        ));
    }
    if given > max as usize {
        return Err(PostError::InlineTooLong { given, max });
    }
    Ok(given as u64)
}

/// A raw frame.
#[cold]
fn prepare_frame(qp: &mut Qp, request: &SendRequest<'_>) -> Result<(), PostError> {
    let plain = Work::Send {
        imm: None,
        invalidate: None,
    };
    if request.work != plain {
        return Err(PostError::NotSupported(
            "raw queue pairs support only plain sends",
        ));
    }
    qp.sq.set_next_detail(Detail::Datagram(UdAddress {
        link: None,
        qpn: GROUP_QPN,
        qkey: 0,
        route: Route::default(),
        wire: false,
    }));
    let wqe = qp.sq.tail_mut();
    wqe.op = CompletionOp::Send;
    (wqe.addr, wqe.key, wqe.imm) = (0, 0, 0);
    Ok(())
}

#[inline]
pub(crate) fn aim(wqe: &mut Wqe, flags: &mut WqeFlags, remote: &Target) {
    wqe.addr = remote.addr;
    match remote.key {
        RKey::Device(key) => wqe.key = u64::from(key.0),
        RKey::Requested(key) => {
            wqe.key = key;
            *flags |= WqeFlags::REQUESTED_KEY;
        }
    }
}

#[inline]
pub(crate) fn immediate(wqe: &mut Wqe, flags: &mut WqeFlags, imm: Option<u32>) {
    wqe.imm = imm.unwrap_or(0);
    if imm.is_some() {
        *flags |= WqeFlags::IMMEDIATE;
    }
}

/// Refuses what a queue pair of this type cannot do.
fn check_rare(kind: QpType, request: &SendRequest<'_>) -> Result<(), PostError> {
    let not = |what| Err(PostError::NotSupported(what));
    match request.work {
        Work::Send { .. } if kind == QpType::Ud => not("datagrams cannot invalidate keys"),
        Work::Send { imm: Some(_), .. } => not("a send with immediate data cannot invalidate"),
        Work::Send { .. } => Ok(()),
        Work::Write { .. } => not("RDMA writes need a connection"),
        _ if request.inline.is_some() => not("only sends and RDMA writes can have inline data"),
        Work::Read { .. }
        | Work::CompareSwap { .. }
        | Work::FetchAdd { .. }
        | Work::AtomicWrite { .. }
            if !kind.is_reliable() =>
        {
            not("reads and atomics need a reliable connection")
        }
        Work::Bind { .. } | Work::Invalidate { .. } if kind == QpType::Ud => {
            not("memory windows need a connected queue pair")
        }
        _ => Ok(()),
    }
}

/// Prepares a request other than a plain send or write (VB-I07).
#[cold]
pub(crate) fn prepare_other(
    qp: &mut Qp,
    request: &SendRequest<'_>,
    flags: &mut WqeFlags,
) -> Result<(), PostError> {
    check_rare(qp.config.qp_type, request)?;
    let sq = &mut qp.sq;
    let wqe = sq.tail_mut();
    (wqe.addr, wqe.key, wqe.imm) = (0, 0, 0);
    match request.work {
        Work::Send { invalidate, .. } => {
            wqe.op = CompletionOp::Send;
            wqe.imm = invalidate.map_or(0, |key| key.0);
            *flags |= WqeFlags::INVALIDATE;
        }
        // Refused above.
        Work::Write { .. } => return Err(PostError::NotSupported("RDMA writes need a connection")),
        Work::Read { remote } => {
            wqe.op = CompletionOp::Read;
            let receives = request.flags.contains(SendFlags::RECEIVES);
            flags.set(WqeFlags::RECEIVES, receives);
            aim(wqe, flags, &remote);
        }
        Work::CompareSwap {
            remote,
            compare,
            swap,
        } => {
            wqe.op = CompletionOp::CompareSwap;
            aim(wqe, flags, &remote);
            sq.set_next_detail(Detail::Atomic([compare, swap]));
        }
        Work::FetchAdd { remote, add } => {
            wqe.op = CompletionOp::FetchAdd;
            aim(wqe, flags, &remote);
            sq.set_next_detail(Detail::Atomic([add, 0]));
        }
        Work::AtomicWrite { remote, value } => {
            wqe.op = CompletionOp::AtomicWrite;
            aim(wqe, flags, &remote);
            sq.set_next_detail(Detail::Atomic([value, 0]));
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
            sq.set_next_detail(Detail::Bind(bind));
        }
        Work::Invalidate { key } => {
            wqe.op = CompletionOp::Invalidate;
            wqe.imm = key.0;
        }
    }
    Ok(())
}
