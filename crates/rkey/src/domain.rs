//! Protection domains.

use crate::cm;
use crate::connection::Connection;
use crate::device::{Device, resolve};
use crate::error::{Error, Result};
use crate::greeting;
use crate::listener::Listener;
use crate::options::RegionOptions;
use crate::owned::{Buffer, PrivateBuffer};
use crate::region::{Published, Region};
use crate::scope::{Scope, run_scope};
use crate::window::Window;
use crate::{CompletionQueue, QueuePairBuilder};
use rkey_core::{DomainId, WindowKind};
use std::net::ToSocketAddrs;
use std::sync::Arc;

/// A protection domain. Each region, window and queue pair belongs to one domain, and a queue pair reaches only the
/// memory of its own domain.
///
/// `Domain` is a handle; the domain itself ends when its last handle, region, window and queue pair have been dropped.
#[derive(Clone)]
pub struct Domain {
    /// One reference count for both: each region holds this Arc.
    handle: Arc<Handle>,
}

struct Handle {
    device: Device,
    inner: Arc<DomainInner>,
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

impl Domain {
    pub(crate) fn from_inner(device: Device, inner: Arc<DomainInner>) -> Self {
        let handle = Arc::new(Handle { device, inner });
        Self { handle }
    }

    pub(crate) fn id(&self) -> DomainId {
        self.handle.inner.id
    }

    /// The device that the domain belongs to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.handle.device
    }

    /// Registers a buffer: from now on, peers of this domain's connections that get a key may use the buffer as `access` allows,
    /// until the region is deregistered or dropped.
    ///
    /// The region owns the buffer. Its bytes are read and written through the region, because a peer may change them at
    /// any moment; [`Region::deregister`] returns the buffer. `access` is an [`Access`](crate::Access) or, for all
    /// other options, [`RegionOptions`].
    ///
    /// # Errors
    /// [`Error::Rights`] if the rights contradict each other, or an error of the device if the buffer is empty or a limit
    /// is reached. The buffer is then dropped.
    pub fn register<B: Buffer>(
        &self,
        buffer: B,
        access: impl Into<RegionOptions>,
    ) -> Result<Region<B>> {
        Region::register(self, buffer, &access.into())
    }

    /// Registers a buffer that peers may read and that cannot change while it is registered. Its bytes remain
    /// readable as a `&[u8]`.
    ///
    /// # Errors
    /// Same as [`Domain::register`].
    pub fn publish<B: PrivateBuffer>(&self, buffer: B) -> Result<Published<B>> {
        Published::register(self, buffer)
    }

    /// Registers memory that is only borrowed, for as long as `work` runs.
    ///
    /// Every region made in the scope is deregistered before `scope` returns, even when `work` panics or the program forgets
    /// a region (`std::mem::forget`): the scope itself keeps the list, as [`std::thread::scope`] does with its threads.
    ///
    /// ```
    /// # use rkey::{Access, Device};
    /// # fn main() -> rkey::Result<()> {
    /// let domain = Device::open()?.domain()?;
    /// let mut bytes = [0u8; 64];
    /// let key = domain.scope(|scope| {
    ///     let region = scope.register(&mut bytes, Access::REMOTE_READ)?;
    ///     region.write(0, b"hello")?;
    ///     region.key(..)
    /// })?;
    /// assert_eq!(&bytes[..5], b"hello"); // ours again; the key is refused from now on
    /// # let _ = key; Ok(()) }
    /// ```
    ///
    /// # Aborts
    /// If a region cannot be deregistered (because the device is broken), the process aborts: returning would let the
    /// device write into memory that is no longer ours.
    pub fn scope<'env, T>(&self, work: impl for<'scope> FnOnce(Scope<'scope, 'env>) -> T) -> T {
        run_scope(self, work)
    }

    /// Creates an unbound window: a second, narrower key for a part of a region, which can be revoked without affecting the
    /// region. [`MemoryRegion::key`](crate::MemoryRegion::key) is simpler if that is all you need.
    ///
    /// # Errors
    /// The limit of windows is reached.
    pub fn window(&self) -> Result<Window> {
        Window::create(self, WindowKind::Type1)
    }

    /// Creates a window of the given type, for programs that bind and invalidate through a queue pair.
    ///
    /// # Errors
    /// Same as [`Domain::window`].
    pub fn window_of(&self, kind: WindowKind) -> Result<Window> {
        Window::create(self, kind)
    }

    /// Like [`Device::listen`], for connections of this domain.
    ///
    /// # Errors
    /// Same as [`Device::listen`].
    pub fn listen(&self, address: impl ToSocketAddrs) -> Result<Listener> {
        Listener::bind(self, resolve(address)?)
    }

    /// Like [`Device::connect`], for a connection of this domain.
    ///
    /// # Errors
    /// Same as [`Device::connect`].
    pub fn connect(&self, address: impl ToSocketAddrs) -> Result<Connection> {
        greeting::connect(self, resolve(address)?)
    }

    /// Like [`Device::listen_cm`], for connections of this domain.
    ///
    /// # Errors
    /// Same as [`Device::listen_cm`].
    pub fn listen_cm(&self, address: impl ToSocketAddrs) -> Result<cm::Listener> {
        cm::Listener::bind(self, resolve(address)?)
    }

    /// Like [`Device::connect_cm`], for a connection of this domain.
    ///
    /// # Errors
    /// Same as [`Device::connect_cm`].
    pub fn connect_cm(
        &self,
        address: impl ToSocketAddrs,
        private_data: &[u8],
    ) -> Result<cm::Connection> {
        cm::connect(self, resolve(address)?, private_data)
    }

    /// Creates a completion queue for `depth` completions, for programs that post and poll themselves.
    ///
    /// # Errors
    /// The limit of completion queues or of their depth is reached.
    pub fn completion_queue(&self, depth: u32) -> Result<CompletionQueue> {
        CompletionQueue::create(self.device(), depth)
    }

    /// Returns a builder for a queue pair whose completions go to `queue`, for programs that post and poll themselves.
    #[must_use]
    pub fn queue_pair(&self, queue: &CompletionQueue) -> QueuePairBuilder {
        QueuePairBuilder::new(self, queue)
    }
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Domain")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

impl From<rkey_core::CoreError> for Error {
    fn from(error: rkey_core::CoreError) -> Self {
        Self::Device(error.into())
    }
}
