//! Messages of sends and writes, from their first fragment to their last.
//!
//! A message is checked as a whole when it starts, and is then *in progress* (`qp.resp.current`) until its last
//! fragment is stored. Fragments arrive in order; a first fragment in the middle of a message means that the sender has
//! abandoned that message.

use super::receive::{complete_receive, no_receive, take_receive};
use super::{Reply, count_access, qp_allows, refuse, refuse_failed_access, requested_range};
use crate::checked_memory::{AccessError, Counter};
use crate::context::Context;
use crate::link_state::Bulk;
use crate::nak::Nak;
use crate::qp::pair::{Inbound, MSN_MASK, Qp};
use crate::{CompletionFlags, QpType, Status};
use rkey_base::memory::Memory;
use rkey_base::shared::PeerBytes;
use rkey_core::{Key, LocalUse, Operation};
use rkey_link::{Header, HeaderFlags, NodeId, Op, Payload, ReceivedFragment};

/// Handles an unexpected first fragment.
#[cold]
pub(super) fn resynchronise<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    header: &Header,
) -> Result<(), Reply> {
    let abandoned = qp.resp.current.take().is_some();
    if qp.config.qp_type == QpType::Uc {
        // Drop the message in progress; the new one uses its receive (IBA 9.8.2.2).
        qp.resp.msn = header.msn & MSN_MASK;
        return Ok(());
    }
    if abandoned {
        if !qp.config.survive_remote_error {
            return Err(refuse(x, qp, node, header, Nak::InvalidRequest, None));
        }
        qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
    }
    if header.msn == qp.resp.msn {
        Ok(())
    } else {
        Err(Reply::nak(header, Nak::Sequence))
    }
}

/// Starts a message of a send or write: checks it as a whole.
#[inline]
pub(super) fn begin_message<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    header: &Header,
) -> Result<(), Reply> {
    if header.op == Op::Write && header.total > 0 {
        qp_allows(x, qp, node, header, Operation::Write)?;
        if header.len < header.total {
            let range = requested_range(qp, header);
            let whole = x
                .checked
                .grant(&range, u64::from(header.total), Operation::Write)
                .map(drop);
            if let Err(denial) = whole {
                return Err(refuse(x, qp, node, header, Nak::RemoteAccess, Some(denial)));
            }
        }
    }
    if header.op == Op::Send || header.flags.contains(HeaderFlags::IMMEDIATE) {
        if !qp.resp.recv.taken && !take_receive(x, qp) {
            return Err(no_receive(qp, header));
        }
        if header.op == Op::Send && u64::from(header.total) > qp.resp.recv.capacity {
            x.fail_receive(qp, Status::LocalLength, 0);
            return Err(refuse(x, qp, node, header, Nak::InvalidRequest, None));
        }
    }
    let (msn, op, total) = (header.msn, header.op, header.total);
    qp.resp.current = Some(Inbound {
        msn,
        op,
        total,
        received: 0,
    });
    Ok(())
}

/// Stores a fragment of the message in progress.
#[inline]
pub(super) fn store_fragment<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    incoming: &ReceivedFragment<'_>,
) -> Reply {
    let header = &incoming.header;
    let Some(now) = qp.resp.current else {
        return Reply::Done;
    };
    let end = u64::from(now.received) + u64::from(header.len);
    let last = header.flags.contains(HeaderFlags::LAST);
    let right = if last {
        end == u64::from(now.total)
    } else {
        end < u64::from(now.total)
    };
    if !right || (header.len == 0 && !last) {
        return refuse(x, qp, node, header, Nak::InvalidRequest, None);
    }
    let bytes = match &incoming.payload {
        Payload::Bytes(bytes) => *bytes,
        Payload::RemoteIovec(list) => return Reply::Bulk(Bulk::of_pull(qp, header, list)),
    };
    if header.len > 0 {
        let stored = if header.op == Op::Write {
            x.checked.store_remote(&requested_range(qp, header), bytes)
        } else {
            place_send(x, qp, now.received, bytes)
        };
        match stored {
            // A message of several fragments counts once.
            Ok(counter) if last => count_access(x, qp, counter, now.total, true),
            Ok(_) => {}
            Err(trouble) => return refuse_failed_access(x, qp, node, header, trouble),
        }
    }
    finish_fragment(x, qp, node, header, last)
}

#[inline(always)]
fn place_send<M: Memory>(
    x: &Context<M>,
    qp: &Qp,
    offset: u32,
    bytes: PeerBytes<'_>,
) -> Result<Counter, AccessError> {
    let sges = &qp.resp.recv.sges;
    x.checked.scatter(
        qp.resp.recv.domain,
        sges,
        u64::from(offset),
        bytes,
        LocalUse::Recv,
    )?;
    Ok(None)
}

/// Finishes a fragment whose bytes have been stored; completes the message if it is the last one.
#[inline]
pub(crate) fn finish_fragment<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    node: NodeId,
    header: &Header,
    last: bool,
) -> Reply {
    if !last {
        if let Some(now) = &mut qp.resp.current {
            now.received += header.len;
        }
        return Reply::Done;
    }
    if header.op == Op::Send && header.flags.contains(HeaderFlags::INVALIDATE) {
        let done = x
            .checked
            .protection
            .invalidate(Key(header.imm), &qp.accessor(), true);
        if let Err(denial) = done {
            x.fail_receive(qp, Status::LocalAccess, 0);
            return refuse(x, qp, node, header, Nak::RemoteAccess, Some(denial));
        }
    }
    qp.resp.current = None;
    qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
    if qp.resp.recv.taken
        && (header.op == Op::Send || header.flags.contains(HeaderFlags::IMMEDIATE))
    {
        complete_receive(x, qp, header, header.total, CompletionFlags::empty());
    }
    Reply::Done
}
