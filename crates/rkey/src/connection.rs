//! A connection to one peer: one-sided operations on its memory, and messages.

use crate::completion::CompletionQueue;
use crate::direct::DirectMemory;
use crate::domain::Domain;
use crate::error::{Error, Result};
use crate::flight::Flight;
use crate::key::RemoteKey;
use crate::memory::MemoryRegion;
use crate::message::Mailbox;
use crate::pending::{Kind, Pending};
use crate::queue_pair::QueuePair;
use crate::region::Region;
use rkey_core::Access;
use rkey_engine::SendFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::ops::RangeBounds;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Version of what two connections say to each other when they meet.
const PROTOCOL: u16 = 1;
/// Payloads of up to this many bytes travel inside the request.
pub(crate) const INLINE: u32 = 208;

/// A connection to one peer.
///
/// *One-sided* operations ([`write`](Self::write), [`read`](Self::read), the atomics) act on memory
/// for which the peer gave us a [`RemoteKey`], while its program does something else. *Messages*
/// ([`send`](Self::send), [`receive`](Self::receive)) are small values for both programs.
///
/// **Order.** Operations of one connection start in the order in which they were posted, and a
/// write is at its place before a later write or atomic is. A read sees earlier writes of the same
/// connection. A message is never received before the operations posted earlier are done: `send`
/// waits for them.
///
/// **Failure.** The first operation that fails breaks the one-sided half of the connection, as it
/// does with all reliable RDMA connections: later operations answer
/// [`Error::Flushed`](crate::Error::Flushed). Messages still work. Connect again to go on.
///
/// A connection can be shared by threads.
pub struct Connection {
    /// The mailbox first: it says goodbye.
    mailbox: Mailbox,
    /// Then the queue pair, before the memory that it uses.
    data: QueuePair,
    domain: Domain,
    /// Writes, reads, atomics and `send_from`.
    sends: Flight,
    /// `receive_into`.
    receives: Flight,
    /// 8-byte places for the results of atomics, and small payloads.
    scratch: Region<Vec<u64>>,
    free_slots: Mutex<Slots>,
    peer: PeerInfo,
}

/// The places for results of atomics: free ones, and those whose operation is still under way but
/// whose result nobody wants.
struct Slots {
    free: Vec<u32>,
    abandoned: Vec<(u64, u32)>,
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The process id, as the kernel tells it; 0 if it is in a process namespace that we cannot see.
    pub pid: u32,
    /// The user id, as the kernel tells it.
    pub uid: u32,
}

/// What each side tells the other as private data.
#[derive(Serialize, Deserialize)]
pub(crate) struct Hello {
    protocol: u16,
    /// The longest message this side takes.
    max_message: u32,
}

/// The two queue pairs of a connection, before it is known who is at the other end.
pub(crate) struct Halves {
    pub(crate) data: QueuePair,
    pub(crate) control: QueuePair,
    data_sends: CompletionQueue,
    data_receives: CompletionQueue,
    control_sends: CompletionQueue,
    control_receives: CompletionQueue,
    scratch: Region<Vec<u64>>,
    hello: Vec<u8>,
}

impl Halves {
    pub(crate) fn new(domain: &Domain) -> Result<Self> {
        let settings = &domain.device.inner.settings;
        let queue = |depth| CompletionQueue::create(&domain.device, depth);
        let (data_sends, data_receives) = (queue(settings.depth)?, queue(settings.depth)?);
        let slots = crate::message::SLOTS;
        let (control_sends, control_receives) = (queue(slots)?, queue(slots)?);
        let data = domain
            .queue_pair(&data_sends)
            .receive_queue(&data_receives)
            .depth(settings.depth, settings.depth)
            .max_inline(INLINE)
            .build()?;
        let control = domain
            .queue_pair(&control_sends)
            .receive_queue(&control_receives)
            .depth(slots, slots)
            .grant(Access::empty())
            .build()?;
        let max_message = u32::try_from(settings.max_message).unwrap_or(u32::MAX);
        let hello = postcard::to_stdvec(&Hello {
            protocol: PROTOCOL,
            max_message,
        })
        .map_err(|error| Error::Protocol(error.to_string()))?;
        let scratch = domain.register(vec![0u64; settings.depth as usize], Access::LOCAL_WRITE)?;
        Ok(Self {
            data,
            control,
            scratch,
            data_sends,
            data_receives,
            control_sends,
            control_receives,
            hello,
        })
    }

