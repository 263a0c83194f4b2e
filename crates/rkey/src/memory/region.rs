//! Regions that own their buffer.

use crate::device::domain::Domain;
use crate::error::Result;
use crate::memory::memory_region::MemoryRegion;
use crate::memory::options::RegionOptions;
use crate::memory::owned::{Buffer, Owned, PrivateBuffer};
use rkey_core::Access;
use std::ops::Deref;

/// A registered buffer. It dereferences to [`MemoryRegion`], which has the operations on the memory.
///
/// Dropping the region deregisters it: its keys are refused from then on, and later steps of operations in flight fail.
/// The drop waits for the accesses in progress, each of which lasts one step, and frees the buffer last.
pub struct Region<B: Buffer = Vec<u8>> {
    owned: Owned<B, MemoryRegion>,
}

impl<B: Buffer> Region<B> {
    pub(crate) fn register(domain: &Domain, buffer: B, options: &RegionOptions) -> Result<Self> {
        let wish = MemoryRegion::wish(options)?;
        let owned = Owned::register(domain, &wish, buffer, false, |registered| {
            MemoryRegion::new(registered, &wish)
        })?;
        Ok(Self { owned })
    }

    /// Deregisters the region and returns the buffer. When this returns, no peer and no local operation can access it:
    /// all keys and windows of the region are refused, and copies in progress have finished.
    ///
    /// # Errors
    /// The device is broken. The buffer is then leaked, because the device might still write to it.
    pub fn deregister(self) -> Result<B> {
        self.owned.take()
    }
}

impl<B: Buffer> Deref for Region<B> {
    type Target = MemoryRegion;

    fn deref(&self) -> &MemoryRegion {
        self.owned.memory()
    }
}

impl<B: Buffer> std::fmt::Debug for Region<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.owned.memory().fmt(f)
    }
}

/// The rights of published memory: none that could change a byte.
pub(crate) const PUBLISHED: Access = Access::REMOTE_READ.union(Access::LOCAL_READ);

/// A registered buffer that peers may read and that cannot change, not even by its owner. Therefore its bytes are
/// available as a slice.
///
/// It dereferences to [`MemoryRegion`], whose writing methods return [`Error::Rights`](crate::Error::Rights) here.
pub struct Published<B: PrivateBuffer = Vec<u8>> {
    owned: Owned<B, MemoryRegion>,
}

impl<B: PrivateBuffer> Published<B> {
    pub(crate) fn register(domain: &Domain, buffer: B) -> Result<Self> {
        let options = RegionOptions::new(PUBLISHED);
        let wish = MemoryRegion::wish(&options)?;
        let owned = Owned::register(domain, &wish, buffer, true, |registered| {
            MemoryRegion::new(registered, &wish)
        })?;
        Ok(Self { owned })
    }

    /// The bytes, which do not change while they are published.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.owned.constant_bytes().unwrap_or_default()
    }

    /// Ends the registration and returns the buffer, as [`Region::deregister`] does.
    ///
    /// # Errors
    /// Same as [`Region::deregister`].
    pub fn withdraw(self) -> Result<B> {
        self.owned.take()
    }
}

impl<B: PrivateBuffer> Deref for Published<B> {
    type Target = MemoryRegion;

    fn deref(&self) -> &MemoryRegion {
        self.owned.memory()
    }
}

impl<B: PrivateBuffer> std::fmt::Debug for Published<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.owned.memory().fmt(f)
    }
}

impl Domain {
    /// Registers a buffer: from now on, peers of this domain's connections that get a key may use the buffer as `access` allows,
    /// until the region is deregistered or dropped.
    ///
    /// The region owns the buffer. Its bytes are read and written through the region, because a peer may change them at
    /// any moment; [`Region::deregister`] returns the buffer. `access` is an [`Access`] or, for all
    /// other options, [`RegionOptions`].
    ///
    /// # Errors
    /// [`Error::Rights`](crate::Error::Rights) if the rights contradict each other, or an error of the device if the buffer is empty or a limit
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
}
