//! A connection to one peer: one-sided operations on its memory, and messages.

use crate::connections::message::Mailbox;
use crate::device::domain::Domain;
use crate::error::{Error, Result};
use crate::memory::key::RemoteKey;
use crate::memory::memory_region::MemoryRegion;
use crate::queues::direct::DirectMemory;
use crate::queues::flight::Flight;
use crate::queues::one_sided::OneSided;
use crate::queues::pending::Pending;
use crate::queues::queue_pair::QueuePair;
use rkey_core::Access;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::net::IpAddr;
use std::ops::RangeBounds;
use std::time::Duration;

/// A connection to one peer.
///
/// *One-sided* operations ([`write`](Self::write), [`read`](Self::read), the atomics) access memory for which the peer
/// gave us a [`RemoteKey`], while its program does other work. *Messages* ([`send`](Self::send),
/// [`receive`](Self::receive)) are small values that the two programs exchange.
///
/// **Order.** Operations of one connection start in posting order, and a write is complete before a later write or
/// atomic. A read sees earlier writes of the same connection. A message is never received before the one-sided
/// operations posted earlier are done: `send` waits for them.
///
/// **Failure.** The first operation that fails breaks the one-sided half of the connection, as on all reliable RDMA
/// connections: later operations return [`Error::Flushed`]. Messages still work. Connect again to continue.
///
/// Threads can share a connection.
pub struct Connection {
    /// Dropped first, because its drop notifies the peer that the connection is ending.
    pub(crate) mailbox: Mailbox,
    /// Writes, reads, atomics and `send_from`.
    pub(crate) operations: OneSided,
    /// `receive_into`.
    pub(crate) receives: Flight,
    pub(crate) peer: PeerInfo,
}

/// The process at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The host of the peer; `None` if it is this one.
    pub host: Option<IpAddr>,
    /// The PID, as the kernel reports it; 0 if the peer is on another host, or in a PID namespace that we cannot see.
    pub pid: u32,
    /// The user ID, as the kernel reports it; `u32::MAX - 1`, which no user has, if the peer is on another host.
    pub uid: u32,
}

impl Connection {
    /// The process at the other end.
    #[must_use]
    pub fn peer(&self) -> &PeerInfo {
        &self.peer
    }

