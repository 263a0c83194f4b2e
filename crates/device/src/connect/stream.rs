//! TCP connections between the two sides of a handshake on different hosts. Afterwards, each side notices by its TCP connection that
//! the other has ended ([`crate::peers::streams`]).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_engine::WirePeer;
use rkey_roce::packet::Mtu;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt,
};

use super::frames::{BadLength, Frames};
use super::packet::{ConnectMessage, PEER_CLOSED, PacketRead, encode, parse};
use super::seal::{Ends, Forged, HandshakeSeal, Role};
use crate::config::WireKey;
use crate::error::DeviceError;
use crate::objects::event_queue::wait_until_ready;
use crate::wire::WirePath;

/// If a host is silent for this long, TCP keepalive probes check whether it still responds.
const IDLE: Duration = Duration::from_secs(10);
/// The number of unanswered TCP keepalive probes after which a host counts as ended, and the pause between two probes.
const PROBES: (u32, Duration) = (4, Duration::from_secs(3));

/// A TCP connection to the peer's host.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: OwnedFd,
    path: NetworkPath,
    received: Mutex<Frames>,
    /// With `RKEY_WIRE_KEY`: seals and opens the packets.
    seal: Option<Mutex<HandshakeSeal>>,
}

/// The packets of a peer are not sealed with our key.
const NO_KEY: DeviceError = DeviceError::Handshake(
    "the other program does not have this program's key: set RKEY_WIRE_KEY to the same secret for both",
);

/// The packets of a peer are not ours, and we have no key.
const NOT_OURS: DeviceError = DeviceError::Handshake(
    "the peer does not use rkey's connection protocol, or it has RKEY_WIRE_KEY set, which this program does not",
);

/// The path between the hosts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkPath {
    pub(crate) peer: WirePeer,
    /// The largest path MTU that our side allows.
    pub(crate) mtu: Mtu,
    /// Whether both sides use selective retransmission.
    pub(crate) selective: bool,
}

