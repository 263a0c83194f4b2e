//! Waiting for requests.

use super::link::Link;
use super::request::Request;
use super::setup::DYNAMIC;
use crate::device::domain::Domain;
use crate::device::handle::{Device, resolve};
use crate::device::manager::{Manager, io};
use crate::error::{Error, Result};
use rkey_cm::ListenerId;
use rkey_cm::address::{PortSpace, ServiceId};
use rkey_cm::manager::{ConnectRequest, Error as CmError, Kind, ListenOn};
use rkey_cm::wire::Transport;
use rkey_device::DeviceError;
use rkey_device::cm::random;
use rkey_device::names::is_of_this_host;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

/// How many requests may wait for the program. Further requests are dropped, and their senders retransmit them.
const BACKLOG: usize = 128;

/// A port at which programs request connections, with `rdma_connect(3)` or
/// [`Device::connect_cm`](crate::Device::connect_cm). Made by [`Device::listen_cm`](crate::Device::listen_cm).
///
/// Dropping it releases the port, and refuses the waiting requests. Connections that it has accepted continue.
pub struct Listener {
    domain: Domain,
    manager: Arc<Manager>,
    id: ListenerId,
    address: SocketAddr,
}

impl Listener {
    pub(crate) fn bind(domain: &Domain, address: SocketAddr) -> Result<Self> {
        if !is_of_this_host(address.ip()) {
            return Err(DeviceError::NotThisHost { address }.into());
        }
        let manager = Manager::of(domain.device())?;
        let (first, count) = DYNAMIC;
        let ports: Vec<u16> = match address.port() {
            0 => {
                let start = random().map_err(io("choosing a port"))?;
                let port = |step: u32| first + (start.wrapping_add(step) % count) as u16;
                (0..count).map(port).collect()
            }
            port => vec![port],
        };
        for port in ports {
            let address = SocketAddr::new(address.ip(), port);
            if let Some(id) = manager.with(|parts| listen(parts, address))?? {
                return Ok(Self {
                    domain: domain.clone(),
                    manager,
                    id,
                    address,
                });
            }
        }
        Err(DeviceError::AddressInUse { address }.into())
    }

    /// The address that peers connect to, with the real port if port 0 was requested.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The domain of the listener's connections.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Waits for the next request, without a time limit.
    ///
    /// # Errors
    /// The device is broken, or this is a forked child.
    pub fn next_request(&self) -> Result<Request> {
        self.next_within(None)
    }

    /// Waits for the next request up to `timeout`.
    ///
    /// # Errors
    /// [`Error::Timeout`], and those of [`Listener::next_request`].
    pub fn next_request_timeout(&self, timeout: Duration) -> Result<Request> {
        self.next_within(Some(timeout))
    }

    fn next_within(&self, time: Option<Duration>) -> Result<Request> {
        let id = self.id;
        let request: Box<ConnectRequest> =
            self.manager.wait(time, "a connection request", |parts| {
                let request = parts.handler.next_request(id)?;
                // The request no longer counts against the backlog. If its peer has withdrawn it, `accept` reports that.
                let _ = parts.manager.take_request(request.connection);
                parts
                    .handler
                    .add(request.connection, request.to, request.from);
                Some(request)
            })?;
        let link = Link::new(&self.manager, request.connection, request.to, request.from);
        Ok(Request::new(self.domain.clone(), link, request))
    }
}

/// Listens at an address. `None`: the port belongs to another listener.
fn listen(
    parts: &mut rkey_device::cm::Parts<'_, crate::device::hub::Hub>,
    address: SocketAddr,
) -> Result<Option<ListenerId>> {
    let service = ServiceId::new(PortSpace::Tcp, address.port());
    if !parts.claim(service).map_err(io("claiming a port"))? {
        return Ok(None);
    }
    let on = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => ListenOn::AnyV4,
        IpAddr::V6(ip) if ip.is_unspecified() => ListenOn::Any,
        ip => ListenOn::Address(ip.to_canonical()),
    };
    let kind = Kind::Connected(Transport::Rc);
    let id = match parts.manager.listen(on, service, kind, BACKLOG) {
        Ok(id) => id,
        Err(error) => {
            parts.release(service);
            return match error {
                CmError::InUse => Ok(None),
                other => Err(Error::Object(other.to_string())),
            };
        }
    };
    if let Err(error) = parts.open(service) {
        // No request waits yet.
        let _ = parts.manager.unlisten(parts.now, id);
        parts.release(service);
        return Err(io("listening")(error));
    }
    parts.handler.listen(id, address);
    Ok(Some(id))
}

impl Drop for Listener {
    fn drop(&mut self) {
        let (id, port) = (self.id, self.address.port());
        // An error means that nothing is left to end: this is a forked child, or the manager has failed.
        let _ = self.manager.with(|parts| {
            for request in parts.handler.unlisten(id) {
                // The peer may have withdrawn its request.
                let _ = parts.manager.close(parts.now, request.connection);
            }
            let _ = parts.manager.unlisten(parts.now, id);
            parts.release(ServiceId::new(PortSpace::Tcp, port));
        });
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Device {
    /// Listens for programs that use the connection manager of RDMA, such as C programs with `librdmacm`: see
    /// [`cm`](crate::cm). Port 0 selects a free port ([`Listener::address`] returns it). The ports are those of
    /// `RDMA_PS_TCP`, which all processes of a user share.
    ///
    /// # Errors
    /// The address is in use, does not belong to this host, or is not an address.
    pub fn listen_cm(&self, address: impl ToSocketAddrs) -> Result<Listener> {
        self.domain()?.listen_cm(address)
    }
}

impl Domain {
    /// Like [`Device::listen_cm`], for connections of this domain.
    ///
    /// # Errors
    /// Same as [`Device::listen_cm`].
    pub fn listen_cm(&self, address: impl ToSocketAddrs) -> Result<Listener> {
        Listener::bind(self, resolve(address)?)
    }
}
