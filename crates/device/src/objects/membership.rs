//! Multicast groups and flows that a queue pair belongs to.
//!
//! A device with a member of a group says so by binding one more abstract name, which ends with one of its blocks
//! of queue pair numbers ([`crate::peers::names::group_name`]).

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use rkey_engine::rss::KEY_LEN;
use rkey_engine::{Flow, Group, HashFields, QpType, Rss};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::qp::Qp;
use super::srq::Srq;
use crate::error::DeviceError;
use crate::peers::names;
use crate::shared::Shared;

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
        let block = shared
            .qp_numbers
            .numbers()
            .first()
            .copied()
            .unwrap_or_default();
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

    /// A queue pair with these memberships is destroyed.
    pub(crate) fn remove_all(&self, membership: &Membership) {
        for group in &membership.groups {
            self.remove(*group);
        }
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
        self.device().shared().lifecycle().check()?;
        self.enter(&mut self.membership().lock(), Group::Gid(group))
    }

    fn enter(&self, membership: &mut Membership, group: Group) -> Result<(), DeviceError> {
        let shared = self.device().shared();
        if membership.groups.contains(&group) {
            return Ok(());
        }
        shared.adverts.add(shared, group)?;
        let joined = shared
            .driver
            .command(|engine| engine.join_group(self.id(), group));
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
        self.device().shared().lifecycle().check()?;
        Ok(self.quit(&mut self.membership().lock(), Group::Gid(group)))
    }

    fn quit(&self, membership: &mut Membership, group: Group) -> bool {
        let shared = self.device().shared();
        let Some(place) = membership.groups.iter().position(|of| *of == group) else {
            return false;
        };
        membership.groups.swap_remove(place);
        shared
            .driver
            .command(|engine| engine.leave_group(self.id(), group));
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
        shared.lifecycle().check()?;
        // To the end: another thread may take the last flow away meanwhile, and the membership with it.
        let mut membership = self.membership().lock();
        membership.next_flow += 1;
        let number = membership.next_flow;
        shared
            .driver
            .command(|engine| engine.add_flow(self.id(), number, flow))?;
        if let Err(error) = self.enter(&mut membership, Group::Wire) {
            shared
                .driver
                .command(|engine| engine.remove_flow(self.id(), number));
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
        shared.lifecycle().check()?;
        let mut membership = self.membership().lock();
        let Some(place) = membership.flows.iter().position(|of| *of == number) else {
            return Ok(false);
        };
        membership.flows.swap_remove(place);
        shared
            .driver
            .command(|engine| engine.remove_flow(self.id(), number));
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
    pub fn set_rss(
        &self,
        queues: &[Srq],
        key: [u8; KEY_LEN],
        fields: HashFields,
    ) -> Result<(), DeviceError> {
        let shared = self.device().shared();
        shared.lifecycle().check()?;
        let spread = Rss {
            queues: queues.iter().map(Srq::id).collect(),
            key,
            fields,
        };
        shared
            .driver
            .command(|engine| engine.set_rss(self.id(), spread))?;
        Ok(())
    }
}