    pub(crate) fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// Makes a connection of the halves, which are connected by now. The receives for messages
    /// have to be posted before, see `Mailbox::prepare`.
    fn join(
        self,
        domain: &Domain,
        mailbox: Mailbox,
        peer: &rkey_device::Peer,
    ) -> Result<Connection> {
        let depth = domain.device.inner.settings.depth;
        let free_slots = Mutex::new(Slots {
            free: (0..depth).collect(),
            abandoned: Vec::new(),
        });
        Ok(Connection {
            mailbox,
            data: self.data,
            domain: domain.clone(),
            sends: Flight::new(self.data_sends, depth),
            receives: Flight::new(self.data_receives, depth),
            scratch: self.scratch,
            free_slots,
            peer: PeerInfo {
                pid: peer.pid,
                uid: peer.uid,
            },
        })
    }
}

/// Reads the private data of a peer: how long a message it takes.
fn peer_limit(private_data: &[u8]) -> Result<usize> {
    let hello: Hello = postcard::from_bytes(private_data).map_err(|_| {
        Error::Protocol("its greeting is not that of a Connection; is it another program?".into())
    })?;
    if hello.protocol != PROTOCOL {
        return Err(Error::Protocol(format!(
            "it speaks version {}, and we speak version {PROTOCOL}",
            hello.protocol
        )));
    }
    Ok(hello.max_message as usize)
}

impl Connection {
    pub(crate) fn connect(domain: &Domain, address: SocketAddr) -> Result<Self> {
        let halves = Halves::new(domain)?;
        let mut mailbox = Self::mailbox(domain, &halves)?;
        let qps = [halves.data.raw(), halves.control.raw()];
        let timeout = domain.device.timeout();
        let peer = domain
            .device
            .raw()
            .connect(address, &qps, halves.hello(), timeout)?;
        mailbox.set_peer_limit(peer_limit(&peer.private_data)?);
        halves.join(domain, mailbox, &peer)
    }

    pub(crate) fn accept(domain: &Domain, incoming: rkey_device::Incoming) -> Result<Self> {
        let limit = match peer_limit(&incoming.peer().private_data) {
            Ok(limit) => limit,
            Err(error) => {
                incoming.reject("this listener takes connections of rkey's Rust API");
                return Err(error);
            }
        };
        let halves = Halves::new(domain)?;
        let mut mailbox = Self::mailbox(domain, &halves)?;
        mailbox.set_peer_limit(limit);
        let qps = [halves.data.raw(), halves.control.raw()];
        let peer = incoming.accept(&qps, halves.hello())?;
        halves.join(domain, mailbox, &peer)
    }

    fn mailbox(domain: &Domain, halves: &Halves) -> Result<Mailbox> {
        Mailbox::prepare(
            domain,
            halves.control.clone(),
            halves.control_sends.clone(),
            halves.control_receives.clone(),
        )
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> &PeerInfo {
        &self.peer
    }

    /// The domain of the connection. Peers reach the regions of this domain and no others.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// The queue pair beneath the one-sided operations, for its number and state.
    #[must_use]
    pub fn queue_pair(&self) -> &QueuePair {
        &self.data
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.domain.device.timeout()
    }

    /// Writes bytes of a region of ours to `offset` within the peer's memory that `key` names.
    ///
    /// The bytes are read while the operation runs; changing them before it is done makes it
    /// unclear what arrives.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range is not in the region or not in the key (nothing is sent
    /// then); waiting tells whether the peer refused.
    pub fn write<'a>(
        &'a self,
        local: &'a MemoryRegion,
        range: impl RangeBounds<u64>,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Pending<'a>> {
        let part = local.part(range)?;
        key.at(offset, u64::from(part.len))?;
        let number = self.post(|id| {
            self.data
                .post_write(id, &[part], key, offset, SendFlags::SIGNALED)
        })?;
        Ok(Pending::plain(self, number))
    }

