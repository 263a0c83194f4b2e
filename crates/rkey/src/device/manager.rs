//! The connection manager of a device.

use crate::device::hub::Hub;
use crate::error::{Error, Result};
use rkey_cm::wire::PrivateData;
use rkey_device::DeviceError;
use rkey_device::cm::{Parts, Service, Settings, Unfound, Why};
use std::net::SocketAddr;
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
