//! Responses at the requester: acknowledgements, read data, atomic results, NAKs.
//!
//! Two rules make this simple. A link counts a request as acknowledged only after its responses have been taken, and a
//! responder sends a response for every message that it does not execute. So an acknowledged send or write has been
//! executed, and an acknowledged read has its data; anything else is a protocol violation.
//!
//! When a message must be resent, the responder has refused the later ones as well. The requester *rewinds*: it sends
//! nothing until every fragment of the old attempt has been acknowledged. After that, no response to the old attempt
//! can arrive, so attempts need no numbers.

use crate::checked_memory::AccessError;
use crate::context::Context;
use crate::id::Table;
use crate::link_state::Meta;
use crate::nak::{Nak, rnr_delay_ns};
use crate::numbers::Numbers;
use crate::qp::pair::{MSN_MASK, Qp};
use crate::requester;
use crate::send_queue::WqeFlags;
use crate::silence::EXCUSED_MAX_NS;
use crate::{CompletionOp, LinkId, QpState, Status};
use rkey_base::fault::Fault;
use rkey_base::foreign::Span;
use rkey_base::memory::Memory;
use rkey_base::shared::PeerBytes;
use rkey_core::{Denial, LocalUse};
use rkey_link::{HeaderFlags, NodeId, Op, Payload, ReceivedFragment, Ticket};

/// The first delay before a retry to a peer that is not ready.
const NOT_READY_FIRST_NS: u64 = 20_000;
/// The longest delay before a retry to a peer that is not ready.
const NOT_READY_LAST_NS: u64 = 2_000_000;

/// Handles an acknowledgement of every fragment with a smaller ticket.
pub(crate) fn on_acked<M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    meta: &mut Meta,
    ticket: Ticket,
) {
    let mut last = u32::MAX;
    while let Some(record) = meta.outstanding.pop_before(ticket) {
        if record.qp != last {
            complete_acknowledged(x, qps, last);
            last = record.qp;
        }
        let Some(qp) = qps.at_mut(record.qp) else {
            continue;
        };
        if qp.life != record.life {
            continue;
        }
        qp.req.in_flight -= 1;
        if qp.req.rewinding {
            qp.req.rewinding = qp.req.in_flight > 0;
        } else if record.seq_last & 1 == 1 {
            qp.req.acked = (record.seq_last >> 1) + 1;
            qp.req.not_ready_for = None;
            qp.req.rnr_left = qp.settings.rnr_retry;
        }
    }
    meta.progress += 1;
    complete_acknowledged(x, qps, last);
}

/// Completes a queue pair's requests that an acknowledgement finishes, and schedules its next sends.
#[inline]
fn complete_acknowledged<M: Memory>(x: &mut Context<M>, qps: &mut Table<Qp>, index: u32) {
    let Some(qp) = qps.at_mut(index) else { return };
    x.complete_ended_sends(qp);
    if qp.sq.next != qp.sq.tail && qp.may_send() {
        x.ready.push(index);
    }
}

/// Handles a response.
pub(crate) fn on_response<M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    numbers: &Numbers,
    meta: &mut Meta,
    incoming: &ReceivedFragment<'_>,
) {
    let header = &incoming.header;
    let (id, node) = (meta.id, meta.node);
    let Some(qp) = numbers.find(qps, &mut meta.last, header.dst_qp) else {
        return;
    };
    if !expects(qp, id, header.src_qp) {
        return;
    }
    let bytes = match &incoming.payload {
        Payload::Bytes(bytes) => *bytes,
        // A responder never sends a remote iovec.
        Payload::RemoteIovec(_) => return,
    };
    match header.op {
        Op::ReadData => on_read_data(x, qp, incoming, bytes),
        Op::AtomicResult => on_atomic_result(x, qp, header.msn, header.operands[0]),
        Op::Nak => {
            let mut wire = [0; rkey_core::DENIAL_LEN];
            let denial = (bytes.len() == wire.len()).then(|| {
                bytes.get(0, &mut wire);
                Denial::decode(&wire)
            });
            let Some(code) = Nak::from_code(header.imm) else {
                return;
            };
            if code == Nak::NoRemoteIovec {
                meta.no_remote_iovec = true;
            }
            let refusal = Refusal {
                msn: header.msn,
                code,
                delay: (header.imm >> 8 & 31) as u8,
                address: header.addr,
                denial,
                node,
                // A report id is valid here only if this process issued it.
                here: (meta.origin.here && header.key > 0).then_some(header.key as u32),
            };
            on_nak(x, qp, refusal);
        }
        _ => return,
    }
    if qp.sq.next != qp.sq.tail && qp.may_send() {
        x.ready.push(qp.id.index);
    }
}

/// Whether a response from this link and queue pair can be for a request of this queue pair.
#[inline]
fn expects(qp: &Qp, link: LinkId, src_qp: u32) -> bool {
    qp.config.qp_type.is_reliable()
        && qp.out == Some(link)
        && qp.peer.is_some_and(|peer| peer.qpn == src_qp)
        && matches!(qp.state, QpState::Rts | QpState::Sqd)
        && !qp.req.rewinding
}

