//! The program's handle to an endpoint.

use super::body::Bytes;
use super::host::{EndpointHost, PostedReceive, unreachable};
use super::inner::Inner;
use super::message::{Tag, checked_len};
use super::pending::{Receiving, Sending, Transferring};
use super::shared::Handle;
use super::slot::Slot;
use crate::address::Address;
use crate::device::domain::Domain;
use crate::device::handle::{Device, DomainInner, resolve};
use crate::error::{Error, Result};
use crate::memory::key::RemoteKey;
use crate::memory::memory_region::MemoryRegion;
use crate::memory::options::RegionOptions;
use crate::memory::owned::{Buffer, Lent, LocalMemory};
use crate::memory::region::Region;
use rkey_device::time;
use rkey_device::wire::Wire;
use rkey_endpoint::{Driver, Options};
use rkey_engine::Sge;
use rkey_rdm::commit::RemoteRange;
use rkey_rdm::endpoint::{Memory, Outgoing, Receive, Service, Transfer};
use rkey_rdm::error::Error as Code;
use rkey_rdm::header::{Header, Kind};
use rkey_rdm::hello::Admission;
use rkey_rdm::matching::Pattern;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::ops::RangeBounds;
use std::sync::Arc;

/// The type of reliable-datagram endpoints (libfabric's `FI_EP_RDM`).
const TYPE: u8 = 3;
/// Messages up to this length are copied when they are sent.
const COPIED: usize = 256;
type Rdm = rkey_rdm::endpoint::Endpoint<EndpointHost>;

/// A reliable-datagram endpoint. Clones are the same endpoint, which closes when the last clone and the last of its operations are
/// dropped.
///
/// Closing notifies the peers, and waits up to half a second for sent messages to arrive.
#[derive(Clone)]
pub struct Endpoint(Arc<Handle>);

