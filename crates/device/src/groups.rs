//! Groups of datagram queue pairs across the processes of a host.
//!
//! A device with a member of a group says so by binding one more abstract name, which ends with one of its blocks
//! of queue pair numbers ([`crate::names::group_name`]). Whoever sends to the group reads the names that there are,
//! connects to those devices as to the owner of any queue pair, and sends each of them one copy.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_engine::spread::KEY_LEN;
use rkey_engine::{Flow, Group, HashFields, LinkId, QpId, QpType, Spread};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::control::Control;
use crate::discovery::{Discovery, Waiting};
use crate::error::DeviceError;
use crate::names;
use crate::qp::Qp;
use crate::shared::Shared;
use crate::srq::Srq;

/// How long the devices of a group may take to be reached; those that are not by then miss what is sent meanwhile,
/// and nobody waits for them again.
const PERSISTENCE: Duration = Duration::from_millis(200);
/// Pauses between two attempts to reach a device that did not answer: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The groups that a device says it has members of, and how many.
#[derive(Debug, Default)]
pub(crate) struct Adverts(Mutex<HashMap<Group, (u32, OwnedFd)>>);

impl Adverts {
    fn add(&self, shared: &Shared, group: Group) -> Result<(), DeviceError> {
        let mut adverts = self.0.lock();
        if let Some((members, _)) = adverts.get_mut(&group) {
            *members += 1;
            return Ok(());
        }
        let block = shared.blocks.numbers().first().copied().unwrap_or_default();
        let name = names::group_name(shared.scope, group, block);
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(DeviceError::io("joining a group"))?;
        let address = names::abstract_address(&name).map_err(DeviceError::io("joining a group"))?;
        rustix::net::bind(&socket, &address).map_err(DeviceError::io("joining a group"))?;
        adverts.insert(group, (1, socket));
        Ok(())
    }

    fn remove(&self, group: Group) {
        let mut adverts = self.0.lock();
        if let Some((members, _)) = adverts.get_mut(&group) {
            *members -= 1;
            if *members == 0 {
                adverts.remove(&group);
            }
        }
    }
}

/// What a queue pair belongs to.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    groups: Vec<Group>,
    flows: Vec<u32>,
    next_flow: u32,
}

impl Qp {
    /// Makes it a member of a multicast group: it receives what is sent to the group by any device that can reach
    /// this one. Joining twice is joining once.
    ///
    /// # Errors
    /// [`DeviceError::Unknown`]: it is no queue pair for datagrams. [`DeviceError::Io`].
    pub fn join(&self, group: [u8; 16]) -> Result<(), DeviceError> {
        if self.options().qp_type != QpType::Ud {
            return Err(DeviceError::Unknown {
                what: "datagram queue pair",
            });
        }
        self.device().shared().check()?;
        self.enter(&mut self.membership().lock(), Group::Gid(group))
    }

    fn enter(&self, membership: &mut Membership, group: Group) -> Result<(), DeviceError> {
        let shared = self.device().shared();
        if membership.groups.contains(&group) {
            return Ok(());
        }
        shared.adverts.add(shared, group)?;
        let joined = shared.command(|engine| engine.join_group(self.id(), group));
        if let Err(error) = joined {
            shared.adverts.remove(group);
            return Err(error.into());
        }
        membership.groups.push(group);
        Ok(())
    }

    /// Ends a membership; says whether there was one.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    pub fn leave(&self, group: [u8; 16]) -> Result<bool, DeviceError> {
        self.device().shared().check()?;
        Ok(self.quit(&mut self.membership().lock(), Group::Gid(group)))
    }

    fn quit(&self, membership: &mut Membership, group: Group) -> bool {
        let shared = self.device().shared();
        let Some(place) = membership.groups.iter().position(|of| *of == group) else {
            return false;
        };
        membership.groups.swap_remove(place);
        shared.command(|engine| engine.leave_group(self.id(), group));
        shared.adverts.remove(group);
        true
    }

    /// How many groups it is a member of, and how many flows it has.
    #[must_use]
    pub fn memberships(&self) -> usize {
        let membership = self.membership().lock();
        membership.groups.len() + membership.flows.len()
    }

    /// From now on a raw queue pair takes the frames that `flow` describes. The result names the flow.
    ///
    /// # Errors
    /// It is no raw queue pair; the flow looks too far into the frame.
    pub fn add_flow(&self, flow: Flow) -> Result<u32, DeviceError> {
        let shared = self.device().shared();
        shared.check()?;
        // To the end: another thread may take the last flow away meanwhile, and the membership with it.
        let mut membership = self.membership().lock();
        membership.next_flow += 1;
        let number = membership.next_flow;
        shared.command(|engine| engine.add_flow(self.id(), number, flow))?;
        if let Err(error) = self.enter(&mut membership, Group::Wire) {
            shared.command(|engine| engine.remove_flow(self.id(), number));
            return Err(error);
        }
        membership.flows.push(number);
        Ok(number)
    }

    /// Takes a flow away; says whether it was there.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    pub fn remove_flow(&self, number: u32) -> Result<bool, DeviceError> {
        let shared = self.device().shared();
        shared.check()?;
        let mut membership = self.membership().lock();
        let Some(place) = membership.flows.iter().position(|of| *of == number) else {
            return Ok(false);
        };
        membership.flows.swap_remove(place);
        shared.command(|engine| engine.remove_flow(self.id(), number));
        if membership.flows.is_empty() {
            self.quit(&mut membership, Group::Wire);
        }
        Ok(true)
    }
}

