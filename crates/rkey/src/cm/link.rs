//! One connection of a device's connection manager.

use crate::device::handle::Device;
use crate::device::hub::End;
use crate::device::manager::Manager;
use crate::error::{Error, Result};
use rkey_cm::ConnectionId;
use rkey_cm::manager::Error as CmError;
use rkey_device::cm::Why;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Converts errors of calls that the manager refuses although this crate makes them in the right order: the peer has ended the connection.
pub(crate) fn gone(error: CmError) -> Error {
    match error {
        CmError::Unknown | CmError::WrongState(_) => Error::PeerGone {
            how: "it gave up the connection before we answered".into(),
        },
        other => Error::Object(other.to_string()),
    }
}

impl Manager {
    /// The connection manager of a device, started when it is first needed.
    pub(crate) fn of(device: &Device) -> Result<Arc<Self>> {
        let mut own = device.inner.cm.lock();
        if let Some(manager) = &*own {
            return Ok(Arc::clone(manager));
        }
        let manager = Arc::new(Self::start(device.raw())?);
        *own = Some(Arc::clone(&manager));
        Ok(manager)
    }
}

/// A connection of the manager. Dropping it ends the connection: the peer gets a message.
pub(crate) struct Link {
    manager: Arc<Manager>,
    id: ConnectionId,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Link {
    /// A connection in the hub.
    pub(crate) fn new(
        manager: &Arc<Manager>,
        id: ConnectionId,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Self {
        Self {
            manager: Arc::clone(manager),
            id,
            local,
            peer,
        }
    }

    pub(crate) fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }

    pub(crate) fn id(&self) -> ConnectionId {
        self.id
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// How the connection ended; `None` if it has not.
    pub(crate) fn end(&self) -> Result<Option<End>> {
        let id = self.id;
        self.manager
            .with(|parts| parts.handler.connections.get(&id)?.end.clone())
    }

    /// The error for a connection that ended before it was established.
    pub(crate) fn error(&self, end: End) -> Error {
        let (id, address) = (self.id, self.peer);
        let why = self.manager.with(|parts| parts.refusal_of(id));
        let known = why.ok().flatten();
        let (why, private_data) = match end {
            End::Refused(data) => (
                known.unwrap_or(Why::Program(crate::device::hub::REFUSED.0)),
                data.as_bytes().to_vec(),
            ),
            End::NoAnswer => (Why::NoAnswer, Vec::new()),
            End::Disconnected => (Why::PeerGone, Vec::new()),
        };
        Error::ConnectionRefused {
            address,
            why,
            private_data,
        }
    }

    /// The error for a request that failed after we had accepted it.
    pub(crate) fn lost(&self, end: End) -> Error {
        match self.error(end) {
            Error::ConnectionRefused { why, .. } => Error::PeerGone {
                how: why.to_string(),
            },
            other => other,
        }
    }

    /// Requests the end of the connection, and waits until the peer confirms.
    pub(crate) fn disconnect(&self, time: Duration) -> Result<()> {
        let id = self.id;
        self.manager.with(|parts| {
            // The connection may already have ended.
            let _ = parts.manager.disconnect(parts.now, id);
        })?;
        self.wait_end(time)
    }

    /// Waits until the connection has ended.
    pub(crate) fn wait_end(&self, time: Duration) -> Result<()> {
        let id = self.id;
        self.manager
            .wait(Some(time), "the connection to end", |parts| {
                let entry = parts.handler.connections.get(&id);
                entry.is_none_or(|it| it.end.is_some()).then_some(())
            })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let id = self.id;
        // An error means that nothing is left to end: this is a forked child, or the manager has failed.
        let _ = self.manager.with(|parts| {
            parts.handler.connections.remove(&id);
            // The connection may already have ended.
            let _ = parts.manager.close(parts.now, id);
        });
    }
}
