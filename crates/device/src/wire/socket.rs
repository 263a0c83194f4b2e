//! The UDP socket of one address. It needs no privileges.
//!
//! The socket is never bound to a wildcard address and never connected: with `IP_PMTUDISC_PROBE`, the identification field of its
//! IPv4 headers is then 0, which the invariant checksum requires (`rkey_roce::icrc`). All processes of a user share the address
//! (`SO_REUSEPORT`).

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rkey_roce::icrc;
use rkey_roce::packet::Mtu;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::datagram::{Incoming, Outgoing};
use super::seal::{self, Kind, Seal};
use super::{addresses, options};
use crate::cm::fork::{self, CloseInChild};
use crate::ecn::Ecn;
use crate::progress::reactor::Reactor;

/// The requested size of the receive buffer, in bytes. The kernel grants less if its limit (`net.core.rmem_max`) is lower.
const RECEIVE_BUFFER: usize = 4 << 20;
/// The requested size of the send buffer, in bytes.
const SEND_BUFFER: usize = 4 << 20;
/// How many buffers one call fills. Each holds as many datagrams as the kernel has coalesced.
const BATCH: usize = 8;
/// The size of a buffer, in bytes: that of the longest datagram.
const BUFFER: usize = 1 << 16;

/// One descriptor of the socket. Receiving and sending use separate ones, so that neither waits for the other.
#[derive(Debug)]
pub(super) struct Half(Option<OwnedFd>);

impl CloseInChild for Half {
    fn close_in_child(&mut self) {
        self.0 = None;
    }
}

/// The socket of an address.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) address: SocketAddr,
    pub(super) interface: String,
    pub(super) mtu: Mtu,
    state: UdpSocketState,
    receiving: Arc<Mutex<Half>>,
    sending: Arc<Mutex<Half>>,
    seal: Option<Arc<Seal>>,
    /// Whether the wire's thread leaves the socket to the program's polls.
    pub(super) is_lent: AtomicBool,
}

/// Buffers for received datagrams.
pub(super) struct Buffers(Vec<u8>);

impl Buffers {
    pub(super) fn new() -> Self {
        Self(vec![0; BATCH * BUFFER])
    }
}

/// The result of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DatagramSent {
    Yes,
    /// The send buffer is full.
    Busy,
    /// The kernel refuses to send the datagrams.
    No,
}

impl Port {
    /// Binds the socket of an address, whose datagrams are sealed if there is a `seal`. The error is a message for the user.
    pub(super) fn bind(ip: IpAddr, seal: Option<&Arc<Seal>>) -> Result<Self, String> {
        let Some((interface, bytes)) = addresses::interface_of(ip) else {
            return Err("not an address of this host".to_owned());
        };
        let Some(mtu) = addresses::fitting(bytes, ip.is_ipv4(), seal::overhead(seal.is_some()))
        else {
            return Err(format!(
                "the MTU of {interface} is {bytes} B, too small for any packet"
            ));
        };
        let address = SocketAddr::new(ip, icrc::PORT);
        match Self::bind_socket(address) {
            Ok((state, receiving, sending)) => Ok(Self {
                address,
                interface,
                mtu,
                state,
                receiving,
                sending,
                seal: seal.cloned(),
                is_lent: AtomicBool::new(false),
            }),
            Err(error) if error.raw_os_error() == Some(Errno::ADDRINUSE.raw_os_error()) => {
                Err(format!(
                    "UDP port {} is taken by a program of another user or by the kernel's own RoCE device (rdma_rxe)",
                    icrc::PORT
                ))
            }
            Err(error) => Err(format!("cannot bind UDP port {}: {error}", icrc::PORT)),
        }
    }

