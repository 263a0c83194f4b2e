//! Requests that take the responder several steps: payload by reference, and reads.
//!
//! The request stays at the front of its link until the last step, so everything behind it waits:
//! the order of the link is the order of execution. Each step moves at most [`STEP`] bytes and
//! asks the protection table anew, so that whoever closes the region, or waits for the engine,
//! does not wait for a whole gigabyte.

use crate::context::Context;
use crate::id::Table;
use crate::nak::Nak;
use crate::port::Port;
use crate::qp::pair::{MSN_MASK, Qp};
use crate::reach::{Asked, Counter, Reach, Trouble};
use crate::responder::{Answer, Reply, arrived, asked, back, failed, hit, still_allowed};
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_core::{LocalUse, Operation, WIRE_LEN};
use rkey_link::{DownReason, Head, HeadFlags, Link, Op, Payload, PullError, References, SendError};

/// The most bytes that one step moves.
const STEP: u64 = 256 << 10;

/// A request in progress. The head and the list have been copied: the peer cannot change them.
#[derive(Debug)]
pub(crate) struct Bulk {
    qp: u32,
    life: u32,
    head: Head,
    list: Option<Box<References>>,
    /// Bytes of this piece that have been moved.
    done: u64,
    /// Bytes of a read that the requester knows to be in place.
    told: u64,
}

/// A push tells the requester each time it has passed a multiple of this, so that a long read
/// shows that it is alive.
const TELL: u64 = 16 << 20;

/// What became of a step.
pub(crate) enum Stepped {
    /// The request is executed or refused.
    Finished(Reply),
    /// There is more to do.
    More,
    /// There is no room for the next response.
    Full,
    /// The link broke.
    Down(DownReason),
}

impl Bulk {
    pub(crate) fn pull(qp: &Qp, head: &Head, list: &References) -> Self {
        let list = Some(Box::new(*list));
        Self {
            qp: qp.id.index,
            life: qp.life,
            head: *head,
            list,
            done: 0,
            told: 0,
        }
    }

    pub(crate) fn read(qp: &Qp, head: &Head, payload: &Payload<'_>) -> Self {
        let list = match payload {
            Payload::Reference(list) => Some(list.clone()),
            Payload::Bytes(_) => None,
        };
        Self {
            qp: qp.id.index,
            life: qp.life,
            head: *head,
            list,
            done: 0,
            told: 0,
        }
    }
}

/// Does one step.
pub(crate) fn step<L: Link, M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    port: &mut Port<L>,
    bulk: &mut Bulk,
) -> Stepped {
    let Some(qp) = qps.at_mut(bulk.qp).filter(|qp| qp.life == bulk.life) else {
        return Stepped::Finished(Reply::nak(&bulk.head, Nak::NotReady));
    };
    if !qp.state.responds() {
        return Stepped::Finished(Reply::nak(&bulk.head, Nak::NotReady));
    }
    if let Err(reason) = port.link.is_up() {
        return Stepped::Down(reason);
    }
    if let Err(reply) = still_allowed(x, qp, port.meta.node, &bulk.head) {
        return Stepped::Finished(reply);
    }
    if bulk.head.op != Op::Read {
        return pull_step(x, qp, port, bulk);
    }
    if port.meta.no_push && bulk.list.take().is_some() {
        bulk.done = bulk.told;
    }
    if bulk.list.is_some() {
        push_step(x, qp, port, bulk)
    } else {
        read_step(x, qp, port, bulk)
    }
}

/// Copies the next bytes of a send or write from the requester's memory.
fn pull_step<L: Link, M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    port: &mut Port<L>,
    bulk: &mut Bulk,
) -> Stepped {
    let Some(list) = bulk.list.as_deref() else {
        return Stepped::Finished(Reply::nak(&bulk.head, Nak::InvalidRequest));
    };
    let head = &bulk.head;
    let len = (u64::from(head.len) - bulk.done).min(STEP);
    let (link, memory, from) = (&port.link, &x.reach.memory, bulk.done);
    let touch = |span: rkey_base::range::VaRange, before: u64| {
        each_reference(list, from + before, span.len(), |remote, at, part| {
            Ok(link.pull(memory, span.start() + at, remote, part)?)
        })
    };
    let moved: Result<Counter, Trouble> = if head.op == Op::Write {
        let asked = offset(asked(qp, head), from);
        x.reach.each_remote(&asked, len, Operation::Write, touch)
    } else {
        let received = qp.resp.current.map_or(0, |now| u64::from(now.received));
        let sges = &qp.resp.recv.sges;
        let want = LocalUse::Recv;
        x.reach
            .each_local(qp.resp.recv.domain, sges, received + from, len, want, touch)
            .map(|()| None)
    };
    match moved {
        Ok(counter) => {
            bulk.done += len;
            if bulk.done < u64::from(head.len) {
                return Stepped::More;
            }
            let last = head.flags.contains(HeadFlags::LAST);
            if last {
                let total = qp.resp.current.map_or(head.len, |now| now.total);
                hit(x, qp, counter, total, true);
            }
            Stepped::Finished(arrived(x, qp, port.meta.node, head, last))
        }
        Err(trouble) => unmoved(x, qp, port, head, trouble),
    }
}

