//! Registered memory: reading, writing and updating it while peers may do the same, and issuing keys for it.

use crate::device::domain::Domain;
use crate::error::{Error, Result};
use crate::memory::key::RemoteKey;
use crate::memory::options::RegionOptions;
use crate::memory::owned::{Registered, RegistrationRequest};
use crate::memory::window::Window;
use parking_lot::Mutex;
use rkey_core::{Access, Addressing, LKey, RKey, WindowKind};
use rkey_engine::Sge;
use std::collections::HashMap;
use std::ops::{Bound, RangeBounds};

/// Registered memory: what [`Region`](crate::Region), [`ScopedRegion`](crate::ScopedRegion) and
/// [`Published`](crate::Published) have in common.
///
/// All accessors copy. A peer may change the bytes at any moment, so there are no references to them. A copy of more
/// than 8 bytes may see only some bytes of a concurrent write by a peer; use messages, completions or atomics to order
/// the two.
///
/// Offsets and lengths are in bytes, from the start of the region.
pub struct MemoryRegion {
    registered: Registered,
    access: Access,
    /// The address of the first byte for peers.
    base: u64,
    /// The windows behind the keys of [`MemoryRegion::key`], by range and rights.
    parts: Mutex<Parts>,
}

/// `None` until the program makes the first key for a part; most regions never have one.
type Parts = Option<Box<HashMap<PartName, (Window, RemoteKey)>>>;

/// A part of a region with its own key: offset, length, bits of the rights.
type PartName = (u64, u64, u32);

impl MemoryRegion {
    /// The registration request for these options.
    pub(crate) fn wish(options: &RegionOptions) -> Result<RegistrationRequest> {
        Ok(RegistrationRequest {
            access: options.checked_access()?,
            addressing: options.addressing,
            requested_key: options.requested_key,
        })
    }

    pub(crate) fn new(registered: Registered, wish: &RegistrationRequest) -> Self {
        let base = match wish.addressing {
            Addressing::Virtual => registered.address(),
            Addressing::Zero => 0,
            Addressing::Iova(iova) => iova,
        };
        let parts = Mutex::new(None);
        Self {
            registered,
            access: wish.access,
            base,
            parts,
        }
    }

    pub(crate) fn registered(&self) -> &Registered {
        &self.registered
    }

    /// The length of the region in bytes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "an empty region cannot be registered"
    )]
    #[must_use]
    pub fn len(&self) -> u64 {
        self.registered.len() as u64
    }

    /// The rights that the region was registered with.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The address of the first byte in peers' requests: our own address, 0 (zero-based), or the chosen one.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The key that our own operations use for the region. It is useless to a peer.
    #[must_use]
    pub fn local_key(&self) -> LKey {
        self.registered.region().local_key
    }

    /// Copies bytes out of the region.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.registered.load(offset, into)
    }

    /// Copies a part of the region into a new `Vec`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn read_vec(&self, range: impl RangeBounds<u64>) -> Result<Vec<u8>> {
        let (offset, len) = self.resolve(&range)?;
        // `resolve` checked that the region has this many bytes, so `len` fits in a `usize`.
        let mut bytes = vec![0; len as usize];
        self.registered.load(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies bytes into the region. The owner may do so whatever rights peers have.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Rights`] for published memory.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.registered.store(offset, bytes)
    }

    /// Atomically reads an 8-byte word (little endian). The address at the offset must be a multiple of 8.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    pub fn load_u64(&self, offset: u64) -> Result<u64> {
        self.registered.load_u64(offset)
    }

    /// Atomically writes an 8-byte word (little endian).
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`]; [`Error::Rights`] for published memory.
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<()> {
        self.registered.store_u64(offset, value)
    }

    /// Adds to an 8-byte word, atomically even with respect to peers' atomics; returns the old value. Adding wraps
    /// around.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`]; [`Error::Rights`] for published memory.
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64> {
        self.registered.fetch_add(offset, add)
    }

    /// Replaces an 8-byte word if it equals `compare`, atomically even with respect to peers' atomics; returns the old
    /// value, so the word was replaced if and only if the result equals `compare`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`]; [`Error::Rights`] for published memory.
    pub fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64> {
        self.registered.compare_swap(offset, compare, swap)
    }

    /// Returns a key for exactly these bytes, with all remote rights of the region. Send it to a peer.
    ///
    /// For the whole region (`..`) it is the region's own key. For a part it is the key of a memory window bound to
    /// that part; a second call for the same part returns the same key. A key is valid until the region ends or
    /// [`MemoryRegion::revoke`] revokes the key.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Rights`] if the region grants peers nothing; an error if the limit of windows is
    /// reached.
    pub fn key(&self, range: impl RangeBounds<u64>) -> Result<RemoteKey> {
        self.key_with(range, self.access & Access::REMOTE)
    }

    /// Returns a key for these bytes with only some of the region's remote rights.
    ///
    /// # Errors
    /// Same as [`MemoryRegion::key`]; [`Error::Rights`] also if the region does not have the rights.
    pub fn key_with(&self, range: impl RangeBounds<u64>, access: Access) -> Result<RemoteKey> {
        let (offset, len) = self.resolve(&range)?;
        let all = self.access & Access::REMOTE;
        self.check_grant(access)?;
        if offset == 0 && len == self.len() && access == all {
            let region = self.registered.region();
            let key = region
                .requested
                .map_or(RKey::Device(region.key), RKey::Requested);
            return RemoteKey::from_rkey(self.base, len, key, access);
        }
        let name = (offset, len, access.bits());
        let mut parts = self.parts.lock();
        let parts = parts.get_or_insert_default();
        if let Some((_, key)) = parts.get(&name) {
            return Ok(*key);
        }
        let window = Window::create(self.registered.domain(), WindowKind::Type1)?;
        let key = window.bind(self, offset..offset + len, access)?;
        parts.insert(name, (window, key));
        Ok(key)
    }

    /// Revokes a key that [`MemoryRegion::key`] returned for a part. When this returns, every access with it is
    /// refused, and none is in progress. Returns `false` if the key is not such a key (the region's own key is valid
    /// until the region ends).
    ///
    /// # Errors
    /// The device is broken.
    pub fn revoke(&self, key: &RemoteKey) -> Result<bool> {
        let mut parts = self.parts.lock();
        let Some(parts) = &mut *parts else {
            return Ok(false);
        };
        let Some(name) = parts
            .iter()
            .find(|(_, part)| part.1 == *key)
            .map(|(name, _)| *name)
        else {
            return Ok(false);
        };
        match parts.remove(&name) {
            Some((window, _)) => window.close().map(|()| true),
            None => Ok(false),
        }
    }

    /// A part of the region as the local operand of a posted operation.
    ///
    /// It is a plain value, so it may outlive the region; posting it then causes an error completion, because the
    /// device looks up the key again at each step.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], also for parts of 4 GiB and more.
    pub fn part(&self, range: impl RangeBounds<u64>) -> Result<Sge> {
        let (offset, len) = self.resolve(&range)?;
        let Ok(len) = u32::try_from(len) else {
            return Err(Error::OutOfRange {
                what: "operation",
                offset: 0,
                len,
                available: u64::from(u32::MAX),
            });
        };
        Ok(Sge {
            addr: self.base.wrapping_add(offset),
            len,
            key: self.local_key(),
        })
    }

    /// Offset and length of a range of this region.
    pub(crate) fn resolve(&self, range: &impl RangeBounds<u64>) -> Result<(u64, u64)> {
        resolve("region", self.len(), range)
    }

    /// Checks that the region belongs to the same device as `domain`, whose windows and queue pairs can then refer to it.
    /// Handles do not show that: they are small numbers, and two devices can have equal ones.
    pub(crate) fn check_device(&self, domain: &Domain) -> Result<()> {
        if self
            .registered
            .domain()
            .device()
            .raw()
            .is(domain.device().raw())
        {
            return Ok(());
        }
        Err(Error::Rights(
            "the region belongs to another device; register the memory with this device too".into(),
        ))
    }

    /// Checks that keys of the region can grant these rights.
    pub(crate) fn check_grant(&self, access: Access) -> Result<()> {
        let missing = access.difference(self.access & Access::REMOTE);
        if access.is_empty() {
            return Err(Error::Rights(
                "a key needs at least one right; register with Access::REMOTE_READ, for example"
                    .into(),
            ));
        }
        if !missing.is_empty() {
            return Err(Error::Rights(format!(
                "the region was not registered with {missing}, so no key can grant it"
            )));
        }
        Ok(())
    }
}

