//! A request of a peer, to accept or reject.

use super::connection::Connection;
use super::link::{Link, gone};
use super::setup;
use crate::device::domain::Domain;
use crate::device::hub::REFUSED;
use crate::error::Result;
use rkey_cm::manager::ConnectRequest;
use rkey_cm::wire::Rej;
use std::net::SocketAddr;

/// A program's request for a connection. Returned by [`Listener::next_request`](super::Listener::next_request). Dropping the
/// request rejects it, without private data.
#[must_use = "dropping a request rejects it"]
pub struct Request {
    domain: Domain,
    link: Link,
    request: Box<ConnectRequest>,
}

impl Request {
    pub(super) fn new(domain: Domain, link: Link, request: Box<ConnectRequest>) -> Self {
        Self {
            domain,
            link,
            request,
        }
    }

    /// The peer's private data: 56 bytes, padded with zeros.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.request.data.as_bytes()
    }

    /// The peer's address and port.
    #[must_use]
    pub fn peer_address(&self) -> SocketAddr {
        self.link.peer()
    }

    /// The address and port that the peer connects to.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.link.local()
    }

    /// Accepts the request with private data, up to 196 bytes, and waits until the peer is ready, up to the device's timeout.
    ///
    /// # Errors
    /// The private data is too long; [`Error::PeerGone`](crate::Error::PeerGone) if the peer has given up;
    /// [`Error::Timeout`](crate::Error::Timeout) if it does not become ready; a limit of the device. The request is then rejected.
    pub fn accept(self, private_data: &[u8]) -> Result<Connection> {
        setup::accept(&self.domain, self.link, &self.request, private_data)
    }

    /// Rejects the request with private data, up to 148 bytes.
    ///
    /// # Errors
    /// The private data is too long (then the request is rejected without it);
    /// [`Error::PeerGone`](crate::Error::PeerGone) if the peer has given up.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        let (manager, id) = (self.link.manager(), self.link.id());
        let what = "the private data of a refusal";
        let data = manager.data::<{ Rej::DATA }>(what, private_data, self.link.peer())?;
        let refused = manager.with(|it| it.manager.reject(it.now, id, REFUSED, data, 0))?;
        refused.map_err(gone)
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("from", &self.peer_address())
            .finish_non_exhaustive()
    }
}
