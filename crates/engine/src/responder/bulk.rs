//! Requests that the responder executes in several steps: remote iovecs, and reads.
//!
//! The request stays at the front of the ring until the last step, so everything after it waits: requests execute in
//! the order of the ring. Each step moves at most [`STEP`] bytes and checks the access again, so that neither a
//! deregistration nor a thread that needs the engine waits until a gigabyte has been copied.

use super::{
    Reply, count_access, finish_fragment, qp_still_allows, refuse_failed_access, requested_range,
    response_header,
};
use crate::checked_memory::{AccessError, CheckedMemory, Counter, RequestedRange};
use crate::context::Context;
use crate::id::Table;
use crate::link_state::{Bulk, LinkState, Response};
use crate::nak::Nak;
use crate::qp::pair::{MSN_MASK, Qp};
use rkey_base::fault::Fault;
use rkey_base::foreign::Span;
use rkey_base::memory::Memory;
use rkey_core::{DENIAL_LEN, LocalUse, Operation};
use rkey_link::{DownReason, Header, HeaderFlags, Link, Op, PullError, RemoteIovec, SendError};

/// The maximum number of bytes that one step moves.
const STEP: u64 = 256 << 10;

/// A push notifies the requester at each multiple of this many bytes, so that a long read shows progress.
const TELL: u64 = 16 << 20;

/// The result of a step.
pub(crate) enum Stepped {
    /// The request is executed or refused.
    Finished(Reply),
    /// More steps are needed.
    More,
    /// There is no room for the next response.
    Full,
    /// The link broke.
    Down(DownReason),
}

/// Executes one step of a request.
pub(crate) fn bulk_step<L: Link, M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    link_state: &mut LinkState<L>,
    bulk: &mut Bulk,
) -> Stepped {
    let Some(qp) = qps.at_mut(bulk.qp).filter(|qp| qp.life == bulk.life) else {
        return Stepped::Finished(Reply::nak(&bulk.header, Nak::NotReady));
    };
    if !qp.state.responds() {
        return Stepped::Finished(Reply::nak(&bulk.header, Nak::NotReady));
    }
    if let Err(reason) = link_state.link.is_up() {
        return Stepped::Down(reason);
    }
    if let Err(reply) = qp_still_allows(x, qp, link_state.meta.node, &bulk.header) {
        return Stepped::Finished(reply);
    }
    if bulk.header.op != Op::Read {
        return pull_step(x, qp, link_state, bulk);
    }
    if link_state.meta.no_push && bulk.list.take().is_some() {
        bulk.done = bulk.told;
    }
    if bulk.list.is_some() {
        push_step(x, qp, link_state, bulk)
    } else {
        read_step(x, qp, link_state, bulk)
    }
}

/// Copies the next bytes of a send or write from the requester's memory.
fn pull_step<L: Link, M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    link_state: &mut LinkState<L>,
    bulk: &mut Bulk,
) -> Stepped {
    let Some(list) = bulk.list.as_deref() else {
        return Stepped::Finished(Reply::nak(&bulk.header, Nak::InvalidRequest));
    };
    let header = &bulk.header;
    let len = (u64::from(header.len) - bulk.done).min(STEP);
    let (link, memory, from) = (&link_state.link, &x.checked.memory, bulk.done);
    let touch = |span: Span<'_>, before: u64| {
        each_remote_range(list, from + before, span.len(), |remote, at, part| {
            let to = span.start() + at;
            let pulled = match span.in_process() {
                Some(_) => link.pull(memory, to, remote, part),
                None => link.pull(&span.as_target(memory), to, remote, part),
            };
            pulled.map_err(AccessError::from)
        })
    };
    let moved: Result<Counter, AccessError> = if header.op == Op::Write {
        let range = offset(requested_range(qp, header), from);
        x.checked.each_remote(&range, len, Operation::Write, touch)
    } else {
        let received = qp.resp.current.map_or(0, |now| u64::from(now.received));
        let sges = &qp.resp.recv.sges;
        let want = LocalUse::Recv;
        x.checked
            .each_local(qp.resp.recv.domain, sges, received + from, len, want, touch)
            .map(|()| None)
    };
    match moved {
        Ok(counter) => {
            bulk.done += len;
            if bulk.done < u64::from(header.len) {
                return Stepped::More;
            }
            let last = header.flags.contains(HeaderFlags::LAST);
            if last {
                let total = qp.resp.current.map_or(header.len, |now| now.total);
                count_access(x, qp, counter, total, true);
            }
            Stepped::Finished(finish_fragment(x, qp, link_state.meta.node, header, last))
        }
        Err(trouble) => unmoved(x, qp, link_state, header, trouble),
    }
}

/// Handles a failure to copy bytes of a remote iovec.
#[cold]
fn unmoved<L: Link, M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    link_state: &LinkState<L>,
    header: &Header,
    trouble: AccessError,
) -> Stepped {
    match trouble {
        AccessError::Pull(PullError::Gone) => Stepped::Down(DownReason::PeerGone),
        AccessError::Pull(PullError::Refused) => {
            // The requester resends the message in fragments; the queue pair keeps the receive for it.
            qp.resp.current = None;
            Stepped::Finished(Reply::nak(header, Nak::NoRemoteIovec))
        }
        AccessError::Pull(PullError::Remote(address)) => {
            // The message ends with this response; the next one uses its receive.
            qp.resp.current = None;
            qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
            Stepped::Finished(Reply::fault_of_requester(header, address))
        }
        // Our own memory faulted, or our protection table denied the access.
        other => Stepped::Finished(refuse_failed_access(
            x,
            qp,
            link_state.meta.node,
            header,
            other,
        )),
    }
}

