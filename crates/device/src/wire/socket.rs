//! The UDP socket of one address. It needs no privileges.
//!
//! The socket is never bound to a wildcard address and never connected: with `IP_PMTUDISC_PROBE`, the identification field of its
//! IPv4 headers is then 0, which the invariant checksum requires (`rkey_roce::icrc`). All processes of a user share the address
//! (`SO_REUSEPORT`).

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rkey_roce::icrc;
use rkey_roce::packet::Mtu;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::datagram::{Incoming, Outgoing};
use super::refusals::{self, Cause, Refusals};
use super::seal::{self, Kind, Seal};
use super::{addresses, options};
use crate::cm::fork::{self, CloseInChild};
use crate::ecn::Ecn;
use crate::progress::reactor::Reactor;

/// The requested size of the receive buffer, in bytes. The kernel grants less if its limit (`net.core.rmem_max`) is lower.
const RECEIVE_BUFFER: usize = 4 << 20;
/// The requested size of the send buffer, in bytes.
const SEND_BUFFER: usize = 4 << 20;
/// How many datagrams one call may send, at most.
pub(super) const MAX_SEGMENTS: usize = 64;
/// How many buffers one call fills. Each holds as many datagrams as the kernel has coalesced.
pub(super) const BATCH: usize = 8;
/// The size of a buffer, in bytes: that of the longest datagram.
const BUFFER: usize = 1 << 16;

/// One descriptor of the socket, and what its half keeps. Receiving and sending use separate ones, so that neither waits for the other.
#[derive(Debug)]
struct Half<T> {
    socket: Option<OwnedFd>,
    state: UdpSocketState,
    others: T,
}

impl<T: Send> CloseInChild for Half<T> {
    fn close_in_child(&mut self) {
        self.socket = None;
    }
}

type Halves = (Arc<Mutex<Half<Offer>>>, Arc<Mutex<Half<Refusals>>>);

/// The socket of an address.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) address: SocketAddr,
    pub(super) interface: String,
    /// The path MTU when the socket was bound.
    first_mtu: Mtu,
    receiving: Arc<Mutex<Half<Offer>>>,
    sending: Arc<Mutex<Half<Refusals>>>,
    /// How many datagrams one system call may send.
    segments: AtomicUsize,
    seal: Option<Arc<Seal>>,
    /// Whether the wire's thread leaves the socket to the program's polls.
    pub(super) is_lent: AtomicBool,
}

/// Buffers for received datagrams, and what the kernel says about each of them.
pub(super) struct Buffers {
    bytes: Vec<u8>,
    meta: [RecvMeta; BATCH],
}

impl Buffers {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; BATCH * BUFFER],
            meta: [RecvMeta::default(); BATCH],
        }
    }
}

/// How many buffers the next call offers to the kernel: each costs time, even if nothing has arrived.
#[derive(Debug)]
struct Offer(usize);

