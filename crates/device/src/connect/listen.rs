//! Listeners, incoming connection requests, and the answers to them.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_engine::Process;
use rkey_link::peer::{Credentials, peer_credentials};

use super::channel::Channel;
use super::entrance::{Clients, Entrance, Hosts, accepted_local, accepted_remote};
use super::packet::{ConnectMessage, Introduction, PathTerms};
use super::socket::listener;
use super::stream::NetworkPath;
use super::{Deadline, Peer, agreed, connect_all};
use crate::device::Device;
use crate::error::DeviceError;
use crate::objects::event_queue::wait_readable;
use crate::objects::qp::Qp;
use crate::peers::link_limits::{StreamFile, refuses_stream};
use crate::peers::names::{self, Scope};

/// How long a peer may take to become ready after our answer if the program does not wait: the peer may be short of processor
/// time.
const READY_TIME: Duration = Duration::from_secs(20);

/// An address at which other processes can request a connection.
#[derive(Debug)]
pub struct Listener {
    pub(super) device: Device,
    pub(super) socket: Arc<OwnedFd>,
    pub(super) address: SocketAddr,
    /// Clients of the Unix socket.
    pub(super) local: Entrance,
    /// The TCP sockets for other hosts.
    pub(super) hosts: Option<Hosts>,
    /// Whether a client of another version has already been logged.
    pub(super) version_logged: AtomicBool,
}

impl Listener {
    /// The address to which peers connect.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Waits up to `timeout` (`None`: without limit) for the next connection request.
    ///
    /// Clients that are not allowed, stay silent or violate the protocol are dropped. The caller does not notice them, and
    /// other clients do not wait for them.
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

    /// The next connection request if there is one now. A program that does its own waiting calls this when
    /// [`Listener::socket`] is readable, and every millisecond while [`Listener::has_half_open`] returns `true`.
    ///
    /// # Errors
    /// The socket failed.
    pub fn try_accept(&self) -> Result<Option<Incoming>, DeviceError> {
        self.device.check()?;
        self.take()
    }

    /// The descriptor that is readable when a client has connected. Only for `poll` and similar calls.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        match &self.hosts {
            Some(hosts) => hosts.watch.as_fd(),
            None => self.socket.as_fd(),
        }
    }

    /// Whether an accepted client has not sent its request yet.
    #[must_use]
    pub fn has_half_open(&self) -> bool {
        self.entrances().any(|it| !it.clients.lock().is_empty())
    }

    fn entrances(&self) -> impl Iterator<Item = &Entrance> {
        let remote = self.hosts.as_ref().map(|hosts| &hosts.entrance);
        std::iter::once(&self.local).chain(remote)
    }

    /// One round over the new and the half-open clients. Returns the first complete request.
    fn take(&self) -> Result<Option<Incoming>, DeviceError> {
        let next = |clients: &mut Clients| self.first_request(clients);
        let incoming = self.local.round(accepted_local, next)?;
        if incoming.is_some() {
            return Ok(incoming);
        }
        let (Some(hosts), Some(wire)) = (&self.hosts, self.device.wire()) else {
            return Ok(None);
        };
        let accepted = |socket| accepted_remote(wire, self.device.wire_key(), socket);
        hosts.entrance.round(accepted, next)
    }

    /// The first complete request of a half-open client. Drops clients that violate the protocol or stay silent for too long.
    fn first_request(&self, half_open: &mut Clients) -> Option<Incoming> {
        let mut index = 0;
        while index < half_open.len() {
            match half_open[index].try_receive() {
                Ok(None) if !half_open.is_overdue(index, Instant::now()) => index += 1,
                Ok(None) => half_open.remove(index).drop_silent(),
                Ok(Some(ConnectMessage::Request(side))) => {
                    let channel = half_open.remove(index);
                    if let Some(incoming) = self.admit(channel, side) {
                        return Some(incoming);
                    }
                }
                Err(error @ DeviceError::Version { .. }) => {
                    let channel = half_open.remove(index);
                    // Every packet carries our version.
                    let words = "the two sides run different versions of rkey".to_owned();
                    let _ = channel.send(&ConnectMessage::Rejected(words));
                    let peer = name_of(&channel);
                    if !self.version_logged.swap(true, Ordering::Relaxed) {
                        tracing::warn!(address = %self.address, peer, %error, "refused a client");
                    }
                }
                Ok(Some(_)) | Err(_) => {
                    let channel = half_open.remove(index);
                    tracing::debug!(
                        address = %self.address,
                        peer = name_of(&channel),
                        "closed the connection to a client that violated the protocol"
                    );
                }
            }
        }
        None
    }

    /// Checks the client that sent a request.
    fn admit(&self, channel: Channel, side: Introduction) -> Option<Incoming> {
        if !side.is_valid() {
            return None;
        }
        let (uid, pid, path) = match &channel {
            Channel::Local(socket) => {
                let Credentials { uid, pid, .. } = peer_credentials(socket).ok()?;
                if !self.device.scope().admits(uid) {
                    tracing::info!(
                        uid,
                        ?pid,
                        "refused a client of another user: to allow it, set RKEY_SHARE=all on both sides"
                    );
                    return None;
                }
                self.device.check_identity(side.node, uid, pid).ok()?;
                (uid, pid, None)
            }
            Channel::Remote(stream) => {
                let path = agreed(stream.path(), side.path).ok()?;
                (Process::ANOTHER_HOST, None, Some(path))
            }
        };
        Some(Incoming {
            device: self.device.clone(),
            channel,
            address: self.address,
            path,
            peer: Peer {
                node: side.node,
                host: path.map(|path| path.peer.remote),
                uid,
                pid: pid.unwrap_or(0),
                qps: side.qps,
                private_data: side.private_data,
            },
        })
    }

    /// Waits for a new client until `deadline`, or only a millisecond if there are half-open clients.
    fn wait(&self, deadline: Option<Instant>) -> Result<(), DeviceError> {
        if self.has_half_open() {
            // A short sleep instead of polling all their descriptors: half-open clients are rare, and honest ones send their
            // request at once.
            let pause = Duration::from_millis(1);
            wait_readable(self.socket(), Some(Instant::now() + pause))?;
        } else {
            wait_readable(self.socket(), deadline)?;
        }
        Ok(())
    }
}

