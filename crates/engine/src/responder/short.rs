//! Short requests: sends and writes of one fragment with their payload in the slot, executed straight from the ring.
//!
//! They are most of what programs send. If the front of the ring is a valid one, it arrives here as a few numbers instead of
//! a header, and if nothing about it is unusual, it is executed and consumed. Otherwise it stays at the front for the long
//! way (`on_request`), the only one that refuses, holds or drops requests. What has been done here by then (a receive taken,
//! some bytes stored) is what the long way begins with as well.

use super::answered::{Taken, take_answered_request};
use super::receive::{complete_receive, take_receive};
use super::{count_access, named_key};
use crate::checked_memory::RequestedRange;
use crate::context::Context;
use crate::id::Table;
use crate::inbox::OpenInbox;
use crate::link_state::LinkState;
use crate::numbers::Numbers;
use crate::qp::pair::{MSN_MASK, Qp};
use crate::{CompletionFlags, LinkId};
use rkey_base::memory::Memory;
use rkey_core::{Access, LocalUse, RKey};
use rkey_link::{Header, HeaderFlags, Link, NotShort, Op, ShortKind, ShortRequest};

/// What [`take_short_requests`] has taken.
pub(crate) struct ShortRequests {
    /// The number of fragments taken, including those before.
    pub(crate) fragments: u32,
    /// Whether nothing else had arrived.
    pub(crate) was_last: bool,
}

/// Takes the short requests at the front of the ring until one is unusual, or until `fragments` reaches `budget`. Those that need a
/// response are left to `answered.rs`.
#[inline(always)]
pub(crate) fn take_short_requests<L: Link, M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    numbers: &Numbers,
    link_state: &mut LinkState<L>,
    (mut fragments, budget): (u32, u32),
    inbox: &mut Option<OpenInbox<'_, M>>,
) -> ShortRequests {
    let (link, meta) = (&link_state.link, &link_state.meta);
    // Without room for a response, the long way would not begin a request either.
    let waits = meta.unsent.is_some()
        || meta.bulk.is_some()
        || !link.room_to_respond()
        || x.guesses
            .paused_until(&meta.origin, meta.since, x.now)
            .is_some();
    let mut was_last = false;
    while !waits && fragments < budget {
        let LinkState { link, meta } = link_state;
        let short = match link.next_short() {
            Ok(Some(short)) => short,
            Ok(None) => {
                was_last = true;
                break;
            }
            Err(NotShort) => {
                let taken = take_answered_request(x, qps, numbers, link_state);
                fragments += u32::from(taken != Taken::Nothing);
                if taken != Taken::One {
                    break;
                }
                continue;
            }
        };
        let Some(qp) = numbers.find(qps, &mut meta.last, short.dst_qp) else {
            break;
        };
        if !is_next(qp, meta.id, short.src_qp, short.msn)
            || short.bytes.is_empty()
            || !execute(x, qp, &short, inbox)
        {
            break;
        }
        qp.resp.msn = (qp.resp.msn + 1) & MSN_MASK;
        link.request_done();
        fragments += 1;
    }
    ShortRequests {
        fragments,
        was_last,
    }
}

/// Whether a request that arrived on this link is the next message of a connected queue pair that is between messages.
#[inline(always)]
pub(super) fn is_next(qp: &Qp, link: LinkId, src_qp: u32, msn: u32) -> bool {
    qp.inbound == Some(link)
        && qp.state.responds()
        && qp.peer.is_some_and(|peer| peer.qpn == src_qp)
        && qp.resp.established
        && qp.config.qp_type.is_plain_connection()
        && msn == qp.resp.msn
        && qp.resp.current.is_none()
}

/// Executes a request. Returns false if it must stay at the front.
#[inline(always)]
fn execute<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    short: &ShortRequest<'_>,
    inbox: &mut Option<OpenInbox<'_, M>>,
) -> bool {
    match short.kind {
        ShortKind::Write {
            addr,
            key,
            requested,
        } => write(x, qp, short, named_key(requested, key), addr),
        ShortKind::Send { solicited } => {
            let is_taken = !qp.resp.recv.taken
                && inbox
                    .as_mut()
                    .is_some_and(|inbox| inbox.offer(x, qp, short.bytes));
            is_taken || receive(x, qp, short, solicited)
        }
    }
}

#[inline(always)]
fn write<M: Memory>(
    x: &mut Context<M>,
    qp: &Qp,
    short: &ShortRequest<'_>,
    key: RKey,
    addr: u64,
) -> bool {
    let range = RequestedRange {
        who: qp.accessor(),
        key,
        addr,
    };
    if !qp.settings.access.contains(Access::REMOTE_WRITE) {
        return false;
    }
    let Some(counter) = x.checked.try_store_remote(&range, short.bytes) else {
        return false;
    };
    // The payload is in a slot of 256 bytes.
    count_access(x, qp, counter, short.bytes.len() as u32, true);
    true
}

/// Moves a message to the next receive.
#[inline(always)]
fn receive<M: Memory>(
    x: &mut Context<M>,
    qp: &mut Qp,
    short: &ShortRequest<'_>,
    solicited: bool,
) -> bool {
    // As in `on_request`, which defers such a message.
    let must_wait = x.acks_first && qp.sq.head != qp.sq.next;
    if must_wait || (!qp.resp.recv.taken && !take_receive(x, qp)) {
        return false;
    }
    let (bytes, recv) = (short.bytes, &qp.resp.recv);
    let stored = bytes.len() as u64 <= recv.capacity
        && x.checked
            .scatter(recv.domain, &recv.sges, 0, bytes, LocalUse::Recv)
            .is_ok();
    if stored {
        let mut header = Header::new(Op::Send);
        header.flags.set(HeaderFlags::SOLICITED, solicited);
        header.src_qp = short.src_qp;
        complete_receive(x, qp, &header, bytes.len() as u32, CompletionFlags::empty());
    }
    stored
}
