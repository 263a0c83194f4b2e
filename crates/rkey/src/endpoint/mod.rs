//! Reliable datagrams: messages to and from any number of peers, without connections to manage.
//!
//! An [`Endpoint`] has an [`Address`]. A process that knows it can send to it; the first message makes the connection. Messages are
//! matched with receives: by tag ([`Endpoint::send_tagged`], [`Endpoint::receive_tagged`]) or not, and by sender if the receive
//! names one. Messages between two endpoints match in the order in which they were sent, receives in the order in which they
//! were posted. A message that matches no receive yet is kept until one is posted.
//!
//! ```
//! use rkey::Device;
//! use rkey::endpoint::Address;
//!
//! # fn main() -> rkey::Result<()> {
//! let server = Device::open()?.endpoint()?;
//! let address: Address = server.address();
//!
//! // Usually another process, which got the address as text or bytes.
//! let client = std::thread::spawn(move || -> rkey::Result<Vec<u8>> {
//!     let endpoint = Device::open()?.endpoint()?;
//!     let answer = endpoint.receive_tagged(8, address, vec![0; 64])?; // posted before it is needed
//!     endpoint.send_tagged(address, 7, "a question")?.wait()?;
//!     Ok(answer.wait()?.bytes)
//! });
//!
//! let question = server.receive_tagged(7, None, vec![0; 64])?.wait()?;
//! assert_eq!(question.bytes, b"a question");
//! server.send_tagged(question.from, 8, "an answer")?.wait()?;
//! assert_eq!(client.join().unwrap()?, b"an answer");
//! # Ok(()) }
//! ```
//!
//! # Buffers
//!
//! An operation owns its buffer until it ends, and returns it then. So there is no moment at which the program could see
//! bytes that the device still writes, and dropping a [`Sending`] or a [`Receiving`] at any moment is safe.
//!
//! Messages up to 8 KiB travel with their header and may arrive before their receive is posted; each peer may have some of
//! them unreceived; beyond that its sends wait (credit). Of a longer message only the header travels (rendezvous): the receiver's
//! device reads the payload from the sender's memory when the receive matches, so its sender's buffer is in use until then.
//!
//! # Progress
//!
//! The endpoint makes progress while the program calls it: in `wait`, `try_wait` and `is_done`, and when it sends. A
//! program that computes for long receives nothing meanwhile, and peers' long messages wait. Connections are accepted at any time.
//!
//! Threads may share an endpoint (clones are the same endpoint). When several wait, one of them makes progress for all.

mod address;
mod host;
mod inner;
mod pending;
mod slot;

pub use address::{ADDRESS_BYTES, Address};
pub use pending::{Receiving, Sending};

use crate::device::Device;
use crate::domain::{Domain, DomainInner};
use crate::error::{Error, Result};
use crate::owned::{Exposed, Lent, LocalMemory};
use host::{EndpointHost, Waiting};
use inner::Inner;
use rkey_device::time;
use rkey_endpoint::{Driver, Options};
use rkey_engine::Sge;
use rkey_rdm::endpoint::{Body, Outgoing, Receive, Service};
use rkey_rdm::error::Error as Code;
use rkey_rdm::header::{Header, Kind};
use rkey_rdm::hello::Admission;
use rkey_rdm::matching::Pattern;
use rkey_rdm::sges::Sges;
use slot::{Outcome, Slot};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The type of endpoints of reliable datagrams (`FI_EP_RDM` of libfabric).
const TYPE: u8 = 3;
/// Messages up to this length are copied when they are sent.
const COPIED: usize = 256;
/// The longest message, in bytes.
pub const MESSAGE_MAX: usize = 1 << 30;

/// An endpoint of reliable datagrams. Clones are the same endpoint; it closes with the last of them, and of its operations.
///
/// Closing tells the peers, and waits up to half a second for what was sent to arrive.
#[derive(Clone)]
pub struct Endpoint(Arc<Handle>);

/// Held by the program. Threads that connect hold only the inner part.
struct Handle {
    inner: Arc<Inner>,
    address: Address,
}

/// A message that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its bytes: the receive's buffer, cut to the length of the message.
    pub bytes: Vec<u8>,
    /// The sender's address.
    pub from: Address,
    /// Its tag; 0 without one.
    pub tag: u64,
}

/// Which tags a receive accepts. Made from a number, which means exactly this tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The tag.
    pub tag: u64,
    /// Bits of the tag that may differ.
    pub ignore: u64,
}

