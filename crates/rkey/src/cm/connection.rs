//! A connection to a program that need not know this API.

use super::inbox::{Inbox, Message};
use super::link::Link;
use crate::device::domain::Domain;
use crate::error::{Error, Result};
use crate::memory::key::RemoteKey;
use crate::memory::memory_region::MemoryRegion;
use crate::queues::one_sided::OneSided;
use crate::queues::pending::Pending;
use crate::queues::queue_pair::{INLINE, QueuePair};
use rkey_device::time;
use rkey_engine::SendFlags;
use std::net::SocketAddr;
use std::ops::RangeBounds;
use std::time::Duration;

/// A connection to one peer, whose program may use `librdmacm` and verbs: one reliable queue pair.
///
/// **Keys.** A C program sends a key as an address, a length and a 32-bit number, in a form of its own:
/// [`RemoteKey::from_parts`] makes a key from them, and [`RemoteKey::address`], [`RemoteKey::len`] and [`RemoteKey::key`] are the
/// parts of ours.
///
/// **Order.** Operations and messages start in the order of their calls, and are executed in this order by the peer's device.
///
/// **Failure.** The first operation that fails breaks the connection: later ones return [`Error::Flushed`].
///
/// Threads can share a connection. Dropping it disconnects.
pub struct Connection {
    /// Dropped first, so that the peer is notified before the queue pair fails.
    link: Link,
    /// Dropped next, before the memory that it uses.
    operations: OneSided,
    inbox: Inbox,
    private_data: Vec<u8>,
    /// How many reads and atomics the peer executes concurrently.
    reads: u8,
}

impl Connection {
    pub(super) fn new(
        link: Link,
        operations: OneSided,
        inbox: Inbox,
        private_data: Vec<u8>,
        reads: u8,
    ) -> Self {
        Self {
            link,
            operations,
            inbox,
            private_data,
            reads,
        }
    }

    /// The private data of the peer's request (56 bytes) or answer (196 bytes), padded with zeros.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The peer's address and port.
    #[must_use]
    pub fn peer_address(&self) -> SocketAddr {
        self.link.peer()
    }

