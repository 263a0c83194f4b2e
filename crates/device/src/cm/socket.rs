//! Named sockets: those of the connection manager, and those on which processes forward packets. All are nonblocking
//! sequenced-packet sockets.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rkey_link::peer::{Credentials, peer_credentials, receive_before_end};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::inspect::QUERY;
use super::packet::{CmPacket, LEN};
use crate::peers::names::{self, Scope};

/// The maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Creates a socket with a name; `None` if the name is taken. No process can connect to it before
/// [`listen`].
pub(crate) fn bind(name: &str) -> io::Result<Option<OwnedFd>> {
    let socket = new_socket()?;
    match rustix::net::bind(&socket, &names::abstract_address(name)?) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Lets other processes connect to a socket's name.
pub(crate) fn listen(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::listen(socket, BACKLOG)?)
}

/// The result of connecting to a name.
pub(crate) enum Reached {
    /// A connection to the process that owns the name.
    Process(OwnedFd, Credentials),
    /// The owner's backlog is full, or a signal interrupted the attempt.
    Busy,
    /// No process listens at this name.
    NoOwner,
    /// The name belongs to another user (the uid), with whom this process may not communicate.
    OtherUser(u32),
}

/// Connects to a name.
pub(crate) fn connect(scope: Scope, name: &str) -> io::Result<Reached> {
    let socket = new_socket()?;
    match rustix::net::connect(&socket, &names::abstract_address(name)?) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED) => return Ok(Reached::NoOwner),
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Reached::Busy),
        Err(error) => return Err(error.into()),
    }
    let who = peer_credentials(&socket)?;
    match scope.admits(who.uid) {
        true => Ok(Reached::Process(socket, who)),
        false => Ok(Reached::OtherUser(who.uid)),
    }
}

/// Accepts the next connection to a listening socket; `None` if none is waiting.
pub(crate) fn accept(listening: impl AsFd) -> io::Result<Option<(OwnedFd, Credentials)>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::accept_with(listening, flags) {
        Ok(socket) => {
            let who = peer_credentials(&socket)?;
            Ok(Some((socket, who)))
        }
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The result of sending a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageSent {
    Yes,
    /// There is no room now, because the receiver has not read earlier packets.
    Busy,
    /// The receiver has closed the connection.
    NoReceiver,
}

pub(super) fn send(socket: impl AsFd, packet: &CmPacket) -> MessageSent {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::send(socket, &packet.encode(), flags) {
        Ok(_) => MessageSent::Yes,
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => MessageSent::Busy,
        Err(_) => MessageSent::NoReceiver,
    }
}

/// The result of reading from a connection.
pub(super) enum MessageRead {
    Packet(Box<CmPacket>),
    /// The other process asks for an inspection.
    Query,
    /// The bytes are not a packet.
    Violation,
    /// No packet has arrived.
    Nothing,
    /// The connection has ended.
    End,
}

/// Reads the next packet, if one has arrived.
pub(super) fn receive(socket: impl AsFd) -> MessageRead {
    receive_before_end(
        || receive_once(&socket),
        |received| matches!(received, MessageRead::End),
    )
}

fn receive_once(socket: impl AsFd) -> MessageRead {
    // One byte longer than a packet, to detect longer packets.
    let mut bytes = [0; LEN + 1];
    match rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
        Ok((0, _)) => MessageRead::End,
        Ok((len, _)) if bytes[..len] == *QUERY => MessageRead::Query,
        Ok((len, _)) => match CmPacket::decode(&bytes[..len]) {
            Some(packet) => MessageRead::Packet(Box::new(packet)),
            None => MessageRead::Violation,
        },
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => MessageRead::Nothing,
        Err(_) => MessageRead::End,
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socket_with(family, kind, flags, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rkey_cm::wire::MAD;
    use rustix::net::socketpair;
    use std::net::Ipv4Addr;

    #[test]
    fn the_last_packet_of_a_peer_that_closes_without_reading_arrives() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let last = CmPacket {
            from: Ipv4Addr::LOCALHOST.into(),
            to: Ipv4Addr::LOCALHOST.into(),
            protection: Default::default(),
            mad: [7; MAD],
        };
        assert_eq!(send(&ours, &last), MessageSent::Yes);
        assert_eq!(send(&theirs, &last), MessageSent::Yes);
        // The kernel reports a reset first, because the peer has not read all packets.
        drop(theirs);
        assert!(matches!(receive(&ours), MessageRead::Packet(packet) if *packet == last));
        assert!(matches!(receive(&ours), MessageRead::End));
    }
}