impl Stream {
    /// Wraps a connected socket. `port` is the acceptor's. If there is a key, packets are sealed.
    pub(super) fn new(
        socket: OwnedFd,
        path: NetworkPath,
        key: Option<&WireKey>,
        role: Role,
        port: u16,
    ) -> Result<Arc<Self>, DeviceError> {
        watch_host(&socket).map_err(DeviceError::io("configuring a TCP connection"))?;
        let WirePeer { local, remote } = path.peer;
        let (initiator, acceptor) = match role {
            Role::Initiator => (local, remote),
            Role::Acceptor => (remote, local),
        };
        let ends = Ends {
            initiator,
            acceptor: SocketAddr::new(acceptor, port),
        };
        let seal = key
            .map(|key| HandshakeSeal::new(key, role, ends))
            .transpose();
        let seal = seal.map_err(DeviceError::io("preparing to encrypt a connection"))?;
        Ok(Arc::new(Self {
            socket,
            path,
            received: Mutex::default(),
            seal: seal.map(Mutex::new),
        }))
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(crate) fn path(&self) -> NetworkPath {
        self.path
    }

    /// Resets the connection: unlike after an orderly end, a peer that has sent a request meanwhile knows that it was not read.
    pub(super) fn reset(&self) {
        // If this fails, the connection ends in order.
        let _ = sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
    }

    /// Sends an encoded packet.
    ///
    /// # Errors
    /// The peer has closed the connection, or does not read it.
    pub(crate) fn send(&self, packet: &[u8]) -> Result<(), DeviceError> {
        // Locked until the packet is in the socket: sealed packets are numbered.
        let mut seal = self.seal.as_ref().map(Mutex::lock);
        let frame = match &mut seal {
            Some(seal) => {
                let sealed = seal.seal(packet).ok_or(PEER_CLOSED)?;
                Frames::frame(&sealed)
            }
            None => Frames::frame(packet),
        };
        let Some(frame) = frame else {
            return Err(DeviceError::Handshake("the packet to send is too long"));
        };
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = rustix::net::send(&self.socket, &frame, flags);
        if seal.is_some() && sent != Ok(frame.len()) {
            // The peer would refuse the packets that follow the one that it does not get.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        }
        match sent {
            Ok(sent) if sent == frame.len() => Ok(()),
            // The packets of a handshake fit into the socket's buffer, unless the peer reads none.
            Ok(_) | Err(Errno::AGAIN) => {
                Err(DeviceError::Handshake("the peer does not read its socket"))
            }
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(PEER_CLOSED),
            Err(error) => Err(DeviceError::io("sending to the peer")(error)),
        }
    }

    /// The next packet, if it has arrived.
    ///
    /// # Errors
    /// The peer violates the protocol, or the system cannot read.
    pub(crate) fn read(&self) -> Result<PacketRead, DeviceError> {
        let mut frames = self.received.lock();
        loop {
            let next = frames.next().map_err(|BadLength| {
                DeviceError::Handshake("the peer does not use rkey's connection protocol")
            })?;
            if let Some(packet) = next {
                let packet = match &self.seal {
                    Some(seal) => {
                        let opened = seal.lock().open(&packet);
                        opened.map_err(|Forged| self.refuse_key())?
                    }
                    None => packet,
                };
                return match parse(&packet) {
                    Err(DeviceError::Handshake(_)) if self.seal.is_none() => Err(NOT_OURS),
                    parsed => parsed.map(PacketRead::Packet),
                };
            }
            let mut buffer = [0u8; 2048];
            match rustix::net::recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Ok(PacketRead::Closed),
                Ok((_, len)) => frames.add(buffer.get(..len).unwrap_or_default()),
                Err(Errno::CONNRESET) => return Ok(PacketRead::Reset),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(PacketRead::Nothing),
                Err(error) => return Err(DeviceError::io("receiving from the peer")(error)),
            }
        }
    }
}

impl Stream {
    /// Tells a client that it does not have our key. Without the key, it cannot read the reason, but it gets an answer that it
    /// cannot read.
    fn refuse_key(&self) -> DeviceError {
        let is_acceptor = |seal: &Mutex<HandshakeSeal>| seal.lock().role() == Role::Acceptor;
        if self.seal.as_ref().is_some_and(is_acceptor) {
            tracing::debug!(peer = %self.path.peer.remote, "refused a connection: {NO_KEY}");
            let _ = self.send(&encode(&ConnectMessage::Rejected(String::new())));
        }
        NO_KEY
    }
}

/// Makes the connection end some time after the other host has ended or is no longer reachable.
fn watch_host(socket: &OwnedFd) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    // For bytes that the other host has not acknowledged: these suspend the questions.
    let most = IDLE + PROBES.1 * PROBES.0;
    sockopt::set_tcp_user_timeout(socket, u32::try_from(most.as_millis()).unwrap_or(u32::MAX))?;
    sockopt::set_tcp_keepidle(socket, IDLE)?;
    sockopt::set_tcp_keepintvl(socket, PROBES.1)?;
    sockopt::set_tcp_keepcnt(socket, PROBES.0)?;
    sockopt::set_socket_keepalive(socket, true)
}

/// A TCP connection that is being made.
#[derive(Debug)]
pub(super) struct Dialling {
    socket: OwnedFd,
    path: NetworkPath,
    /// The port of the listener.
    port: u16,
}

/// How far a TCP connection has come.
pub(super) enum Progress {
    /// The other host has not answered yet.
    Pending(Dialling),
    Connected(Arc<Stream>),
    /// No program listens there.
    Refused,
}

