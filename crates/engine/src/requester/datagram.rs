//! Datagrams at the requester: each is routed separately.
//!
//! A connected queue pair has one link for all its requests. A datagram names its receiver, so the engine looks up a
//! link for each one. A datagram waits while no link to its receiver is known, and is lost silently if it cannot be
//! delivered, as on any network. `multicast.rs` sends the copies for a group; `responder/datagram.rs` is the receiver's
//! side.

use super::fragment::{header_of, keep, send_fragment};
use super::multicast::{Copied, group_of, send_to_group};
use super::{Start, request_link, start, wait_for_room};
use crate::checked_memory::{AccessError, CheckedMemory};
use crate::context::Context;
use crate::id::Table;
use crate::link_state::LinkState;
use crate::qp::pair::Qp;
use crate::send_queue::{Detail, WqeFlags};
use crate::ud::GRH_LEN;
use crate::{QpType, Status, UdAddress, wire};
use rkey_base::memory::Memory;
use rkey_base::shared::OwnBytes;
use rkey_core::LocalUse;
use rkey_link::{HeaderFlags, Link, SendError, Ticket};

/// Sends what is in the send queue of a datagram queue pair, as far as possible.
pub(super) fn send_queued_datagrams<L: Link, M: Memory>(
    x: &mut Context<M>,
    links: &mut Table<LinkState<L>>,
    qp: &mut Qp,
) {
    while qp.sq.next != qp.sq.tail && qp.may_send() {
        match start(x, qp) {
            Start::Send => {}
            Start::Ended => continue,
            Start::Wait => return,
        }
        if let Detail::Datagram(to) = qp.sq.detail(qp.sq.next)
            && to.wire
        {
            return wire::await_turn(x, qp);
        }
        if let Detail::Datagram(to) = *qp.sq.detail(qp.sq.next)
            && let Some(group) = group_of(qp, &to)
        {
            match send_to_group(x, links, qp, &to, group) {
                Copied::Ended => continue,
                Copied::Wait => return take_payloads(x, qp),
            }
        }
        let link_state = match datagram_path(x, links, qp) {
            Path::Link(link_state) => link_state,
            Path::Ended => continue,
            Path::Wait => return take_payloads(x, qp),
        };
        if let Err(error) = send_fragment(x, link_state, qp) {
            wait_for_room(link_state, qp, error);
            return;
        }
    }
}

enum Path<'a, L> {
    Link(&'a mut LinkState<L>),
    /// The datagram has ended on this side.
    Ended,
    /// There is no link yet.
    Wait,
}

fn datagram_path<'a, L: Link, M: Memory>(
    x: &mut Context<M>,
    links: &'a mut Table<LinkState<L>>,
    qp: &mut Qp,
) -> Path<'a, L> {
    let seq = qp.sq.next;
    let Detail::Datagram(to) = *qp.sq.detail(seq) else {
        return Path::Wait;
    };
    let Some(id) = to.link.or_else(|| x.routes.get(&to.qpn).copied()) else {
        request_link(x, qp, to.qpn);
        return Path::Wait;
    };
    let len = GRH_LEN + qp.sq.wqe(seq).total;
    if links.get(id).is_none_or(|link_state| {
        link_state.meta.down.is_some() || link_state.meta.caps.fragment_max < len
    }) {
        // Counts as lost by the network.
        drop_datagram(x, qp);
        return Path::Ended;
    }
    match links.get_mut(id) {
        Some(link_state) => Path::Link(link_state),
        None => Path::Wait,
    }
}

/// Ends the datagram at `next` as sent; nothing reports whether it arrives.
pub(crate) fn drop_datagram<M: Memory>(x: &mut Context<M>, qp: &mut Qp) {
    let seq = qp.sq.next;
    qp.sq.wqe_mut(seq).end(Status::Success, 0);
    qp.sq.next = seq + 1;
    x.complete_ended_sends(qp);
}

/// Sends a datagram with its global route header (GRH), or a raw frame.
pub(crate) fn send_datagram<L: Link, M: Memory>(
    checked: &CheckedMemory<M>,
    link_state: &mut LinkState<L>,
    qp: &Qp,
    to: &UdAddress,
    key: u64,
    trouble: &mut Option<AccessError>,
) -> Result<Ticket, SendError> {
    let seq = qp.sq.next;
    let mut header = header_of(qp, seq);
    let grh = to.route.grh(header.total);
    let grh = if qp.config.qp_type == QpType::Raw {
        &[][..]
    } else {
        &grh[..]
    };
    header.flags |= HeaderFlags::FIRST | HeaderFlags::LAST;
    header.dst_qp = to.qpn;
    // The highest bit selects the queue pair's own key (IBA 10.2.5).
    header.addr = u64::from(if to.qkey >> 31 == 1 {
        qp.settings.qkey
    } else {
        to.qkey
    });
    header.key = key;
    header.total += grh.len() as u32;
    header.len = header.total;
    if header.len > link_state.meta.caps.fragment_max {
        return Err(SendError::Down);
    }
    let queue = &qp.sq;
    let flags = queue.wqe(seq).flags;
    let taken = if flags.contains(WqeFlags::INLINE) {
        Some(queue.inline(seq))
    } else if flags.contains(WqeFlags::KEPT) {
        queue.kept(seq)
    } else {
        None
    };
    link_state.link.send_request(&header, |into| {
        let (mut front, mut rest) = into.split(grh.len());
        front.put(0, grh);
        if let Some(bytes) = taken {
            rest.put(0, bytes);
            return Ok(());
        }
        checked
            .gather(qp.config.domain, queue.sges(seq), 0, rest, LocalUse::Send)
            .map_err(|found| keep(trouble, found))
    })
}

/// Copies the payloads of datagrams that wait for a link.
///
/// Programs assume that a datagram leaves within microseconds for any destination, and some (UCX) reuse the datagram's
/// memory when the peer has responded, before they have seen the completion. Finding a peer takes longer than that.
#[cold]
fn take_payloads<M: Memory>(x: &mut Context<M>, qp: &mut Qp) {
    for seq in qp.sq.kept_to.max(qp.sq.next)..qp.sq.tail {
        let wqe = qp.sq.wqe(seq);
        let there_already = wqe.flags.contains(WqeFlags::INLINE) || wqe.total == 0;
        if there_already || wqe.total > qp.settings.path_mtu {
            continue;
        }
        let mut bytes = vec![0; wqe.total as usize].into_boxed_slice();
        let domain = qp.config.domain;
        let into = OwnBytes::from_slice(&mut bytes);
        let taken = x
            .checked
            .gather(domain, qp.sq.sges(seq), 0, into, LocalUse::Send);
        // Unreadable memory is reported only when the datagram is sent.
        if taken.is_ok() {
            qp.sq.keep(seq, bytes);
        }
    }
    qp.sq.kept_to = qp.sq.tail;
}