    /// Writes a few bytes (up to 208) that need not be registered. They are copied at once.
    ///
    /// # Errors
    /// As [`Connection::write`]; [`Error::OutOfRange`] for more bytes.
    pub fn write_bytes(&self, bytes: &[u8], key: &RemoteKey, offset: u64) -> Result<Pending<'_>> {
        if bytes.len() > INLINE as usize {
            return Err(Error::OutOfRange {
                what: "write without a region",
                offset: 0,
                len: bytes.len() as u64,
                available: u64::from(INLINE),
            });
        }
        key.at(offset, bytes.len() as u64)?;
        let flags = SendFlags::SIGNALED;
        let number = self.post(|id| self.data.post_write_inline(id, bytes, key, offset, flags))?;
        Ok(Pending::plain(self, number))
    }

    /// Reads from `offset` within the peer's memory into a part of a region of ours.
    ///
    /// # Errors
    /// As [`Connection::write`].
    pub fn read<'a>(
        &'a self,
        local: &'a MemoryRegion,
        range: impl RangeBounds<u64>,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Pending<'a>> {
        let part = local.part(range)?;
        key.at(offset, u64::from(part.len))?;
        let number = self.post(|id| {
            self.data
                .post_read(id, &[part], key, offset, SendFlags::SIGNALED)
        })?;
        Ok(Pending::plain(self, number))
    }

    /// Atomically replaces the 8-byte word at `offset` of the peer's memory by `swap` if it is
    /// `compare`. The result is the word's old value: it was replaced exactly if that is `compare`.
    ///
    /// # Errors
    /// As [`Connection::write`]; waiting says so if the word's address is not a multiple of 8.
    pub fn compare_and_swap(
        &self,
        key: &RemoteKey,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<Pending<'_, u64>> {
        self.atomic(key, offset, |id, place| {
            self.data.post_compare_and_swap(
                id,
                place,
                key,
                offset,
                (compare, swap),
                SendFlags::SIGNALED,
            )
        })
    }

    /// Atomically adds to the 8-byte word at `offset` of the peer's memory, wrapping around. The
    /// result is the word's old value.
    ///
    /// # Errors
    /// As [`Connection::compare_and_swap`].
    pub fn fetch_and_add(
        &self,
        key: &RemoteKey,
        offset: u64,
        add: u64,
    ) -> Result<Pending<'_, u64>> {
        self.atomic(key, offset, |id, place| {
            self.data
                .post_fetch_and_add(id, place, key, offset, add, SendFlags::SIGNALED)
        })
    }

    fn atomic(
        &self,
        key: &RemoteKey,
        offset: u64,
        post: impl FnOnce(u64, rkey_engine::Sge) -> Result<()>,
    ) -> Result<Pending<'_, u64>> {
        key.at(offset, 8)?;
        let slot = self.take_slot()?;
        let at = u64::from(slot) * 8;
        let posted = self
            .scratch
            .part(at..at + 8)
            .and_then(|place| self.post(|id| post(id, place)));
        match posted {
            Ok(number) => Ok(Pending::atomic(self, number, slot)),
            Err(error) => {
                self.slots().free.push(slot);
                Err(error)
            }
        }
    }

    /// Sends bytes of a region as a message into the memory of the peer's next
    /// [`receive_into`](Self::receive_into). For values use [`send`](Self::send).
    ///
    /// # Errors
    /// As [`Connection::write`]; waiting answers [`Error::NotReceiving`] if the peer posts no
    /// receive, and a refusal if the message is longer than its receive.
    pub fn send_from<'a>(
        &'a self,
        local: &'a MemoryRegion,
        range: impl RangeBounds<u64>,
    ) -> Result<Pending<'a>> {
        let part = local.part(range)?;
        let number = self.post(|id| self.data.post_send(id, &[part], SendFlags::SIGNALED))?;
        Ok(Pending::plain(self, number))
    }

    /// Makes a part of a region ready for the peer's next [`send_from`](Self::send_from). The
    /// result is the length of the message in bytes.
    ///
    /// # Errors
    /// As [`Connection::write`].
    pub fn receive_into<'a>(
        &'a self,
        local: &'a MemoryRegion,
        range: impl RangeBounds<u64>,
    ) -> Result<Pending<'a, usize>> {
        let part = local.part(range)?;
        let post = |id| self.data.post_receive(id, &[part]);
        let number = self.receives.post(self.timeout(), true, post)?;
        Ok(Pending::receive(self, number))
    }

    /// Maps memory of the peer, to read and write it with no help of the peer's processor. For
    /// reading and writing if the key says remote write, otherwise for reading.
    ///
    /// The owner must have registered memory of [`Device::allocate`](crate::Device::allocate), and
    /// the key must be that of a whole region. The peer's program need not do anything.
    ///
    /// # Errors
    /// [`Error::Denied`] if the key does not allow it, [`Error::NotMappable`] with the reason.
    pub fn map(&self, key: &RemoteKey) -> Result<DirectMemory> {
        DirectMemory::open(&self.data, key, key.access(), self.timeout())
    }

    /// Maps memory of the peer for reading, whatever else the key would allow.
    ///
    /// # Errors
    /// As [`Connection::map`].
    pub fn map_for_reading(&self, key: &RemoteKey) -> Result<DirectMemory> {
        DirectMemory::open(&self.data, key, Access::REMOTE_READ, self.timeout())
    }

    /// Sends a value to the peer's program. Everything that was posted on this connection before is
    /// done when the peer receives it; when this returns, the message has arrived at the peer
    /// (whose program may not have looked at it yet).
    ///
    /// # Errors
    /// [`Error::MessageTooLong`], [`Error::PeerGone`], [`Error::Timeout`] if the peer has not
    /// received earlier messages; the error of an earlier operation that nobody waited for.
    pub fn send<T: Serialize + ?Sized>(&self, message: &T) -> Result<()> {
        self.sends.drain(self.timeout())?;
        self.mailbox.send(message, self.timeout())
    }

    /// Receives the next value that the peer's program sent, waiting up to the device's timeout.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::PeerGone`]; [`Error::BadMessage`] if the message is of another
    /// type (it is gone then).
    pub fn receive<T: DeserializeOwned>(&self) -> Result<T> {
        self.receive_timeout(self.timeout())
    }

    /// As [`Connection::receive`], with a time limit of its own.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn receive_timeout<T: DeserializeOwned>(&self, timeout: Duration) -> Result<T> {
        self.mailbox.receive(timeout)
    }

    /// The next message, if one is there already.
    ///
    /// # Errors
    /// As [`Connection::receive`], without the timeout.
    pub fn try_receive<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        match self.mailbox.receive(Duration::ZERO) {
            Ok(message) => Ok(Some(message)),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until everything that was posted on this connection is done.
    ///
    /// # Errors
    /// The first failure, if nobody waited for that operation; [`Error::Timeout`].
    pub fn flush(&self) -> Result<()> {
        self.sends.drain(self.timeout())
    }

    fn post(&self, post: impl FnOnce(u64) -> Result<()>) -> Result<u64> {
        self.sends.post(self.timeout(), false, post)
    }

    pub(crate) fn flight(&self, kind: Kind) -> &Flight {
        match kind {
            Kind::Plain | Kind::Atomic(_) => &self.sends,
            Kind::Receive => &self.receives,
        }
    }

    pub(crate) fn atomic_result(&self, slot: u32) -> Result<u64> {
        self.scratch.load_u64(u64::from(slot) * 8)
    }

    /// The result of an operation has been taken.
    pub(crate) fn finish(&self, kind: Kind) {
        if let Kind::Atomic(slot) = kind {
            self.slots().free.push(slot);
        }
    }

    /// Nobody waits for the result of this operation any more.
    pub(crate) fn abandon(&self, kind: Kind, number: u64) {
        match kind {
            Kind::Plain => {}
            Kind::Receive => self.receives.forget(number),
            Kind::Atomic(slot) => self.slots().abandoned.push((number, slot)),
        }
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, Slots> {
        self.free_slots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for the result of an atomic. There are as many as operations in flight; if all are
    /// taken by results that nobody fetched, those that nobody wants are waited for.
    fn take_slot(&self) -> Result<u32> {
        let mut slots = self.slots();
        if let Some(slot) = slots.free.pop() {
            return Ok(slot);
        }
        let (number, slot) = slots.abandoned.first().copied().ok_or_else(|| {
            Error::Busy("as many atomics as the connection is deep have not been waited for".into())
        })?;
        slots.abandoned.remove(0);
        drop(slots);
        match self.sends.wait(number, self.timeout(), "an earlier atomic") {
            Ok(_) => Ok(slot),
            Err(error) => {
                self.slots().abandoned.push((number, slot));
                Err(error)
            }
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
