//! Multicast: a datagram to a group reaches every member, on every device with members.
//!
//! The engine's owner knows the members on other devices: a datagram to a group raises [`crate::Event::GroupNeeded`],
//! and waits for [`Engine::connect_group`]. The result is valid for a short time, so that a burst asks once. A copy
//! that finds its link full waits for room, as other datagrams do, but not forever, because the other members are
//! waiting. After [`ROOM_WAITS`] it is lost, and no datagram to a group waits for that link again until it has taken
//! one.
//!
//! The frames of raw queue pairs go to one group, the [wire](Group::Wire); a member takes those that match one of its
//! [flows](Flow).

use crate::context::Context;
use crate::id::Table;
use crate::link_state::LinkState;
use crate::qp::pair::{MSN_MASK, Qp};
use crate::requester::{fail, hold, pump, record, send_datagram};
use crate::responder::Reply;
use crate::send_queue::{Detail, WqeFlags};
use crate::{Engine, EngineError, Event, LinkId, QpId, QpType, Status, UdAddress, ud};
use rkey_base::memory::Memory;
use rkey_base::shared::PeerBytes;
use rkey_core::LocalUse;
use rkey_link::{Incoming, Link, Payload, SendError};

/// The queue pair number that stands for a group (IBA 3.5.11: multicast).
pub const GROUP_QPN: u32 = 0xff_ffff;
/// What a fragment for the wire has as its key.
const WIRE_KEY: u64 = 1;
/// How long the list of a group's links is taken to be complete, in nanoseconds.
const FRESH_NS: u64 = 1_000_000;
/// How often a copy waits for room on its link, and how long each time, in nanoseconds. A clock that jumps, because
/// the time was not updated for a while, only makes one wait shorter.
const ROOM_WAITS: (u8, u64) = (10, 50_000_000);
/// How many bytes of a frame a flow can match.
const FLOW_MAX: usize = 128;

/// A group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// A multicast group, by its GID.
    Gid([u8; 16]),
    /// All raw queue pairs that have flows.
    Wire,
}

/// The frames that a raw queue pair takes: those whose first bytes equal `value` wherever `mask` has ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// The required bytes.
    pub value: Vec<u8>,
    /// Which bits count. A frame that is shorter does not match.
    pub mask: Vec<u8>,
}

impl Flow {
    fn takes(&self, start: &[u8]) -> bool {
        let pairs = self.mask.iter().zip(&self.value).zip(start);
        start.len() >= self.mask.len()
            && pairs
                .into_iter()
                .all(|((mask, value), byte)| byte & mask == value & mask)
    }
}

/// Links to the devices that have members of a group.
pub(crate) struct Destinations {
    links: Vec<LinkId>,
    until: u64,
}

/// A datagram that was sent over some of the links of its group and waits for room on the next one.
#[derive(Debug)]
pub(crate) struct Copies {
    seq: u64,
    life: u32,
    /// Links that have no copy yet.
    links: Vec<LinkId>,
    /// When to try the first of them again, unless it has room before that.
    pub(crate) until: u64,
    /// How many more times it may wait for that link.
    waits: u8,
}

impl<L: Link, M: Memory> Engine<L, M> {
    /// Makes a datagram queue pair a member of a group. Joining a second time has no effect.
    ///
    /// # Errors
    /// The handle is stale.
    pub fn join_group(&mut self, qp: QpId, group: Group) -> Result<(), EngineError> {
        self.qps.get(qp).ok_or(EngineError::NoSuch("queue pair"))?;
        let members = self.x.members.entry(group).or_default();
        if !members.contains(&qp) {
            members.push(qp);
        }
        Ok(())
    }

    /// Ends a membership.
    pub fn leave_group(&mut self, qp: QpId, group: Group) {
        if let Some(members) = self.x.members.get_mut(&group) {
            members.retain(|member| *member != qp);
            if members.is_empty() {
                self.x.members.remove(&group);
            }
        }
    }

