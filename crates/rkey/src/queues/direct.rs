//! Mapped memory of a peer, which this process reads and writes without involving the owner.

use crate::error::{Error, Result};
use crate::memory::key::RemoteKey;
use crate::queues::queue_pair::QueuePair;
use rkey_core::Access;
use rkey_device::DeviceError;
use rkey_device::link::{DirectError, DirectMap};
use rkey_device::time;
use std::time::Duration;

/// Memory of a peer that this process has mapped under a lease. Made by [`Connection::map`](crate::Connection::map)
/// or [`QueuePair::map`].
///
/// Each call copies at memory speed, with no system call, no message and no work for the owner's processor: the copy is
/// complete when the call returns. The lease ends when the owner deregisters the region (which waits for a copy in progress);
/// every later call returns [`Error::Revoked`].
///
/// **Order.** Calls take effect in this thread's program order. They are *not* ordered with operations posted on a
/// connection: wait for those first. A copy of more than 8 bytes is not atomic; aligned 8-byte words are.
///
/// Only one thread can use it at a time (it is `Send`, and the methods take `&mut self`). To use the memory from
/// several threads, map the key once for each.
#[derive(Debug)]
pub struct DirectMemory {
    map: DirectMap,
    key: RemoteKey,
}

impl DirectMemory {
    pub(crate) fn open(
        pair: &QueuePair,
        key: &RemoteKey,
        access: Access,
        timeout: Duration,
    ) -> Result<Self> {
        let write = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let started = time::now();
        let map = loop {
            let left = timeout.saturating_sub(time::since(started));
            let lease = pair
                .raw()
                .lease(key.rkey(), key.address(), key.len(), write, left);
            match lease {
                Ok(map) => break map,
                // The link to a peer is made in the background after connecting.
                Err(DeviceError::NotConnected { .. })
                    if !left.is_zero() && !pair.is_to_itself()? =>
                {
                    time::sleep(Duration::from_millis(1));
                }
                Err(DeviceError::NotConnected { .. }) => {
                    let why = "the peer is this device, or the connection has ended";
                    return Err(Error::NotMappable(why.into()));
                }
                Err(DeviceError::Denied(denial)) => return Err(Error::Denied(denial)),
                Err(DeviceError::Refused { reason }) => return Err(Error::NotMappable(reason)),
                Err(other) => return Err(other.into()),
            }
        };
        Ok(Self { map, key: *key })
    }

    /// How many bytes are mapped, which is the key's length.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a key covers at least one byte"
    )]
    #[must_use]
    pub fn len(&self) -> u64 {
        self.map.len()
    }

    /// Whether writing and atomics are allowed.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.map.is_writable()
    }

    /// Whether the lease was valid at the time of the call.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.map.is_live()
    }

    /// The key that was mapped.
    #[must_use]
    pub fn key(&self) -> &RemoteKey {
        &self.key
    }

    /// Copies bytes into the peer's memory.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Rights`] if the memory was mapped for reading,
    /// [`Error::Revoked`] (some of the bytes may have been written), [`Error::PeerGone`].
    #[inline]
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.map.write(offset, bytes).map_err(Error::from)
    }

    /// Copies bytes out of the peer's memory.
    ///
    /// # Errors
    /// Same as [`DirectMemory::write`]; after an error the contents of `into` are unspecified.
    #[inline]
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.map.read(offset, into).map_err(Error::from)
    }

    /// Atomically adds to an 8-byte word; returns the old value.
    ///
    /// # Errors
    /// Same as [`DirectMemory::write`]; [`Error::Misaligned`].
    #[inline]
    pub fn fetch_and_add(&mut self, offset: u64, add: u64) -> Result<u64> {
        self.map.fetch_add(offset, add).map_err(Error::from)
    }

    /// Atomically replaces an 8-byte word if it equals `compare`; returns the old value.
    ///
    /// # Errors
    /// Same as [`DirectMemory::fetch_and_add`].
    #[inline]
    pub fn compare_and_swap(&mut self, offset: u64, compare: u64, swap: u64) -> Result<u64> {
        self.map
            .compare_swap(offset, compare, swap)
            .map_err(Error::from)
    }
}

impl QueuePair {
    /// Maps memory of the connected peer, as [`Connection::map`](crate::Connection::map) does.
    ///
    /// # Errors
    /// Same as [`Connection::map`](crate::Connection::map).
    pub fn map(&self, key: &RemoteKey) -> Result<DirectMemory> {
        DirectMemory::open(self, key, key.access(), self.domain.device().timeout())
    }
}

impl From<DirectError> for Error {
    #[cold]
    fn from(error: DirectError) -> Self {
        match error {
            DirectError::Revoked => Self::Revoked,
            DirectError::Gone => Self::PeerGone {
                how: "its process exited".into(),
            },
            DirectError::OutOfRange {
                offset,
                len,
                leased,
            } => Self::OutOfRange {
                what: "mapped memory",
                offset,
                len,
                available: leased,
            },
            DirectError::ReadOnly => {
                Self::Rights("the memory was mapped read-only: the key allows no writes".into())
            }
            DirectError::Misaligned { offset, address } => Self::Misaligned { offset, address },
            other => Self::Device(other.into()),
        }
    }
}
