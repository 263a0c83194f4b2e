//! Connecting queue pairs by address: listen, accept, connect.
//!
//! The calls here run in the program's own threads, over an abstract Unix socket named after the
//! address ([`crate::names`]). Both sides tell their device, queue pair numbers, first message
//! numbers and up to [`PRIVATE_DATA_MAX`] bytes of the program's own, in three packets:
//! `Request` (connector), `Reply` (acceptor, whose queue pairs are ready by then) and `Ready`
//! (connector, whose queue pairs are ready by then). Neither side returns before both are ready,
//! so the first message can never meet a queue pair that is not.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_link::NodeId;
use rkey_link::shm::peer_credentials;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::channel::wait_readable;
use crate::device::Device;
use crate::error::DeviceError;
use crate::names::{self, Scope};
use crate::qp::Qp;

/// The most private data that one side can give along, in bytes.
pub const PRIVATE_DATA_MAX: usize = 4096;
/// The most queue pairs that one connection can pair.
pub const QPS_MAX: usize = 64;
/// The first bytes of every packet; the digit is the version of the protocol.
const MAGIC: &[u8; 8] = b"rkeyCON1";
/// No packet of the protocol is longer.
const PACKET_MAX: usize = 8192;
/// The most clients that may be in the middle of saying what they want.
const HALF_OPEN_MAX: usize = 64;
/// How long a client may take to say what it wants.
const HALF_OPEN_TIME: Duration = Duration::from_secs(1);
/// How often a listener is asked who it is, while it takes no more clients.
const LISTENER_TRIES: u32 = 50;
/// Shortest and longest pause between two attempts to find a listener.
const RETRY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// One queue pair as its peer has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpAddress {
    /// Its number.
    pub qpn: u32,
    /// The number of the first message that it will send.
    pub msn: u32,
}

/// What one side tells about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Side {
    node: NodeId,
    qps: Vec<QpAddress>,
    private_data: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Packet {
    Request(Side),
    Accepted(Side),
    Rejected(String),
    Ready,
}

/// The other side of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its device.
    pub node: NodeId,
    /// Its user id, as the kernel tells it.
    pub uid: u32,
    /// Its process id, as the kernel tells it (0: in a process namespace that we do not see).
    pub pid: u32,
    /// Its queue pairs, in the order of ours.
    pub qps: Vec<QpAddress>,
    /// What its program gave along.
    pub private_data: Vec<u8>,
}

/// A place where other processes of this host can ask for a connection.
#[derive(Debug)]
pub struct Listener {
    device: Device,
    socket: Arc<OwnedFd>,
    address: SocketAddr,
    half_open: Mutex<Vec<(OwnedFd, Instant)>>,
}

impl Device {
    /// Listens at an address of this host (port 0: any free port, see
    /// [`Listener::local_address`]).
    ///
    /// # Errors
    /// [`DeviceError::NotThisHost`], [`DeviceError::AddressInUse`].
    pub fn listen(&self, address: SocketAddr) -> Result<Listener, DeviceError> {
        self.check()?;
        if !names::is_of_this_host(address.ip()) {
            return Err(DeviceError::NotThisHost { address });
        }
        let (socket, address) = match address.port() {
            0 => bind_free_port(self.scope(), address)?,
            _ => (
                bind(self.scope(), address)?.ok_or(DeviceError::AddressInUse { address })?,
                address,
            ),
        };
        rustix::net::listen(&socket, 128).map_err(DeviceError::io("listening"))?;
        let socket = Arc::new(socket);
        self.shared().add_listener(&socket);
        Ok(Listener {
            device: self.clone(),
            socket,
            address,
            half_open: Mutex::new(Vec::new()),
        })
    }

