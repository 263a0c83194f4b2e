//! Members of groups, and the links to those on other devices.
//!
//! The links that [`Engine::connect_group`] sets remain valid briefly, so that a burst of datagrams requests them only
//! once.

use crate::groups::{Destinations, FLOW_MAX, Flow, Group};
use crate::requester::{group_of, send_queued};
use crate::send_queue::Detail;
use crate::{Engine, EngineError, LinkId, QpId, QpType};
use rkey_base::memory::Memory;
use rkey_link::Link;

/// How long the list of a group's links remains valid, in nanoseconds.
const FRESH_NS: u64 = 1_000_000;

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

    /// Sets the links for datagrams to a group, for a short time: the response to
    /// [`Event::GroupNeeded`](crate::Event::GroupNeeded).
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
                send_queued(&mut self.x, &mut self.links, qp);
            }
        }
        self.fail_users_of_overrun_cqs();
    }

    /// Adds a flow to a raw queue pair. If the queue pair is a member of the [wire](Group::RawFrames), it then takes the
    /// frames that match the flow.
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
                what: "the length of a flow in bytes",
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EngineConfig;
    use rkey_base::memory::ArenaMemory;
    use rkey_core::{Limits, Protection, Secrets};
    use rkey_link::loopback::Loopback;
    use std::sync::Arc;

    #[test]
    fn unused_groups_are_forgotten() {
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
}
