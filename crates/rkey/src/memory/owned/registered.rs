//! A live registration: the raw bytes, the copies and atomics on them, and its end.

use crate::device::domain::Domain;
use crate::error::{Error, Result};
use rkey_core::{Access, Addressing, MemoryKind, RegionId, RegionSpec};
use rkey_device::base::{VaRange, copy};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// The attributes of a registration.
pub(crate) struct RegistrationRequest {
    pub(crate) access: Access,
    pub(crate) addressing: Addressing,
    pub(crate) requested_key: Option<u64>,
}

/// A live registration: the raw bytes, and the device that may access them.
///
/// The holder (`Owned` or `Borrows` of this module) must keep the bytes valid until [`Registered::close`] has succeeded. Dropping
/// the registration closes it, in case a panic kept the holder from doing so.
pub(crate) struct Registered {
    domain: Domain,
    region: rkey_core::Region,
    pub(super) start: NonNull<u8>,
    pub(super) len: usize,
    /// Whether not even the owner may change the bytes.
    pub(super) constant: bool,
    /// Whether the bytes are borrowed, and so return to their owner in any case.
    pub(super) borrowed: bool,
    closed: AtomicBool,
}

// SAFETY: the pointer is only used for copies and atomics by a routine that is opaque to the compiler (it works for any
// number of threads and processes), and everything else is Send and Sync.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Registered {
    /// Registers `len` bytes at `start`.
    ///
    /// # Safety
    /// The bytes must be valid for reads (and writes, unless `constant` and the rights forbid
    /// them) by raw access until `close` on the result returns `Ok`, and until then no reference to
    /// them may be used; a shared reference may be if the registration is `constant` and grants no
    /// right by which a byte could change.
    pub(super) unsafe fn register(
        domain: &Domain,
        wish: &RegistrationRequest,
        (start, len): (NonNull<u8>, usize),
        kind: MemoryKind,
        constant: bool,
    ) -> Result<Self> {
        let address = start.as_ptr().expose_provenance() as u64;
        let range = VaRange::new(address, len as u64)
            .filter(|range| !range.is_empty())
            .ok_or_else(|| Error::Rights("a buffer of 0 B cannot be registered".into()))?;
        let ranges = [range];
        let mut spec = RegionSpec::new(domain.id(), &ranges, wish.access);
        spec.addressing = wish.addressing;
        spec.requested_key = wish.requested_key;
        spec.memory = kind;
        // SAFETY: the caller promises that the bytes stay valid until the registration is closed, which is what
        // `register` requires.
        let region = unsafe { domain.device().raw().register(&spec) }?;
        Ok(Self {
            domain: domain.clone(),
            region,
            start,
            len,
            constant,
            borrowed: false,
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    pub(crate) fn region(&self) -> &rkey_core::Region {
        &self.region
    }

    pub(crate) fn id(&self) -> RegionId {
        self.region.id
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    /// The address of `len` bytes at `offset`, if they are inside.
    fn at(&self, offset: u64, len: usize) -> Result<NonNull<u8>> {
        let out = || Error::OutOfRange {
            what: "region",
            offset,
            len: len as u64,
            available: self.len as u64,
        };
        let start = usize::try_from(offset).map_err(|_| out())?;
        if start.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(out());
        }
        // SAFETY: start + len <= self.len, so the result is inside the registered bytes.
        Ok(unsafe { self.start.add(start) })
    }

    /// The aligned 8-byte word at `offset`, if it is inside.
    fn word_at(&self, offset: u64) -> Result<*mut u64> {
        let word = self.at(offset, 8)?.cast::<u64>();
        if !word.is_aligned() {
            return Err(Error::Misaligned {
                offset,
                address: word.as_ptr().addr() as u64,
            });
        }
        Ok(word.as_ptr())
    }

    fn writable(&self) -> Result<()> {
        if self.constant {
            return Err(Error::Rights(
                "published memory does not change while it is published; register it instead"
                    .into(),
            ));
        }
        Ok(())
    }

    /// Copies bytes at `offset` out of the region. Peers may change them during the copy.
    pub(crate) fn load(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let from = self.at(offset, into.len())?;
        // SAFETY: `from` covers into.len() bytes of the registration, which its holder keeps valid;
        // `into` is exclusively ours, so the two do not overlap.
        unsafe { copy::copy(into.as_mut_ptr(), from.as_ptr(), into.len()) }
            .map_err(|fault| Error::Device(fault.into()))
    }

    /// Copies bytes into the region at `offset`.
    pub(crate) fn store(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.writable()?;
        let to = self.at(offset, from.len())?;
        // SAFETY: `to` covers from.len() bytes of the registration, which its holder keeps valid,
        // and no reference to them is in use (it is not constant); `from` is a live slice.
        unsafe { copy::copy(to.as_ptr(), from.as_ptr(), from.len()) }
            .map_err(|fault| Error::Device(fault.into()))
    }

    /// Atomically adds to a word; returns its old value.
    pub(crate) fn fetch_add(&self, offset: u64, add: u64) -> Result<u64> {
        self.writable()?;
        let word = self.word_at(offset)?;
        // SAFETY: an aligned word inside the registration, see `word_at`.
        unsafe { copy::fetch_add(word, add) }.map_err(|f| Error::Device(f.into()))
    }

    /// Atomically replaces a word if it has an expected value; returns its old value.
    pub(crate) fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64> {
        self.writable()?;
        let word = self.word_at(offset)?;
        // SAFETY: an aligned word inside the registration, see `word_at`.
        unsafe { copy::compare_swap(word, compare, swap) }.map_err(|f| Error::Device(f.into()))
    }

    /// Atomically reads an aligned word.
    pub(crate) fn load_u64(&self, offset: u64) -> Result<u64> {
        self.word_at(offset)?;
        let mut bytes = [0; 8];
        self.load(offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes an aligned word at once.
    pub(crate) fn store_u64(&self, offset: u64, value: u64) -> Result<()> {
        self.word_at(offset)?;
        self.store(offset, &value.to_le_bytes())
    }

    /// Revokes the keys and windows of the region and waits until no access is in progress. After `Ok`, the device
    /// never accesses the bytes again. Closing it again has no effect.
    pub(crate) fn close(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        match self
            .domain
            .device()
            .raw()
            .revoke_and_deregister(self.region)
        {
            // In a forked child the device does not access our copy of the memory.
            Ok(()) | Err(rkey_device::DeviceError::Forked) => {
                self.closed.store(true, Ordering::Release);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Registered {
    /// Deregisters borrowed bytes. If that fails, aborts the process: the bytes are about to return to their owner, while
    /// the device might still write to them.
    pub(super) fn close_or_end(&self) {
        if let Err(error) = self.close() {
            eprintln!("rkey: cannot deregister borrowed memory ({error}); aborting the process");
            std::process::abort();
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.borrowed {
            self.close_or_end();
        } else {
            // Owned bytes are freed only after a close that succeeded, see `Owned`.
            let _ = self.close();
        }
    }
}

/// The rights that let the device change a byte.
pub(super) const CHANGING: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::COLLECTIVE);
