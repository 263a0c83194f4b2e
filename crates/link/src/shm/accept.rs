//! Accepting a link as the responder, and everything else that can arrive at the listening socket.

use super::cma::PeerProcess;
use super::connect::{HandshakeError, Step, check_user, expect_packet, map_segment};
use super::hello::{self, CONTROL_MAX, Frame, Hello, Kind, PURPOSE_MAX, Welcome};
use super::line::Control;
use super::link::{Parts, ShmLink, create_segment};
use super::local::LocalNode;
use super::socket::{self, Credentials, Socket};
use crate::ring::{Geometry, Role};
use crate::{Malformed, NodeId};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A listening socket with an abstract name.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
}

impl Listener {
    /// Binds the abstract name (without the leading NUL) and listens.
    ///
    /// # Errors
    /// `AddrInUse` if another process has the name; other errors of the kernel.
    pub fn bind(name: &[u8]) -> io::Result<Self> {
        Ok(Self {
            fd: socket::listen(name)?,
        })
    }

    /// Accepts the next connection; `None` if none is waiting. A connection from a user who is not allowed is closed
    /// at once; the error does not affect other connections.
    ///
    /// # Errors
    /// Errors of the kernel (for example: too many open files); `NotAllowed`.
    pub fn accept(&self, local: &LocalNode) -> Result<Option<Acceptor>, HandshakeError> {
        let Some(socket) = socket::accept(&self.fd)? else {
            return Ok(None);
        };
        let who = check_user(&socket, local)?;
        Ok(Some(Acceptor {
            local: local.clone(),
            who,
            socket: Some(socket),
        }))
    }
}

impl AsFd for Listener {
    /// The socket to wait for: readable when a connection arrives.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A connection whose first packet has not arrived yet.
#[derive(Debug)]
pub struct Acceptor {
    local: LocalNode,
    who: Credentials,
    socket: Option<Socket>,
}

/// The request of a new connection.
#[derive(Debug)]
pub enum Greeting {
    /// A request for a link.
    Link(LinkRequest),
    /// Something else, which the device interprets.
    Other(OtherConnection),
}

impl Acceptor {
    /// Takes over a connection that was accepted elsewhere: a connected, non-blocking `SOCK_SEQPACKET` socket.
    ///
    /// # Errors
    /// The other side's user is not allowed; errors of the kernel.
    pub fn from_fd(fd: OwnedFd, local: &LocalNode) -> Result<Self, HandshakeError> {
        let socket = Socket::from_fd(fd);
        let who = check_user(&socket, local)?;
        Ok(Self {
            local: local.clone(),
            who,
            socket: Some(socket),
        })
    }

    /// The other side, as the kernel reports it.
    pub fn credentials(&self) -> Credentials {
        self.who
    }

    /// The socket to wait for (readable). `None` once finished.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Proceeds as far as possible without blocking.
    ///
    /// # Errors
    /// The handshake failed; drop the acceptor.
    pub fn advance(&mut self) -> Result<Step<Greeting>, HandshakeError> {
        let Some(socket) = &self.socket else {
            return Err(HandshakeError::Closed);
        };
        let Some(packet) = expect_packet(socket)? else {
            return Ok(Step::Pending);
        };
        match hello::parse(&packet.bytes)? {
            Frame::Known(Kind::Hello, body) => {
                let hello: Hello = hello::decode(body)?;
                if hello.purpose.len() > PURPOSE_MAX {
                    return Err(Malformed::new("a purpose that is too long").into());
                }
                Geometry::try_from(hello.sizes)?;
                let Some(socket) = self.socket.take() else {
                    return Err(HandshakeError::Closed);
                };
                Ok(Step::Done(Greeting::Link(LinkRequest {
                    local: self.local.clone(),
                    who: self.who,
                    socket,
                    hello,
                    fds: packet.fds,
                })))
            }
            Frame::Known(Kind::Other, body) => {
                let bytes = body.to_vec();
                let Some(socket) = self.socket.take() else {
                    return Err(HandshakeError::Closed);
                };
                Ok(Step::Done(Greeting::Other(OtherConnection {
                    who: self.who,
                    socket,
                    first: bytes,
                })))
            }
            Frame::Known(..) => Err(Malformed::new("a first packet of the wrong kind").into()),
            Frame::OtherVersion(version) => {
                // The refusal's header carries our version to the other side.
                refuse(socket, "the two sides run different versions of rkey");
                Err(HandshakeError::Version(version))
            }
        }
    }
}

fn refuse(socket: &Socket, why: &str) {
    // If the refusal cannot be sent, closing the socket is enough.
    let _ = socket.send(&hello::frame(Kind::Refusal, why.as_bytes()), &[]);
}

/// A request for a link: accept or refuse it.
#[derive(Debug)]
pub struct LinkRequest {
    local: LocalNode,
    who: Credentials,
    socket: Socket,
    hello: Hello,
    fds: Vec<OwnedFd>,
}

impl LinkRequest {
    /// The other side, as it identifies itself.
    pub fn node(&self) -> NodeId {
        self.hello.node
    }