impl Offer {
    fn received(&mut self, count: usize) {
        if count == self.0 {
            self.0 = BATCH;
        } else if count == 0 {
            self.0 = 1;
        }
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
            Ok((receiving, sending)) => {
                let segments = sending
                    .lock()
                    .state
                    .max_gso_segments()
                    .clamp(1, MAX_SEGMENTS);
                Ok(Self {
                    address,
                    interface,
                    first_mtu: mtu,
                    receiving,
                    sending,
                    segments: AtomicUsize::new(segments),
                    seal: seal.cloned(),
                    is_lent: AtomicBool::new(false),
                })
            }
            Err(error) if error.raw_os_error() == Some(Errno::ADDRINUSE.raw_os_error()) => {
                Err(format!(
                    "UDP port {} is taken by a program of another user or by the kernel's own RoCE device (rdma_rxe)",
                    icrc::PORT
                ))
            }
            Err(error) => Err(format!("cannot bind UDP port {}: {error}", icrc::PORT)),
        }
    }

    fn bind_socket(address: SocketAddr) -> io::Result<Halves> {
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
        let sending = rustix::io::fcntl_dupfd_cloexec(&socket, 0)?;
        let is_ipv4 = address.is_ipv4();
        let receiving = half(socket, is_ipv4, Offer(BATCH))?;
        let sending = half(sending, is_ipv4, Refusals::default())?;
        // Last: from here on, other hosts can reach the socket.
        if let Some(socket) = &receiving.lock().socket {
            rustix::net::bind(socket, &address)?;
        }
        Ok((receiving, sending))
    }

    /// The largest path MTU that fits the interface now. If the address has no interface at the moment, that of the last one.
    pub(super) fn mtu(&self) -> Mtu {
        let ip = self.address.ip();
        let now = addresses::interface_of(ip);
        let now =
            now.and_then(|(_, bytes)| addresses::fitting(bytes, ip.is_ipv4(), self.overhead()));
        now.unwrap_or(self.first_mtu)
    }

    /// Runs `with` on the receiving descriptor, unless it is closed.
    pub(super) fn with_socket<R>(&self, with: impl FnOnce(&OwnedFd) -> R) -> Option<R> {
        self.receiving.lock().socket.as_ref().map(with)
    }

    /// Closes the socket: the kernel gives its share of the datagrams to the other processes that have the address.
    pub(super) fn close(&self, reactor: &Reactor) {
        let halves = [
            self.receiving.lock().socket.take(),
            self.sending.lock().socket.take(),
        ];
        for socket in halves.into_iter().flatten() {
            reactor.remove(&socket);
        }
    }

    /// Receives the datagrams that have arrived, up to a batch. Empty if none have.
    pub(super) fn receive<'b>(
        &self,
        buffers: &'b mut Buffers,
    ) -> impl ExactSizeIterator<Item = Incoming<'b>> + use<'b> {
        let received = self.fill(buffers);
        let to = self.address;
        let filled = (buffers.meta[..received].iter()).zip(buffers.bytes.chunks_exact(BUFFER));
        // The kernel coalesces only datagrams with the same congestion bits. (Older ones may not look at them: then all have the first one's.)
        filled.map(move |(it, buffer)| Incoming {
            from: it.addr,
            to,
            ecn: Ecn::from_codepoint(it.ecn),
            bytes: &buffer[..it.len.min(BUFFER)],
            each: it.stride,
        })
    }

    /// Fills buffers with datagrams that have arrived. Returns how many buffers.
    fn fill(&self, buffers: &mut Buffers) -> usize {
        let mut half = self.receiving.lock();
        let Half {
            socket: Some(socket),
            state,
            others: offer,
        } = &mut *half
        else {
            return 0;
        };
        let mut slices: [IoSliceMut<'_>; BATCH] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let offered = buffers.bytes.chunks_exact_mut(BUFFER).take(offer.0);
        for (slice, buffer) in slices.iter_mut().zip(offered) {
            *slice = IoSliceMut::new(buffer);
        }
        let (slices, meta) = (&mut slices[..offer.0], &mut buffers.meta[..offer.0]);
        // An error concerns one datagram (a signal, memory): the others are still queued.
        let received = state.recv((&*socket).into(), slices, meta).unwrap_or(0);
        offer.received(received);
        received
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
        let mut half = self.sending.lock();
        let Half {
            socket: Some(socket),
            state,
            others: refusals,
        } = &mut *half
        else {
            return DatagramSent::No;
        };
        let transmit = Transmit {
            destination: to,
            ecn: ecn.codepoint(),
            contents: datagrams,
            segment_size: (each < datagrams.len()).then_some(each),
            src_ip: None,
        };
        let length = each.min(datagrams.len());
        let (from, to_ip) = (self.address.ip(), to.ip());
        match state.try_send((&*socket).into(), &transmit) {
            Ok(()) => {
                let refused = refusals.sent(to_ip, length);
                if let Some(refused) = refused {
                    refusals::log_end(from, to_ip, refused);
                }
                DatagramSent::Yes
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => DatagramSent::Busy,
            Err(error) => {
                let count = datagrams.len().div_ceil(length.max(1)) as u64;
                let now = crate::time::now();
                let reports = refusals.refused(now, to_ip, (length, count), &error);
                self.repair(&mut half, &error, now, (to, length), count > 1);
                if reports {
                    refusals::log(error, from, to, length);
                }
                DatagramSent::No
            }
        }
    }

    /// After some errors, `quinn-udp` neither marks datagrams as ECN-capable nor sends several at once, for ever. Reverses that, unless
    /// the interface cannot send several at once.
    fn repair(
        &self,
        half: &mut Half<Refusals>,
        error: &io::Error,
        now: Instant,
        (to, length): (SocketAddr, usize),
        is_segmented: bool,
    ) {
        let cannot_segment = match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::IO) => true,
            // A single datagram is not refused because the interface cannot send several at once.
            Some(Errno::INVAL) if !is_segmented => false,
            // Other threads wait in the meantime. Packets that are lost before the next look are sent again after it.
            Some(Errno::INVAL) => {
                half.others.may_look(now) && {
                    let cause = Cause::of(Errno::INVAL.into(), self.address.ip(), to, length);
                    matches!(cause, Cause::Other(_))
                }
            }
            _ => return,
        };
        if cannot_segment {
            self.segments.store(1, Ordering::Relaxed);
        }
        // Without new state, congestion goes unnoticed, but datagrams are sent.
        if let Some(socket) = &half.socket
            && let Ok(new) = new_state(socket, self.address.is_ipv4())
        {
            half.state = new;
        }
    }

    /// How many bytes each datagram has in addition to its packet.
    pub(super) fn overhead(&self) -> usize {
        seal::overhead(self.seal.is_some())
    }

    /// How many datagrams one call of [`Port::send`] may send.
    pub(super) fn max_datagrams(&self) -> usize {
        self.segments.load(Ordering::Relaxed)
    }

    /// Waits briefly for room in the send buffer.
    pub(super) fn wait_for_room(&self) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let pause = Timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        let half = self.sending.lock();
        if let Some(socket) = &half.socket {
            let _ = poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&pause));
        }
    }
}