/// A payload by reference could not be moved.
#[cold]
fn unmoved<L: Link, M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    port: &Port<L>,
    head: &Head,
    trouble: Trouble,
) -> Stepped {
    match trouble {
        Trouble::Pull(PullError::Gone) => Stepped::Down(DownReason::PeerGone),
        Trouble::Pull(PullError::Refused) => {
            // The message begins again, in pieces; its receive stays held for it.
            qp.resp.current = None;
            Stepped::Finished(Reply::nak(head, Nak::NoReference))
        }
        Trouble::Pull(PullError::Remote(address)) => {
            // The message has ended with this answer; the receive that it had taken serves the next one.
            qp.resp.current = None;
            qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
            Stepped::Finished(Reply::fault_of_requester(head, address))
        }
        // Our own memory, or our own rules.
        other => Stepped::Finished(failed(x, qp, port.meta.node, head, other)),
    }
}

/// Copies the next bytes of a read to the requester's memory.
fn push_step<L: Link, M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    port: &mut Port<L>,
    bulk: &mut Bulk,
) -> Stepped {
    let Some(list) = bulk.list.as_deref() else {
        return Stepped::More;
    };
    let head = &bulk.head;
    let len = (u64::from(head.total) - bulk.done).min(STEP);
    let (link, memory, from) = (&port.link, &x.reach.memory, bulk.done);
    let asked = offset(asked(qp, head), from);
    let moved = x
        .reach
        .each_remote(&asked, len, Operation::Read, |span, before| {
            each_reference(list, from + before, span.len(), |remote, at, part| {
                Ok(link.push(memory, remote, span.start() + at, part)?)
            })
        });
    match moved {
        Ok(counter) => {
            bulk.done += len;
            let mut answer = back(head, Op::ReadData);
            answer.flags |= HeadFlags::BY_REFERENCE;
            answer.total = head.total;
            if bulk.done < u64::from(head.total) {
                if bulk.done.is_multiple_of(TELL) {
                    answer.flags -= HeadFlags::LAST;
                    answer.addr = bulk.done;
                    // Only a sign of life: if there is no room for it, the peer is slow itself.
                    if port.link.respond(&answer, |_| Ok(())).is_ok() {
                        bulk.told = bulk.done;
                    }
                }
                return Stepped::More;
            }
            hit(x, qp, counter, head.total, false);
            qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
            Stepped::Finished(Reply::Answer(Answer {
                head: answer,
                wire: [0; WIRE_LEN],
            }))
        }
        Err(Trouble::Pull(PullError::Refused)) => {
            // On through the ring, from where the requester knows.
            port.meta.no_push = true;
            bulk.list = None;
            bulk.done = bulk.told;
            Stepped::More
        }
        Err(trouble) => unmoved(x, qp, port, head, trouble),
    }
}

/// Sends the next bytes of a read through the ring.
fn read_step<L: Link, M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    port: &mut Port<L>,
    bulk: &mut Bulk,
) -> Stepped {
    let head = &bulk.head;
    let total = u64::from(head.total);
    let until = (bulk.done + STEP).min(total);
    loop {
        if !port.link.room_to_respond() {
            return Stepped::Full;
        }
        let len = (total - bulk.done).min(u64::from(port.meta.caps.piece_max));
        let mut piece = back(head, Op::ReadData);
        piece.flags = HeadFlags::empty();
        piece.flags.set(HeadFlags::FIRST, bulk.done == 0);
        piece.flags.set(HeadFlags::LAST, bulk.done + len == total);
        piece.len = len as u32;
        piece.total = head.total;
        piece.addr = bulk.done;
        let asked = offset(asked(qp, head), bulk.done);
        let (reach, mut loaded): (&Reach<M>, _) = (&x.reach, Ok(None));
        let sent = port.link.respond(&piece, |place| {
            loaded = reach.load_remote(&asked, place);
            if loaded.is_ok() {
                Ok(())
            } else {
                Err(Fault::at(asked.addr))
            }
        });
        match (sent, loaded) {
            (Ok(()), Ok(counter)) => {
                bulk.done += len;
                if bulk.done == total {
                    hit(x, qp, counter, head.total, false);
                    qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
                    return Stepped::Finished(Reply::Done);
                }
            }
            (_, Err(trouble)) => {
                return Stepped::Finished(failed(x, qp, port.meta.node, head, trouble));
            }
            (Err(SendError::Full), Ok(_)) => return Stepped::Full,
            (Err(SendError::Down | SendError::Fault(_)), Ok(_)) => {
                return Stepped::Down(port.link.is_up().err().unwrap_or(DownReason::Closed));
            }
        }
        if bulk.done >= until {
            return Stepped::More;
        }
    }
}

fn offset(asked: Asked, by: u64) -> Asked {
    Asked {
        addr: asked.addr.wrapping_add(by),
        ..asked
    }
}

/// Calls `touch` with (address at the requester, offset, length) for the parts of the bytes
/// `from .. from + len` of a list.
fn each_reference(
    list: &References,
    from: u64,
    len: u64,
    mut touch: impl FnMut(u64, u64, u64) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
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
    // The link has checked that the list adds up to the length in the head.
    if done == len {
        Ok(())
    } else {
        Err(Trouble::Pull(PullError::Remote(from + done)))
    }
}