    #[allow(clippy::type_complexity)]
    fn bind_socket(
        address: SocketAddr,
    ) -> io::Result<(UdpSocketState, Arc<Mutex<Half>>, Arc<Mutex<Half>>)> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
            options::take_without_checksum(socket.as_fd())?;
        }
        sockopt::set_socket_reuseport(&socket, true)?;
        let _ = sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER);
        let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER);
        // Forbids fragmentation, lets the kernel segment and coalesce datagrams, and requests their congestion bits.
        let state = UdpSocketState::new((&socket).into())?;
        options::report_only_congestion(socket.as_fd(), address.is_ipv4())?;
        let sending = rustix::io::fcntl_dupfd_cloexec(&socket, 0)?;
        let halves = [socket, sending].map(|it| Arc::new(Mutex::new(Half(Some(it)))));
        for half in &halves {
            fork::watch_last(half);
        }
        let [receiving, sending] = halves;
        // Last: from here on, other hosts can reach the socket.
        if let Some(socket) = &receiving.lock().0 {
            rustix::net::bind(socket, &address)?;
        }
        Ok((state, receiving, sending))
    }

    /// Runs `with` on the receiving descriptor, unless it is closed.
    pub(super) fn with_socket<R>(&self, with: impl FnOnce(&OwnedFd) -> R) -> Option<R> {
        self.receiving.lock().0.as_ref().map(with)
    }

    /// Closes the socket: the kernel gives its share of the datagrams to the other processes that have the address.
    pub(super) fn close(&self, reactor: &Reactor) {
        for half in [&self.receiving, &self.sending] {
            if let Some(socket) = half.lock().0.take() {
                reactor.remove(&socket);
            }
        }
    }

    /// Receives the datagrams that have arrived, up to a batch. Empty if none have.
    pub(super) fn receive<'b>(&self, buffers: &'b mut Buffers) -> Vec<Incoming<'b>> {
        let mut meta = [RecvMeta::default(); BATCH];
        let received = {
            let mut chunks = buffers.0.chunks_exact_mut(BUFFER);
            let mut slices: [IoSliceMut<'_>; BATCH] =
                std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
            let socket = self.receiving.lock();
            let Some(socket) = &socket.0 else {
                return Vec::new();
            };
            // An error concerns one datagram (a signal, memory): the others are still queued.
            self.state
                .recv(socket.into(), &mut slices, &mut meta)
                .unwrap_or(0)
        };
        let mut datagrams = Vec::new();
        for (it, buffer) in meta[..received].iter().zip(buffers.0.chunks_exact(BUFFER)) {
            let all = &buffer[..it.len.min(BUFFER)];
            // The kernel coalesces only datagrams with the same bits.
            let incoming = |bytes| Incoming {
                from: it.addr,
                to: self.address,
                ecn: Ecn::from_codepoint(it.ecn),
                bytes,
            };
            if all.is_empty() {
                datagrams.push(incoming(all));
            }
            datagrams.extend(all.chunks(it.stride.max(1)).map(incoming));
        }
        datagrams
    }

    /// Sends `datagrams`, each of `each` bytes except the last, which may be shorter, with the congestion bits of the first one. The
    /// identification fields of their IPv4 headers are 0, 1, 2 and so on. Seals them if the port does.
    pub(super) fn send(&self, to: SocketAddr, datagrams: &[u8], each: usize) -> DatagramSent {
        let ecn = Ecn::of_packet(datagrams);
        let Some(seal) = &self.seal else {
            return self.send_marked(to, datagrams, each, ecn);
        };
        let count = datagrams.len().div_ceil(each.max(1));
        let mut sealed = Vec::with_capacity(datagrams.len() + count * seal::OVERHEAD);
        for datagram in datagrams.chunks(each.max(1)) {
            if !seal.seal(Kind::Packet, self.address, to, datagram, &mut sealed) {
                return DatagramSent::No;
            }
        }
        self.send_marked(to, &sealed, each + seal::OVERHEAD, ecn)
    }

    /// Sends one datagram that is sealed already, if the port seals.
    pub(super) fn send_as_is(&self, datagram: &Outgoing) -> DatagramSent {
        let bytes = &datagram.bytes;
        self.send_marked(datagram.to, bytes, bytes.len(), datagram.ecn)
    }

    fn send_marked(&self, to: SocketAddr, datagrams: &[u8], each: usize, ecn: Ecn) -> DatagramSent {
        let socket = self.sending.lock();
        let Some(socket) = &socket.0 else {
            return DatagramSent::No;
        };
        let transmit = Transmit {
            destination: to,
            ecn: ecn.codepoint(),
            contents: datagrams,
            segment_size: (each < datagrams.len()).then_some(each),
            src_ip: None,
        };
        match self.state.try_send(socket.into(), &transmit) {
            Ok(()) => DatagramSent::Yes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => DatagramSent::Busy,
            Err(error) => {
                tracing::debug!(%to, %error, "cannot send a datagram");
                DatagramSent::No
            }
        }
    }

    /// How many bytes each datagram has in addition to its packet.
    pub(super) fn overhead(&self) -> usize {
        seal::overhead(self.seal.is_some())
    }

    /// How many datagrams one call of [`Port::send`] may send.
    pub(super) fn max_datagrams(&self) -> usize {
        self.state.max_gso_segments().clamp(1, 64)
    }

    /// Waits briefly for room in the send buffer.
    pub(super) fn wait_for_room(&self) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let pause = Timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        let socket = self.sending.lock();
        if let Some(socket) = &socket.0 {
            let _ = poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&pause));
        }
    }
}
