//! The address of an endpoint, from the wish of the program to the socket that has it.

use crate::ep::name::reachable;
use crate::errno::{FiError, Result};
use rkey_device::{Device, Listener, Reservation};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Once;

/// An address that is wished for, or reserved: nobody else gets it then.
#[derive(Debug)]
pub(crate) struct Place {
    wish: SocketAddr,
    reserved: Option<Reservation>,
}

impl Place {
    pub(crate) fn new(wish: SocketAddr) -> Self {
        Self {
            wish,
            reserved: None,
        }
    }

    pub(crate) fn is_reserved(&self) -> bool {
        self.reserved.is_some()
    }

    /// The address for peers on this host. Final once it is reserved.
    pub(crate) fn name(&self) -> SocketAddr {
        let reserved = self.reserved.as_ref().map(Reservation::local_address);
        reachable(reserved.unwrap_or(self.wish))
    }

    /// Reserves the address: port 0 becomes a real one. A second time does nothing.
    ///
    /// # Errors
    /// `FI_EADDRINUSE`.
    pub(crate) fn reserve(&mut self, device: &Device) -> Result<()> {
        if self.reserved.is_none() {
            self.reserved = Some(device.reserve(self.wish)?);
        }
        Ok(())
    }

    /// The same for an endpoint that only connects from there: sockets may have such an address in common.
    pub(crate) fn reserve_if_free(&mut self, device: &Device) -> Result<()> {
        static WARNED: Once = Once::new();
        match self.reserve(device) {
            Err(FiError::ADDRINUSE) => {
                let address = self.wish;
                WARNED.call_once(|| {
                    tracing::warn!(
                        "an endpoint connects from {address}, which is the address of another endpoint: with providers that reserve it fi_endpoint answers -FI_EADDRINUSE"
                    );
                });
                Ok(())
            }
            other => other,
        }
    }

    /// Another address, which is reserved (`fi_setname`). A port that the endpoint has got stays unless another one is
    /// asked for (fi_cm(3)).
    ///
    /// # Errors
    /// `FI_EADDRINUSE`: it has the address of before.
    pub(crate) fn assign(&mut self, device: &Device, address: SocketAddr) -> Result<()> {
        let own = self.reserved.as_ref().map(Reservation::local_address);
        let has = |own: SocketAddr| {
            own.ip() == address.ip() && (address.port() == 0 || address.port() == own.port())
        };
        if !own.is_some_and(has) {
            self.reserved = Some(device.reserve(address)?);
            self.wish = address;
        }
        Ok(())
    }

    /// Listens there.
    pub(crate) fn listen(&mut self, device: &Device) -> Result<Listener> {
        let reserved = match self.reserved.take() {
            Some(reserved) => reserved,
            None => device.reserve(self.wish)?,
        };
        // What follows has this name, also after a failure.
        self.wish = reserved.local_address();
        Ok(reserved.listen()?)
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new((Ipv4Addr::UNSPECIFIED, 0).into())
    }
}