    /// Our address and port.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.link.local()
    }

    /// The domain of the connection. The peer reaches the regions of this domain and no others.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.operations.domain
    }

    /// The queue pair of the connection, for example to query its number and state.
    #[must_use]
    pub fn queue_pair(&self) -> &QueuePair {
        &self.operations.data
    }

    /// Writes bytes of a local region to `offset` within the peer's memory that `key` names.
    ///
    /// # Errors
    /// Same as [`rkey::Connection::write`](crate::Connection::write).
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
    /// Same as [`rkey::Connection::write_bytes`](crate::Connection::write_bytes).
    pub fn write_bytes(&self, bytes: &[u8], key: &RemoteKey, offset: u64) -> Result<Pending<'_>> {
        self.operations.write_bytes(bytes, key, offset)
    }

    /// Reads from `offset` within the peer's memory into a part of a local region.
    ///
    /// # Errors
    /// Same as [`rkey::Connection::read`](crate::Connection::read); [`Error::Rights`] if the peer's program accepts no reads.
    pub fn read<'a>(
        &'a self,
        local: &'a MemoryRegion,
        range: impl RangeBounds<u64>,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Pending<'a>> {
        self.check_reads()?;
        self.operations.read(local, range, key, offset)
    }

    /// Atomically replaces the 8-byte word at `offset` of the peer's memory with `swap` if it equals `compare`. The result is the
    /// word's old value.
    ///
    /// # Errors
    /// Same as [`rkey::Connection::compare_and_swap`](crate::Connection::compare_and_swap); [`Error::Rights`] if the peer's
    /// program accepts no atomics.
    pub fn compare_and_swap(
        &self,
        key: &RemoteKey,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<Pending<'_, u64>> {
        self.check_reads()?;
        self.operations.compare_and_swap(key, offset, compare, swap)
    }

    /// Atomically adds to the 8-byte word at `offset` of the peer's memory, wrapping around. The result is the word's old value.
    ///
    /// # Errors
    /// Same as [`Connection::compare_and_swap`].
    pub fn fetch_and_add(
        &self,
        key: &RemoteKey,
        offset: u64,
        add: u64,
    ) -> Result<Pending<'_, u64>> {
        self.check_reads()?;
        self.operations.fetch_and_add(key, offset, add)
    }

    fn check_reads(&self) -> Result<()> {
        match self.reads {
            0 => Err(Error::Rights(
                "the peer's program accepts no reads or atomics: its responder_resources is 0"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    /// Sends bytes of a region as one message of any length, into the peer's next receive.
    ///
    /// # Errors
    /// Same as [`rkey::Connection::send_from`](crate::Connection::send_from).
    pub fn send_from<'a>(
        &'a self,
        local: &'a MemoryRegion,
        range: impl RangeBounds<u64>,
    ) -> Result<Pending<'a>> {
        self.operations.send_from(local, range)
    }

    /// Sends a message, up to [`max_message`](crate::DeviceBuilder::max_message) bytes, into the peer's next receive. When this
    /// returns, the peer's device has received it.
    ///
    /// # Errors
    /// [`Error::MessageTooLong`]; [`Error::Timeout`] if the peer posts no receive; [`Error::PeerGone`]; a refusal if the
    /// message is longer than the peer's receive.
    pub fn send(&self, bytes: &[u8]) -> Result<()> {
        let limit = self.inbox.longest();
        if bytes.len() > limit {
            let len = bytes.len();
            return Err(Error::MessageTooLong { len, limit });
        }
        let (data, sends) = (&self.operations.data, &self.operations.sends);
        let what = "the peer to receive the message";
        let timeout = self.operations.timeout();
        if bytes.len() <= INLINE as usize {
            let flags = SendFlags::SIGNALED;
            let post = |id| data.post_send_inline(id, bytes, flags);
            let number = self.operations.post(post)?;
            return sends.wait(number, timeout, what).map(|_| ());
        }
        let (slot, part) = self.inbox.fill(sends, bytes)?;
        let post = |id| data.post_send(id, &[part], SendFlags::SIGNALED);
        let posted = self.operations.post(post);
        let number = posted.inspect_err(|_| self.inbox.give_back(slot, None))?;
        let sent = sends.wait(number, timeout, what);
        self.inbox.give_back(slot, Some(number));
        sent.map(|_| ())
    }

    /// Receives the next message, waiting up to the device's timeout.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::PeerGone`] if the peer has disconnected or exited, once all its messages are received.
    pub fn receive(&self) -> Result<Message> {
        self.receive_timeout(self.operations.timeout())
    }

    /// Like [`Connection::receive`], with its own time limit.
    ///
    /// # Errors
    /// Same as [`Connection::receive`].
    pub fn receive_timeout(&self, timeout: Duration) -> Result<Message> {
        let started = time::now();
        loop {
            if let Some(message) = self.try_receive()? {
                return Ok(message);
            }
            let left = timeout.saturating_sub(time::since(started));
            if left.is_zero() {
                return Err(Error::Timeout {
                    what: "a message from the peer",
                    after: timeout,
                });
            }
            self.inbox.wait(left)?;
        }
    }

    /// The next message, if one has already arrived.
    ///
    /// # Errors
    /// [`Error::PeerGone`], as for [`Connection::receive`].
    pub fn try_receive(&self) -> Result<Option<Message>> {
        // Checks first whether the connection has ended: messages that arrived before its end are received before the end is reported.
        let is_connected = self.is_connected();
        match self.inbox.take(&self.operations.data) {
            Ok(None) if !is_connected => Err(Error::PeerGone {
                how: "it disconnected".into(),
            }),
            other => other,
        }
    }

    /// Whether the connection is still up, as far as we know: neither side has ended it.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        matches!(self.link.end(), Ok(None))
    }

    /// Waits until the peer disconnects or exits.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn wait_disconnected(&self, timeout: Duration) -> Result<()> {
        self.link.wait_end(timeout)
    }

    /// Waits until all operations are done, then disconnects: returns when the peer has confirmed.
    ///
    /// # Errors
    /// The error of an operation whose [`Pending`] was dropped; [`Error::Timeout`] if the peer does not confirm. The connection
    /// ends in any case.
    pub fn disconnect(self) -> Result<()> {
        let timeout = self.operations.timeout();
        let drained = self.operations.sends.drain(timeout);
        self.link.disconnect(timeout)?;
        drained
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer_address())
            .finish_non_exhaustive()
    }
}