impl Tag {
    /// Any tag.
    pub const ANY: Self = Self {
        tag: 0,
        ignore: u64::MAX,
    };

    /// This tag, in which the bits of `ignore` may differ.
    #[must_use]
    pub const fn masked(tag: u64, ignore: u64) -> Self {
        Self { tag, ignore }
    }
}

impl From<u64> for Tag {
    fn from(tag: u64) -> Self {
        Self { tag, ignore: 0 }
    }
}

impl Endpoint {
    pub(crate) fn open(device: &Device, address: SocketAddr) -> Result<Self> {
        let raw = device.raw();
        let domain = Arc::new(DomainInner::create(raw)?);
        let domain = Domain::from_inner(device.clone(), domain);
        let memory = Arc::new(LocalMemory::register(domain)?);
        let listener = raw.listen(address)?;
        let inner = Arc::new(Inner::new(device, Arc::clone(&memory)));
        let host = EndpointHost {
            this: Arc::downgrade(&inner),
            memory,
        };
        let options = Options {
            service: Service::ReliableDatagram,
            admission: Admission {
                ep_type: TYPE,
                device_keys: true,
                key: Vec::new(),
                device: raw.node(),
            },
            name: address,
            number: None,
            max_sge: 2,
            channel: None,
        };
        let driver = inner.set(Driver::new(raw, host, options)?);
        let served = driver.serve(&inner, &device.inner.listeners, listener);
        served.map_err(|error| Error::Object(format!("peers cannot connect: {error}")))?;
        let address = Address(driver.name());
        Ok(Self(Arc::new(Handle { inner, address })))
    }

    /// The address under which peers reach the endpoint.
    #[must_use]
    pub fn address(&self) -> Address {
        self.0.address
    }

    /// Sends a message with a tag. Waits for a connection to the peer and for room, up to the device's timeout.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::PeerGone`], [`Error::Timeout`], [`Error::MessageTooLong`]: nothing was sent.
    pub fn send_tagged(
        &self,
        to: Address,
        tag: u64,
        message: impl Into<Vec<u8>>,
    ) -> Result<Sending> {
        self.0.send(to, Some(tag), message.into())
    }

    /// Sends a message without a tag, for [`Endpoint::receive`].
    ///
    /// # Errors
    /// As [`Endpoint::send_tagged`].
    pub fn send(&self, to: Address, message: impl Into<Vec<u8>>) -> Result<Sending> {
        self.0.send(to, None, message.into())
    }

    /// Posts a receive for a message with such a tag: from one sender, or from any (`None`). A message that is longer than the
    /// buffer is an error.
    ///
    /// # Errors
    /// [`Error::MessageTooLong`] for a buffer that is longer than any message; the device is broken.
    pub fn receive_tagged(
        &self,
        tag: impl Into<Tag>,
        from: impl Into<Option<Address>>,
        buffer: Vec<u8>,
    ) -> Result<Receiving> {
        self.0.receive(Some(tag.into()), from.into(), buffer)
    }

    /// Posts a receive for a message without a tag.
    ///
    /// # Errors
    /// As [`Endpoint::receive_tagged`].
    pub fn receive(&self, from: impl Into<Option<Address>>, buffer: Vec<u8>) -> Result<Receiving> {
        self.0.receive(None, from.into(), buffer)
    }
}

impl Handle {
    fn timeout(&self) -> Duration {
        self.inner.device().timeout()
    }

    fn send(self: &Arc<Self>, to: Address, tag: Option<u64>, message: Vec<u8>) -> Result<Sending> {
        let header = Header {
            tagged: tag.is_some(),
            tag: tag.unwrap_or(0),
            len: checked_len(message.len())?,
            ..Header::new(Kind::Message)
        };
        let bytes = Bytes::of(self.inner.memory(), Lent::new(message));
        let (timeout, started) = (self.timeout(), time::now());
        while !self.try_send(to, header, &bytes)? {
            if time::since(started) >= timeout {
                let what = "a connection to the peer, or its credit,";
                let after = timeout;
                return Err(Error::Timeout { what, after });
            }
            self.inner.pause();
            self.inner.progress()?;
        }
        Ok(Sending {
            handle: Arc::clone(self),
            slot: bytes.slot,
            to,
        })
    }