    /// Connects queue pairs of ours with as many of the program that listens at `address`,
    /// waiting up to `timeout` for it to appear and to accept. The queue pairs are in state RTS
    /// afterwards; those in state RESET go there with all remote rights, those in INIT keep theirs.
    ///
    /// # Errors
    /// [`DeviceError::NotThisHost`], [`DeviceError::NobodyListens`], [`DeviceError::Refused`],
    /// [`DeviceError::OtherUser`], [`DeviceError::TimedOut`], and what changing the queue pairs
    /// may answer. The queue pairs may then be in any state: destroy them.
    pub fn connect(
        &self,
        address: SocketAddr,
        qps: &[&Qp],
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<Peer, DeviceError> {
        self.check()?;
        if !names::is_of_this_host(address.ip()) {
            return Err(DeviceError::NotThisHost { address });
        }
        let request = Packet::Request(self.side(qps, private_data)?);
        let deadline = Deadline::after("the connection", timeout);
        let (socket, uid, pid) = dial(self.scope(), address, &deadline)?;
        send(&socket, &request)?;
        let side = match receive(&socket, &deadline)? {
            Packet::Accepted(side) => side,
            Packet::Rejected(reason) => {
                return Err(DeviceError::Refused {
                    reason: printable(&reason),
                });
            }
            _ => return Err(DeviceError::Handshake("the peer answered out of turn")),
        };
        if side.qps.len() != qps.len() {
            return Err(DeviceError::Handshake(
                "the peer paired another number of queue pairs",
            ));
        }
        self.shared().check_identity(side.node, uid, pid)?;
        for (ours, theirs) in qps.iter().zip(&side.qps) {
            ours.connect(side.node, *theirs)?;
        }
        send(&socket, &Packet::Ready)?;
        Ok(Peer {
            node: side.node,
            uid,
            pid: pid.unwrap_or(0),
            qps: side.qps,
            private_data: side.private_data,
        })
    }

    fn side(&self, qps: &[&Qp], private_data: &[u8]) -> Result<Side, DeviceError> {
        check_len("private data", private_data.len(), PRIVATE_DATA_MAX)?;
        check_len("the list of queue pairs", qps.len(), QPS_MAX)?;
        Ok(Side {
            node: self.node(),
            qps: qps.iter().map(|qp| qp.address()).collect(),
            private_data: private_data.to_vec(),
        })
    }
}

impl Listener {
    /// The address that peers have to give.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next request of a peer; without a time for ever.
    ///
    /// Clients that are not allowed, say nothing or talk nonsense are dropped here without
    /// troubling the caller, and without holding up the others.
    ///
    /// # Errors
    /// [`DeviceError::TimedOut`], [`DeviceError::Failed`], or the socket failed.
    pub fn accept(&self, timeout: Option<Duration>) -> Result<Incoming, DeviceError> {
        let started = Instant::now();
        let deadline = timeout.and_then(|t| started.checked_add(t));
        loop {
            self.device.check()?;
            if let Some(incoming) = self.take()? {
                return Ok(incoming);
            }
            if deadline.is_some_and(|d| d <= Instant::now()) {
                return Err(DeviceError::TimedOut {
                    what: "a connection request",
                    after: started.elapsed(),
                });
            }
            self.wait(deadline)?;
        }
    }

    /// The next request of a peer if there is one now, for a program that waits on its own: until
    /// [`Listener::socket`] is readable, and while [`Listener::has_half_open`] for a millisecond at most.
    ///
    /// # Errors
    /// The socket failed.
    pub fn try_accept(&self) -> Result<Option<Incoming>, DeviceError> {
        self.device.check()?;
        self.take()
    }

    /// The descriptor that is readable when a client has come. For `poll` and its kin only.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether a client has come that has not said what it wants.
    #[must_use]
    pub fn has_half_open(&self) -> bool {
        !self.half_open.lock().is_empty()
    }

