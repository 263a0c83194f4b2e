//! Pushes: a write that this side copies into the target's memory itself, under a warrant.
//!
//! A target whose program uses the processor without polling executes requests only when the scheduler runs its engine's thread:
//! after a tenth of a millisecond, or ten. If that happens to several writes of a queue pair, this side asks the target for a
//! warrant ([`Engine::note_slow_writes`]), and then copies later writes itself (`rkey_link::peer::PeerWarrant`). Such a write
//! completes at once; it is not in the send queue, and the target's engine does not learn of it. Every thousandth write or so goes
//! through the ring all the same ([`Trials`]): if it is not slow, this side gives up its warrants.
//!
//! A request is pushed only if
//!
//! * no earlier request of the queue pair is outstanding, so that writes take effect in order. Later requests follow in the ring,
//!   after the copy;
//! * the program has taken all completions of the queue, because a program that posts ahead is faster with the ring, where both
//!   sides work at once.
//!
//! Every other request goes the usual way, and so does one whose push fails. Only there are requests refused and explained.
//!
//! A push waits if the target's memory does not respond, and all that the engine serves waits with it. Nothing can end the wait but the
//! target. So each link has a budget of such time ([`crate::lost_time`]).

use super::cut_through::is_clear;
use crate::checked_memory::AccessError;
use crate::context::Context;
use crate::held_warrants::{HeldWarrant, NextWrite, SlowWrites, Trials};
use crate::id::Table;
use crate::link_state::Meta;
use crate::qp::pair::Qp;
use crate::send_queue::WqeFlags;
use crate::warrant_room::WARRANTS_PER_QP;
use crate::warrants::{WarrantRequest, takes_warrants};
use crate::{
    Completion, CompletionOp, Engine, Event, LinkId, QpId, QpState, QpType, SendFlags, SendRequest,
    Status, Target, Work,
};
use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::range::VaRange;
use rkey_core::{Key, LocalUse, RKey};
use rkey_link::peer::PeerWarrant;
use rkey_link::{Link, PullError};

/// If a link has more fragments outstanding than this, its writes are not slow: they wait for one another. The
/// longest write that can be pushed has 16.
const FEW: u32 = 16;

/// What the target issued a warrant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarrantedRegion {
    /// The queue pair that asked.
    pub qpn: u32,
    /// The target's queue pair.
    pub peer_qpn: u32,
    /// The key of the region.
    pub key: RKey,
    /// The address that requests use for the first byte.
    pub base: u64,
    /// The memory in the target's process.
    pub memory: VaRange,
}

/// Pushes a request, and completes it. Returns false, with nothing completed, if the request must be sent.
#[inline(never)]
pub(crate) fn push<M: Memory>(
    x: &mut Context<M>,
    meta: &mut Meta,
    qp: &mut Qp,
    request: &SendRequest<'_>,
) -> bool {
    let Work::Write { remote, imm: None } = &request.work else {
        return false;
    };
    let is_signaled =
        request.flags == SendFlags::SIGNALED || request.flags.is_empty() && qp.config.signal_all;
    let is_idle =
        is_clear(qp) && qp.sq.head == qp.sq.tail && qp.req.in_flight == 0 && meta.down.is_none();
    if !is_signaled || !is_idle || !request.prefix.is_empty() {
        return false;
    }
    let len = match (request.inline, request.sges) {
        (Some(bytes), []) if bytes.len() <= qp.config.max_inline as usize => bytes.len(),
        (None, [one]) if qp.config.max_send_sge > 0 => one.len as usize,
        _ => return false,
    };
    if !PeerWarrant::fits(len) {
        return false;
    }
    if x.cqs
        .get(qp.config.send_cq)
        .is_none_or(|cq| !cq.shared.is_empty())
    {
        return false;
    }
    if meta.lost_time.is_spent() {
        qp.req.warrants.clear();
        return false;
    }
    let find = |held: &HeldWarrant| held.address_of(qp.out, remote, len as u64);
    let mut found = qp.req.warrants.iter().enumerate();
    let Some((index, to)) = found.find_map(|(index, held)| Some((index, find(held)?))) else {
        return false;
    };
    match qp.req.trials.next(qp.sq.tail) {
        NextWrite::Push => {}
        NextWrite::Send => return false,
        NextWrite::SendAll => {
            qp.req.warrants.clear();
            qp.req.slow = SlowWrites::NONE;
            return false;
        }
    }
    let copied = copy(x, qp, request, &qp.req.warrants[index].warrant, to, len);
    if let Some(stall) = qp.req.warrants[index].warrant.take_stall()
        && meta.lost_time.note(stall)
    {
        x.events.push_back(Event::PushesStalled(meta.id));
    }
    match copied {
        Ok(()) => qp.req.warrants[index].used = qp.req.pushed,
        // The usual way explains it.
        Err(AccessError::Denied(_) | AccessError::Fault(_)) => return false,
        Err(AccessError::Pull(error)) => {
            qp.req.warrants.remove(index);
            if error == PullError::Gone {
                // The target has revoked it, and may issue another one.
                qp.req.slow = SlowWrites::NONE;
            }
            return false;
        }
    }
    meta.pushed += 1;
    qp.req.pushed += 1;
    let entry = Completion {
        id: request.id,
        status: Status::Success,
        opcode: CompletionOp::Write,
        bytes: len as u32,
        qpn: qp.qpn,
        ..Completion::default()
    };
    x.push_completion(qp.config.send_cq, entry, false);
    true
}