    /// Sends a message if there is a connection with room; whether there is. Without a connection one is being made.
    fn try_send(&self, to: Address, header: Header, bytes: &Bytes<'_>) -> Result<bool> {
        let driver = self.inner.open()?;
        let mut state = driver.state.lock();
        let (rdm, host) = (&mut state.rdm, &driver.host);
        let peer = rdm.peers.at(to.0);
        let connection = match rdm.route_to(host, peer, time::now()) {
            Ok(connection) => connection,
            Err(Code::Again) => return Ok(false),
            Err(error) => {
                return Err(Error::Unreachable {
                    address: to,
                    why: host::unreachable(error),
                });
            }
        };
        if !rdm.has_room(connection, 1) {
            return Ok(false);
        }
        let outgoing = Outgoing {
            connection,
            header,
            inject: header.len as usize <= COPIED,
            plain: None,
        };
        let attached = || Some(Arc::clone(&bytes.slot));
        match rdm.send(host, &outgoing, bytes, attached) {
            Ok(()) => Ok(true),
            Err(Code::Again) => Ok(false),
            Err(error) => Err(pending::error_of(&error.into(), Some(to))),
        }
    }

    fn receive(
        self: &Arc<Self>,
        tag: Option<Tag>,
        from: Option<Address>,
        buffer: Vec<u8>,
    ) -> Result<Receiving> {
        checked_len(buffer.len())?;
        let Bytes { sges, slot, .. } = Bytes::of(self.inner.memory(), Lent::new(buffer));
        let room = sges.iter().map(|sge| sge.len as usize).sum();
        let pattern = Pattern {
            source: from.map(|it| it.0),
            tag: tag.map_or(0, |it| it.tag),
            ignore: tag.map_or(0, |it| it.ignore),
        };
        let receive = Receive::new(sges, room, false, Waiting(Arc::clone(&slot)));
        let driver = self.inner.open()?;
        let rdm = &mut driver.state.lock().rdm;
        rdm.receive(&driver.host, tag.is_some(), pattern, receive);
        Ok(Receiving {
            handle: Arc::clone(self),
            slot,
        })
    }

    /// Cancels a receive that no message has matched yet.
    fn cancel(&self, slot: &Arc<Slot>) {
        if let Ok(driver) = self.inner.open() {
            let rdm = &mut driver.state.lock().rdm;
            rdm.cancel(&driver.host, |receive| Arc::ptr_eq(&receive.0, slot));
        }
    }

    /// The result of an operation, if it has ended by now.
    fn try_take(&self, slot: &Slot) -> Result<Option<Outcome>> {
        if !slot.is_ended() {
            self.inner.progress()?;
        }
        Ok(slot.take())
    }

    fn is_ended(&self, slot: &Slot) -> bool {
        slot.is_ended() || self.inner.progress().is_err() || slot.is_ended()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Ok(driver) = self.inner.open() {
            driver.begin_close();
            driver.say_goodbye();
            driver.close();
        }
    }
}

/// The length of a message, as its header says it.
fn checked_len(len: usize) -> Result<u32> {
    match u32::try_from(len) {
        Ok(short) if len <= MESSAGE_MAX => Ok(short),
        _ => Err(Error::MessageTooLong {
            len,
            limit: MESSAGE_MAX,
        }),
    }
}

/// The buffer of an operation, and how requests name it.
struct Bytes<'a> {
    memory: &'a LocalMemory,
    sges: Sges,
    slot: Arc<Slot>,
}

impl<'a> Bytes<'a> {
    fn of(memory: &'a LocalMemory, buffer: Lent) -> Self {
        let element = memory.element(&buffer);
        Self {
            memory,
            sges: Some(element).into_iter().filter(|it| it.len > 0).collect(),
            slot: Arc::new(Slot::new(buffer)),
        }
    }

    /// Uses the buffer of a message that is not on its way yet.
    fn with<T>(&self, body: impl FnOnce(&Lent) -> Option<T>) -> std::result::Result<T, Code> {
        self.slot.with_buffer(body).ok_or(Code::Fault)
    }
}

impl Body<EndpointHost> for Bytes<'_> {
    fn sges(&self) -> &[Sge] {
        &self.sges
    }

    fn copy(&self, into: &mut [u8]) -> std::result::Result<(), Code> {
        self.with(|buffer| self.memory.load(buffer, into).then_some(()))
    }

    fn expose(&self) -> std::result::Result<(Exposed, u32), Code> {
        let exposed = self.with(|buffer| Some(self.memory.expose(buffer)))?;
        let exposed = exposed.map_err(|_| Code::NoMemory)?;
        let key = exposed.key();
        Ok((exposed, key))
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}
