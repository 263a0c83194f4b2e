//! Null regions: what is read from one is zeros, what is written to it is gone.

#![allow(unsafe_code)]
// UNSAFETY: maps memory.

use std::io;
use std::sync::OnceLock;

use rkey_base::range::VaRange;
use rkey_core::{DomainId, Region};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::device::Device;
use crate::error::DeviceError;

/// Bytes of the zeros and of the sink. Longer accesses go over them several times.
const BLOCK: usize = 256 << 10;

/// The zeros, which nobody can write, and the sink, which nobody reads. One of each serves all devices of the process
/// and stays as long as it; pages that nobody touches take no memory, and those of the zeros never do.
static BLOCKS: OnceLock<[VaRange; 2]> = OnceLock::new();

fn block(protection: ProtFlags) -> io::Result<VaRange> {
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let start = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            BLOCK,
            protection,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?
    };
    VaRange::new(start as u64, BLOCK as u64).ok_or_else(|| io::Error::other("memory at the end"))
}

fn blocks() -> io::Result<[VaRange; 2]> {
    if let Some(blocks) = BLOCKS.get() {
        return Ok(*blocks);
    }
    let new = [
        block(ProtFlags::READ)?,
        block(ProtFlags::READ | ProtFlags::WRITE)?,
    ];
    // Should another thread have been quicker, ours are lost, once.
    Ok(*BLOCKS.get_or_init(|| new))
}

impl Device {
    /// Registers no memory: requests of this side that name the region's local key, with any address and length, take
    /// zeros from it or put bytes nowhere. Peers cannot use it.
    ///
    /// # Errors
    /// Limits; the domain is not open; the system gives no memory. [`DeviceError::Forked`], [`DeviceError::Failed`].
    pub fn register_null(&self, domain: DomainId) -> Result<Region, DeviceError> {
        self.check()?;
        let [zeros, sink] = blocks().map_err(DeviceError::io("mapping memory for null regions"))?;
        Ok(self.table().register_null(domain, zeros, sink)?)
    }
}