    /// One round over the new and the half-open clients: the first that has asked properly.
    fn take(&self) -> Result<Option<Incoming>, DeviceError> {
        let mut half_open = self.half_open.lock();
        while half_open.len() < HALF_OPEN_MAX {
            match rustix::net::accept_with(
                &*self.socket,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            ) {
                Ok(client) => half_open.push((client, Instant::now() + HALF_OPEN_TIME)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Err(DeviceError::io("accepting a connection")(error)),
            }
        }
        let mut index = 0;
        while index < half_open.len() {
            match try_receive(&half_open[index].0) {
                Ok(None) if half_open[index].1 > Instant::now() => index += 1,
                Ok(None) => drop(half_open.swap_remove(index)),
                Ok(Some(Packet::Request(side))) => {
                    let (socket, _) = half_open.swap_remove(index);
                    if let Some(incoming) = self.admit(socket, side) {
                        return Ok(Some(incoming));
                    }
                }
                Ok(Some(_)) | Err(_) => {
                    tracing::debug!(address = %self.address, "dropped a client that talks nonsense");
                    half_open.swap_remove(index);
                }
            }
        }
        Ok(None)
    }

    /// Checks who asks.
    fn admit(&self, socket: OwnedFd, side: Side) -> Option<Incoming> {
        let credentials = peer_credentials(&socket).ok()?;
        let uid = credentials.uid;
        if !self.device.scope().admits(uid) {
            tracing::info!(uid, "dropped a client of another user");
            return None;
        }
        let ok = side.qps.len() <= QPS_MAX
            && side.private_data.len() <= PRIVATE_DATA_MAX
            && self
                .device
                .shared()
                .check_identity(side.node, uid, credentials.pid)
                .is_ok();
        ok.then(|| Incoming {
            device: self.device.clone(),
            socket,
            peer: Peer {
                node: side.node,
                uid,
                pid: credentials.pid.unwrap_or(0),
                qps: side.qps,
                private_data: side.private_data,
            },
        })
    }

    /// Waits until a client does something or the next half-open one has to go.
    fn wait(&self, deadline: Option<Instant>) -> Result<(), DeviceError> {
        let half_open = self.half_open.lock();
        let next = half_open
            .iter()
            .map(|(_, until)| *until)
            .chain(deadline)
            .min();
        if half_open.is_empty() {
            drop(half_open);
            wait_readable(self.socket.as_fd(), next)?;
        } else {
            // A short nap instead of a set of descriptors: half-open clients are rare, and speak
            // within microseconds when they are honest.
            drop(half_open);
            let nap = Duration::from_millis(1);
            wait_readable(self.socket.as_fd(), Some(Instant::now() + nap))?;
        }
        Ok(())
    }
}

/// A peer that asked for a connection and waits for the answer.
#[derive(Debug)]
pub struct Incoming {
    device: Device,
    socket: OwnedFd,
    peer: Peer,
}

impl Incoming {
    /// Who asks, with which queue pairs and private data.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Connects queue pairs of ours (as many as the peer has, in the same order) and tells the
    /// peer. They are in state RTS afterwards, and the peer's too.
    ///
    /// # Errors
    /// The number differs, the peer went away, or the queue pairs could not be changed; the peer
    /// then gets an error too. The queue pairs may be in any state: destroy them.
    pub fn accept(self, qps: &[&Qp], private_data: &[u8]) -> Result<Peer, DeviceError> {
        let accepting = self.answer(qps, private_data)?;
        receive_ready(&accepting)?;
        Ok(accepting.peer)
    }

    /// The first half of [`Incoming::accept`], which does not wait for the peer.
    ///
    /// # Errors
    /// As there.
    pub fn answer(self, qps: &[&Qp], private_data: &[u8]) -> Result<Accepting, DeviceError> {
        let side = self.device.side(qps, private_data)?;
        if qps.len() != self.peer.qps.len() {
            let _ = send(
                &self.socket,
                &Packet::Rejected("another number of queue pairs".into()),
            );
            return Err(DeviceError::Handshake(
                "the peer brings another number of queue pairs",
            ));
        }
        for (ours, theirs) in qps.iter().zip(&self.peer.qps) {
            ours.connect(self.peer.node, *theirs)?;
        }
        send(&self.socket, &Packet::Accepted(side))?;
        let timeout = self.device.config().connect_timeout;
        Ok(Accepting {
            socket: self.socket,
            peer: self.peer,
            deadline: Deadline::after("the connection", timeout),
        })
    }

    /// Whether the process that asks also listens at an address, as the kernel knows it: what a program says
    /// about itself may be somebody else's address. Among the processes of one user it is taken as true.
    #[must_use]
    pub fn listens_at(&self, address: SocketAddr) -> bool {
        let scope = self.device.scope();
        if let Scope::User(_) = scope {
            return true;
        }
        // A process number of 0 is one that we do not see; then the user decides.
        let same = |uid: u32, pid: Option<u32>| {
            let seen = pid.filter(|_| self.peer.pid != 0);
            uid == self.peer.uid && seen.is_none_or(|pid| pid == self.peer.pid)
        };
        let names = names::candidates(scope, address);
        names.iter().any(|name| {
            let who = names::abstract_address(name).and_then(|name| listener(&name));
            who.is_ok_and(|who| same(who.uid, who.pid))
        })
    }

