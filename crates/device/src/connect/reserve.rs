//! Addresses that are reserved before a listener uses them.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::Listener;
use super::entrance::{Entrance, Hosts};
use super::socket::{bind, bind_free_port};
use crate::device::Device;
use crate::error::DeviceError;
use crate::peers::names;

/// How many ports to try if the TCP port of a free port is taken.
const PORT_TRIES: u32 = 16;

/// An address of this host that belongs to this device until the value is dropped: no other process can listen there.
///
/// A client that connects to the address finds no listener, and retries until the client's deadline.
#[derive(Debug)]
pub struct Reservation {
    device: Device,
    socket: OwnedFd,
    /// TCP sockets for peers on other hosts.
    hosts: Vec<OwnedFd>,
    address: SocketAddr,
}

impl Device {
    /// Reserves an address of this host (port 0: any free port, see [`Reservation::local_address`]).
    ///
    /// # Errors
    /// [`DeviceError::NotThisHost`], [`DeviceError::AddressInUse`].
    pub fn reserve(&self, address: SocketAddr) -> Result<Reservation, DeviceError> {
        self.check()?;
        if !names::is_of_this_host(address.ip()) {
            return Err(DeviceError::NotThisHost { address });
        }
        let (socket, address) = match address.port() {
            0 => bind_free_port(self.scope(), address)?,
            _ => (
                bind(self.scope(), address)?.ok_or(DeviceError::AddressInUse { address })?,
                address,
            ),
        };
        Ok(Reservation {
            device: self.clone(),
            socket,
            hosts: Vec::new(),
            address,
        })
    }

    /// Like [`Device::reserve`], for a listener that other hosts can reach if the device has a wire: also reserves the TCP port.
    ///
    /// # Errors
    /// Same as [`Device::reserve`]. [`DeviceError::AddressInUse`] also if another program has the TCP port.
    pub fn reserve_for_hosts(&self, address: SocketAddr) -> Result<Reservation, DeviceError> {
        for _ in 0..PORT_TRIES {
            let mut reservation = self.reserve(address)?;
            let Some(wire) = self.wire() else {
                return Ok(reservation);
            };
            match Hosts::bind(wire, reservation.address) {
                Ok(hosts) => {
                    reservation.hosts = hosts;
                    return Ok(reservation);
                }
                Err(DeviceError::AddressInUse { .. }) if address.port() == 0 => {}
                Err(error) => return Err(error),
            }
        }
        Err(DeviceError::AddressInUse { address })
    }
}

impl Reservation {
    /// The reserved address.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Listens at the address.
    ///
    /// # Errors
    /// [`DeviceError::Failed`], or the socket failed: the address is free again.
    pub fn listen(self) -> Result<Listener, DeviceError> {
        self.device.check()?;
        rustix::net::listen(&self.socket, 128).map_err(DeviceError::io("listening"))?;
        let socket = Arc::new(self.socket);
        let hosts = Hosts::listen(self.hosts, &socket)?;
        let lifecycle = self.device.shared().lifecycle();
        for socket in hosts.iter().flat_map(Hosts::sockets).chain([&socket]) {
            lifecycle.add_wait_point(socket);
        }
        Ok(Listener {
            local: Entrance::new(vec![Arc::clone(&socket)]),
            hosts,
            device: self.device,
            socket,
            address: self.address,
            version_logged: AtomicBool::new(false),
        })
    }
}