    /// Sets the links for datagrams to a group, for a short time: the response to [`Event::GroupNeeded`].
    pub fn connect_group(&mut self, group: Group, links: Vec<LinkId>) {
        let now = self.x.now;
        let until = now + FRESH_NS;
        let destinations = &mut self.x.destinations;
        // Entries of other groups expire too: there may be any number of groups.
        destinations.retain(|_, known| now < known.until);
        destinations.insert(group, Destinations { links, until });
        for index in 0..self.qps.bound() {
            let Some(qp) = self.qps.at_mut(index) else {
                continue;
            };
            if qp.config.qp_type.is_datagram()
                && qp.sq.next != qp.sq.tail
                && matches!(qp.sq.detail(qp.sq.next), Detail::Datagram(to) if group_of(qp, to) == Some(group))
            {
                qp.req.link_requested = false;
                pump(&mut self.x, &mut self.links, qp);
            }
        }
        self.settle_broken();
    }

    /// Adds a flow to a raw queue pair, which then takes the frames that it describes if it is a member of the
    /// [wire](Group::Wire).
    ///
    /// # Errors
    /// The handle is stale, the queue pair is not raw, or the flow matches bytes beyond the limit.
    pub fn add_flow(&mut self, qp: QpId, number: u32, flow: Flow) -> Result<(), EngineError> {
        let qp = self.qps.get_mut(qp);
        let qp = qp
            .filter(|qp| qp.config.qp_type == QpType::Raw)
            .ok_or(EngineError::NoSuch("raw queue pair"))?;
        if flow.mask.len() > FLOW_MAX || flow.value.len() != flow.mask.len() {
            return Err(EngineError::Limit {
                what: "bytes of a flow",
                given: flow.mask.len() as u64,
                limit: FLOW_MAX as u64,
            });
        }
        qp.flows.push((number, flow));
        Ok(())
    }

    /// Removes a flow.
    pub fn remove_flow(&mut self, qp: QpId, number: u32) {
        if let Some(qp) = self.qps.get_mut(qp) {
            qp.flows.retain(|(of, _)| *of != number);
        }
    }
}

/// The group that a datagram is for, if it is for one.
pub(crate) fn group_of(qp: &Qp, to: &UdAddress) -> Option<Group> {
    if qp.config.qp_type == QpType::Raw {
        Some(Group::Wire)
    } else if to.qpn == GROUP_QPN {
        Some(Group::Gid(to.route.target))
    } else {
        None
    }
}

/// The result of sending a datagram to a group.
pub(crate) enum Copied {
    Ended,
    /// Its destinations are not known yet, or one has no room.
    Wait,
}

/// Sends a copy of the datagram at `next` to every device that has members.
#[cold]
pub(crate) fn send<L: Link, M: Memory>(
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
    let (sges, total) = (qp.sq.sges(seq), u64::from(qp.sq.wqe(seq).total));
    // These errors do not depend on whether the group has members.
    let domain = qp.config.domain;
    let taken = WqeFlags::INLINE.union(WqeFlags::KEPT);
    let mut trouble = if qp.sq.wqe(seq).flags.intersects(taken) {
        None
    } else {
        x.checked
            .check_sges(domain, sges, total, LocalUse::Send)
            .err()
    };
    let key = if group == Group::Wire { WIRE_KEY } else { 0 };
    for (place, &id) in ids.iter().enumerate() {
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
                link_state.link.flush();
            }
            Err(SendError::Full) if !link_state.meta.no_room => {
                // The remaining links have not been waited for yet.
                let (until, waits) = match waited.take().filter(|_| place == 0) {
                    Some((until, waits)) if x.now < until => (until, waits),
                    Some((_, 0)) => {
                        link_state.meta.no_room = true;
                        continue;
                    }
                    earlier => {
                        let waits = earlier.map_or(ROOM_WAITS.0, |(_, waits)| waits);
                        let until = x.now + ROOM_WAITS.1;
                        x.timers.at(until, (qp.id.index, qp.life));
                        (until, waits - 1)
                    }
                };
                hold(link_state, qp, SendError::Full);
                qp.req.copies = Some(Copies {
                    seq,
                    life: qp.life,
                    links: ids[place..].to_vec(),
                    until,
                    waits,
                });
                return Copied::Wait;
            }
            Err(SendError::Fault(_) | SendError::Full | SendError::Down) => {}
        }
    }
    if let Some(trouble) = trouble {
        let vendor = x.report_local(qp, qp.sq.wqe(seq).id, trouble);
        fail(x, qp, seq, Status::LocalProtection, vendor);
        return Copied::Ended;
    }
    let wqe = qp.sq.wqe_mut(seq);
    wqe.msn = qp.req.msn;
    wqe.end(Status::Success, 0);
    qp.req.msn = (qp.req.msn + 1) & MSN_MASK;
    qp.sq.next = seq + 1;
    x.retire(qp);
    Copied::Ended
}