/// The name of a client for the log.
fn name_of(channel: &Channel) -> String {
    match channel {
        Channel::Local(socket) => {
            let pid = peer_credentials(socket).ok().and_then(|who| who.pid);
            crate::peers::process::name_of(pid)
        }
        Channel::Remote(stream) => format!("host {}", stream.path().peer.remote),
    }
}

impl Device {
    /// Whether a peer's process also listens at an address; see [`Incoming::listens_at`].
    #[must_use]
    pub fn is_listener(&self, peer: &Peer, address: SocketAddr) -> bool {
        if let Some(host) = peer.host {
            return host == address.ip().to_canonical();
        }
        let scope = self.scope();
        if let Scope::User(_) = scope {
            return true;
        }
        // PID 0 is a process that we do not see; then the user id decides.
        let same = |uid: u32, pid: Option<u32>| {
            let seen = pid.filter(|_| peer.pid != 0);
            uid == peer.uid && seen.is_none_or(|pid| pid == peer.pid)
        };
        let names = names::candidates(scope, address);
        names.iter().any(|name| {
            let who = names::abstract_address(name).and_then(|name| listener(&name));
            who.is_ok_and(|who| same(who.uid, who.pid))
        })
    }
}

/// A peer's connection request, which waits for the answer.
#[derive(Debug)]
pub struct Incoming {
    device: Device,
    channel: Channel,
    address: SocketAddr,
    /// The path to the peer's host, if that is another one.
    path: Option<NetworkPath>,
    peer: Peer,
}