impl Endpoint {
    pub(crate) fn open(device: &Device, address: SocketAddr) -> Result<Self> {
        let raw = device.raw();
        let domain = Arc::new(DomainInner::create(raw)?);
        let domain = Domain::from_inner(device.clone(), domain);
        let memory = Arc::new(LocalMemory::register(domain)?);
        let listener = raw.listen_for_hosts(address)?;
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
                one_way: false,
                key: Vec::new(),
                device: raw.node(),
            },
            name: address,
            number: None,
            counted_as: None,
            max_sge: 2,
            channel: None,
        };
        let driver = inner.set(Driver::new(raw, host, options)?);
        let served = driver.serve(&inner, &device.inner.listeners, listener);
        served.map_err(|error| Error::Object(format!("cannot accept connections: {error}")))?;
        let address = Address(driver.name());
        Ok(Self(Arc::new(Handle { inner, address })))
    }

    /// The address at which peers reach the endpoint.
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
    /// Same as [`Endpoint::send_tagged`].
    pub fn send(&self, to: Address, message: impl Into<Vec<u8>>) -> Result<Sending> {
        self.0.send(to, None, message.into())
    }

    /// Registers a buffer for [`Endpoint::read`] and [`Endpoint::write`], either as the local side of a transfer
    /// or, with a key, for access by peers. The region is in the endpoint's own protection domain: only peers of this endpoint can
    /// access it, and they need no `Connection`.
    ///
    /// # Errors
    /// Same as [`Domain::register`].
    pub fn register<B: Buffer>(
        &self,
        buffer: B,
        access: impl Into<RegionOptions>,
    ) -> Result<Region<B>> {
        self.0.inner.memory().register_region(buffer, access.into())
    }

    /// Writes bytes of a region of this endpoint to `offset` within the memory of the endpoint at `to` that `key` names. The
    /// peer's program need not do anything. A message that is sent after the write has completed arrives after its bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], and the errors of [`Endpoint::send_tagged`]: nothing was sent. Waiting reports a denial.
    pub fn write(
        &self,
        to: Address,
        local: &MemoryRegion,
        range: impl RangeBounds<u64>,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Transferring> {
        let part = local.part(range)?;
        key.at(offset, u64::from(part.len))?;
        self.0.transfer(to, part, key, offset, false)
    }

    /// Reads from `offset` within the memory of the endpoint at `from` that `key` names into a region of this endpoint.
    ///
    /// # Errors
    /// Same as [`Endpoint::write`].
    pub fn read(
        &self,
        from: Address,
        local: &MemoryRegion,
        range: impl RangeBounds<u64>,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Transferring> {
        let part = local.part(range)?;
        key.at(offset, u64::from(part.len))?;
        self.0.transfer(from, part, key, offset, true)
    }

    /// Posts a receive for a message with a tag that `tag` accepts, from one sender or from any (`None`). A message that is
    /// longer than the buffer is an error.
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
    /// Same as [`Endpoint::receive_tagged`].
    pub fn receive(&self, from: impl Into<Option<Address>>, buffer: Vec<u8>) -> Result<Receiving> {
        self.0.receive(None, from.into(), buffer)
    }
}

impl Handle {
    fn send(self: &Arc<Self>, to: Address, tag: Option<u64>, message: Vec<u8>) -> Result<Sending> {
        let header = Header {
            tagged: tag.is_some(),
            tag: tag.unwrap_or(0),
            len: checked_len(message.len())?,
            ..Header::new(Kind::Message)
        };
        let bytes = Bytes::of(self.inner.memory(), Lent::new(message));
        self.post(to, |rdm, host, connection| {
            let outgoing = Outgoing {
                connection,
                header,
                inject: header.len as usize <= COPIED,
                plain: None,
            };
            rdm.send(host, &outgoing, &bytes, || Some(Arc::clone(&bytes.slot)))
        })?;
        Ok(Sending {
            handle: Arc::clone(self),
            slot: bytes.slot,
            to,
        })
    }

    /// Reads or writes memory that a key of a peer names. The caller has checked the bounds.
    fn transfer(
        self: &Arc<Self>,
        to: Address,
        part: Sge,
        key: &RemoteKey,
        offset: u64,
        reads: bool,
    ) -> Result<Transferring> {
        let remote = [RemoteRange {
            addr: key.address().wrapping_add(offset),
            len: part.len.into(),
            key: key.rkey(),
        }];
        // The bytes are in the region, so the operation has no buffer of its own.
        let slot = Arc::new(Slot::new(Lent::new(Vec::new())));
        self.post(to, |rdm, host, connection| {
            let transfer = Transfer {
                connection,
                reads,
                local: Memory::InPlace(Some(part).into_iter().collect()),
                remote: &remote,
                data: None,
                fence: false,
                durable: false,
            };
            rdm.transfer(host, transfer, Some(Arc::clone(&slot)))
        })?;
        Ok(Transferring(Sending {
            handle: Arc::clone(self),
            slot,
            to,
        }))
    }

    /// Calls `post` whenever a connection to the peer has room, until `post` succeeds.
    fn post(
        &self,
        to: Address,
        mut post: impl FnMut(&mut Rdm, &EndpointHost, usize) -> std::result::Result<(), Code>,
    ) -> Result<()> {
        let (timeout, started) = (self.timeout(), time::now());
        while !self.try_post(to, &mut post)? {
            if time::since(started) >= timeout {
                let what = "a connection to the peer that has room for the request";
                let after = timeout;
                return Err(Error::Timeout { what, after });
            }
            self.inner.progress()?;
            if self.try_post(to, &mut post)? {
                break;
            }
            self.inner.pause()?;
        }
        Ok(())
    }

    /// Makes one attempt and returns whether it succeeded. If there is no connection, starts to make one.
    fn try_post(
        &self,
        to: Address,
        post: impl FnOnce(&mut Rdm, &EndpointHost, usize) -> std::result::Result<(), Code>,
    ) -> Result<bool> {
        let driver = self.inner.open()?;
        let mut state = driver.state.lock();
        let (rdm, host) = (&mut state.rdm, &driver.host);
        let peer = rdm.routes_mut().peer_at(to.0);
        let connection = match rdm.connection_to(host, peer, || Some(()), time::now) {
            Ok(connection) => connection,
            Err(Code::Again) => return Ok(false),
            Err(error) => {
                return Err(Error::Unreachable {
                    address: to,
                    why: unreachable(error),
                });
            }
        };
        if !rdm.outbox().has_room(connection, 1) {
            return Ok(false);
        }
        match post(rdm, host, connection) {
            Ok(()) => Ok(true),
            Err(Code::Again) => Ok(false),
            Err(error) => Err(self.error_of(&error.into(), Some(to))),
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
        let receive = Receive::new(sges, room, false, PostedReceive(Arc::clone(&slot)));
        let driver = self.inner.open()?;
        let rdm = &mut driver.state.lock().rdm;
        rdm.receive(&driver.host, tag.is_some(), pattern, receive);
        Ok(Receiving {
            handle: Arc::clone(self),
            slot,
        })
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

impl Device {
    /// Opens an endpoint at a free port of this host: of an address that other hosts reach, if there is one ([`Device::wire`]),
    /// otherwise of the loopback interface. The endpoint exchanges tagged messages with any number of peers, without connections to
    /// manage: see [`endpoint`](crate::endpoint).
    ///
    /// # Errors
    /// A limit of the device is reached.
    pub fn endpoint(&self) -> Result<Endpoint> {
        let mut wire = self.raw().wire().into_iter().flat_map(Wire::addresses);
        let ip = wire.next().unwrap_or(Ipv4Addr::LOCALHOST.into());
        Endpoint::open(self, SocketAddr::new(ip, 0))
    }

    /// Like [`Device::endpoint`], at a chosen address of this host, such as `"127.0.0.1:7471"`. An endpoint at all addresses
    /// (`"0.0.0.0:7471"`) is known to its peers by the first that other hosts reach.
    ///
    /// # Errors
    /// The address is in use, does not belong to this host, or is not an address; a limit of the device is reached.
    pub fn endpoint_at(&self, address: impl ToSocketAddrs) -> Result<Endpoint> {
        Endpoint::open(self, resolve(address)?)
    }
}
