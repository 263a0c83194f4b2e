//! A datagram socket.

use super::super::complaint::{complain, mention};
use super::super::edges::Edges;
use super::super::memory::Buffers;
use super::super::options::Options;
use super::super::waiting::{Progress, Waiting, errno};
use super::header::{self, OverUdp};
use super::link::{Arrived, DATA_MAX, Destination, Link, MTU};
use crate::lookup::address::is_any;
use parking_lot::Mutex;
use rkey_device::cm::UnsharedFd;
use rkey_kit::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, getsockname, recvfrom,
    sendto, socket_with,
};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_short};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// The maximum number of received datagrams that wait for the program. Further ones are dropped, as with UDP.
const INBOX_MAX: usize = 512;
/// The maximum number of UDP datagrams that one call processes, so that a flood does not block the program.
const UDP_BATCH: usize = 64;
/// The maximum number of peers whose queue pairs are remembered. Datagrams to others travel over UDP.
const PEERS_MAX: usize = 1024;

/// How long a peer may be silent before the next datagram travels over UDP, which makes it announce its queue pair again.
const SILENCE: Duration = Duration::from_secs(1);

/// A peer that has announced its queue pair over UDP.
#[derive(Debug)]
struct Peer {
    /// The address of the peer: the source address of its UDP datagrams.
    address: SocketAddr,
    destination: Destination,
    /// When the peer was last heard from.
    heard: Instant,
}

