//! The multicast groups that a device advertises: for each, it binds one more abstract name, which ends with one of its blocks
//! of queue pair numbers ([`crate::peers::names::group_name`]).

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use rkey_engine::Group;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::error::DeviceError;
use crate::peers::names::{self, Scope};

/// The groups that a device advertises, and how many members of each it has.
#[derive(Debug, Default)]
pub(crate) struct Adverts(Mutex<HashMap<Group, (u32, OwnedFd)>>);

impl Adverts {
    /// Counts one more member of a group, and advertises the group with a block of the device.
    pub(super) fn add(&self, scope: Scope, group: Group, block: u16) -> Result<(), DeviceError> {
        let mut adverts = self.0.lock();
        if let Some((members, _)) = adverts.get_mut(&group) {
            *members += 1;
            return Ok(());
        }
        let name = names::group_name(scope, group, block);
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

    /// Counts one member fewer.
    pub(super) fn remove(&self, group: Group) {
        let mut adverts = self.0.lock();
        if let Some((members, _)) = adverts.get_mut(&group) {
            *members -= 1;
            if *members == 0 {
                adverts.remove(&group);
            }
        }
    }
}