    /// Refuses, and tells the peer why.
    pub fn reject(self, reason: &str) {
        let reason: String = reason.chars().take(512).collect();
        let _ = send(&self.socket, &Packet::Rejected(reason));
    }
}

/// A connection that is accepted here: the peer has yet to say that it is ready.
#[derive(Debug)]
pub struct Accepting {
    socket: OwnedFd,
    peer: Peer,
    deadline: Deadline,
}

impl Accepting {
    /// Readable when the peer has answered or gone.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the peer is ready. Never waits.
    ///
    /// # Errors
    /// The peer went away, or its time is over; the queue pairs may be in any state: destroy them.
    pub fn is_ready(&self) -> Result<bool, DeviceError> {
        match try_receive(&self.socket)? {
            Some(Packet::Ready) => Ok(true),
            Some(_) => Err(DeviceError::Handshake("the peer answered out of turn")),
            None => self.deadline.remaining().map(|_| false),
        }
    }
}

/// Waits until the peer is ready.
fn receive_ready(accepting: &Accepting) -> Result<(), DeviceError> {
    while !accepting.is_ready()? {
        let until = Instant::now() + accepting.deadline.remaining()?;
        wait_readable(accepting.socket(), Some(until))?;
    }
    Ok(())
}

/// A point in time, and what is to have happened by then.
#[derive(Debug)]
struct Deadline {
    what: &'static str,
    started: Instant,
    timeout: Duration,
}

impl Deadline {
    fn after(what: &'static str, timeout: Duration) -> Self {
        Self {
            what,
            started: Instant::now(),
            timeout,
        }
    }

