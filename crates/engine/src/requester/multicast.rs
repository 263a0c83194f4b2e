//! Datagrams to groups: a copy for every device that has members.
//!
//! A copy that finds its link full waits for room, as other datagrams do, but not forever, because the other members
//! are waiting. After [`ROOM_WAITS`] it is lost, and no datagram to a group waits for that link again until the link
//! has accepted one.

use super::datagram::send_datagram;
use super::{fail, record, wait_for_room};
use crate::checked_memory::AccessError;
use crate::context::Context;
use crate::groups::{Copies, GROUP_QPN, Group, RAW_FRAMES_KEY};
use crate::id::Table;
use crate::link_state::LinkState;
use crate::qp::pair::{MSN_MASK, Qp};
use crate::send_queue::WqeFlags;
use crate::{Event, QpType, Status, UdAddress};
use rkey_base::memory::Memory;
use rkey_core::LocalUse;
use rkey_link::{Link, SendError};

/// How many times a copy waits for room on its link, and how long each time, in nanoseconds. A clock that jumps,
/// because the time was not updated for a while, only makes one wait shorter.
const ROOM_WAITS: (u8, u64) = (10, 50_000_000);

/// The group that a datagram is for, if any.
pub(crate) fn group_of(qp: &Qp, to: &UdAddress) -> Option<Group> {
    if qp.config.qp_type == QpType::Raw {
        Some(Group::RawFrames)
    } else if to.qpn == GROUP_QPN {
        Some(Group::Gid(to.route.target))
    } else {
        None
    }
}

/// The result of sending a datagram to a group.
pub(super) enum Copied {
    Ended,
    /// The links are not known yet, or one of them has no room.
    Wait,
}

/// The time until which to wait for room on a link, and how many more waits are allowed; `None` if none is left.
/// `earlier` is the result of the last call for the same link.
fn next_wait<M: Memory>(
    x: &mut Context<M>,
    qp: &Qp,
    earlier: Option<(u64, u8)>,
) -> Option<(u64, u8)> {
    let waits = match earlier {
        Some((until, _)) if x.now < until => return earlier,
        Some((_, waits)) => waits,
        None => ROOM_WAITS.0,
    };
    let left = waits.checked_sub(1)?;
    let until = x.now + ROOM_WAITS.1;
    x.timers.at(until, (qp.id.index, qp.life));
    Some((until, left))
}

/// Why the datagram's memory must not be read; `None` if it may be read. Checked even if the group has no members.
fn why_not_readable<M: Memory>(x: &Context<M>, qp: &Qp, seq: u64) -> Option<AccessError> {
    let wqe = qp.sq.wqe(seq);
    if wqe.flags.intersects(WqeFlags::INLINE.union(WqeFlags::KEPT)) {
        return None;
    }
    let (domain, total) = (qp.config.domain, u64::from(wqe.total));
    x.checked
        .check_sges(domain, qp.sq.sges(seq), total, LocalUse::Send)
        .err()
}

/// Sends a copy of the datagram at `next` to every device that has members.
#[cold]
pub(super) fn send_to_group<L: Link, M: Memory>(
    x: &mut Context<M>,
    links: &mut Table<LinkState<L>>,
    qp: &mut Qp,
    to: &UdAddress,
    group: Group,
) -> Copied {
    let begun = qp.req.copies.take();
    let begun = begun.filter(|begun| begun.seq == qp.sq.next && begun.life == qp.life);
    let (left, mut waited) = begun.map_or((None, None), |begun| {
        (Some(begun.links), Some((begun.until, begun.waits)))
    });
    let known = x.destinations.get(&group).filter(|to| x.now < to.until);
    let Some(ids) = left.or_else(|| known.map(|to| to.links.clone())) else {
        if !qp.req.link_requested {
            qp.req.link_requested = true;
            x.events.push_back(Event::GroupNeeded { qp: qp.id, group });
        }
        return Copied::Wait;
    };
    let seq = qp.sq.next;
    let mut trouble = why_not_readable(x, qp, seq);
    let key = if group == Group::RawFrames {
        RAW_FRAMES_KEY
    } else {
        0
    };
    for (index, &id) in ids.iter().enumerate() {
        let Some(link_state) = links
            .get_mut(id)
            .filter(|link_state| link_state.meta.down.is_none())
        else {
            continue;
        };
        if trouble.is_some() {
            break;
        }
        match send_datagram(&x.checked, link_state, qp, to, key, &mut trouble) {
            Ok(_) => {
                link_state.meta.no_room = false;
                record(link_state, qp, seq, true);
                link_state.link.end_burst();
            }
            Err(SendError::Full) if !link_state.meta.no_room => {
                // `waited` is about the first link of the list only.
                let earlier = waited.take().filter(|_| index == 0);
                let Some((until, waits)) = next_wait(x, qp, earlier) else {
                    link_state.meta.no_room = true;
                    continue;
                };
                wait_for_room(link_state, qp, SendError::Full);
                qp.req.copies = Some(Copies {
                    seq,
                    life: qp.life,
                    links: ids[index..].to_vec(),
                    until,
                    waits,
                });
                return Copied::Wait;
            }
            Err(SendError::Fault(_) | SendError::Full | SendError::Down) => {}
        }
    }
    if let Some(trouble) = trouble {
        let vendor = x.report_local(qp, qp.sq.wqe(seq).id, qp.sq.sges(seq), trouble);
        fail(x, qp, seq, Status::LocalProtection, vendor);
        return Copied::Ended;
    }
    let wqe = qp.sq.wqe_mut(seq);
    wqe.msn = qp.req.msn;
    wqe.end(Status::Success, 0);
    qp.req.msn = (qp.req.msn + 1) & MSN_MASK;
    qp.sq.next = seq + 1;
    x.complete_ended_sends(qp);
    Copied::Ended
}
