//! How a connection is made: the queue pair, and the messages of both sides.

use super::connection::Connection;
use super::inbox::Inbox;
use super::link::{Link, gone};
use super::route::Route;
use crate::device::domain::Domain;
use crate::device::handle::{Device, resolve};
use crate::device::manager::Manager;
use crate::error::{Error, Result};
use crate::queues::completion::CompletionQueue;
use crate::queues::flight::Flight;
use crate::queues::one_sided::OneSided;
use crate::queues::queue_pair::{INLINE, QueuePair};
use crate::queues::results::ResultPlaces;
use rkey_cm::address::PortSpace;
use rkey_cm::manager::{self, Accept, ConnectRequest, PathOptions};
use rkey_cm::wire::{Ece, Rep, Req, Transport};
use rkey_device::cm::random;
use rkey_engine::{Peer, QpAttributes};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// The maximum number of reads and atomics that a queue pair begins, or executes, at once.
const READS: u8 = 16;
/// The local ports of connections that we request: the first, and their number.
pub(super) const DYNAMIC: (u16, u32) = (49152, 16384);

/// A queue pair and its memory, before there is a peer.
struct Parts {
    data: QueuePair,
    sends: Flight,
    results: ResultPlaces,
    inbox: Inbox,
    domain: Domain,
    /// The sequence number of the first packet that we expect.
    starting_psn: u32,
}

/// The parameters that both sides have agreed on.
struct Agreed {
    route: Route,
    qpn: u32,
    starting_psn: u32,
    /// The maximum number of reads and atomics in flight: the peer's, then ours.
    reads: (u8, u8),
}

impl Parts {
    /// Creates everything and posts the receives, so that nothing can fail for lack of memory once there is a peer.
    fn new(domain: &Domain) -> Result<Self> {
        let depth = domain.device().inner.settings.depth;
        let sends = CompletionQueue::create(domain.device(), depth)?;
        let receives = CompletionQueue::create(domain.device(), Inbox::SLOTS)?;
        let data = domain
            .queue_pair(&sends)
            .receive_queue(&receives)
            .depth(depth, Inbox::SLOTS)
            .max_inline(INLINE)
            .build()?;
        Ok(Self {
            sends: Flight::new(sends, depth),
            results: ResultPlaces::new(domain, depth)?,
            inbox: Inbox::prepare(domain, &data, receives)?,
            data,
            domain: domain.clone(),
            starting_psn: random_number()? & 0xff_ffff,
        })
    }

    /// The description of our queue pair for the peer.
    fn queue_pair(&self, reads: (u8, u8)) -> manager::QueuePair {
        let config = self.domain.device().raw().config();
        manager::QueuePair {
            qpn: self.data.number(),
            starting_psn: self.starting_psn,
            responder_resources: reads.0,
            initiator_depth: reads.1,
            retry_count: config.retry_count.min(7),
            rnr_retry: config.rnr_retry.min(7),
            srq: false,
            flow_control: false,
        }
    }

    /// Makes the queue pair ready.
    fn make_ready(&self, agreed: &Agreed) -> Result<()> {
        let config = self.domain.device().raw().config();
        let peer = Peer {
            qpn: agreed.qpn,
            node: None,
        };
        self.data.raw().modify(&QpAttributes {
            max_reads_in: Some(agreed.reads.0),
            wire: agreed.route.wire,
            path_mtu: Some(agreed.route.mtu.bytes()),
            ..QpAttributes::rtr(peer, self.starting_psn)
        })?;
        self.data.raw().modify(&QpAttributes {
            timeout: Some(config.timeout),
            retry_count: Some(config.retry_count),
            rnr_retry: Some(config.rnr_retry),
            max_reads_out: Some(agreed.reads.1),
            ..QpAttributes::rts(agreed.starting_psn)
        })?;
        Ok(())
    }

    fn join(self, link: Link, private_data: Vec<u8>, reads: u8) -> Connection {
        let operations = OneSided {
            data: self.data,
            domain: self.domain,
            sends: self.sends,
            results: self.results,
        };
        Connection::new(link, operations, self.inbox, private_data, reads)
    }
}

fn random_number() -> Result<u32> {
    random().map_err(crate::device::manager::io("drawing a random number"))
}