/// Delivers a datagram to all local members.
#[cold]
pub(crate) fn deliver<M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    incoming: &Incoming<'_>,
) -> Reply {
    let Payload::Bytes(bytes) = &incoming.payload else {
        return Reply::Done;
    };
    let group = if incoming.header.key == WIRE_KEY {
        Group::Wire
    } else if bytes.len() >= ud::GRH_LEN as usize {
        let mut target = [0; 16];
        bytes.get(ud::GRH_LEN as usize - target.len(), &mut target);
        Group::Gid(target)
    } else {
        return Reply::Done;
    };
    for member in x.members.get(&group).cloned().unwrap_or_default() {
        if let Some(qp) = qps.get_mut(member) {
            ud::on_datagram(x, qp, incoming);
        }
    }
    Reply::Done
}

/// Whether a raw queue pair takes a frame.
pub(crate) fn takes_frame(qp: &Qp, key: u64, frame: &PeerBytes<'_>) -> bool {
    if key != WIRE_KEY {
        return false;
    }
    let mut start = [0; FLOW_MAX];
    let len = frame.len().min(FLOW_MAX);
    frame.get(0, &mut start[..len]);
    qp.flows.iter().any(|(_, flow)| flow.takes(&start[..len]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EngineConfig;
    use rkey_base::memory::ArenaMemory;
    use rkey_core::{Limits, Protection, Secrets};
    use rkey_link::loopback::Loopback;
    use std::sync::Arc;

    #[test]
    fn groups_that_nobody_sends_to_any_more_are_forgotten() {
        let table = Arc::new(Protection::new(Limits::default(), Secrets([1; 4])));
        let memory = ArenaMemory::new(0x1000, 64);
        let section = table.section().unwrap();
        let mut engine = Engine::<Loopback, _>::new(EngineConfig::default(), section, memory);
        for number in 0..1000u64 {
            engine.drive(number * (FRESH_NS / 10), 1);
            let group = Group::Gid(u128::from(number).to_be_bytes());
            engine.connect_group(group, Vec::new());
            assert!(engine.x.destinations.contains_key(&group));
            assert!(engine.x.destinations.len() <= 10, "{number}");
        }
    }

    #[test]
    fn a_flow_looks_at_masked_bits_only() {
        let flow = Flow {
            value: vec![0x12, 0xff, 0x30],
            mask: vec![0xff, 0x00, 0xf0],
        };
        assert!(flow.takes(&[0x12, 0x00, 0x3f]) && flow.takes(&[0x12, 0xab, 0x30, 9]));
        assert!(!flow.takes(&[0x13, 0xff, 0x30]) && !flow.takes(&[0x12, 0xff, 0x40]));
        assert!(!flow.takes(&[0x12, 0xff]), "too short");
        assert!(Flow::default().takes(&[]));
    }
}