/// The oldest read or atomic that awaits a response, if it has this message number.
#[inline]
fn due(qp: &Qp, msn: u32) -> Option<u64> {
    let seq = *qp.req.reads.front()?;
    (qp.sq.wqe(seq).msn == msn).then_some(seq)
}

fn on_read_data<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    incoming: &ReceivedFragment<'_>,
    bytes: PeerBytes<'_>,
) {
    let header = &incoming.header;
    let Some(seq) = due(qp, header.msn) else {
        return;
    };
    let wqe = qp.sq.wqe(seq);
    if wqe.op != CompletionOp::Read {
        return;
    }
    let (received, total) = (wqe.received, wqe.total);
    let last = header.flags.contains(HeaderFlags::LAST);
    let now_received = if header.flags.contains(HeaderFlags::REMOTE_IOVEC) {
        // The responder wrote the data to our memory, which it may do only if we sent a remote iovec.
        let so_far = if last { u64::from(total) } else { header.addr };
        let forward = so_far > u64::from(received) && so_far <= u64::from(total);
        if !wqe.flags.contains(WqeFlags::REMOTE_IOVEC) || !forward {
            return;
        }
        so_far as u32
    } else {
        let end = u64::from(received) + u64::from(header.len);
        let in_order = header.addr == u64::from(received) && end <= u64::from(total);
        if !in_order || (header.len == 0 && !last) || (last && end != u64::from(total)) {
            return;
        }
        if header.len > 0 {
            let stored = x.checked.scatter(
                qp.config.domain,
                qp.sq.sges(seq),
                u64::from(received),
                bytes,
                wqe.local_use(),
            );
            if let Err(trouble) = stored {
                qp.req.reads.pop_front();
                let vendor = x.report_local(qp, qp.sq.wqe(seq).id, qp.sq.sges(seq), trouble);
                requester::fail(x, qp, seq, Status::LocalProtection, vendor);
                return;
            }
        }
        end as u32
    };
    qp.sq.wqe_mut(seq).received = now_received;
    qp.req.seen = None; // restarts the timeout
    if last {
        answered(x, qp, seq);
    }
}

fn on_atomic_result<M: Memory>(x: &mut Context<M>, qp: &mut Qp, msn: u32, old: u64) {
    let Some(seq) = due(qp, msn) else { return };
    let wqe = qp.sq.wqe(seq);
    if !matches!(wqe.op, CompletionOp::CompareSwap | CompletionOp::FetchAdd) {
        return;
    }
    let stored = x.checked.scatter(
        qp.config.domain,
        qp.sq.sges(seq),
        0,
        PeerBytes::from_slice(&old.to_ne_bytes()),
        LocalUse::AtomicResult,
    );
    match stored {
        Ok(()) => answered(x, qp, seq),
        Err(trouble) => {
            qp.req.reads.pop_front();
            let vendor = x.report_local(qp, qp.sq.wqe(seq).id, qp.sq.sges(seq), trouble);
            requester::fail(x, qp, seq, Status::LocalProtection, vendor);
        }
    }
}

/// Completes the oldest read or atomic.
fn answered<M: Memory>(x: &mut Context<M>, qp: &mut Qp, seq: u64) {
    qp.req.reads.pop_front();
    qp.sq.wqe_mut(seq).end(Status::Success, 0);
    // The peer executes in order, so all earlier requests have been executed.
    advance(qp, seq);
    x.complete_ended_sends(qp);
}

/// Records that every request before `seq` has been executed.
fn advance(qp: &mut Qp, seq: u64) {
    qp.req.acked = qp.req.acked.max(seq);
    qp.req.not_ready_for = None;
    qp.req.rnr_left = qp.settings.rnr_retry;
}

/// The contents of a NAK.
struct Refusal {
    msn: u32,
    code: Nak,
    /// The code of the receiver-not-ready delay.
    delay: u8,
    /// The address in our memory that faulted.
    address: u64,
    denial: Option<Denial>,
    /// The device that sent the response.
    node: NodeId,
    /// The id under which a device of this process has recorded the denial.
    here: Option<u32>,
}