/// Connects to an address at which a program listens.
fn connect(domain: &Domain, address: SocketAddr, data: &[u8]) -> Result<Connection> {
    let peer = specific(address);
    let route = Route::to(domain.device(), peer)?;
    let manager = Manager::of(domain.device())?;
    let data = manager.data::<{ Req::DATA }>("the private data of a request", data, peer)?;
    let parts = Parts::new(domain)?;
    let (first, count) = DYNAMIC;
    let port = first + (random_number()? % count) as u16;
    let local = SocketAddr::new(route.local, port);
    let request = manager::Connect {
        from: local,
        to: peer,
        space: PortSpace::Tcp,
        transport: Transport::Rc,
        queue_pair: parts.queue_pair((READS, READS)),
        path: PathOptions {
            mtu: route.mtu,
            ..PathOptions::default()
        },
        ece: Ece::default(),
        data,
    };
    let id = manager.with(|it| {
        let id = it.manager.connect(it.now, &request)?;
        it.handler.add(id, local, peer);
        Ok(id)
    })?;
    let id = id.map_err(|error: manager::Error| Error::Object(error.to_string()))?;
    let link = Link::new(&manager, id, local, peer);
    let time = domain.device().timeout();
    let answer = manager.wait(Some(time), "the peer to accept or reject", |it| {
        let entry = it.handler.connections.get_mut(&id)?;
        match entry.end.clone() {
            Some(end) => Some(Err(end)),
            None => entry.answer.take().map(Ok),
        }
    })?;
    let rep: Box<Rep> = answer.map_err(|end| link.error(end))?;
    // We execute no more reads at once than the peer issues, and issue no more than it executes.
    let reads = (
        READS.min(rep.initiator_depth),
        READS.min(rep.responder_resources),
    );
    parts.make_ready(&Agreed {
        route,
        qpn: rep.qpn,
        starting_psn: rep.starting_psn,
        reads,
    })?;
    let established = manager.with(|it| it.manager.establish(it.now, id))?;
    established.map_err(gone)?;
    Ok(parts.join(link, rep.data.as_bytes().to_vec(), reads.1))
}

/// Accepts a request.
pub(crate) fn accept(
    domain: &Domain,
    link: Link,
    request: &ConnectRequest,
    data: &[u8],
) -> Result<Connection> {
    let (manager, id) = (link.manager(), link.id());
    let what = "the private data of an answer";
    let data = manager.data::<{ Rep::DATA }>(what, data, link.peer())?;
    let route = Route::of(domain.device(), request)?;
    let parts = Parts::new(domain)?;
    let reads = (
        READS.min(request.req.initiator_depth),
        READS.min(request.req.responder_resources),
    );
    parts.make_ready(&Agreed {
        route,
        qpn: request.req.qpn,
        starting_psn: request.req.starting_psn,
        reads,
    })?;
    let answer = Accept {
        queue_pair: parts.queue_pair(reads),
        ece: Ece::default(),
        data,
    };
    let accepted = manager.with(|it| it.manager.accept(it.now, id, &answer))?;
    accepted.map_err(gone)?;
    let time = domain.device().timeout();
    let ready = manager.wait(Some(time), "the peer to become ready", |it| {
        let entry = it.handler.connections.get(&id)?;
        match (&entry.end, entry.is_established) {
            // A peer may connect and disconnect at once: its messages can still be received.
            (_, true) => Some(Ok(())),
            (Some(end), false) => Some(Err(end.clone())),
            (None, false) => None,
        }
    })?;
    ready.map_err(|end| link.lost(end))?;
    Ok(parts.join(link, request.data.as_bytes().to_vec(), reads.1))
}

/// The address to connect to: the loopback address instead of a wildcard address.
fn specific(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip.to_canonical(),
    };
    SocketAddr::new(ip, address.port())
}

impl Device {
    /// Connects to a program that listens through the connection manager of RDMA, such as a C program with `librdmacm`:
    /// see [`cm`](crate::cm). The peer's program gets `private_data`, up to 56 bytes, with the request.
    ///
    /// # Errors
    /// [`Error::ConnectionRefused`] says who refused and why, with the peer's private data; if nothing listens, after half a
    /// second. [`Error::Timeout`] if the peer's program does not decide in time. The private data is too long, or the address
    /// belongs to a host that cannot be reached (`RKEY_WIRE`).
    pub fn connect_cm(
        &self,
        address: impl ToSocketAddrs,
        private_data: &[u8],
    ) -> Result<Connection> {
        self.domain()?.connect_cm(address, private_data)
    }
}

impl Domain {
    /// Like [`Device::connect_cm`], for a connection of this domain.
    ///
    /// # Errors
    /// Same as [`Device::connect_cm`].
    pub fn connect_cm(
        &self,
        address: impl ToSocketAddrs,
        private_data: &[u8],
    ) -> Result<Connection> {
        connect(self, resolve(address)?, private_data)
    }
}
