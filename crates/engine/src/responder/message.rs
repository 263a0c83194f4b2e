//! Messages of sends and writes, from their first piece to their last.
//!
//! A message is checked as a whole when it begins, and is then the one *in progress* (`qp.resp.current`) until its
//! last piece is in place. Pieces come in order; a first piece in the middle of another message means that its sender
//! has given that one up.

use super::receive::{complete_receive, no_receive, take_receive};
use super::{Reply, allow, asked, failed, hit, refuse};
use crate::bulk::Bulk;
use crate::context::Context;
use crate::nak::Nak;
use crate::qp::pair::{Inbound, MSN_MASK, Qp};
use crate::reach::{Counter, Trouble};
use crate::{CompletionFlags, QpType, Status};
use rkey_base::memory::Memory;
use rkey_base::shared::Foreign;
use rkey_core::{Key, LocalUse, Operation};
use rkey_link::{Head, HeadFlags, Incoming, NodeId, Op, Payload};

/// A first piece came where it was not expected.
#[cold]
pub(super) fn resynchronise<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    head: &Head,
) -> Result<(), Reply> {
    let abandoned = qp.resp.current.take().is_some();
    if qp.config.qp_type == QpType::Uc {
        // The message in progress is dropped; its receive serves this one (IBA 9.8.2.2).
        qp.resp.msn = head.msn & MSN_MASK;
        return Ok(());
    }
    if abandoned {
        if !qp.config.survive_remote_error {
            return Err(refuse(x, qp, node, head, Nak::InvalidRequest, None));
        }
        qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
    }
    if head.msn == qp.resp.msn {
        Ok(())
    } else {
        Err(Reply::nak(head, Nak::Sequence))
    }
}

/// A message of sends or writes begins: checks it as a whole.
#[inline]
pub(super) fn begin<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    head: &Head,
) -> Result<(), Reply> {
    if head.op == Op::Write && head.total > 0 {
        allow(x, qp, node, head, Operation::Write)?;
        if head.len < head.total {
            let asked = asked(qp, head);
            let whole = x
                .reach
                .lease(&asked, u64::from(head.total), Operation::Write)
                .map(drop);
            if let Err(denial) = whole {
                return Err(refuse(x, qp, node, head, Nak::RemoteAccess, Some(denial)));
            }
        }
    }
    if head.op == Op::Send || head.flags.contains(HeadFlags::IMMEDIATE) {
        if !qp.resp.recv.held && !take_receive(x, qp) {
            return Err(no_receive(qp, head));
        }
        if head.op == Op::Send && u64::from(head.total) > qp.resp.recv.capacity {
            x.fail_receive(qp, Status::LocalLength, 0);
            return Err(refuse(x, qp, node, head, Nak::InvalidRequest, None));
        }
    }
    let (msn, op, total) = (head.msn, head.op, head.total);
    qp.resp.current = Some(Inbound {
        msn,
        op,
        total,
        received: 0,
    });
    Ok(())
}

/// A piece of a send or write whose message is in progress.
#[inline]
pub(super) fn piece<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    incoming: &Incoming<'_>,
) -> Reply {
    let head = &incoming.head;
    let Some(now) = qp.resp.current else {
        return Reply::Done;
    };
    let end = u64::from(now.received) + u64::from(head.len);
    let last = head.flags.contains(HeadFlags::LAST);
    let right = if last {
        end == u64::from(now.total)
    } else {
        end < u64::from(now.total)
    };
    if !right || (head.len == 0 && !last) {
        return refuse(x, qp, node, head, Nak::InvalidRequest, None);
    }
    let bytes = match &incoming.payload {
        Payload::Bytes(bytes) => *bytes,
        Payload::Reference(list) => return Reply::Bulk(Bulk::pull(qp, head, list)),
    };
    if head.len > 0 {
        let stored = if head.op == Op::Write {
            x.reach.store_remote(&asked(qp, head), bytes)
        } else {
            place_send(x, qp, now.received, bytes)
        };
        match stored {
            // A message of several pieces counts once.
            Ok(counter) if last => hit(x, qp, counter, now.total, true),
            Ok(_) => {}
            Err(trouble) => return failed(x, qp, node, head, trouble),
        }
    }
    arrived(x, qp, node, head, last)
}

#[inline(always)]
fn place_send<M: Memory>(
    x: &Context<M>,
    qp: &Qp,
    offset: u32,
    bytes: Foreign<'_>,
) -> Result<Counter, Trouble> {
    let sges = &qp.resp.recv.sges;
    x.reach.scatter(
        qp.resp.recv.domain,
        sges,
        u64::from(offset),
        bytes,
        LocalUse::Recv,
    )?;
    Ok(None)
}

/// The bytes of a piece are in place.
#[inline]
pub(crate) fn arrived<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    head: &Head,
    last: bool,
) -> Reply {
    if !last {
        if let Some(now) = &mut qp.resp.current {
            now.received += head.len;
        }
        return Reply::Done;
    }
    if head.op == Op::Send && head.flags.contains(HeadFlags::INVALIDATE) {
        let done = x
            .reach
            .protection
            .invalidate(Key(head.imm), &qp.accessor(), true);
        if let Err(denial) = done {
            x.fail_receive(qp, Status::LocalAccess, 0);
            return refuse(x, qp, node, head, Nak::RemoteAccess, Some(denial));
        }
    }
    qp.resp.current = None;
    qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
    if qp.resp.recv.held && (head.op == Op::Send || head.flags.contains(HeadFlags::IMMEDIATE)) {
        complete_receive(x, qp, head, head.total, CompletionFlags::empty());
    }
    Reply::Done
}
