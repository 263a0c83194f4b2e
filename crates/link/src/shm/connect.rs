//! Creating a link as the requester.

use super::cma::PeerProcess;
use super::hello::{self, Frame, Hello, Kind, PURPOSE_MAX, Welcome};
use super::link::{Parts, ShmLink, create_segment};
use super::local::LocalNode;
use super::socket::{Credentials, Packet, Received, Socket};
use crate::Malformed;
use crate::ring::{Geometry, Role};
use rkey_base::segment::{OwnPermit, OwnSegment, PeerPermit, PeerSegment};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Why a link could not be created.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The kernel refused a call.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The user of the process at the other end is not allowed to connect.
    #[error("the process at the other end runs as user {0}, who is not allowed to connect")]
    NotAllowed(u32),
    /// The other side speaks another version.
    #[error("the other side uses version {0} of the link protocol, but this side uses {ours}", ours = hello::PROTOCOL_VERSION)]
    Version(u16),
    /// The other side refused.
    #[error("the other side refused the link: {0}")]
    Refused(String),
    /// The other side closed the connection.
    #[error("the other side closed the connection")]
    Closed,
    /// The other side sent something invalid.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// The state of a handshake.
#[derive(Debug)]
pub enum Step<T> {
    /// Wait until the socket is readable, then advance again.
    Pending,
    /// Finished; do not advance again.
    Done(T),
}

/// The next packet, if one has arrived. The end of the connection is an error.
pub(crate) fn expect_packet(socket: &Socket) -> Result<Option<Packet>, HandshakeError> {
    match socket.receive() {
        Ok(Received::Nothing) => Ok(None),
        Ok(Received::Packet(packet)) => Ok(Some(packet)),
        Ok(Received::End) => Err(HandshakeError::Closed),
        Err(e) => Err(e.into()),
    }
}

/// Returns the other side's credentials if its user is allowed.
pub(crate) fn check_user(
    socket: &Socket,
    local: &LocalNode,
) -> Result<Credentials, HandshakeError> {
    let who = socket.credentials()?;
    if local.config.policy.allows(&who) {
        Ok(who)
    } else {
        Err(HandshakeError::NotAllowed(who.uid))
    }
}

/// Maps the other side's segment (the packet's first descriptor) and its permit, if a second one came with it.
pub(crate) fn map_segment(
    fds: Vec<OwnedFd>,
    geometry: Geometry,
) -> Result<(PeerSegment, Option<PeerPermit>), HandshakeError> {
    const SLACK: usize = 64 << 10;
    let mut fds = fds.into_iter();
    match (fds.next(), fds.next(), fds.next()) {
        (Some(segment), permit, None) => {
            let min = geometry.bytes();
            let segment = PeerSegment::map(segment, min, min + SLACK)?;
            Ok((segment, permit.map(PeerPermit::map).transpose()?))
        }
        (None, ..) => Err(Malformed::new(
            "no descriptor of a segment; perhaps this process has no free descriptor (RLIMIT_NOFILE)",
        )
        .into()),
        _ => Err(Malformed::new("descriptors other than a segment and at most one permit").into()),
    }
}

/// A link being established: the requester's side.
#[derive(Debug)]
pub struct Connector {
    local: LocalNode,
    socket: Option<Socket>,
    own: Option<OwnSegment>,
    /// The peer's permit to copy from and to our memory.
    permit: Option<OwnPermit>,
}

impl Connector {
    /// Connects to the device that listens at the abstract name (without the leading NUL) and requests a link.
    /// `purpose` is passed to the other device unchanged.
    ///
    /// # Errors
    /// `Io` with `ConnectionRefused` if the name does not exist, with `WouldBlock` if its queue of connections is full;
    /// the other side's user is not allowed.
    pub fn start(name: &[u8], local: &LocalNode, purpose: &[u8]) -> Result<Self, HandshakeError> {
        if purpose.len() > PURPOSE_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "purpose too long").into());
        }
        let socket = Socket::connect(name)?;
        check_user(&socket, local)?;
        let geometry = local.config.requests();
        let own = create_segment(geometry)?;
        let hello = Hello {
            node: local.id,
            sizes: geometry.into(),
            membarrier: local.membarrier,
            probe: local.probe(),
            purpose: purpose.to_vec(),
        };
        let permit = local.config.remote_iovec.then(OwnPermit::create);
        let permit = permit.transpose()?;
        let mut fds = vec![own.fd()];
        fds.extend(permit.as_ref().map(OwnPermit::fd));
        socket.send(&hello::encode(Kind::Hello, &hello)?, &fds)?;
        Ok(Self {
            local: local.clone(),
            socket: Some(socket),
            own: Some(own),
            permit,
        })
    }

    /// The socket to wait for (readable). `None` once finished.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Proceeds as far as possible without blocking.
    ///
    /// # Errors
    /// The handshake failed; drop the connector.
    pub fn advance(&mut self) -> Result<Step<ShmLink>, HandshakeError> {
        let Some(socket) = &self.socket else {
            return Err(HandshakeError::Closed);
        };
        let Some(packet) = expect_packet(socket)? else {
            return Ok(Step::Pending);
        };
        let body = match hello::parse(&packet.bytes)? {
            Frame::Known(Kind::Welcome, body) => body,
            Frame::Known(Kind::Refusal, body) => {
                return Err(HandshakeError::Refused(hello::refusal_text(body)));
            }
            Frame::Known(..) => return Err(Malformed::new("an answer of the wrong kind").into()),
            Frame::OtherVersion(version) => return Err(HandshakeError::Version(version)),
        };
        let welcome: Welcome = hello::decode(body)?;
        let peer_geometry = Geometry::try_from(welcome.sizes)?;
        let (peer, None) = map_segment(packet.fds, peer_geometry)? else {
            return Err(Malformed::new("a permit from a responder").into());
        };
        let (Some(socket), Some(own)) = (self.socket.take(), self.own.take()) else {
            return Err(HandshakeError::Closed);
        };
        let process = PeerProcess::of(&socket);
        let credentials = socket.credentials()?;
        // If we could not detect the peer's end, the peer might seem to copy forever.
        let remote_iovec = self.local.config.remote_iovec
            && credentials.is_our_user()
            && process.descriptor().is_some();
        let reachable = remote_iovec && process.probe(&welcome.probe);
        let link = ShmLink::new(Parts {
            role: Role::Requester,
            node: welcome.node,
            credentials,
            socket,
            process,
            own,
            own_geometry: self.local.config.requests(),
            peer,
            peer_geometry,
            own_permit: self.permit.take(),
            peer_permit: None,
            light: self.local.membarrier && welcome.membarrier,
            fork: self.local.fork_mark(),
            remote_iovec: remote_iovec && welcome.remote_iovec,
            remote_iovec_min: self
                .local
                .config
                .remote_iovec_min
                .max(welcome.remote_iovec_min),
            reachable,
            uses_warrants: self.local.config.warrants && reachable,
        })?;
        Ok(Step::Done(link))
    }
}
