//! Waiting for peers.

use crate::connection::Connection;
use crate::domain::Domain;
use crate::error::{Error, Result};
use crate::greeting;
use rkey_device::time;
use std::net::SocketAddr;
use std::time::Duration;

/// A listening address of this user on this host, to which peers can connect.
pub struct Listener {
    domain: Domain,
    raw: rkey_device::Listener,
}

impl Listener {
    pub(crate) fn bind(domain: &Domain, address: SocketAddr) -> Result<Self> {
        let raw = domain.device().raw().listen_for_hosts(address)?;
        Ok(Self {
            domain: domain.clone(),
            raw,
        })
    }

    /// The address that peers connect to, with the real port if port 0 was requested.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.raw.local_address()
    }

    /// Waits for the next peer, without a time limit. Silently rejects programs that are not allowed to connect or do
    /// not use the protocol.
    ///
    /// # Errors
    /// The device is broken or a limit is reached.
    pub fn accept(&self) -> Result<Connection> {
        self.accept_within(None)
    }

    /// Waits for the next peer up to `timeout`.
    ///
    /// # Errors
    /// [`Error::Timeout`], and the errors of [`Listener::accept`].
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Connection> {
        self.accept_within(Some(timeout))
    }

    fn accept_within(&self, timeout: Option<Duration>) -> Result<Connection> {
        let started = time::now();
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(time::since(started)));
            let incoming = match self.raw.accept(left) {
                Ok(incoming) => incoming,
                Err(rkey_device::DeviceError::TimedOut { .. }) => {
                    let after = timeout.unwrap_or_default();
                    return Err(Error::Timeout {
                        what: "a peer to connect",
                        after,
                    });
                }
                Err(error) => return Err(error.into()),
            };
            match greeting::accept(&self.domain, incoming) {
                // A peer that disconnects early, or is not a peer at all, must not stop a server.
                Err(Error::Protocol(_) | Error::Device(rkey_device::DeviceError::Handshake(_))) => {
                }
                outcome => return outcome,
            }
        }
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener")
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}
