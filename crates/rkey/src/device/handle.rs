//! The device. What it creates is in the file of what is created: each has an `impl Device`.

use crate::device::manager::Manager;
use crate::error::{Error, Result};
use parking_lot::Mutex;
use rkey_core::DomainId;
use rkey_device::Config;
use rkey_endpoint::listeners::Listeners;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The default time limit of blocking calls.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// The default maximum length of a control message, in bytes.
pub const DEFAULT_MAX_MESSAGE: usize = 4096;

/// An open software RDMA device.
///
/// Opening needs no hardware, no privilege and no daemon. The device belongs to this process; it has one thread, which
/// sleeps while there is nothing to do. (Endpoints start further threads, to make connections.) `Device` is a handle: clones share
/// the device, and it closes when the last handle, domain, region and connection made from it is dropped.
///
/// After `fork` all calls on the child's handles return an error; the parent is not affected.
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<DeviceInner>,
}

pub(crate) struct DeviceInner {
    pub(crate) raw: rkey_device::Device,
    pub(crate) settings: Settings,
    /// The domain of `Device::domain`, `listen` and `connect`.
    pub(crate) default_domain: OnceLock<Arc<DomainInner>>,
    /// The connection manager, once it is needed.
    pub(crate) cm: Mutex<Option<Arc<Manager>>>,
    /// The listeners that accept connections for endpoints.
    pub(crate) listeners: Listeners,
}

pub(crate) struct DomainInner {
    raw: rkey_device::Device,
    pub(crate) id: DomainId,
}

impl DomainInner {
    pub(crate) fn create(raw: &rkey_device::Device) -> Result<Self> {
        Ok(Self {
            raw: raw.clone(),
            id: raw.create_domain()?,
        })
    }
}

impl Drop for DomainInner {
    fn drop(&mut self) {
        // Everything in the domain holds this Arc, so the domain is empty here. In a forked child the domain is the
        // parent's.
        let _ = self.raw.close_domain(self.id);
    }
}

/// The builder's settings, apart from the configuration of the device itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) timeout: Duration,
    pub(crate) max_message: usize,
    pub(crate) depth: u32,
}

impl Device {
    /// Opens a device, configured by the `RKEY_*` environment variables (`rkey info` lists them).
    ///
    /// # Errors
    /// A variable has an invalid value, or the process cannot get another thread or file
    /// descriptor.
    pub fn open() -> Result<Self> {
        Self::builder().open()
    }

    /// Returns a builder for choosing timeouts, depths and limits.
    #[must_use]
    pub fn builder() -> DeviceBuilder {
        DeviceBuilder {
            config: None,
            settings: Settings {
                timeout: DEFAULT_TIMEOUT,
                max_message: DEFAULT_MAX_MESSAGE,
                depth: 128,
            },
        }
    }

    /// How long blocking calls of this device wait before they return [`Error::Timeout`].
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.inner.settings.timeout
    }

    /// The state of this device: domains, regions, windows, queue pairs, counters and denied accesses, in a form that
    /// serialises.
    ///
    /// # Errors
    /// The device is broken, or this is a forked child.
    pub fn inspect(&self) -> Result<rkey_device::Inspection> {
        Ok(self.inner.raw.inspect()?)
    }

    /// The addresses at which other hosts reach this device; `None` if they cannot (`RKEY_WIRE`).
    #[must_use]
    pub fn wire(&self) -> Option<rkey_device::wire::WireDescription> {
        self.inner.raw.wire().map(rkey_device::wire::Wire::describe)
    }

    /// The accesses that were denied here or by peers, oldest first; the last few hundred are kept.
    #[must_use]
    pub fn denials(&self) -> Vec<rkey_engine::DenialReport> {
        self.inner.raw.denials()
    }

    pub(crate) fn raw(&self) -> &rkey_device::Device {
        &self.inner.raw
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("node", &self.inner.raw.node())
            .finish_non_exhaustive()
    }
}

/// Configures a [`Device`] before it is opened.
#[derive(Debug, Clone)]
pub struct DeviceBuilder {
    config: Option<Config>,
    settings: Settings,
}

impl DeviceBuilder {
    /// How long blocking calls wait (default [`DEFAULT_TIMEOUT`]).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// The maximum length of a message of [`Connection::send`](crate::Connection::send) when serialised, in bytes (default
    /// [`DEFAULT_MAX_MESSAGE`]). Each connection allocates buffers for 16 such messages in each direction.
    #[must_use]
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.settings.max_message = bytes.clamp(64, 1 << 20);
        self
    }

    /// The maximum number of operations of one connection in flight (default 128). Posting more waits until one of them
    /// is done.
    #[must_use]
    pub fn depth(mut self, operations: u32) -> Self {
        self.settings.depth = operations.clamp(1, 4096);
        self
    }

    /// The configuration of the underlying device: limits, link sizes, thresholds. It replaces the `RKEY_*`
    /// variables; start from `Config::from_env()` to keep their values.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Opens the device.
    ///
    /// # Errors
    /// Same as [`Device::open`].
    pub fn open(self) -> Result<Device> {
        let config = match self.config {
            Some(config) => config,
            None => Config::from_env().map_err(rkey_device::DeviceError::from)?,
        };
        let raw = rkey_device::Device::open(config)?;
        let inner = DeviceInner {
            raw,
            settings: self.settings,
            default_domain: OnceLock::new(),
            cm: Mutex::new(None),
            listeners: Listeners::default(),
        };
        Ok(Device {
            inner: Arc::new(inner),
        })
    }
}

/// The first address that a name resolves to.
pub(crate) fn resolve(address: impl ToSocketAddrs) -> Result<SocketAddr> {
    address
        .to_socket_addrs()
        .map_err(|error| {
            Error::Object(format!(
                "cannot resolve the address: {error}; pass, for example, 127.0.0.1:7471"
            ))
        })?
        .next()
        .ok_or_else(|| Error::Object("the name resolves to no address".into()))
}