impl Incoming {
    /// The peer, with its queue pairs and private data.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The address of the listener.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the peer has closed the connection or exited. Never blocks.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        // The peer sends nothing before our answer, so a readable socket is a closed one.
        wait_readable(self.channel.as_fd(), Some(Instant::now())).unwrap_or(false)
    }

    /// Connects our queue pairs (as many as the peer has, in the same order). When this returns, our queue pairs and the
    /// peer's are in state RTS.
    ///
    /// # Errors
    /// The number of queue pairs differs, the peer exited, or the queue pairs could not be changed; the peer then also gets an
    /// error. The queue pairs may be in any state: destroy them.
    pub fn accept(self, qps: &[&Qp], private_data: &[u8]) -> Result<Peer, DeviceError> {
        let timeout = self.device.config().connect_timeout;
        let mut accepting = self.answer(qps, private_data)?;
        accepting.deadline = Deadline::after("the connection", timeout);
        receive_ready(&accepting)?;
        Ok(accepting.peer)
    }

    /// The first half of [`Incoming::accept`], which does not wait for the peer.
    ///
    /// # Errors
    /// Same as [`Incoming::accept`].
    pub fn answer(self, qps: &[&Qp], private_data: &[u8]) -> Result<Accepting, DeviceError> {
        let terms = self
            .path
            .map(|path| PathTerms::new(path.mtu, path.selective));
        let side = (self.device).side(qps, private_data, terms.unwrap_or_default())?;
        if qps.len() != self.peer.qps.len() {
            let words = "the listener has a different number of queue pairs".to_owned();
            let _ = self.channel.send(&ConnectMessage::Rejected(words));
            return Err(DeviceError::Handshake(
                "the peer has a different number of queue pairs",
            ));
        }
        connect_all(qps, &self.peer, self.path)?;
        self.channel.send(&ConnectMessage::Accepted(side))?;
        Ok(Accepting {
            device: self.device,
            channel: self.channel,
            qps: qps.iter().map(|&qp| qp.clone()).collect(),
            file: Mutex::new(self.path.map(|_| StreamFile::new(true))),
            peer: self.peer,
            deadline: Deadline::after("the connection", READY_TIME),
        })
    }

    /// Whether the peer's process also listens at an address, according to the kernel: a program may claim an address of
    /// another process. Always `true` with `RKEY_SHARE=user`: processes of one user trust each other. For a peer on another host:
    /// whether the address is that of its host.
    #[must_use]
    pub fn listens_at(&self, address: SocketAddr) -> bool {
        self.device.is_listener(&self.peer, address)
    }

    /// Why the peer's host may not have one more connection, if it may not. `coming` of its connections are not complete yet. For
    /// listeners that accept every peer: the program does not see how many connections a host makes. Peers on this host have limits of
    /// their own.
    #[must_use]
    pub fn has_no_room(&self, coming: usize) -> Option<&'static str> {
        let open = self.device.shared().streams.of_host(self.peer.host?);
        refuses_stream(self.device.config().reserved_files, open + coming)
    }

    /// Refuses the connection, and sends the reason to the peer.
    pub fn reject(self, reason: &str) {
        let reason: String = reason.chars().take(512).collect();
        let _ = self.channel.send(&ConnectMessage::Rejected(reason));
    }
}

/// A connection that this side has accepted and the peer has not confirmed yet.
#[derive(Debug)]
pub struct Accepting {
    device: Device,
    channel: Channel,
    qps: Vec<Qp>,
    peer: Peer,
    /// The descriptor of a connection of another host, until the connection is complete.
    file: Mutex<Option<StreamFile>>,
    deadline: Deadline,
}

impl Accepting {
    /// The peer.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// A descriptor that is readable when the peer has confirmed or closed the connection.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Waits up to `time` until the peer has confirmed or closed the connection; [`Accepting::is_ready`] says which.
    ///
    /// # Errors
    /// The system cannot wait.
    pub fn wait(&self, time: Duration) -> Result<(), DeviceError> {
        let until = Instant::now().checked_add(time);
        wait_readable(self.channel.as_fd(), until).map(|_| ())
    }

    /// Whether the peer is ready. Never blocks. Do not call it again after it has returned `true`.
    ///
    /// # Errors
    /// The peer exited, or the time limit expired; the queue pairs may be in any state: destroy them.
    pub fn is_ready(&self) -> Result<bool, DeviceError> {
        match self.channel.try_receive()? {
            Some(ConnectMessage::Ready) => {
                if let Some(stream) = self.channel.stream() {
                    let qps: Vec<&Qp> = self.qps.iter().collect();
                    let file = self.file.lock().take();
                    let file = file.unwrap_or_else(|| StreamFile::new(true));
                    self.device.watch(stream, &qps, file)?;
                }
                Ok(true)
            }
            Some(_) => Err(DeviceError::Handshake("the peer sent an unexpected packet")),
            None => self.deadline.remaining().map(|_| false),
        }
    }

    /// Tells a peer on another host why this side gives the connection up, like [`Qp::disconnect`]: its device reports that after it has
    /// reported the connection. Tells nothing to peers on this host.
    pub fn disconnect(&self, why: u8) {
        if self.channel.stream().is_none() {
            return;
        }
        for qp in &self.peer.qps {
            // If this fails, the peer has given up, too.
            let _ = (self.channel).send(&ConnectMessage::Left { qpn: qp.qpn, why });
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
