//! Null regions: reads return zeros, writes are dropped.

#![allow(unsafe_code)]
// UNSAFETY: maps memory.

use std::io;

use parking_lot::Mutex;
use rkey_base::range::VaRange;
use rkey_core::{DomainId, Region};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::device::Device;
use crate::error::DeviceError;

/// The size of the zeros and of the sink, in bytes. Longer accesses use the block several times.
const BLOCK: usize = 256 << 10;

/// The zeros, which are read-only, and the sink, which is never read. All devices of the process share them, for its whole life.
/// Untouched pages take no memory, and the pages of the zeros never do.
static BLOCKS: Mutex<Option<[VaRange; 2]>> = Mutex::new(None);

fn blocks() -> io::Result<[VaRange; 2]> {
    let mut blocks = BLOCKS.lock();
    match *blocks {
        Some(blocks) => Ok(blocks),
        None => Ok(*blocks.insert(map()?)),
    }
}

fn map() -> io::Result<[VaRange; 2]> {
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let start = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            2 * BLOCK,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?
    };
    // SAFETY: this is the first half of the mapping, to which no pointer exists yet.
    if let Err(error) = unsafe { mprotect(start, BLOCK, MprotectFlags::READ) } {
        // SAFETY: no other pointer to the mapping exists.
        let _ = unsafe { munmap(start, 2 * BLOCK) };
        return Err(error.into());
    }
    let half = |number: u64| VaRange::new(start as u64 + number * BLOCK as u64, BLOCK as u64);
    match [half(0), half(1)] {
        [Some(zeros), Some(sink)] => Ok([zeros, sink]),
        _ => Err(io::Error::other("the mapping wraps past the last address")),
    }
}

impl Device {
    /// Registers a null region: requests of this device that name its local key, with any address and length, read zeros or drop
    /// what they write. Peers cannot use it.
    ///
    /// # Errors
    /// A limit is reached, the domain is not open, or no memory is available. [`DeviceError::Forked`],
    /// [`DeviceError::Failed`].
    pub fn register_null(&self, domain: DomainId) -> Result<Region, DeviceError> {
        self.check()?;
        let [zeros, sink] = blocks().map_err(DeviceError::io("mapping memory for null regions"))?;
        Ok(self.table().register_null(domain, zeros, sink)?)
    }
}
