//! The route from a device to an address.

use std::net::{IpAddr, SocketAddr};

use super::WirePath;
use crate::device::Device;
use crate::error::DeviceError;
use crate::peers::names;

impl Device {
    /// The route to an address of another host, as the routing table has it now; from `local` if given. `None` if the address
    /// belongs to this host, whose processes are reached through shared memory.
    ///
    /// # Errors
    /// [`DeviceError::NoRoute`]: the address belongs to another host, and the device has no wire or the wire no route.
    pub fn route(
        &self,
        address: SocketAddr,
        local: Option<IpAddr>,
    ) -> Result<Option<WirePath>, DeviceError> {
        if names::is_of_this_host(address.ip()) {
            return Ok(None);
        }
        let no_route = |hint| DeviceError::NoRoute { address, hint };
        let Some(wire) = self.wire() else {
            return Err(no_route("set RKEY_WIRE=auto to reach other hosts"));
        };
        match wire.path(address.ip(), local) {
            Some(path) => Ok(Some(path)),
            None => Err(no_route(
                "the system has no route to it from any address of the wire; `rkey info` lists these addresses",
            )),
        }
    }
}
