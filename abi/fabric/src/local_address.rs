//! The address of an endpoint, from the program's request to the socket that has it.

use crate::errno::{FiError, Result};
use rkey_device::{Device, Listener, Reservation};
use rkey_endpoint::reachable;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Once;

/// An address that the program has requested, or that is reserved for this endpoint alone.
#[derive(Debug)]
pub(crate) struct LocalAddress {
    requested: SocketAddr,
    reserved: Option<Reservation>,
    /// Whether peers on other hosts can connect to it, too.
    for_hosts: bool,
}

impl LocalAddress {
    pub(crate) fn new(requested: SocketAddr) -> Self {
        Self {
            requested,
            reserved: None,
            for_hosts: false,
        }
    }

    /// An address to which peers on other hosts can connect, too, if the device has a wire.
    pub(crate) fn for_hosts(requested: SocketAddr) -> Self {
        Self {
            for_hosts: true,
            ..Self::new(requested)
        }
    }

    fn reserved(&self, device: &Device, address: SocketAddr) -> Result<Reservation> {
        Ok(match self.for_hosts {
            true => device.reserve_for_hosts(address)?,
            false => device.reserve(address)?,
        })
    }

    pub(crate) fn is_reserved(&self) -> bool {
        self.reserved.is_some()
    }

    /// The address under which peers find the endpoint; final once it is reserved.
    pub(crate) fn name(&self, device: &Device) -> SocketAddr {
        let reserved = self.reserved.as_ref().map(Reservation::local_address);
        reachable(device, reserved.unwrap_or(self.requested))
    }

    /// Reserves the address, and replaces port 0 with a free port. A second call has no effect.
    ///
    /// # Errors
    /// `FI_EADDRINUSE`.
    pub(crate) fn reserve(&mut self, device: &Device) -> Result<()> {
        if self.reserved.is_none() {
            self.reserved = Some(self.reserved(device, self.requested)?);
        }
        Ok(())
    }

    /// Like [`LocalAddress::reserve`], for an endpoint that only connects from the address: if another endpoint has it, warns
    /// once per process and reserves nothing, because sockets may share such an address.
    pub(crate) fn reserve_if_free(&mut self, device: &Device) -> Result<()> {
        static WARNED: Once = Once::new();
        match self.reserve(device) {
            Err(FiError::ADDRINUSE) => {
                let address = self.requested;
                WARNED.call_once(|| {
                    tracing::warn!(
                        "an endpoint connects from {address}, the address of another endpoint: providers that reserve it return -FI_EADDRINUSE from fi_endpoint"
                    );
                });
                Ok(())
            }
            other => other,
        }
    }

    /// Reserves another address (`fi_setname`). With the current IP address and port 0, the endpoint keeps its port
    /// (fi_cm(3)).
    ///
    /// # Errors
    /// `FI_EADDRINUSE`: the endpoint keeps its old address.
    pub(crate) fn assign(&mut self, device: &Device, address: SocketAddr) -> Result<()> {
        let own = self.reserved.as_ref().map(Reservation::local_address);
        let has = |own: SocketAddr| {
            own.ip() == address.ip() && (address.port() == 0 || address.port() == own.port())
        };
        if !own.is_some_and(has) {
            self.reserved = Some(self.reserved(device, address)?);
            self.requested = address;
        }
        Ok(())
    }

    /// Listens on the address.
    pub(crate) fn listen(&mut self, device: &Device) -> Result<Listener> {
        let reserved = match self.reserved.take() {
            Some(reserved) => reserved,
            None => self.reserved(device, self.requested)?,
        };
        // Later listeners get this address, even after a failure.
        self.requested = reserved.local_address();
        Ok(reserved.listen()?)
    }
}

impl Default for LocalAddress {
    fn default() -> Self {
        Self::new((Ipv4Addr::UNSPECIFIED, 0).into())
    }
}
