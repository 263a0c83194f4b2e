//! Multicast groups and flows that a queue pair belongs to.
//!
//! A device with members of a group advertises this by binding one more abstract name, which ends with one of its blocks of
//! queue pair numbers ([`crate::peers::names::group_name`]).

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

/// The groups that a device advertises, and how many members of each it has.
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
        .map_err(DeviceError::io("joining a multicast group"))?;
        let address =
            names::abstract_address(&name).map_err(DeviceError::io("joining a multicast group"))?;
        rustix::net::bind(&socket, &address)
            .map_err(DeviceError::io("joining a multicast group"))?;
        adverts.insert(group, (1, socket));
        Ok(())
    }

    /// Removes the memberships of a destroyed queue pair.
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

/// The groups and flows of one queue pair.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    groups: Vec<Group>,
    flows: Vec<u32>,
    next_flow: u32,
}

impl Qp {
    /// Joins a multicast group: the queue pair receives the datagrams that any device which can reach this one sends to the
    /// group. Joining twice has no further effect.
    ///
    /// # Errors
    /// [`DeviceError::Unknown`]: this is not a datagram queue pair. [`DeviceError::Io`].
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

    /// Leaves a multicast group. Returns whether the queue pair was a member.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    pub fn leave(&self, group: [u8; 16]) -> Result<bool, DeviceError> {
        self.device().shared().lifecycle().check()?;
        Ok(self.quit(&mut self.membership().lock(), Group::Gid(group)))
    }

    fn quit(&self, membership: &mut Membership, group: Group) -> bool {
        let shared = self.device().shared();
        let Some(index) = membership.groups.iter().position(|of| *of == group) else {
            return false;
        };
        membership.groups.swap_remove(index);
        shared
            .driver
            .command(|engine| engine.leave_group(self.id(), group));
        shared.adverts.remove(group);
        true
    }

    /// The number of groups that the queue pair is a member of, plus the number of its flows.
    #[must_use]
    pub fn memberships(&self) -> usize {
        let membership = self.membership().lock();
        membership.groups.len() + membership.flows.len()
    }

    /// Makes a raw queue pair receive the frames that match `flow`. Returns the number of the flow.
    ///
    /// # Errors
    /// The queue pair is not raw, or the flow matches bytes beyond the limit.
    pub fn add_flow(&self, flow: Flow) -> Result<u32, DeviceError> {
        let shared = self.device().shared();
        shared.lifecycle().check()?;
        // Hold the membership's lock to the end: otherwise another thread that removes the last other flow could leave
        // `Group::Wire` before this flow is in the list.
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

    /// Removes a flow. Returns whether it existed.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    pub fn remove_flow(&self, number: u32) -> Result<bool, DeviceError> {
        let shared = self.device().shared();
        shared.lifecycle().check()?;
        let mut membership = self.membership().lock();
        let Some(index) = membership.flows.iter().position(|of| *of == number) else {
            return Ok(false);
        };
        membership.flows.swap_remove(index);
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
    /// Distributes the frames of a raw queue pair over receive queues of [`Device::create_wq`](crate::Device::create_wq) by RSS.
    /// The number of queues must be a power of two.
    ///
    /// # Errors
    /// The queue pair is not raw, or the number or the kind of the queues is wrong.
    pub fn set_rss(
        &self,
        queues: &[Srq],
        key: [u8; KEY_LEN],
        fields: HashFields,
    ) -> Result<(), DeviceError> {
        let shared = self.device().shared();
        shared.lifecycle().check()?;
        let rss = Rss {
            queues: queues.iter().map(Srq::id).collect(),
            key,
            fields,
        };
        shared
            .driver
            .command(|engine| engine.set_rss(self.id(), rss))?;
        Ok(())
    }
}
