//! Memory from rkey's own allocator, which peers on the host can map.

use crate::device::handle::Device;
use crate::error::{Error, Result};
use rkey_core::MemoryKind;
use std::ptr::NonNull;

/// Memory that peers may map and use directly, without the owner's CPU, as long as its owner allows it. Register it
/// like any other buffer.
///
/// It is page-aligned and zeroed. Because a peer may have mapped it, it never returns a `&[u8]`, registered or not:
/// register it and copy with [`MemoryRegion`](crate::MemoryRegion)'s accessors.
#[derive(Debug)]
pub struct SharedMemory {
    raw: rkey_device::SharedMemory,
}

impl SharedMemory {
    pub(crate) fn allocate(device: &Device, bytes: usize, writable: bool) -> Result<Self> {
        if bytes == 0 {
            return Err(Error::Rights("memory of 0 B cannot be allocated".into()));
        }
        Ok(Self {
            raw: device.raw().allocate_shared(bytes, writable)?,
        })
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Always false: empty memory cannot be allocated.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address, which is never 0 for a mapping, and the length.
    pub(crate) fn raw_parts(&self) -> (NonNull<u8>, usize) {
        NonNull::new(self.raw.as_ptr())
            .map_or((NonNull::dangling(), 0), |start| (start, self.raw.len()))
    }

    pub(crate) fn segment(&self) -> MemoryKind {
        self.raw.kind(0)
    }
}

impl Device {
    /// Allocates memory that peers on this host can map ([`Connection::map`](crate::Connection::map)) once it is registered and they have a key. The
    /// memory is page-aligned, zeroed, and freed when dropped.
    ///
    /// Its length is rounded up to whole pages. A hostile peer that has mapped a part of it could read all of it, and
    /// write to all of it if it was mapped for writing: allocate separately what peers must not share.
    ///
    /// The first peer that maps it fixes permanently whether peers can map it for writing ([`Connection::map`](crate::Connection::map) with a key
    /// that allows it) or only for reading ([`Connection::map_for_reading`](crate::Connection::map_for_reading)). After that, the other kind of mapping is refused,
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
}
