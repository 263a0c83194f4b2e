//! Memory from rkey's own allocator, which peers on the host can map.

use crate::device::Device;
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