impl Dialling {
    /// Begins a connection to a port of another host. `None` if no program listens there.
    ///
    /// # Errors
    /// The system does not reach the host.
    pub(super) fn begin(path: WirePath, to: SocketAddr) -> Result<Option<Self>, DeviceError> {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        let socket = new_socket(to.ip())?;
        let begun = rustix::net::bind(&socket, &SocketAddr::new(path.local, 0))
            .and_then(|()| rustix::net::connect(&socket, &to));
        match begun {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) if is_absence(error) => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        let peer = WirePeer {
            local: path.local,
            remote: to.ip(),
        };
        let mtu = path.mtu;
        let path = NetworkPath {
            peer,
            mtu,
            selective: true,
        };
        let port = to.port();
        Ok(Some(Self { socket, path, port }))
    }

    /// Waits for the answer until `until`. If there is a key, packets of the connection are sealed.
    ///
    /// # Errors
    /// The system does not reach the host.
    pub(super) fn outcome(
        self,
        until: Option<Instant>,
        key: Option<&WireKey>,
    ) -> Result<Progress, DeviceError> {
        if !wait_until_ready(self.socket.as_fd(), PollFlags::OUT, until)? {
            return Ok(Progress::Pending(self));
        }
        match sockopt::socket_error(&self.socket).map_err(failed)? {
            Ok(()) => Stream::new(self.socket, self.path, key, Role::Initiator, self.port)
                .map(Progress::Connected),
            Err(error) if is_absence(error) => Ok(Progress::Refused),
            Err(error) => Err(failed(error)),
        }
    }
}

/// Whether the error can mean that the host or the program has not started yet, or has just ended.
fn is_absence(error: Errno) -> bool {
    matches!(
        error,
        Errno::CONNREFUSED
            | Errno::CONNRESET
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
            | Errno::TIMEDOUT
    )
}

fn failed(error: Errno) -> DeviceError {
    DeviceError::io("connecting to another host")(error)
}

/// Connects to a port of another host, waiting until `until` for its answer. `None` if no program listens there, or the time is over.
///
/// # Errors
/// The system does not reach the host.
pub(super) fn connect(
    path: WirePath,
    to: SocketAddr,
    until: Option<Instant>,
    key: Option<&WireKey>,
) -> Result<Option<Arc<Stream>>, DeviceError> {
    let Some(dialling) = Dialling::begin(path, to)? else {
        return Ok(None);
    };
    Ok(match dialling.outcome(until, key)? {
        Progress::Connected(stream) => Some(stream),
        Progress::Pending(_) | Progress::Refused => None,
    })
}

/// A TCP socket with an address of this host. `None` if another program has the port.
pub(super) fn bind(address: SocketAddr) -> Result<Option<OwnedFd>, DeviceError> {
    let io = DeviceError::io("listening for other hosts");
    let socket = new_socket(address.ip())?;
    // As every server does: the port is free at once when the previous server has ended.
    sockopt::set_socket_reuseaddr(&socket, true)
        .map_err(DeviceError::io("listening for other hosts"))?;
    match rustix::net::bind(&socket, &address) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(error) => Err(io(error)),
    }
}

fn new_socket(ip: IpAddr) -> Result<OwnedFd, DeviceError> {
    let family = match ip {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None)
        .map_err(DeviceError::io("creating a socket"))
}

/// Both ends of a TCP connection of this host, the acceptor's first.
#[cfg(test)]
pub(crate) fn pair() -> (Arc<Stream>, Arc<Stream>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let theirs = std::net::TcpStream::connect(to).unwrap();
    let (ours, from) = listener.accept().unwrap();
    let end = |socket: std::net::TcpStream, role, remote: SocketAddr| {
        socket.set_nonblocking(true).unwrap();
        let path = NetworkPath {
            peer: WirePeer {
                local: to.ip(),
                remote: remote.ip(),
            },
            mtu: Mtu::Bytes1024,
            selective: true,
        };
        Stream::new(socket.into(), path, None, role, to.port()).unwrap()
    };
    (
        end(ours, Role::Acceptor, from),
        end(theirs, Role::Initiator, to),
    )
}