fn half<T: Send + 'static>(
    socket: OwnedFd,
    is_ipv4: bool,
    others: T,
) -> io::Result<Arc<Mutex<Half<T>>>> {
    let half = Half {
        state: new_state(&socket, is_ipv4)?,
        socket: Some(socket),
        others,
    };
    let half = Arc::new(Mutex::new(half));
    fork::watch_last(&half);
    Ok(half)
}

/// Forbids fragmentation, lets the kernel segment and coalesce datagrams, and requests their congestion bits.
fn new_state(socket: &OwnedFd, is_ipv4: bool) -> io::Result<UdpSocketState> {
    let state = UdpSocketState::new(socket.into())?;
    options::report_only_congestion(socket.as_fd(), is_ipv4)?;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_later::tests::BlockedLog;
    use crate::wire::tests::{PATIENCE, address, wait_until};

    /// Sends a packet of a reliable connection from one port to the other. Returns the congestion bits with which it arrives.
    fn passes(from: &Port, to: &Port) -> Ecn {
        let packet = crate::wire::tests::packet(7, 1, b"data");
        assert_eq!(
            from.send(to.address, &packet, packet.len()),
            DatagramSent::Yes
        );
        let (mut buffers, mut arrived) = (Buffers::new(), None);
        wait_until(|| {
            arrived = to.receive(&mut buffers).next().map(|it| it.ecn);
            arrived.is_some()
        });
        arrived.unwrap()
    }

    #[test]
    fn after_a_refused_packet_later_ones_are_marked_and_sent_together() {
        let [from, to] = [(); 2].map(|()| Port::bind(address(), None).unwrap());
        let marks = passes(&from, &to);
        assert_ne!(
            marks,
            Ecn::default(),
            "packets of a reliable connection are marked"
        );
        let most = from.max_datagrams();
        // Longer than every datagram.
        let too_long = vec![0; 70_000];
        assert_eq!(from.send(to.address, &too_long, 70_000), DatagramSent::No);
        assert_eq!((passes(&from, &to), from.max_datagrams()), (marks, most));
        // For a reason that says nothing about the packets: there is no port 0.
        let nowhere = SocketAddr::new(to.address.ip(), 0);
        assert_eq!(from.send(nowhere, &[0; 300], 100), DatagramSent::No);
        assert_eq!((passes(&from, &to), from.max_datagrams()), (marks, 1));
    }

    /// Threads that send hold locks, and others wait for them.
    #[test]
    fn a_log_that_blocks_does_not_hold_up_packets() {
        let [from, to] = [(); 2].map(|()| Port::bind(address(), None).unwrap());
        let (log, pass, lines) = BlockedLog::new();
        tracing::subscriber::with_default(log, || {
            for words in ["cannot be sent", "can be sent again"] {
                // There is no port 0.
                let nowhere = SocketAddr::new(to.address.ip(), 0);
                match words {
                    "cannot be sent" => {
                        assert_eq!(from.send(nowhere, &[0; 100], 100), DatagramSent::No);
                    }
                    _ => assert_eq!(from.send(to.address, &[0; 100], 100), DatagramSent::Yes),
                }
                assert!(
                    lines.try_recv().is_err(),
                    "this thread has written: {words}"
                );
                pass.send(()).unwrap();
                let (thread, line) = lines.recv_timeout(PATIENCE).unwrap();
                assert!(line.contains(words), "{line}");
                assert_ne!(thread, std::thread::current().id());
            }
        });
    }

    #[test]
    fn the_path_mtu_is_that_of_the_interface_or_of_the_last_one() {
        let ip = address();
        let mut port = Port::bind(ip, None).unwrap();
        let mtu = port.mtu();
        assert!(mtu >= Mtu::Bytes1024);
        port.first_mtu = Mtu::Bytes256;
        assert_eq!(port.mtu(), mtu);
        port.address.set_ip([192, 0, 2, 7].into());
        assert_eq!(port.mtu(), Mtu::Bytes256);
    }
}
