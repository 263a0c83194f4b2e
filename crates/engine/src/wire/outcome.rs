//! Turns a machine's events into completions and events of the queue pair.

use super::WirePeer;
use super::machine::Machine;
use super::send::{await_turn_of, post_queued};
use crate::context::Context;
use crate::qp::pair::Qp;
use crate::{AsyncEvent, Completion, CompletionFlags, CompletionOp, QpType, Side, Status};
use rkey_base::memory::Memory;
use rkey_base::shared::PeerBytes;
use rkey_core::LocalUse;
use rkey_link::NodeId;
use rkey_roce::packet::NakCode;
use rkey_roce::transport::{Event, GRH_LEN, Received, Status as Ended};

/// Handles a machine's events, and starts the requests that may start now. Returns whether there were any.
pub(super) fn drain_events<M: Memory>(x: &mut Context<M>, qp: &mut Qp) -> bool {
    drain_events_at(x, qp, None)
}

/// Like [`drain_events`], after a packet between these addresses.
pub(super) fn drain_events_from<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    from: &WirePeer,
) -> bool {
    drain_events_at(x, qp, Some(from))
}

fn drain_events_at<M: Memory>(x: &mut Context<M>, qp: &mut Qp, from: Option<&WirePeer>) -> bool {
    let mut has_more = false;
    loop {
        while let Some(event) = qp.wire.as_deref_mut().and_then(|wire| wire.next_event()) {
            on_event(x, qp, event, from);
        }
        if qp.config.qp_type == QpType::Ud || !post_queued(x, qp) {
            break;
        }
        has_more = true;
    }
    set_timer(x, qp);
    has_more
}

/// Handles a timer of a queue pair that may have expired.
#[cold]
pub(crate) fn on_time<M: Memory>(x: &mut Context<M>, qp: &mut Qp) {
    let now = x.now;
    if let Some(wire) = qp.wire.as_deref_mut() {
        wire.timer = wire.timer.filter(|timer| *timer > now);
        wire.later = wire.later.filter(|timer| *timer > now);
        if let Machine::Connection(connection) = &mut wire.machine {
            connection.advance(now);
        }
    }
    drain_events(x, qp);
    if let Some(wire) = qp.wire.as_deref_mut() {
        await_turn_of(&mut x.wire, qp.id.index, wire);
    }
}

/// Sets the timer, unless one that expires earlier is running. A deadline moves with each packet; its timer does
/// not.
fn set_timer<M: Memory>(x: &mut Context<M>, qp: &mut Qp) {
    let Some(wire) = qp.wire.as_deref_mut() else {
        return;
    };
    // A timer that is already due would run again at once, for ever.
    if let Some(deadline) = wire.next_deadline().map(|time| time.max(x.now + 1))
        && wire.timer.is_none_or(|timer| deadline < timer)
    {
        if wire.later == Some(deadline) {
            // Its timer was set before that of an earlier deadline, which has run.
            wire.later = None;
        } else {
            wire.later = wire.timer.or(wire.later);
            x.timers.at(deadline, (qp.id.index, qp.life));
        }
        wire.timer = Some(deadline);
    }
}

fn on_event<M: Memory>(x: &mut Context<M>, qp: &mut Qp, event: Event, from: Option<&WirePeer>) {
    match event {
        Event::Completed { id, status } => on_completed(x, qp, id, status),
        Event::Received(message) => on_received(x, qp, &message, from),
        Event::ReceiveFailed { status, .. } => {
            let report = qp.wire.as_deref().map_or(0, |wire| wire.arriving.report);
            x.fail_receive(qp, status_of(status), report);
            if qp.config.qp_type == QpType::Ud {
                x.enter_error(qp);
            }
        }
        Event::Refused(code) => {
            let (id, qpn) = (qp.id, qp.qpn);
            let event = match code {
                NakCode::RemoteAccessError => AsyncEvent::AccessError { qp: id, qpn },
                NakCode::InvalidRequest => AsyncEvent::RequestError { qp: id, qpn },
                _ => AsyncEvent::QpFatal { qp: id, qpn },
            };
            x.events.push_back(event.into());
            x.enter_error(qp);
        }
        // An unreliable queue pair has already entered its own error state with the completion.
        Event::Failed if qp.config.qp_type.is_reliable() => x.enter_error(qp),
        Event::Failed => {}
    }
}