    /// The domain of the connection. Peers reach the regions of this domain and no others.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.operations.domain
    }

    /// The queue pair of the one-sided operations, for example to query its number and state.
    #[must_use]
    pub fn queue_pair(&self) -> &QueuePair {
        &self.operations.data
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.operations.timeout()
    }

    /// Writes bytes of a local region to `offset` within the peer's memory that `key` names.
    ///
    /// The bytes are read while the operation runs; if they change before it is done, either value may arrive.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range is not in the region or not in the key (nothing is sent then); waiting
    /// reports a denial by the peer.
    pub fn write<'a>(
        &'a self,
        local: &'a MemoryRegion,
        range: impl RangeBounds<u64>,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Pending<'a>> {
        self.operations.write(local, range, key, offset)
    }

    /// Writes a few bytes (up to 208) that need not be registered. They are copied at once.
    ///
    /// # Errors
    /// Same as [`Connection::write`]; [`Error::OutOfRange`] for more bytes.
    pub fn write_bytes(&self, bytes: &[u8], key: &RemoteKey, offset: u64) -> Result<Pending<'_>> {
        self.operations.write_bytes(bytes, key, offset)
    }

    /// Reads from `offset` within the peer's memory into a part of a local region.
    ///
    /// # Errors
    /// Same as [`Connection::write`].
    pub fn read<'a>(
        &'a self,
        local: &'a MemoryRegion,
        range: impl RangeBounds<u64>,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Pending<'a>> {
        self.operations.read(local, range, key, offset)
    }

    /// Atomically replaces the 8-byte word at `offset` of the peer's memory with `swap` if it equals `compare`. The
    /// result is the word's old value: the word was replaced if and only if that equals `compare`.
    ///
    /// # Errors
    /// Same as [`Connection::write`]; waiting reports an address that is not a multiple of 8.
    pub fn compare_and_swap(
        &self,
        key: &RemoteKey,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<Pending<'_, u64>> {
        self.operations.compare_and_swap(key, offset, compare, swap)
    }

    /// Atomically adds to the 8-byte word at `offset` of the peer's memory, wrapping around. The
    /// result is the word's old value.
    ///
    /// # Errors
    /// Same as [`Connection::compare_and_swap`].
    pub fn fetch_and_add(
        &self,
        key: &RemoteKey,
        offset: u64,
        add: u64,
    ) -> Result<Pending<'_, u64>> {
        self.operations.fetch_and_add(key, offset, add)
    }

    /// Sends bytes of a region as a message into the memory of the peer's next [`receive_into`](Self::receive_into).
    /// For values, use [`send`](Self::send).
    ///
    /// # Errors
    /// Same as [`Connection::write`]; waiting returns [`Error::NotReceiving`] if the peer posts no receive, and a refusal
    /// if the message is longer than its receive.
    pub fn send_from<'a>(
        &'a self,
        local: &'a MemoryRegion,
        range: impl RangeBounds<u64>,
    ) -> Result<Pending<'a>> {
        self.operations.send_from(local, range)
    }

    /// Posts a receive for a message that the peer sends with [`send_from`](Self::send_from), into a part of a region.
    /// Messages take the receives in posting order. The result is the length of the message in bytes.
    ///
    /// # Errors
    /// Same as [`Connection::write`].
    pub fn receive_into<'a>(
        &'a self,
        local: &'a MemoryRegion,
        range: impl RangeBounds<u64>,
    ) -> Result<Pending<'a, usize>> {
        let part = local.part(range)?;
        let post = |id| self.operations.data.post_receive(id, &[part]);
        let number = self.receives.post(self.timeout(), true, post)?;
        Ok(Pending::receive(&self.receives, self.timeout(), number))
    }

    /// Maps memory of the peer, to access it without the peer's processor: for reading and writing if the key grants
    /// remote write or atomics (then it must grant remote read and remote write), otherwise for reading.
    ///
    /// The owner must have registered memory from [`Device::allocate`](crate::Device::allocate), and the key must be
    /// that of a whole region. The peer's program need not do anything.
    ///
    /// # Errors
    /// [`Error::Denied`] if the key does not allow it, [`Error::NotMappable`] with the reason.
    pub fn map(&self, key: &RemoteKey) -> Result<DirectMemory> {
        DirectMemory::open(&self.operations.data, key, key.access(), self.timeout())
    }

    /// Maps memory of the peer for reading, even if the key allows writing.
    ///
    /// # Errors
    /// Same as [`Connection::map`].
    pub fn map_for_reading(&self, key: &RemoteKey) -> Result<DirectMemory> {
        DirectMemory::open(
            &self.operations.data,
            key,
            Access::REMOTE_READ,
            self.timeout(),
        )
    }

    /// Sends a value to the peer's program. All operations posted earlier on this connection, except receives, are done
    /// when the peer receives the value. When this returns, the message has arrived at the peer (whose program may not
    /// have received it yet).
    ///
    /// Structs, enums, sequences, maps and options may nest up to 128 levels deep, including newtypes, so that a peer
    /// cannot exhaust the receiver's stack.
    ///
    /// # Errors
    /// [`Error::MessageTooLong`], [`Error::Unsendable`] if the value nests deeper, has too many elements that take no
    /// bytes, or does not serialise; [`Error::PeerGone`], [`Error::Timeout`] if the peer has not received earlier
    /// messages; the error of an earlier operation whose [`Pending`] was dropped.
    pub fn send<T: Serialize + ?Sized>(&self, message: &T) -> Result<()> {
        self.operations.sends.drain(self.timeout())?;
        self.mailbox.send(message, self.timeout())
    }

    /// Receives the next value that the peer's program sent, waiting up to the device's timeout.
    ///
    /// `T` must have the structure of the type that was sent, as serde sees it: `&str` arrives as `String`, but a
    /// 64-bit number does not arrive as a 32-bit one. Names do not matter, and a newtype counts as its content. If two
    /// types have the same structure and must not be confused, make them variants of one enum.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::PeerGone`]; [`Error::BadMessage`] if the message has another type or nests deeper
    /// than 128 levels (the message is then lost).
    pub fn receive<T: DeserializeOwned>(&self) -> Result<T> {
        self.receive_timeout(self.timeout())
    }

    /// Like [`Connection::receive`], with its own time limit.
    ///
    /// # Errors
    /// Same as [`Connection::receive`].
    pub fn receive_timeout<T: DeserializeOwned>(&self, timeout: Duration) -> Result<T> {
        self.mailbox.receive(timeout)
    }

    /// The next message, if one has already arrived.
    ///
    /// # Errors
    /// Same as [`Connection::receive`], without the timeout.
    pub fn try_receive<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        match self.mailbox.receive(Duration::ZERO) {
            Ok(message) => Ok(Some(message)),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until all operations posted on this connection, except receives, are done.
    ///
    /// # Errors
    /// The first failure of an operation whose [`Pending`] was dropped; [`Error::Timeout`].
    pub fn flush(&self) -> Result<()> {
        self.operations.sends.drain(self.timeout())
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