impl Window {
    /// Binds the window to a part of a region with some of its remote rights, and returns the key. The key of an
    /// earlier bind is refused from now on.
    ///
    /// Type 2 windows belong to a queue pair and are bound by [`QueuePair::post_bind`](crate::QueuePair::post_bind).
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Rights`] if the region lacks the rights, belongs to another domain or device, or
    /// the window is of type 2.
    pub fn bind(
        &self,
        region: &MemoryRegion,
        range: impl RangeBounds<u64>,
        access: Access,
    ) -> Result<RemoteKey> {
        region.check_device(self.domain())?;
        region.check_grant(access)?;
        let (offset, len) = resolve("region", region.len(), &range)?;
        let start = region.base().wrapping_add(offset);
        self.bind_to(region.registered().id(), start, len, access)
    }
}

/// Offset and length of a range within `available` bytes. Empty ranges are never in range.
pub(crate) fn resolve(
    what: &'static str,
    available: u64,
    range: &impl RangeBounds<u64>,
) -> Result<(u64, u64)> {
    let start = match range.start_bound() {
        Bound::Included(start) => Some(*start),
        Bound::Excluded(before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1),
        Bound::Excluded(end) => Some(*end),
        Bound::Unbounded => Some(available),
    };
    let (start, end) = (start.unwrap_or(u64::MAX), end.unwrap_or(u64::MAX));
    let len = end.saturating_sub(start);
    if len == 0 || end > available {
        return Err(Error::OutOfRange {
            what,
            offset: start,
            len,
            available,
        });
    }
    Ok((start, len))
}

impl AsRef<Registered> for MemoryRegion {
    fn as_ref(&self) -> &Registered {
        &self.registered
    }
}

impl std::fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("len", &self.len())
            .field("base", &format_args!("{:#x}", self.base))
            .field("access", &format_args!("{}", self.access))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_ranges_and_ranges_outside_a_region_are_refused() {
        assert_eq!(resolve("region", 10, &(..)).unwrap(), (0, 10));
        assert_eq!(resolve("region", 10, &(2..=9)).unwrap(), (2, 8));
        for bad in [3..3, 0..11, 10..11, u64::MAX..u64::MAX] {
            assert!(resolve("region", 10, &bad).is_err(), "{bad:?}");
        }
        assert!(resolve("region", 10, &(0..=u64::MAX)).is_err());
        #[expect(
            clippy::reversed_empty_ranges,
            reason = "the range is empty on purpose"
        )]
        let reversed = 5..4;
        assert!(resolve("region", 10, &reversed).is_err());
    }
}