impl Qp {
    /// Makes a raw queue pair spread its frames over receive queues of [`Device::create_wq`](crate::Device::create_wq);
    /// their number is a power of two.
    ///
    /// # Errors
    /// It is no raw queue pair, or these are no such queues.
    pub fn spread(
        &self,
        queues: &[Srq],
        key: [u8; KEY_LEN],
        fields: HashFields,
    ) -> Result<(), DeviceError> {
        let shared = self.device().shared();
        shared.check()?;
        let spread = Spread {
            queues: queues.iter().map(Srq::id).collect(),
            key,
            fields,
        };
        shared.command(|engine| engine.spread(self.id(), spread))?;
        Ok(())
    }
}

impl Shared {
    /// A queue pair with these memberships is destroyed.
    pub(crate) fn forget_memberships(&self, membership: &Membership) {
        for group in &membership.groups {
            self.adverts.remove(*group);
        }
    }
}

/// The search for the devices of a group.
pub(crate) struct Search {
    group: Group,
    blocks: Vec<u16>,
    until: Instant,
}

/// Devices that were waited for and did not answer, by their block: they may be stopped, or somebody has bound
/// names that mean nothing. They are tried again now and then, but no datagram waits for them.
#[derive(Debug, Default)]
pub(crate) struct Silent(HashMap<u16, Silence>);

#[derive(Debug)]
struct Silence {
    /// Where it was said to have members.
    group: Group,
    again: Instant,
    pause: Duration,
}

impl Silent {
    fn has(&self, block: u16) -> bool {
        self.0.contains_key(&block)
    }

    fn add(&mut self, block: u16, group: Group, now: Instant) {
        let pause = PAUSES.0;
        let again = now + pause;
        self.0.entry(block).or_insert(Silence {
            group,
            again,
            pause,
        });
    }

    fn remove(&mut self, block: u16) {
        self.0.remove(&block);
    }

    /// A group has members in these blocks now: others that were said to have some are forgotten, so that whoever
    /// gets their numbers is waited for.
    fn keep(&mut self, group: Group, blocks: &[u16]) {
        self.0
            .retain(|block, silence| silence.group != group || blocks.contains(block));
    }

    /// Whether a device is to be tried now: it is not silent, or its pause is over.
    fn is_due(&mut self, block: u16, now: Instant) -> bool {
        let Some(silence) = self.0.get_mut(&block) else {
            return true;
        };
        if now < silence.again {
            return false;
        }
        silence.pause = (silence.pause * 2).min(PAUSES.1);
        silence.again = now + silence.pause;
        true
    }
}

impl Discovery {
    /// Starts to look for the devices of a group, for a queue pair that sends to it.
    pub(crate) fn look_for_group(
        &mut self,
        shared: &Shared,
        control: &Control,
        qp: QpId,
        group: Group,
        now: Instant,
    ) {
        let blocks = names::members(shared.scope, group).unwrap_or_default();
        self.silent.keep(group, &blocks);
        for &block in blocks.iter().filter(|&&block| !shared.blocks.owns(block)) {
            if !self.silent.is_due(block, now) {
                continue;
            }
            let peer = u32::from(block) << 8;
            let waiting = Waiting {
                qp,
                peer,
                since: now,
            };
            self.want(shared, control, waiting);
        }
        self.searches.push(Search {
            group,
            blocks,
            until: now + PERSISTENCE,
        });
    }

    /// Ends the searches that have found everything, or have taken too long. Says whether there were some.
    pub(crate) fn end_searches(
        &mut self,
        shared: &Shared,
        control: &Control,
        now: Instant,
    ) -> bool {
        let mut searches = std::mem::take(&mut self.searches);
        let before = searches.len();
        searches.retain(|search| {
            let mut links: Vec<LinkId> = Vec::new();
            let mut missing = Vec::new();
            for &block in &search.blocks {
                let link = if shared.blocks.owns(block) {
                    shared.talks_to_itself();
                    shared.loopback.get().copied()
                } else {
                    self.link_of(control, block)
                };
                match link {
                    Some(link) => {
                        self.silent.remove(block);
                        if !links.contains(&link) {
                            links.push(link);
                        }
                    }
                    None => missing.push(block),
                }
            }
            let hopeful = |&block: &u16| !self.silent.has(block) && self.looks_for(block);
            if now < search.until && missing.iter().any(hopeful) {
                return true;
            }
            for block in missing {
                self.silent.add(block, search.group, now);
            }
            shared.command(|engine| engine.connect_group(search.group, links));
            false
        });
        let ended = searches.len() < before;
        self.searches = searches;
        ended
    }

    /// When [`Discovery::end_searches`] gives up waiting.
    pub(crate) fn search_deadline(&self) -> Option<Instant> {
        self.searches.iter().map(|search| search.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_devices_are_tried_less_and_less_often() {
        let (group, start) = (Group::Gid([1; 16]), Instant::now());
        let mut silent = Silent::default();
        assert!(silent.is_due(7, start) && !silent.has(7));
        silent.add(7, group, start);
        let mut last = start;
        let mut gaps = Vec::new();
        for tenths in 0..5000u32 {
            let now = start + tenths * Duration::from_millis(100);
            // Searches that find it missing again change nothing.
            silent.add(7, group, now);
            if silent.is_due(7, now) {
                gaps.push((now - last).as_secs());
                last = now;
            }
        }
        assert_eq!(gaps, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60, 60, 60]);
    }

    #[test]
    fn who_is_gone_is_not_remembered() {
        let (group, other) = (Group::Gid([1; 16]), Group::Wire);
        let mut silent = Silent::default();
        for (block, of) in [(7, group), (8, group), (9, other)] {
            silent.add(block, of, Instant::now());
        }
        silent.keep(group, &[8, 10]);
        assert_eq!(
            [7, 8, 9, 10].map(|b| silent.has(b)),
            [false, true, true, false]
        );
        silent.remove(8);
        assert!(!silent.has(8));
    }
}
