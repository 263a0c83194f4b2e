//! Buffers of operations that an endpoint has in flight, and the region that lets the device reach them.

use super::buffer::Buffer;
use crate::device::domain::Domain;
use crate::error::Result;
use crate::memory::options::RegionOptions;
use crate::memory::region::Region;
use rkey_core::{Access, Addressing, DomainId, LKey, RegionSpec};
use rkey_device::base::{Memory, VaRange};
use rkey_engine::Sge;
use std::ptr::NonNull;

/// One past the highest address of user memory.
const ADDRESSES: u64 = 1 << 47;

/// A buffer that an operation owns while it is in flight. Nothing refers to its bytes until it is returned.
pub(crate) struct Lent {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
}

// SAFETY: owns its bytes like the Vec that it was made from, and hands out no reference to them.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Lent {
    pub(crate) fn new(buffer: Vec<u8>) -> Self {
        let mut buffer = std::mem::ManuallyDrop::new(buffer);
        Self {
            start: NonNull::from(buffer.as_mut_slice()).cast(),
            len: buffer.len(),
            capacity: buffer.capacity(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// Returns the first `len` bytes of the buffer. Call it only after the state machine has reported the end of the
    /// operation: the device has released the buffer by then.
    pub(crate) fn take(self, len: usize) -> Vec<u8> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the parts of the Vec of `new`, once: `this` is not dropped.
        let mut buffer =
            unsafe { Vec::from_raw_parts(this.start.as_ptr(), this.len, this.capacity) };
        buffer.truncate(len);
        buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: the parts of the Vec of `new`; `take` never reaches this point.
        drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, self.capacity) });
    }
}

/// All memory of the process as one region, in a protection domain that contains only an endpoint's queue pairs.
///
/// The program never gets a handle to the domain: with a queue pair in it, the program could name any address. The endpoint
/// names only its own buffers and `Lent` ones, which live until their operation has ended.
pub(crate) struct LocalMemory {
    // Declared before `domain`, so that the region is deregistered before the domain is closed.
    all: rkey_core::Region,
    domain: Domain,
}

impl LocalMemory {
    /// Registers all memory in a domain to which the program has no handle.
    pub(crate) fn register(domain: Domain) -> Result<Self> {
        let ranges = VaRange::new(0, ADDRESSES);
        let ranges = ranges.as_slice();
        let rights = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let spec = RegionSpec {
            internal: true,
            ..RegionSpec::new(domain.id(), ranges, rights)
        };
        // SAFETY: no peer can reach the region, which has no remote right; only the endpoint's state machine makes
        // requests that name it, and they name memory that it owns until they have ended.
        let all = unsafe { domain.device().raw().register(&spec) }?;
        Ok(Self { all, domain })
    }

    /// Registers a buffer of the program in the domain. The program gets a handle to the region, but none to the
    /// domain.
    pub(crate) fn register_region<B: Buffer>(
        &self,
        buffer: B,
        options: RegionOptions,
    ) -> Result<Region<B>> {
        self.domain.register(buffer, options)
    }

    pub(crate) fn domain(&self) -> DomainId {
        self.domain.id()
    }

    /// The local key of all memory.
    pub(crate) fn key(&self) -> LKey {
        self.all.local_key
    }

    /// A scatter/gather entry for a buffer, which must live until the request has ended.
    pub(crate) fn element(&self, buffer: &Lent) -> Sge {
        Sge {
            addr: buffer.address(),
            // The caller has checked the length.
            len: buffer.len as u32,
            key: self.key(),
        }
    }

    /// Copies bytes into buffers of receives; returns `false` if that faults. The entries must come from
    /// [`LocalMemory::element`], and their buffers must still exist.
    pub(crate) fn store(&self, elements: &[Sge], mut bytes: &[u8]) -> bool {
        // SAFETY: the elements name buffers of receives, which are alive and to which there is no reference.
        let memory = unsafe { self.domain.device().raw().memory() };
        elements.iter().all(|element| {
            let (now, rest) = bytes.split_at(bytes.len().min(element.len as usize));
            bytes = rest;
            element.key == self.key() && memory.store_bytes(element.addr, now).is_ok()
        })
    }

    /// Copies the bytes of a message into `into`, which has the same length. Returns whether that succeeded.
    pub(crate) fn load(&self, buffer: &Lent, into: &mut [u8]) -> bool {
        let len = buffer.len.min(into.len());
        // SAFETY: the buffer is alive, and nothing writes to a message that is being sent.
        let memory = unsafe { self.domain.device().raw().memory() };
        memory
            .load_bytes(&mut into[..len], buffer.address())
            .is_ok()
    }

    /// Lets peers read a message that is being sent. Its buffer must live until the key is revoked.
    pub(crate) fn expose(&self, buffer: &Lent) -> Result<Exposed> {
        self.expose_at(buffer.address(), buffer.len, Box::default())
    }

    /// Lets peers read a copy of a message.
    pub(crate) fn expose_copy(&self, bytes: Box<[u8]>) -> Result<Exposed> {
        let start = bytes.as_ptr().expose_provenance() as u64;
        self.expose_at(start, bytes.len(), bytes)
    }

    fn expose_at(&self, start: u64, len: usize, copy: Box<[u8]>) -> Result<Exposed> {
        let ranges = VaRange::new(start, len as u64);
        let ranges = ranges.as_slice();
        let spec = RegionSpec {
            addressing: Addressing::Zero,
            internal: true,
            ..RegionSpec::new(self.domain(), ranges, Access::REMOTE_READ)
        };
        // SAFETY: peers only read the bytes, nothing writes to them, and they live until `withdraw`: the operation that
        // holds the result also holds them.
        let region = unsafe { self.domain.device().raw().register(&spec) }?;
        Ok(Exposed {
            region,
            _copy: copy,
        })
    }

    /// Revokes a key if no peer is using it; returns whether the key is revoked.
    pub(crate) fn try_withdraw(&self, exposed: &Exposed) -> bool {
        let closed = self.domain.device().raw().try_deregister(exposed.region);
        // An error means that it was closed before, or that the device is broken and serves no peer.
        closed.unwrap_or(true)
    }

    /// Revokes a key, and waits until no peer uses it.
    pub(crate) fn withdraw(&self, exposed: &Exposed) {
        let _ = self.domain.device().raw().deregister(exposed.region);
    }
}

impl Drop for LocalMemory {
    fn drop(&mut self) {
        let _ = self.domain.device().raw().deregister(self.all);
    }
}

/// A message that peers may read under its own key.
pub(crate) struct Exposed {
    region: rkey_core::Region,
    _copy: Box<[u8]>,
}

impl Exposed {
    pub(crate) fn key(&self) -> u32 {
        self.region.key.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lent_buffer_is_returned_unchanged() {
        let mut buffer = Vec::with_capacity(10);
        buffer.extend([1, 2, 3]);
        let start = buffer.as_ptr();
        let lent = Lent::new(buffer);
        assert_eq!(lent.len(), 3);
        let back = lent.take(2);
        assert_eq!((back.as_ptr(), back.capacity()), (start, 10));
        assert_eq!(back, [1, 2]);
        drop(Lent::new(back));
    }
}
