//! How the two sides of a handshake exchange packets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rkey_link::peer::receive_before_end;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::Deadline;
use super::packet::{ConnectMessage, PACKET_MAX, PEER_CLOSED, PacketRead, encode, parse};
use super::stream::Stream;
use crate::error::DeviceError;
use crate::objects::event_queue::wait_readable;

/// The connection between the two sides of a handshake.
#[derive(Debug)]
pub(super) enum Channel {
    /// A Unix socket to a process of this host. Each message is a packet.
    Local(OwnedFd),
    /// A TCP connection to another host.
    Remote(Arc<Stream>),
}

impl Channel {
    /// The TCP connection, if the peer is on another host.
    pub(super) fn stream(&self) -> Option<&Arc<Stream>> {
        match self {
            Self::Local(_) => None,
            Self::Remote(stream) => Some(stream),
        }
    }

    /// Drops a client that has not sent its request. If the request arrives meanwhile, the client knows that it was not read, and
    /// connects again.
    pub(super) fn drop_silent(self) {
        if let Self::Remote(stream) = self {
            stream.reset();
        }
    }

    pub(super) fn send(&self, packet: &ConnectMessage) -> Result<(), DeviceError> {
        let bytes = encode(packet);
        let socket = match self {
            Self::Local(socket) => socket,
            Self::Remote(stream) => return stream.send(&bytes),
        };
        match rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(_) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(PEER_CLOSED),
            Err(error) => Err(DeviceError::io("sending to the peer")(error)),
        }
    }

    /// Waits for the next packet. `None` if the peer closed its socket before reading what we sent.
    pub(super) fn receive(
        &self,
        deadline: &Deadline,
    ) -> Result<Option<ConnectMessage>, DeviceError> {
        loop {
            match self.read()? {
                PacketRead::Packet(packet) => return Ok(Some(packet)),
                PacketRead::Nothing => {}
                PacketRead::Closed => return Err(PEER_CLOSED),
                PacketRead::Reset => return Ok(None),
            }
            let until = Instant::now() + deadline.remaining()?;
            wait_readable(self.as_fd(), Some(until))?;
        }
    }

    /// The next packet, if one has arrived.
    pub(super) fn try_receive(&self) -> Result<Option<ConnectMessage>, DeviceError> {
        match self.read()? {
            PacketRead::Packet(packet) => Ok(Some(packet)),
            PacketRead::Nothing => Ok(None),
            PacketRead::Closed | PacketRead::Reset => Err(PEER_CLOSED),
        }
    }

    /// Reads the next packet.
    pub(super) fn read(&self) -> Result<PacketRead, DeviceError> {
        match self {
            Self::Local(socket) => receive_before_end(
                || read_once(socket),
                |received| matches!(received, Ok(PacketRead::Closed | PacketRead::Reset)),
            ),
            Self::Remote(stream) => stream.read(),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Local(socket) => socket.as_fd(),
            Self::Remote(stream) => stream.socket().as_fd(),
        }
    }
}

fn read_once(socket: &OwnedFd) -> Result<PacketRead, DeviceError> {
    let mut buffer = [0u8; PACKET_MAX];
    match rustix::net::recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Ok(PacketRead::Closed),
        Err(Errno::CONNRESET) => Ok(PacketRead::Reset),
        // A longer message is cut off, and no packet has the length that the kernel returns.
        Ok((_, len)) => parse(buffer.get(..len).unwrap_or_default()).map(PacketRead::Packet),
        Err(Errno::AGAIN | Errno::INTR) => Ok(PacketRead::Nothing),
        Err(error) => Err(DeviceError::io("receiving from the peer")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn the_last_packet_of_a_peer_that_closes_without_reading_arrives() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let (ours, theirs) = (Channel::Local(ours), Channel::Local(theirs));
        ours.send(&ConnectMessage::Ready).unwrap();
        theirs.send(&ConnectMessage::Rejected("no".into())).unwrap();
        // The kernel reports a reset first, because the peer has not read all packets.
        drop(theirs);
        let last = ours.try_receive().unwrap();
        assert_eq!(last, Some(ConnectMessage::Rejected("no".into())));
        assert!(ours.try_receive().is_err());
    }
}
