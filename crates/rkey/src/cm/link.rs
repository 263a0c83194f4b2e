//! The connection manager of a device, and one connection of it.

use super::hub::{End, Hub};
use crate::device::Device;
use crate::error::{Error, Result};
use rkey_cm::ConnectionId;
use rkey_cm::manager::Error as CmError;
use rkey_cm::wire::PrivateData;
use rkey_device::DeviceError;
use rkey_device::cm::{Parts, Service, Settings, Unfound, Why};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The connection manager of a device.
pub(crate) struct Manager {
    service: Service<Hub>,
}

impl Manager {
    /// Starts the connection manager of a device.
    pub(crate) fn start(device: &rkey_device::Device) -> Result<Self> {
        let config = device.config();
        let settings = Settings {
            share: config.share,
            reserved_files: config.reserved_files,
            wire: config.wire.clone(),
            ..Settings::default()
        };
        let started = Service::start(settings, Hub::default());
        let service = started.map_err(io("starting the connection manager"))?;
        Ok(Self { service })
    }

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

    fn check(&self) -> Result<()> {
        if self.service.is_forked() {
            return Err(DeviceError::Forked.into());
        }
        if self.service.has_failed() {
            return Err(failed());
        }
        Ok(())
    }

    /// Runs a call under the connection manager's lock.
    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut Parts<'_, Hub>) -> R) -> Result<R> {
        self.check()?;
        Ok(self.service.with(call))
    }

    /// Waits until a call returns a result.
    pub(crate) fn wait<R>(
        &self,
        time: Option<Duration>,
        what: &'static str,
        find: impl FnMut(&mut Parts<'_, Hub>) -> Option<R>,
    ) -> Result<R> {
        self.check()?;
        self.service
            .wait_for(time, find)
            .map_err(|unfound| match unfound {
                Unfound::Failed => failed(),
                Unfound::TimedOut => Error::Timeout {
                    what,
                    after: time.unwrap_or_default(),
                },
            })
    }

    /// Private data for a message.
    pub(crate) fn data<const N: usize>(
        &self,
        what: &'static str,
        bytes: &[u8],
        to: SocketAddr,
    ) -> Result<PrivateData<N>> {
        PrivateData::new(bytes).map_err(|error| {
            let (given, most) = (error.given, error.most);
            let why = Why::PrivateData { given, most };
            // An error means that the device is no longer usable; the caller's next call reports it.
            let _ = self.with(|parts| parts.refuse_call(Some(to), why));
            let (len, max) = (given, most);
            DeviceError::TooLong { what, len, max }.into()
        })
    }
}

fn failed() -> Error {
    DeviceError::Failed("bug: the connection manager's thread panicked".into()).into()
}

/// Converts errors of the system.
pub(crate) fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| DeviceError::Io { what, source }.into()
}

/// Converts errors of calls that the manager refuses although this crate makes them in the right order: the peer has ended the connection.
pub(crate) fn gone(error: CmError) -> Error {
    match error {
        CmError::Unknown | CmError::WrongState(_) => Error::PeerGone {
            how: "it gave up the connection before we answered".into(),
        },
        other => Error::Object(other.to_string()),
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
                known.unwrap_or(Why::Program(super::hub::REFUSED.0)),
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
