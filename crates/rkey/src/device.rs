//! The device, which creates everything else.

use crate::domain::{Domain, DomainInner};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::{Connection, Listener, SharedMemory, cm};
use parking_lot::Mutex;
use rkey_device::Config;
use rkey_endpoint::listeners::Listeners;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
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
    default_domain: OnceLock<Arc<DomainInner>>,
    /// The connection manager, once it is needed.
    pub(crate) cm: Mutex<Option<Arc<cm::Manager>>>,
    /// The listeners that accept connections for endpoints.
    pub(crate) listeners: Listeners,
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

    /// The device's default domain, which [`Device::listen`] and [`Device::connect`] also use. Regions of one domain
    /// can be reached only through connections of the same domain.
    ///
    /// # Errors
    /// The limit of domains is reached.
    pub fn domain(&self) -> Result<Domain> {
        if let Some(inner) = self.inner.default_domain.get() {
            return Ok(Domain::from_inner(self.clone(), Arc::clone(inner)));
        }
        let fresh = Arc::new(DomainInner::create(&self.inner.raw)?);
        let inner = self.inner.default_domain.get_or_init(|| fresh);
        Ok(Domain::from_inner(self.clone(), Arc::clone(inner)))
    }

    /// Creates a protection domain: its regions cannot be reached through connections of any other domain, even by a peer that
    /// knows the key.
    ///
    /// # Errors
    /// The limit of domains is reached.
    pub fn new_domain(&self) -> Result<Domain> {
        let inner = Arc::new(DomainInner::create(&self.inner.raw)?);
        Ok(Domain::from_inner(self.clone(), inner))
    }

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

    /// Connects to a listening peer on this host or, with a wire (`RKEY_WIRE`), on another one. Waits for it up to the device's
    /// timeout.
    ///
    /// # Errors
    /// No peer listens there, its host cannot be reached, the peer refused, or it uses another protocol.
    pub fn connect(&self, address: impl ToSocketAddrs) -> Result<Connection> {
        self.domain()?.connect(address)
    }

    /// Listens for programs that use the connection manager of RDMA, such as C programs with `librdmacm`: see
    /// [`cm`]. Port 0 selects a free port ([`cm::Listener::address`] returns it). The ports are those of
    /// `RDMA_PS_TCP`, which all processes of a user share.
    ///
    /// # Errors
    /// The address is in use, does not belong to this host, or is not an address.
    pub fn listen_cm(&self, address: impl ToSocketAddrs) -> Result<cm::Listener> {
        self.domain()?.listen_cm(address)
    }

    /// Connects to a program that listens through the connection manager of RDMA, such as a C program with `librdmacm`:
    /// see [`cm`]. The peer's program gets `private_data`, up to 56 bytes, with the request.
    ///
    /// # Errors
    /// [`Error::ConnectionRefused`] says who refused and why, with the peer's private data; if nothing listens, after half a
    /// second. [`Error::Timeout`] if the peer's program does not decide in time. The private data is too long, or the address
    /// belongs to a host that cannot be reached (`RKEY_WIRE`).
    pub fn connect_cm(
        &self,
        address: impl ToSocketAddrs,
        private_data: &[u8],
    ) -> Result<cm::Connection> {
        self.domain()?.connect_cm(address, private_data)
    }

    /// Opens an endpoint at a free address of this host. The endpoint exchanges tagged messages with any number of peers, without
    /// connections to manage: see [`endpoint`](crate::endpoint).
    ///
    /// # Errors
    /// A limit of the device is reached.
    pub fn endpoint(&self) -> Result<Endpoint> {
        self.endpoint_at((Ipv4Addr::LOCALHOST, 0))
    }

    /// Like [`Device::endpoint`], at a chosen address of this host, such as `"127.0.0.1:7471"`.
    ///
    /// # Errors
    /// The address is in use, does not belong to this host, or is not an address; a limit of the device is reached.
    pub fn endpoint_at(&self, address: impl ToSocketAddrs) -> Result<Endpoint> {
        Endpoint::open(self, resolve(address)?)
    }

    /// Allocates memory that peers on this host can map ([`Connection::map`]) once it is registered and they have a key. The
    /// memory is page-aligned, zeroed, and freed when dropped.
    ///
    /// Its length is rounded up to whole pages. A hostile peer that has mapped a part of it could read all of it, and
    /// write to all of it if it was mapped for writing: allocate separately what peers must not share.
    ///
    /// The first peer that maps it fixes permanently whether peers can map it for writing ([`Connection::map`] with a key
    /// that allows it) or only for reading ([`Connection::map_for_reading`]). After that, the other kind of mapping is refused,
    /// except that a peer that has mapped it for writing can also map it for reading. [`Device::allocate_for_reading`] fixes it
    /// at once.
    ///
    /// # Errors
    /// The length is 0, or there is not enough memory.
    pub fn allocate(&self, bytes: usize) -> Result<SharedMemory> {
        SharedMemory::allocate(self, bytes, true)
    }

    /// Like [`Device::allocate`], but peers can map it for reading only. They can still write to it through the device,
    /// with a key that grants it.
    ///
    /// # Errors
    /// Same as [`Device::allocate`].
    pub fn allocate_for_reading(&self, bytes: usize) -> Result<SharedMemory> {
        SharedMemory::allocate(self, bytes, false)
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

    /// The maximum length of a message of [`Connection::send`] when serialised, in bytes (default
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
