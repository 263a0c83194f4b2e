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

/// An address of this host that belongs to this device until the value is dropped: no other process can listen there.
///
/// A client that connects to it finds no listener, and retries until its deadline.
#[derive(Debug)]
pub struct Reservation {
    device: Device,
    socket: OwnedFd,
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
            address,
        })
    }
}

impl Reservation {
    /// The reserved address.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Listens at the address for peers on this host.
    ///
    /// # Errors
    /// [`DeviceError::Failed`], or the socket failed: the address is free again.
    pub fn listen(self) -> Result<Listener, DeviceError> {
        self.listen_by(|_, _| Ok(None))
    }

    /// Like [`Reservation::listen`], also for peers on other hosts if the device has a wire. They connect to the same port over
    /// TCP.
    ///
    /// # Errors
    /// Same as [`Reservation::listen`]. [`DeviceError::AddressInUse`] if another program has the TCP port.
    pub fn listen_for_hosts(self) -> Result<Listener, DeviceError> {
        let address = self.address;
        self.listen_by(|device, socket| match device.wire() {
            Some(wire) => Hosts::listen(wire, address, socket),
            None => Ok(None),
        })
    }

    fn listen_by(
        self,
        hosts: impl FnOnce(&Device, &Arc<OwnedFd>) -> Result<Option<Hosts>, DeviceError>,
    ) -> Result<Listener, DeviceError> {
        self.device.check()?;
        rustix::net::listen(&self.socket, 128).map_err(DeviceError::io("listening"))?;
        let socket = Arc::new(self.socket);
        self.device.shared().lifecycle().add_wait_point(&socket);
        Ok(Listener {
            local: Entrance::new(vec![Arc::clone(&socket)]),
            hosts: hosts(&self.device, &socket)?,
            device: self.device,
            socket,
            address: self.address,
            version_logged: AtomicBool::new(false),
        })
    }
}
