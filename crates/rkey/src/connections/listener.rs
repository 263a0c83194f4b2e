//! Waiting for peers.

use crate::connections::connection::Connection;
use crate::connections::greeting::{self, Answered};
use crate::device::domain::Domain;
use crate::device::handle::{Device, resolve};
use crate::error::{Error, Result};
use parking_lot::Mutex;
use rkey_device::{DeviceError, Incoming, time};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// The maximum number of peers that have been accepted and have not confirmed. For a further one, the oldest is dropped.
const ANSWERED_MAX: usize = 64;
/// How long to wait for such a peer before checking for new ones.
const TICK: Duration = Duration::from_millis(1);

/// An address at which this process accepts connections from peers.
pub struct Listener {
    domain: Domain,
    raw: rkey_device::Listener,
    /// Peers that have been accepted and have not confirmed yet.
    answered: Mutex<Vec<Answered>>,
}

impl Listener {
    pub(crate) fn bind(domain: &Domain, address: SocketAddr) -> Result<Self> {
        let raw = domain.device().raw().listen_for_hosts(address)?;
        Ok(Self {
            domain: domain.clone(),
            raw,
            answered: Mutex::default(),
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
            if let Some(connection) = self.first_confirmed() {
                return Ok(connection);
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(time::since(started)));
            // Peers that do not confirm must not keep others waiting.
            let wait = match self.wait_for_confirmation(left.unwrap_or(TICK).min(TICK))? {
                true => Some(Duration::ZERO),
                false => left,
            };
            match self.raw.accept(wait) {
                Ok(incoming) => self.answer(incoming)?,
                Err(DeviceError::TimedOut { .. }) if left.is_none_or(|left| !left.is_zero()) => {}
                Err(DeviceError::TimedOut { .. }) => {
                    let after = timeout.unwrap_or_default();
                    return Err(Error::Timeout {
                        what: "a peer to connect",
                        after,
                    });
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Accepts a peer. A peer that disconnects early, or is not a peer at all, must not stop a server.
    fn answer(&self, incoming: Incoming) -> Result<()> {
        match greeting::answer(&self.domain, incoming) {
            Ok(answered) => {
                let mut all = self.answered.lock();
                if all.len() >= ANSWERED_MAX {
                    all.remove(0);
                }
                all.push(answered);
                Ok(())
            }
            Err(
                Error::Protocol(_)
                | Error::Device(DeviceError::Handshake(_) | DeviceError::Io { .. }),
            ) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The first connection that its peer has confirmed. Drops those that are lost.
    fn first_confirmed(&self) -> Option<Connection> {
        let mut all = self.answered.lock();
        let mut index = 0;
        while index < all.len() {
            match all[index].is_confirmed() {
                Ok(false) => index += 1,
                Ok(true) => {
                    if let Ok(connection) = all.remove(index).join(&self.domain) {
                        return Some(connection);
                    }
                }
                Err(_) => drop(all.remove(index)),
            }
        }
        None
    }

    /// If a peer has not confirmed, waits for the last one up to `time`. Returns whether there is one.
    fn wait_for_confirmation(&self, time: Duration) -> Result<bool> {
        match self.answered.lock().last() {
            Some(answered) => answered.wait(time).map(|()| true),
            None => Ok(false),
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

impl Device {
    /// Listens for peers at an address of this host, such as `"127.0.0.1:7471"`. Port 0 selects a free port
    /// ([`Listener::address`] returns it).
    ///
    /// Without a wire (`RKEY_WIRE`, off by default) no network socket is opened: the address is a rendezvous point for this
    /// user's programs on this host. With a wire, programs on other hosts can connect, too, if the address is one of the wire's
    /// or a wildcard such as `0.0.0.0`: they find the port over TCP.
    ///
    /// # Errors
    /// The address is in use, does not belong to this host, or is not an address.
    pub fn listen(&self, address: impl ToSocketAddrs) -> Result<Listener> {
        self.domain()?.listen(address)
    }
}

impl Domain {
    /// Like [`Device::listen`], for connections of this domain.
    ///
    /// # Errors
    /// Same as [`Device::listen`].
    pub fn listen(&self, address: impl ToSocketAddrs) -> Result<Listener> {
        Listener::bind(self, resolve(address)?)
    }
}