/// Handles the refusal of a message.
#[cold]
fn on_nak<M: Memory>(x: &mut Context<M>, qp: &mut Qp, refusal: Refusal) {
    let started = qp.sq.next + u64::from(qp.req.offset > 0);
    let Some(seq) = qp.sq.find(refusal.msn, started) else {
        return;
    };
    if seq < qp.req.acked || qp.sq.wqe(seq).flags.contains(WqeFlags::DONE) {
        return;
    }
    if seq > qp.sq.head {
        qp.req.not_ready_for = None;
        qp.req.rnr_left = qp.settings.rnr_retry;
    }
    qp.req.acked = seq;
    x.complete_ended_sends(qp);
    if !matches!(qp.state, QpState::Rts | QpState::Sqd) {
        return;
    }
    let work = qp.sq.wqe(seq).id;
    let mut trouble = None;
    let status = match refusal.code {
        Nak::ReceiverNotReady => {
            if qp.settings.rnr_retry == 7 || qp.req.rnr_left > 0 {
                qp.req.rnr_left = qp.req.rnr_left.saturating_sub(1);
                rewind(qp, seq);
                wait(x, qp, rnr_delay_ns(refusal.delay));
                return;
            }
            x.give_up(qp, Status::RnrRetryExceeded);
            return;
        }
        Nak::NotReady | Nak::Sequence | Nak::Searching => {
            if !patience_is_over(qp, refusal.code) {
                let delay = qp
                    .req
                    .not_ready_delay
                    .clamp(NOT_READY_FIRST_NS, NOT_READY_LAST_NS);
                qp.req.not_ready_delay = delay * 2;
                qp.req.not_ready_for = qp.req.not_ready_for.map(|waited| waited + delay);
                rewind(qp, seq);
                wait(x, qp, delay);
                return;
            }
            x.give_up(qp, Status::RetryExceeded);
            return;
        }
        Nak::NoRemoteIovec if qp.sq.wqe(seq).flags.contains(WqeFlags::REMOTE_IOVEC) => {
            rewind(qp, seq);
            return;
        }
        Nak::NoRemoteIovec => Status::BadResponse,
        Nak::InvalidRequest => Status::RemoteInvalidRequest,
        Nak::RemoteAccess => Status::RemoteAccess,
        Nak::RemoteOperation => Status::RemoteOperation,
        Nak::RequesterFault => {
            trouble = fault_here(x, qp, seq, refusal.address);
            if trouble.is_some() {
                Status::LocalProtection
            } else {
                Status::BadResponse
            }
        }
    };
    let denial = match refusal.denial {
        None if refusal.code == Nak::RemoteAccess => Some(qp.sq.wqe(seq).withheld()),
        denial => denial,
    };
    let vendor = match (trouble, denial) {
        (Some(trouble), _) => x.report_local(qp, work, qp.sq.sges(seq), trouble),
        (None, Some(denial)) => x.report_answer(qp, refusal.node, work, denial, refusal.here),
        (None, None) => 0,
    };
    if qp.req.reads.front() == Some(&seq) {
        qp.req.reads.pop_front();
    }
    requester::fail(x, qp, seq, status, vendor);
}

/// Turns a fault at our address `address`, which the peer found, into a local error of the request at `seq`. `None` if the
/// request did not name that address.
fn fault_here<M: Memory>(x: &Context<M>, qp: &Qp, seq: u64, address: u64) -> Option<AccessError> {
    let wqe = qp.sq.wqe(seq);
    if !wqe.flags.contains(WqeFlags::REMOTE_IOVEC) {
        return None;
    }
    let (sges, len) = (qp.sq.sges(seq), u64::from(wqe.total));
    let want = wqe.local_use();
    let met = |span: Span<'_>, _| {
        if address.wrapping_sub(span.start()) < span.len() {
            Err(Fault::at(address).into())
        } else {
            Ok(())
        }
    };
    x.checked
        .each_local(qp.config.domain, sges, 0, len, want, met)
        .err()
}

/// Whether a peer has been "not ready" for longer than this queue pair's limit. A NIC needs no search, so a peer that searches gets
/// as much time as one that gets no processor. That time counts for later refusals, too: a peer gains nothing by giving two reasons in turn.
///
/// Counts the delays between the peer's NAKs instead of reading the clock, which can stop and then jump.
fn patience_is_over(qp: &mut Qp, code: Nak) -> bool {
    let patience = match qp.patience() {
        limited @ 1.. if code == Nak::Searching => limited.max(EXCUSED_MAX_NS),
        patience => patience,
    };
    match qp.req.not_ready_for {
        Some(waited) => patience > 0 && waited >= patience,
        None => {
            qp.req.not_ready_for = Some(0);
            qp.req.not_ready_delay = NOT_READY_FIRST_NS;
            false
        }
    }
}

/// Moves the send queue back to the message at `seq`, so that it and all later ones are resent.
fn rewind(qp: &mut Qp, seq: u64) {
    qp.req.msn = qp.sq.wqe(seq).msn & MSN_MASK;
    qp.sq.next = seq;
    qp.req.offset = 0;
    while qp.req.reads.back().is_some_and(|read| *read >= seq) {
        qp.req.reads.pop_back();
    }
    qp.req.rewinding = qp.req.in_flight > 0;
}

/// Pauses sending.
fn wait<M>(x: &mut Context<M>, qp: &mut Qp, delay: u64) {
    let deadline = x.now + delay;
    qp.req.wait = Some(deadline);
    x.timers.at(deadline, (qp.id.index, qp.life));
}
