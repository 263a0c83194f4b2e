//! Multicast groups and flows that a queue pair belongs to.

use rkey_engine::rss::KEY_LEN;
use rkey_engine::{Flow, Group, HashFields, QpType, Rss};

use super::adverts::Adverts;
use super::qp::Qp;
use super::srq::Srq;
use crate::error::DeviceError;

/// The groups and flows of one queue pair.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    groups: Vec<Group>,
    flows: Vec<u32>,
    next_flow: u32,
}

impl Membership {
    /// Removes the memberships of a destroyed queue pair.
    pub(crate) fn remove_all(&mut self, adverts: &Adverts) {
        for group in std::mem::take(&mut self.groups) {
            adverts.remove(group);
        }
        self.flows.clear();
    }
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
        let blocks = shared.qp_numbers.numbers();
        let block = blocks.first().copied().unwrap_or_default();
        shared.adverts.add(shared.scope, group, block)?;
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
        // `Group::RawFrames` before this flow is in the list.
        let mut membership = self.membership().lock();
        membership.next_flow += 1;
        let number = membership.next_flow;
        shared
            .driver
            .command(|engine| engine.add_flow(self.id(), number, flow))?;
        if let Err(error) = self.enter(&mut membership, Group::RawFrames) {
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
            self.quit(&mut membership, Group::RawFrames);
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