/// Copies the next bytes of a read to the requester's memory.
fn push_step<L: Link, M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    link_state: &mut LinkState<L>,
    bulk: &mut Bulk,
) -> Stepped {
    let Some(list) = bulk.list.as_deref() else {
        return Stepped::More;
    };
    let header = &bulk.header;
    let len = (u64::from(header.total) - bulk.done).min(STEP);
    let (link, memory, from) = (&link_state.link, &x.checked.memory, bulk.done);
    let range = offset(requested_range(qp, header), from);
    let moved = x
        .checked
        .each_remote(&range, len, Operation::Read, |span, before| {
            each_remote_range(list, from + before, span.len(), |remote, at, part| {
                let source = span.start() + at;
                let pushed = match span.in_process() {
                    Some(_) => link.push(memory, remote, source, part),
                    None => link.push(&span.as_source(memory), remote, source, part),
                };
                pushed.map_err(AccessError::from)
            })
        });
    match moved {
        Ok(counter) => {
            bulk.done += len;
            let mut answer = response_header(header, Op::ReadData);
            answer.flags |= HeaderFlags::REMOTE_IOVEC;
            answer.total = header.total;
            if bulk.done < u64::from(header.total) {
                if bulk.done.is_multiple_of(TELL) {
                    answer.flags -= HeaderFlags::LAST;
                    answer.addr = bulk.done;
                    // This response only reports progress. It is skipped if there is no room: then the peer itself is
                    // slow to take responses.
                    if link_state.link.send_response(&answer, |_| Ok(())).is_ok() {
                        bulk.told = bulk.done;
                    }
                }
                return Stepped::More;
            }
            count_access(x, qp, counter, header.total, false);
            qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
            Stepped::Finished(Reply::Response(Response {
                header: answer,
                denial: [0; DENIAL_LEN],
            }))
        }
        Err(AccessError::Pull(PullError::Refused)) => {
            // Continue through the ring, from the offset last reported to the requester.
            link_state.meta.no_push = true;
            bulk.list = None;
            bulk.done = bulk.told;
            Stepped::More
        }
        Err(trouble) => unmoved(x, qp, link_state, header, trouble),
    }
}

/// Sends the next bytes of a read through the ring.
fn read_step<L: Link, M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    link_state: &mut LinkState<L>,
    bulk: &mut Bulk,
) -> Stepped {
    let header = &bulk.header;
    let total = u64::from(header.total);
    let until = (bulk.done + STEP).min(total);
    loop {
        if !link_state.link.room_to_respond() {
            return Stepped::Full;
        }
        let len = (total - bulk.done).min(u64::from(link_state.meta.caps.fragment_max));
        let mut fragment = response_header(header, Op::ReadData);
        fragment.flags = HeaderFlags::empty();
        fragment.flags.set(HeaderFlags::FIRST, bulk.done == 0);
        fragment
            .flags
            .set(HeaderFlags::LAST, bulk.done + len == total);
        fragment.len = len as u32;
        fragment.total = header.total;
        fragment.addr = bulk.done;
        let range = offset(requested_range(qp, header), bulk.done);
        let (checked, mut loaded): (&CheckedMemory<M>, _) = (&x.checked, Ok(None));
        let sent = link_state.link.send_response(&fragment, |into| {
            loaded = checked.load_remote(&range, into);
            if loaded.is_ok() {
                Ok(())
            } else {
                Err(Fault::at(range.addr))
            }
        });
        match (sent, loaded) {
            (Ok(()), Ok(counter)) => {
                bulk.done += len;
                if bulk.done == total {
                    count_access(x, qp, counter, header.total, false);
                    qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
                    return Stepped::Finished(Reply::Done);
                }
            }
            (_, Err(trouble)) => {
                return Stepped::Finished(refuse_failed_access(
                    x,
                    qp,
                    link_state.meta.node,
                    header,
                    trouble,
                ));
            }
            (Err(SendError::Full), Ok(_)) => return Stepped::Full,
            (Err(SendError::Down | SendError::Fault(_)), Ok(_)) => {
                return Stepped::Down(link_state.link.is_up().err().unwrap_or(DownReason::Closed));
            }
        }
        if bulk.done >= until {
            return Stepped::More;
        }
    }
}

fn offset(range: RequestedRange, by: u64) -> RequestedRange {
    RequestedRange {
        addr: range.addr.wrapping_add(by),
        ..range
    }
}

/// Calls `touch` with (address at the requester, offset, length) for the parts of the bytes
/// `from .. from + len` of a list.
fn each_remote_range(
    list: &RemoteIovec,
    from: u64,
    len: u64,
    mut touch: impl FnMut(u64, u64, u64) -> Result<(), AccessError>,
) -> Result<(), AccessError> {
    let (mut skip, mut done) = (from, 0);
    for &(va, size) in list.as_slice() {
        if done == len {
            break;
        }
        if skip >= size {
            skip -= size;
            continue;
        }
        let part = (size - skip).min(len - done);
        touch(va.wrapping_add(skip), done, part)?;
        done += part;
        skip = 0;
    }
    // The link has checked that the list adds up to the length in the header.
    if done == len {
        Ok(())
    } else {
        Err(AccessError::Pull(PullError::Remote(from + done)))
    }
}