/// Completes the request at `seq`.
fn on_completed<M: Memory>(x: &mut Context<M>, qp: &mut Qp, seq: u64, ended: Ended) {
    if seq < qp.sq.head {
        return; // it was flushed
    }
    let wqe = qp.sq.wqe(seq);
    let report = match ended {
        // The peer does not send the reason, which is only in the log of its own process.
        Ended::RemoteAccess => {
            let (id, denial) = (wqe.id, wqe.withheld());
            x.report(Side::Initiator, qp, NodeId::default(), Some(id), denial)
        }
        Ended::LocalProtection => wqe.vendor,
        _ => 0,
    };
    qp.sq.wqe_mut(seq).end(status_of(ended), report);
    x.complete_ended_sends(qp);
}

/// Completes a receive with a message.
fn on_received<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    message: &Received,
    from: Option<&WirePeer>,
) {
    let mut flags = CompletionFlags::empty();
    if qp.config.qp_type == QpType::Ud {
        if !put_route_header(x, qp, message, from) {
            x.enter_error(qp);
            return;
        }
        flags |= CompletionFlags::GRH;
        flags.set(CompletionFlags::IPV4, from.is_some_and(WirePeer::is_ipv4));
        flags.set(CompletionFlags::IPV6, from.is_some_and(|it| !it.is_ipv4()));
    }
    qp.resp.recv.taken = false;
    flags.set(CompletionFlags::IMM, message.immediate.is_some());
    flags.set(CompletionFlags::INVALIDATED, message.invalidated.is_some());
    flags.set(CompletionFlags::SOLICITED, message.solicited);
    let opcode = if message.is_write {
        CompletionOp::RecvWriteImm
    } else {
        CompletionOp::Recv
    };
    let entry = Completion {
        id: qp.resp.recv.id,
        status: Status::Success,
        opcode,
        flags,
        bytes: message.bytes,
        imm: message.immediate.or(message.invalidated).unwrap_or(0),
        qpn: qp.qpn,
        src_qpn: message.source.unwrap_or(qp.peer_qpn()),
        vendor: 0,
    };
    x.push_recv_completion(qp.config.recv_cq, entry, message.solicited);
}

/// Writes the route header in front of a datagram. Returns `false` if the receive has failed.
fn put_route_header<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    message: &Received,
    from: Option<&WirePeer>,
) -> bool {
    let length = message.bytes.saturating_sub(GRH_LEN);
    let header = from.map(|from| from.header_of_received(length));
    let header = header.unwrap_or([0; _]);
    let recv = &qp.resp.recv;
    let bytes = PeerBytes::from_slice(&header);
    let stored = (x.checked).scatter(recv.domain, &recv.sges, 0, bytes, LocalUse::Recv);
    let Err(error) = stored else { return true };
    let report = x.report_local(qp, recv.id, &recv.sges, error);
    x.fail_receive(qp, Status::LocalProtection, report);
    false
}

fn status_of(ended: Ended) -> Status {
    match ended {
        Ended::Success => Status::Success,
        Ended::LocalLength => Status::LocalLength,
        Ended::LocalQpOperation => Status::LocalQpOperation,
        Ended::LocalProtection => Status::LocalProtection,
        Ended::Flushed => Status::Flushed,
        Ended::BadResponse => Status::BadResponse,
        Ended::LocalAccess => Status::LocalAccess,
        Ended::RemoteInvalidRequest => Status::RemoteInvalidRequest,
        Ended::RemoteAccess => Status::RemoteAccess,
        Ended::RemoteOperation => Status::RemoteOperation,
        Ended::RetryExceeded => Status::RetryExceeded,
        Ended::RnrRetryExceeded => Status::RnrRetryExceeded,
    }
}