fn copy<M: Memory>(
    x: &Context<M>,
    qp: &Qp,
    request: &SendRequest<'_>,
    warrant: &PeerWarrant,
    to: u64,
    len: usize,
) -> Result<(), AccessError> {
    if let Some(bytes) = request.inline {
        return Ok(warrant.write_bytes(to, bytes)?);
    }
    let (domain, sges, want) = (qp.config.domain, request.sges, LocalUse::WriteSource);
    let all = len as u64;
    x.checked.each_local(domain, sges, 0, all, want, |span, _| {
        match span.in_process().filter(|range| range.len() == all) {
            Some(range) => Ok(warrant.write(&x.checked.memory, to, range.start(), len)?),
            // In several parts, or foreign.
            None => Err(Fault::at(span.start()).into()),
        }
    })
}

impl<L: Link, M: Memory> Engine<L, M> {
    /// Called now and then while the program polls without success: counts the writes that have waited for their targets alone and for
    /// too long, and raises [`Event::WarrantWanted`] for queue pairs with several such writes. `now_ns` is a time of the clock that
    /// [`Engine::drive`] uses.
    pub fn note_slow_writes(&mut self, now_ns: u64) {
        for link_state in self.links.iter() {
            let meta = &link_state.meta;
            if !(1..=FEW).contains(&meta.outstanding.len())
                || meta.down.is_some()
                || meta.lost_time.is_spent()
            {
                continue;
            }
            for record in meta.outstanding.iter().filter(|record| record.is_last()) {
                let qp = self.qps.at_mut(record.qp);
                let Some(request) = qp
                    .filter(|qp| qp.life == record.life && qp.out == Some(meta.id))
                    .and_then(|qp| slow_write(qp, now_ns))
                else {
                    continue;
                };
                if takes_warrants(link_state.link.peer().as_ref()) {
                    let link = meta.id;
                    self.x
                        .events
                        .push_back(Event::WarrantWanted { link, request });
                }
            }
        }
    }

    /// How many writes of a queue pair were pushed since it was created or reset; 0 if it does not exist.
    pub fn pushed(&self, qp: QpId) -> u64 {
        self.qps.get(qp).map_or(0, |qp| qp.req.pushed)
    }

    /// Takes over a warrant that came over a link. Ignores it unless the queue pair has asked for one.
    pub fn take_warrant(&mut self, link: LinkId, region: &WarrantedRegion, warrant: PeerWarrant) {
        let Some(qp) = qp_of(&mut self.qps, self.numbers.get(region.qpn)) else {
            return;
        };
        let is_expected = std::mem::take(&mut qp.req.slow.asked)
            && qp.out == Some(link)
            && qp.peer_qpn() == region.peer_qpn
            && qp.state == QpState::Rts;
        if !is_expected {
            return;
        }
        if qp.req.warrants.is_empty() {
            qp.req.trials = Trials::NONE;
        }
        let held = &mut qp.req.warrants;
        held.retain(|old| old.key != region.key && old.link == link && !old.warrant.is_revoked());
        if held.len() >= WARRANTS_PER_QP {
            let oldest = held.iter().enumerate().min_by_key(|(_, held)| held.used);
            if let Some((index, _)) = oldest {
                held.remove(index);
            }
        }
        held.push(HeldWarrant {
            link,
            key: region.key,
            base: region.base,
            memory: region.memory,
            warrant,
            used: qp.req.pushed,
        });
    }
}

fn qp_of(qps: &mut Table<Qp>, index: Option<u32>) -> Option<&mut Qp> {
    qps.at_mut(index?)
}

/// If a queue pair has waited too long for a single write that could have been pushed, counts it; returns what to ask for, if it is
/// time.
fn slow_write(qp: &mut Qp, now_ns: u64) -> Option<WarrantRequest> {
    let seq = qp.sq.head;
    let is_alone = qp.sq.tail == seq + 1 && qp.sq.next == qp.sq.tail && qp.req.in_flight > 0;
    let wqe = qp.sq.wqe(seq);
    let is_write = qp.config.qp_type == QpType::Rc
        && wqe.op == CompletionOp::Write
        && !wqe.flags.intersects(WqeFlags::IMMEDIATE | WqeFlags::DONE)
        && (wqe.flags.contains(WqeFlags::SIGNALED) || qp.config.signal_all)
        && PeerWarrant::fits(wqe.total as usize);
    if !is_alone || !is_write {
        return None;
    }
    let key = if wqe.flags.contains(WqeFlags::REQUESTED_KEY) {
        RKey::Requested(wqe.key)
    } else {
        RKey::Device(Key(wqe.key as u32))
    };
    let (addr, len) = (wqe.addr, u64::from(wqe.total));
    let to = Target { addr, key };
    if !qp.req.slow.becomes_slow(seq, len, now_ns) {
        return None;
    }
    qp.req.trials.is_slow(seq);
    let mut held = qp.req.warrants.iter();
    if held.any(|held| held.address_of(qp.out, &to, len).is_some()) || !qp.req.slow.note(seq) {
        return None;
    }
    Some(WarrantRequest {
        qpn: qp.peer_qpn(),
        src_qpn: qp.qpn,
        key,
        addr,
        len,
    })
}
