//! Memory that peers can map, from the device's own allocator.
//!
//! It is a sealed memfd, so it cannot shrink while it is mapped. Peers get it only through a lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rkey_base::range::VaRange;
use rkey_base::segment::{Arena, Sharing};
use rkey_core::MemoryKind;

use crate::device::Device;
use crate::error::DeviceError;

/// The number of the next segment of any device of the process.
static SEGMENTS: AtomicU32 = AtomicU32::new(1);

/// Zeroed memory that can be registered and leased to peers. Clones are the same memory; the last one frees it, so keep
/// a clone while a region covers it.
///
/// If a peer is stopped in the middle of a copy when the region is deregistered, the pages that the copy can touch are detached.
/// They keep their addresses and contents in this process, but they can no longer be leased, and a forked child no longer
/// shares them. Bytes that another device or process writes to them with a system call at that moment may be lost.
#[derive(Clone, Debug)]
pub struct SharedMemory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    arena: Arc<Arena>,
    segment: u32,
}

impl Device {
    /// Allocates zeroed memory, in whole pages, that can be leased to peers. `writable` says whether leases can allow writing.
    ///
    /// # Errors
    /// [`DeviceError::TooLarge`] above the limit for one region; the system refuses memory or
    /// descriptors.
    pub fn allocate_shared(&self, len: usize, writable: bool) -> Result<SharedMemory, DeviceError> {
        self.check()?;
        let limit = self.config().limits.max_region_bytes;
        if len as u64 > limit {
            return Err(DeviceError::TooLarge {
                what: "bytes of shared memory",
                wanted: len as u64,
                limit,
                variable: "RKEY_MAX_REGION_BYTES",
            });
        }
        let sharing = if writable {
            Sharing::ReadWrite
        } else {
            Sharing::ReadOnly
        };
        let arena = Arena::create("rkey-memory", len, sharing)
            .map_err(DeviceError::io("allocating shared memory"))?;
        let segment = SEGMENTS.fetch_add(1, Ordering::Relaxed);
        let arena = Arc::new(arena);
        self.shared().reclaim.leases.add_segment(segment, &arena);
        Ok(SharedMemory(Arc::new(Inner { arena, segment })))
    }
}

impl SharedMemory {
    /// The address in this process.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.arena.as_ptr()
    }

    /// The length, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.arena.len()
    }

    /// Whether the length of the memory is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The range of addresses in this process.
    #[must_use]
    pub fn range(&self) -> Option<VaRange> {
        VaRange::new(self.as_ptr() as u64, self.len() as u64)
    }

    /// The memory kind in the [`rkey_core::RegionSpec`] of a region that begins `offset` bytes after the start of this memory.
    #[must_use]
    pub fn kind(&self, offset: u64) -> MemoryKind {
        MemoryKind::Shared {
            segment: self.0.segment,
            offset,
        }
    }
}
