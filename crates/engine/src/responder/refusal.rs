//! Final refusals of messages.
//!
//! The peer gets the reason, the local program gets a report, and the queue pair moves to the error state unless it has
//! `survive_remote_error`.

use super::{Reply, rkey};
use crate::checked_memory::{AccessError, name_element};
use crate::context::Context;
use crate::nak::Nak;
use crate::qp::pair::{MSN_MASK, Qp};
use crate::{AsyncEvent, Event, QpType, Side, Status};
use rkey_base::memory::Memory;
use rkey_core::{Attempt, Denial, NamedKey, Operation, Reason};
use rkey_link::{Header, NodeId, Op};

/// Refuses a request whose bytes could not be moved.
#[cold]
pub(crate) fn refuse_failed_access<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    header: &Header,
    trouble: AccessError,
) -> Reply {
    match trouble {
        AccessError::Denied(mut denial) if header.op == Op::Send => {
            // Our receive named memory that it may not use.
            let work = qp.resp.recv.id;
            name_element(&mut denial, &qp.resp.recv.sges);
            let vendor = x.report(Side::Local, qp, node, Some(work), *denial);
            x.fail_receive(qp, Status::LocalProtection, vendor);
            refuse(x, qp, node, header, Nak::RemoteOperation, None)
        }
        AccessError::Denied(mut denial) => {
            // Report what the peer requested, not the part where the rights ended.
            (denial.addr, denial.len) = whole(qp, header);
            let code = if matches!(denial.reason, Reason::Misaligned) {
                Nak::InvalidRequest
            } else {
                Nak::RemoteAccess
            };
            refuse(x, qp, node, header, code, Some(denial))
        }
        AccessError::Fault(fault) => {
            let attempt = Attempt::Remote(match header.op {
                Op::Read => Operation::Read,
                Op::Write | Op::Send => Operation::Write,
                _ => Operation::Atomic,
            });
            let key = NamedKey::Remote(rkey(header));
            let (addr, len) = whole(qp, header);
            let denial = Denial::fault(attempt, key, addr, len, fault.address);
            refuse(x, qp, node, header, Nak::RemoteOperation, Some(denial))
        }
        // The caller has already handled a failed pull.
        AccessError::Pull(_) => refuse(x, qp, node, header, Nak::RemoteOperation, None),
    }
}

/// The address and the length of the operation that a request belongs to.
fn whole(qp: &Qp, header: &Header) -> (u64, u64) {
    match header.op {
        Op::CompareSwap | Op::FetchAdd => (header.addr, 8),
        Op::Write => {
            let before = qp.resp.current.map_or(0, |now| now.received);
            let start = header.addr.wrapping_sub(u64::from(before));
            (start, u64::from(header.total))
        }
        _ => (header.addr, u64::from(header.total)),
    }
}

/// Permanently refuses a message: reports the denial here, returns a NAK, and moves the queue pair to the error state
/// unless it has `survive_remote_error`. An unreliable connection drops the message instead.
#[cold]
pub(crate) fn refuse<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    header: &Header,
    code: Nak,
    denial: Option<Box<Denial>>,
) -> Reply {
    qp.resp.current = None;
    let mut reply = Reply::nak_with(header, code as u32);
    if let Some(denial) = denial {
        let origin = x.serving;
        x.count_guess(&origin, &denial);
        // A peer that must not be told the reason gets only the status, which is the same for every reason.
        let told = origin.explain.then(|| denial.encode());
        let id = x.report(Side::Target, qp, node, None, *denial);
        if let Some(told) = told {
            reply = Reply::denial(header, code, &told, id);
        }
    }
    if qp.config.qp_type == QpType::Uc {
        return Reply::Done;
    }
    qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
    if qp.config.survive_remote_error {
        return reply;
    }
    let (id, qpn) = (qp.id, qp.qpn);
    x.events.push_back(match code {
        Nak::RemoteAccess => Event::Async(AsyncEvent::AccessError { qp: id, qpn }),
        Nak::InvalidRequest => Event::Async(AsyncEvent::RequestError { qp: id, qpn }),
        _ => Event::Async(AsyncEvent::QpFatal { qp: id, qpn }),
    });
    if qp.resp.recv.taken && header.op == Op::Write {
        // The write had immediate data and had taken a receive (or its sender has made it out of a send that had).
        x.fail_receive(qp, Status::LocalAccess, 0);
    }
    x.enter_error(qp);
    reply
}