    fn remaining(&self) -> Result<Duration, DeviceError> {
        match self.timeout.checked_sub(self.started.elapsed()) {
            Some(left) if !left.is_zero() => Ok(left),
            _ => Err(DeviceError::TimedOut {
                what: self.what,
                after: self.timeout,
            }),
        }
    }
}

/// A socket bound to the name of an address; `None` if the name is taken.
fn bind(scope: Scope, address: SocketAddr) -> Result<Option<OwnedFd>, DeviceError> {
    let socket = new_socket()?;
    let name = names::abstract_address(&names::listen_name(scope, address))
        .map_err(DeviceError::io("naming a listener"))?;
    match rustix::net::bind(&socket, &name) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(error) => Err(DeviceError::io("binding a listener")(error)),
    }
}

/// Binds a port of the range that is customary for this (49152 to 65535), from a random start.
fn bind_free_port(scope: Scope, address: SocketAddr) -> Result<(OwnedFd, SocketAddr), DeviceError> {
    let start = getrandom::u32()
        .map_err(|e| DeviceError::io("choosing a port")(std::io::Error::other(e)))?;
    for step in 0..16384u32 {
        let port = 49152 + (start.wrapping_add(step) % 16384) as u16;
        let address = SocketAddr::new(address.ip(), port);
        if let Some(socket) = bind(scope, address)? {
            return Ok((socket, address));
        }
    }
    Err(DeviceError::AddressInUse { address })
}

/// Who listens at a name. The listener sees a client that goes again.
fn listener(name: &rustix::net::SocketAddrUnix) -> std::io::Result<rkey_link::shm::Credentials> {
    let socket = new_socket().map_err(std::io::Error::other)?;
    let mut tries = 0;
    loop {
        match rustix::net::connect(&socket, name) {
            Ok(()) => return peer_credentials(&socket),
            // More clients wait than it takes.
            Err(Errno::AGAIN | Errno::INTR) if tries < LISTENER_TRIES => {
                tries += 1;
                std::thread::sleep(RETRY.0);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reaches whoever listens at an address, trying until the deadline.
fn dial(
    scope: Scope,
    address: SocketAddr,
    deadline: &Deadline,
) -> Result<(OwnedFd, u32, Option<u32>), DeviceError> {
    let names = names::candidates(scope, address);
    let mut pause = RETRY.0;
    loop {
        for name in &names {
            let name =
                names::abstract_address(name).map_err(DeviceError::io("naming a listener"))?;
            let socket = new_socket()?;
            match rustix::net::connect(&socket, &name) {
                Ok(()) => {
                    let credentials =
                        peer_credentials(&socket).map_err(DeviceError::io("asking who listens"))?;
                    let uid = credentials.uid;
                    if !scope.admits(uid) {
                        return Err(DeviceError::OtherUser { uid });
                    }
                    return Ok((socket, uid, credentials.pid));
                }
                // Not there, or (AGAIN) more clients wait than it takes.
                Err(Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(DeviceError::io("connecting")(error)),
            }
        }
        let Ok(left) = deadline.remaining() else {
            return Err(DeviceError::NobodyListens {
                address,
                waited: deadline.timeout,
                hint: "start the listener first; it has to be of the same user and in the same network namespace",
            });
        };
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(RETRY.1);
    }
}

fn new_socket() -> Result<OwnedFd, DeviceError> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(DeviceError::io("creating a socket"))
}

fn send(socket: &OwnedFd, packet: &Packet) -> Result<(), DeviceError> {
    let bytes = encode(packet);
    match rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(_) => Ok(()),
        Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
            Err(DeviceError::Handshake("the peer went away"))
        }
        Err(error) => Err(DeviceError::io("talking to the peer")(error)),
    }
}

/// The next packet, waiting for it.
fn receive(socket: &OwnedFd, deadline: &Deadline) -> Result<Packet, DeviceError> {
    loop {
        if let Some(packet) = try_receive(socket)? {
            return Ok(packet);
        }
        let until = Instant::now() + deadline.remaining()?;
        wait_readable(socket.as_fd(), Some(until))?;
    }
}

/// The next packet if it is there.
fn try_receive(socket: &OwnedFd) -> Result<Option<Packet>, DeviceError> {
    let mut buffer = [0u8; PACKET_MAX];
    match rustix::net::recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
        Ok((_, 0)) | Err(Errno::CONNRESET) => Err(DeviceError::Handshake("the peer went away")),
        Ok((_, len)) => match buffer.get(..len).and_then(decode) {
            Some(packet) => Ok(Some(packet)),
            None => Err(DeviceError::Handshake("the peer speaks another language")),
        },
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(DeviceError::io("listening to the peer")(error)),
    }
}

fn encode(packet: &Packet) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    // Writing plain data into a Vec cannot fail.
    if let Ok(body) = postcard::to_stdvec(packet) {
        bytes.extend_from_slice(&body);
    }
    bytes
}

fn decode(bytes: &[u8]) -> Option<Packet> {
    let (packet, rest) = postcard::take_from_bytes(bytes.strip_prefix(MAGIC)?).ok()?;
    rest.is_empty().then_some(packet)
}

fn check_len(what: &'static str, len: usize, max: usize) -> Result<(), DeviceError> {
    if len > max {
        return Err(DeviceError::TooLong { what, len, max });
    }
    Ok(())
}

/// What a peer said, made safe to print.
fn printable(text: &str) -> String {
    text.chars()
        .take(512)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// Whether bytes are a packet of the protocol; for fuzzing.
pub(crate) fn decodes(bytes: &[u8]) -> bool {
    decode(bytes).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_survive_the_way() {
        let side = Side {
            node: NodeId {
                pid: 7,
                nonce: u64::MAX,
            },
            qps: vec![
                QpAddress {
                    qpn: 0x123456,
                    msn: 9
                };
                QPS_MAX
            ],
            private_data: vec![0xa5; PRIVATE_DATA_MAX],
        };
        for packet in [
            Packet::Request(side.clone()),
            Packet::Accepted(side),
            Packet::Rejected("no".into()),
            Packet::Ready,
        ] {
            let bytes = encode(&packet);
            assert!(bytes.len() <= PACKET_MAX);
            assert_eq!(decode(&bytes), Some(packet));
        }
    }

    #[test]
    fn nonsense_is_not_a_packet() {
        assert_eq!(decode(b""), None);
        assert_eq!(decode(b"GET / HTTP/1.1"), None);
        let mut bytes = encode(&Packet::Ready);
        bytes.push(0);
        assert_eq!(decode(&bytes), None);
        // A length that promises more than there is.
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&[0, 1, 1, 0xff, 0xff, 0xff, 0xff, 0x0f]);
        assert_eq!(decode(&bytes), None);
    }

    #[test]
    fn what_a_peer_says_is_safe_to_print() {
        assert_eq!(printable("no\x1b[2J\nroom"), "no [2J room");
    }
}