impl Peer {
    /// Whether the queue pair may have been replaced, because the peer has been silent: its socket may be closed, and another may
    /// have its address.
    fn is_doubtful(&self) -> bool {
        rkey_device::time::since(self.heard) > SILENCE
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4, so that a sender has the same key on IPv4 and IPv6 sockets.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The address to send to: the loopback address if `to` is a wildcard.
fn concrete(to: SocketAddr) -> SocketAddr {
    match is_any(to.ip()) {
        true => SocketAddr::new(crate::lookup::address::loopback(to), to.port()),
        false => to,
    }
}

/// What the lock of a datagram socket protects.
#[derive(Debug)]
pub struct State {
    udp: UnsharedFd,
    link: Link,
    qpn: u32,
    peers: BTreeMap<SocketAddr, Peer>,
    inbox: VecDeque<(SocketAddr, Vec<u8>)>,
    /// The address that the socket is connected to: the default destination, and the only accepted sender.
    pub peer: Option<SocketAddr>,
    /// How often it became ready.
    pub edges: Edges,
    /// The options.
    pub options: Options,
    /// Whether the program has closed it or shut it down.
    pub is_closed: bool,
}

/// A datagram socket.
#[derive(Debug)]
pub struct Datagram {
    /// The descriptor of the socket.
    pub waiting: Waiting,
    /// Everything else.
    pub state: Mutex<State>,
}

impl Datagram {
    /// Creates a socket that is not bound.
    ///
    /// # Errors
    /// No descriptor, memory or queue pair is available.
    pub fn new(family: c_int, nonblocking: bool) -> Result<Self, Errno> {
        let of_udp = match family {
            libc::AF_INET6 => AddressFamily::INET6,
            _ => AddressFamily::INET,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let udp = socket_with(of_udp, SocketType::DGRAM, flags, None).map_err(errno)?;
        let udp = UnsharedFd::from(udp);
        let link = Link::new()?;
        let waiting = Waiting::new(nonblocking)?;
        waiting.watch(&udp)?;
        waiting.watch(link.fd())?;
        let state = State {
            udp,
            qpn: link.number()?,
            link,
            peers: BTreeMap::new(),
            inbox: VecDeque::new(),
            peer: None,
            edges: Edges::default(),
            options: Options::new(family, libc::SOCK_DGRAM),
            is_closed: false,
        };
        Ok(Self {
            waiting,
            state: Mutex::new(state),
        })
    }

    /// Closes the socket. Threads that wait for the socket get `EBADF`.
    pub fn end(&self) {
        {
            let mut state = self.state.lock();
            state.is_closed = true;
            state.edges.phase();
        }
        self.waiting.wake_fd.signal();
    }

    /// Sends a datagram to an address, by default the one that the socket is connected to.
    ///
    /// # Errors
    /// `EMSGSIZE`: it is too long. `EDESTADDRREQ`: there is no destination. `ENETUNREACH`: the destination is another host. `EAGAIN`,
    /// `EINTR`: as for `sendto`.
    pub fn send(
        &self,
        data: &mut Buffers<'_>,
        to: Option<SocketAddr>,
        blocks: bool,
    ) -> Result<usize, Errno> {
        let len = data.len();
        if len > DATA_MAX {
            return Err(Errno::from_raw(libc::EMSGSIZE));
        }
        let timeout = self.state.lock().options.send_timeout;
        let deadline = timeout.and_then(|time| rkey_device::time::now().checked_add(time));
        self.waiting
            .wait(&self.state, blocks, deadline, |state| state.send(data, to))?;
        Ok(len)
    }

    /// Receives a datagram. Discards what does not fit. Returns the number of bytes copied, the datagram's length, and its sender.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`: as for `recvfrom`. `EBADF`: the socket is closed. `EFAULT`: the buffers cannot be written; the datagram stays.
    pub fn receive(
        &self,
        into: &mut Buffers<'_>,
        blocks: bool,
        peeks: bool,
    ) -> Result<(usize, usize, SocketAddr), Errno> {
        let timeout = self.state.lock().options.receive_timeout;
        let deadline = timeout.and_then(|time| rkey_device::time::now().checked_add(time));
        self.waiting.wait(&self.state, blocks, deadline, |state| {
            if state.is_closed {
                return Some(Err(Errno::BADF));
            }
            let (from, data) = state.inbox.front()?;
            let (from, len) = (*from, data.len());
            let copied = match into.put(data) {
                Ok(copied) => copied,
                Err(error) => return Some(Err(error)),
            };
            if !peeks {
                state.inbox.pop_front();
            }
            Some(Ok((copied, len, from)))
        })
    }
}

impl State {
    /// Sets the default destination, which is also the only sender whose datagrams are received.
    pub fn connect(&mut self, to: SocketAddr) {
        self.peer = Some(concrete(to));
    }

    /// Binds the UDP socket to an address.
    ///
    /// # Errors
    /// The errors of `bind`.
    pub fn bind(&mut self, to: SocketAddr) -> Result<(), Errno> {
        bind(&self.udp, &to).map_err(errno)
    }

    /// The address of the UDP socket.
    ///
    /// # Errors
    /// The errors of `getsockname`.
    pub fn local(&self) -> Result<SocketAddr, Errno> {
        let address = getsockname(&self.udp).map_err(errno)?;
        SocketAddr::try_from(address).map_err(errno)
    }

    /// The address of the socket. Binds the socket to a free port first if it has no address.
    fn bound(&mut self) -> Result<SocketAddr, Errno> {
        let local = self.local()?;
        if local.port() != 0 {
            return Ok(local);
        }
        let any: IpAddr = match local {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        self.bind(SocketAddr::new(any, 0))?;
        self.local()
    }

    /// Returns the events that are ready, as `poll` does.
    #[must_use]
    pub fn ready(&self, wanted: c_short) -> c_short {
        let mut now = 0;
        if !self.inbox.is_empty() {
            now |= libc::POLLIN | libc::POLLRDNORM;
        }
        if self.link.has_room() {
            now |= libc::POLLOUT | libc::POLLWRNORM;
        }
        match self.is_closed {
            true => libc::POLLNVAL,
            false => now & wanted,
        }
    }

    fn send(
        &mut self,
        data: &mut Buffers<'_>,
        to: Option<SocketAddr>,
    ) -> Option<Result<(), Errno>> {
        if self.is_closed {
            return Some(Err(Errno::BADF));
        }
        let Some(to) = to.or(self.peer) else {
            return Some(Err(Errno::from_raw(libc::EDESTADDRREQ)));
        };
        let to = concrete(to);
        if !crate::lookup::address::is_ours(to.ip()) {
            return Some(Err(Errno::NETUNREACH));
        }
        let from = match self.bound() {
            // To an address of this host, the kernel sends from that same address.
            Ok(local) if is_any(local.ip()) => SocketAddr::new(to.ip(), local.port()),
            Ok(local) => local,
            Err(error) => return Some(Err(error)),
        };
        match self.peers.get(&plain(to)) {
            Some(peer) if peer.is_doubtful() => Some(self.send_over_udp(data, from, to)),
            Some(peer) if self.link.has_room() => {
                let destination = &peer.destination;
                Some(self.link.send(destination, &header::between(from), data))
            }
            Some(_) => None,
            None => Some(self.send_over_udp(data, from, to)),
        }
    }

    fn send_over_udp(
        &mut self,
        data: &mut Buffers<'_>,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Result<(), Errno> {
        let data = data.take()?;
        let datagram = OverUdp {
            qpn: self.qpn,
            data: Some(&data),
        };
        let bytes = datagram.encode(from.ip());
        // A full socket buffer drops the datagram, as UDP may.
        match sendto(&self.udp, &bytes, SendFlags::NOSIGNAL, &to) {
            Err(rustix::io::Errno::AGAIN) | Ok(_) => Ok(()),
            Err(error) => Err(errno(error)),
        }
    }

    fn deliver(&mut self, from: SocketAddr, data: &[u8]) {
        let is_wanted = self.peer.is_none_or(|peer| plain(peer) == plain(from));
        if is_wanted && self.inbox.len() < INBOX_MAX {
            self.inbox.push_back((from, data.to_vec()));
            self.edges.readable();
        }
    }

    /// Remembers the queue pair of a peer. Returns whether it is known now.
    fn learn(&mut self, from: SocketAddr, qpn: u32) -> bool {
        let key = plain(from);
        let heard = rkey_device::time::now();
        let known = self.peers.get_mut(&key);
        let is_known = known.is_some();
        if let Some(peer) = known.filter(|peer| peer.destination.qpn == qpn) {
            peer.heard = heard;
            return true;
        }
        if self.peers.len() >= PEERS_MAX && !is_known {
            return false;
        }
        match Destination::new(from, qpn) {
            Ok(destination) => {
                let address = from;
                self.peers.insert(
                    key,
                    Peer {
                        address,
                        destination,
                        heard,
                    },
                );
                true
            }
            Err(error) => {
                mention(format_args!(
                    "cannot create an address handle for {from}: {error}"
                ));
                false
            }
        }
    }

    /// Handles a datagram from a queue pair. Any queue pair of any host can send one, with any address in its header. So it must be
    /// from this host, and from the queue pair that the owner of the address has announced over UDP.
    fn between(&mut self, arrived: &Arrived) {
        let Some((claimed, len)) = header::sender(&arrived.data) else {
            return;
        };
        let known = self.peers.get(&plain(claimed));
        let known = known.filter(|peer| peer.destination.qpn == arrived.qpn);
        let Some(address) = known.map(|peer| peer.address) else {
            complain(format_args!(
                "dropped a datagram from queue pair {:#x}: it claims to be from {claimed}, which has not announced this queue pair",
                arrived.qpn
            ));
            return;
        };
        let origin = crate::lookup::address::gid((arrived.origin, 0).into());
        if !ibverbs::device::gid::is_ours(origin) {
            complain(format_args!(
                "dropped a datagram from {}: it claims to be from {claimed}",
                arrived.origin
            ));
            return;
        }
        if let Some(peer) = self.peers.get_mut(&plain(claimed)) {
            peer.heard = rkey_device::time::now();
        }
        self.deliver(address, &arrived.data[len..]);
    }

    /// Handles a datagram that arrived over UDP.
    fn over_udp(&mut self, from: SocketAddr, bytes: &[u8]) {
        let Some(datagram) = OverUdp::decode(bytes) else {
            return;
        };
        if !crate::lookup::address::is_ours(from.ip()) {
            return;
        }
        let is_known = self.learn(from, datagram.qpn);
        if let Some(data) = datagram.data {
            self.deliver(from, data);
            if !is_known {
                // The peer must keep using UDP: datagrams from its queue pair would be dropped.
                return;
            }
            let answer = OverUdp {
                qpn: self.qpn,
                data: None,
            };
            // If the answer is lost, the peer's next datagram also travels over UDP, and is answered again.
            let _ = sendto(
                &self.udp,
                &answer.encode(from.ip()),
                SendFlags::NOSIGNAL,
                &from,
            );
        }
    }
}

impl Progress for State {
    fn progress(&mut self) {
        let mut bytes = [0; MTU + header::LEN_MAX];
        for _ in 0..UDP_BATCH {
            let got = recvfrom(&self.udp, &mut bytes[..], RecvFlags::empty());
            let Ok((_, len, Some(from))) = got else {
                break;
            };
            if let Ok(from) = SocketAddr::try_from(from) {
                self.over_udp(from, &bytes[..len]);
            }
        }
        let mut arrived = Vec::new();
        let had_room = self.link.has_room();
        self.link.poll(|one| arrived.push(one));
        if self.link.has_room() && !had_room {
            self.edges.writable();
        }
        for one in arrived {
            self.between(&one);
        }
    }

    fn rearm(&mut self) {
        self.link.rearm();
    }
}