    /// The other side, as the kernel reports it.
    pub fn credentials(&self) -> Credentials {
        self.who
    }

    /// The other device's message.
    pub fn purpose(&self) -> &[u8] {
        &self.hello.purpose
    }

    /// Creates the link as its responder.
    ///
    /// # Errors
    /// No link was created. If the peer's segment cannot be used, the peer gets a refusal.
    pub fn accept(self) -> Result<ShmLink, HandshakeError> {
        let Self {
            local,
            who,
            socket,
            hello,
            fds,
        } = self;
        let peer_geometry = Geometry::try_from(hello.sizes)?;
        let (peer, peer_permit) = match map_segment(fds, peer_geometry) {
            Ok(peer) => peer,
            Err(e) => {
                refuse(&socket, "the segment cannot be used");
                return Err(e);
            }
        };
        let own_geometry = local.config.responses();
        let own = create_segment(own_geometry)?;
        let process = PeerProcess::of(&socket);
        let watched = process.descriptor().is_some();
        let remote_iovec = local.config.remote_iovec
            && who.is_our_user()
            && peer_permit.is_some()
            && process.probe(&hello.probe);
        let welcome = Welcome {
            node: local.id,
            sizes: own_geometry.into(),
            membarrier: local.membarrier,
            probe: local.probe(),
            remote_iovec,
            remote_iovec_min: local.config.remote_iovec_min,
        };
        let packet = hello::encode(Kind::Welcome, &welcome)?;
        let own_fd = own.fd().try_clone_to_owned()?;
        let (membarrier, node) = (hello.membarrier, hello.node);
        // If we could not detect the requester's end, or see its threads, it might seem to copy forever.
        let is_watched = watched && process.pid().is_some();
        let link = ShmLink::new(Parts {
            role: Role::Responder,
            node,
            credentials: who,
            socket,
            process,
            own,
            own_geometry,
            peer,
            peer_geometry,
            own_permit: None,
            peer_permit,
            light: local.membarrier && membarrier,
            fork: local.fork_mark(),
            remote_iovec,
            remote_iovec_min: local.config.remote_iovec_min,
            reachable: remote_iovec,
            uses_warrants: local.config.warrants
                && local.config.remote_iovec
                && who.is_our_user()
                && is_watched,
        })?;
        link.send_packet(&packet, &[own_fd.as_fd()])?;
        Ok(link)
    }

    /// Refuses the request, with a reason as text.
    pub fn refuse(self, why: &str) {
        refuse(&self.socket, why);
    }
}

/// A connection that is not about a link: packets of bytes and descriptors, in both directions.
#[derive(Debug)]
pub struct OtherConnection {
    who: Credentials,
    socket: Socket,
    first: Vec<u8>,
}

impl OtherConnection {
    /// Connects to a device's listening socket and sends something other than a link request.
    ///
    /// # Errors
    /// Same as for [`super::Connector::start`]; `InvalidInput` for more than [`CONTROL_MAX`] bytes.
    pub fn connect(name: &[u8], local: &LocalNode, first: &[u8]) -> Result<Self, HandshakeError> {
        let socket = Socket::connect(name)?;
        let who = check_user(&socket, local)?;
        let stranger = Self {
            who,
            socket,
            first: Vec::new(),
        };
        stranger.send(first, &[])?;
        Ok(stranger)
    }

    /// The other side, as the kernel reports it.
    pub fn credentials(&self) -> Credentials {
        self.who
    }

    /// The other side's first message (empty on the side that connected).
    pub fn first(&self) -> &[u8] {
        &self.first
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// `WouldBlock` if the other side does not read; `BrokenPipe` or `ConnectionReset` if it has ended;
    /// `InvalidInput` for too many bytes or descriptors.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if bytes.len() > CONTROL_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the packet is too long",
            ));
        }
        self.socket.send(&hello::frame(Kind::Other, bytes), fds)
    }

    /// Takes the next packet; `Pending` if none has arrived.
    ///
    /// # Errors
    /// `Closed` if the other side has ended; `Malformed` for anything that is not a packet of this protocol;
    /// `Refused` for a refusal.
    pub fn receive(&self) -> Result<Step<Control>, HandshakeError> {
        let Some(packet) = expect_packet(&self.socket)? else {
            return Ok(Step::Pending);
        };
        match hello::parse(&packet.bytes)? {
            Frame::Known(Kind::Other, body) => Ok(Step::Done(Control {
                bytes: body.to_vec(),
                fds: packet.fds,
            })),
            Frame::Known(Kind::Refusal, body) => {
                Err(HandshakeError::Refused(hello::refusal_text(body)))
            }
            Frame::Known(..) => Err(Malformed::new("a packet of the wrong kind").into()),
            Frame::OtherVersion(version) => Err(HandshakeError::Version(version)),
        }
    }
}

impl AsFd for OtherConnection {
    /// The socket to wait for.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
