//! The packets of the handshake.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rkey_link::NodeId;
use rkey_link::peer::receive_before_end;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde::{Deserialize, Serialize};

use super::{Deadline, QpAddress};
use crate::error::DeviceError;
use crate::objects::event_queue::wait_readable;

/// The first bytes of every packet; the digit is the version of the protocol.
const MAGIC: &[u8; 8] = b"rkeyCON1";
/// The prefix that all versions share.
const ANY: &[u8] = b"rkeyCON";
/// The peer has closed its socket.
pub(super) const PEER_CLOSED: DeviceError =
    DeviceError::Handshake("the peer closed the connection");
/// The maximum length of a packet.
const PACKET_MAX: usize = 8192;

/// One side of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Side {
    pub(super) node: NodeId,
    pub(super) qps: Vec<QpAddress>,
    pub(super) private_data: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Packet {
    Request(Side),
    Accepted(Side),
    Rejected(String),
    Ready,
}

pub(super) fn send(socket: &OwnedFd, packet: &Packet) -> Result<(), DeviceError> {
    let bytes = encode(packet);
    match rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(_) => Ok(()),
        Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(PEER_CLOSED),
        Err(error) => Err(DeviceError::io("sending to the peer")(error)),
    }
}

/// The result of reading a socket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    Packet(Packet),
    Nothing,
    /// The peer has closed its socket.
    Closed,
    /// The peer has closed its socket without reading what we sent (unix(7): `ECONNRESET`).
    Reset,
}

/// Waits for the next packet. `None` if the peer closed its socket before reading what we sent.
pub(super) fn receive(
    socket: &OwnedFd,
    deadline: &Deadline,
) -> Result<Option<Packet>, DeviceError> {
    loop {
        match read(socket)? {
            Received::Packet(packet) => return Ok(Some(packet)),
            Received::Nothing => {}
            Received::Closed => return Err(PEER_CLOSED),
            Received::Reset => return Ok(None),
        }
        let until = Instant::now() + deadline.remaining()?;
        wait_readable(socket.as_fd(), Some(until))?;
    }
}

/// The next packet, if one has arrived.
pub(super) fn try_receive(socket: &OwnedFd) -> Result<Option<Packet>, DeviceError> {
    match read(socket)? {
        Received::Packet(packet) => Ok(Some(packet)),
        Received::Nothing => Ok(None),
        Received::Closed | Received::Reset => Err(PEER_CLOSED),
    }
}

/// Reads the next packet.
pub(super) fn read(socket: &OwnedFd) -> Result<Received, DeviceError> {
    receive_before_end(
        || read_once(socket),
        |received| matches!(received, Ok(Received::Closed | Received::Reset)),
    )
}

fn read_once(socket: &OwnedFd) -> Result<Received, DeviceError> {
    let mut buffer = [0u8; PACKET_MAX];
    match rustix::net::recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Ok(Received::Closed),
        Err(Errno::CONNRESET) => Ok(Received::Reset),
        Ok((_, len)) => match buffer.get(..len).and_then(decode) {
            Some(packet) => Ok(Received::Packet(packet)),
            None => Err(match other_version(&buffer) {
                Some(there) => DeviceError::Version {
                    protocol: "connection protocol",
                    there,
                    here: version_of(MAGIC).unwrap_or_default(),
                },
                None => DeviceError::Handshake("the peer does not use rkey's connection protocol"),
            }),
        },
        Err(Errno::AGAIN | Errno::INTR) => Ok(Received::Nothing),
        Err(error) => Err(DeviceError::io("receiving from the peer")(error)),
    }
}

pub(super) fn encode(packet: &Packet) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    // Writing plain data into a Vec cannot fail.
    if let Ok(body) = postcard::to_stdvec(packet) {
        bytes.extend_from_slice(&body);
    }
    bytes
}

pub(super) fn decode(bytes: &[u8]) -> Option<Packet> {
    let (packet, rest) = postcard::take_from_bytes(bytes.strip_prefix(MAGIC)?).ok()?;
    rest.is_empty().then_some(packet)
}

/// The protocol version in a packet of any version.
fn version_of(bytes: &[u8]) -> Option<u32> {
    let digit = bytes.strip_prefix(ANY)?.first()?;
    char::from(*digit).to_digit(10)
}

/// The version of a packet, unless it is ours.
fn other_version(bytes: &[u8]) -> Option<u32> {
    version_of(bytes).filter(|there| version_of(MAGIC) != Some(*there))
}

/// A peer's text, made safe to print.
pub(super) fn printable(text: &str) -> String {
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
    use super::super::{PRIVATE_DATA_MAX, QPS_MAX};
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn the_last_packet_of_a_peer_that_never_reads_arrives() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        send(&ours, &Packet::Ready).unwrap();
        send(&theirs, &Packet::Rejected("no".into())).unwrap();
        // The kernel reports a reset first, because the peer has not read all packets.
        drop(theirs);
        assert_eq!(
            try_receive(&ours).unwrap(),
            Some(Packet::Rejected("no".into()))
        );
        assert!(try_receive(&ours).is_err());
    }

    #[test]
    fn packets_round_trip() {
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
    fn other_versions_are_distinguished_from_other_bytes() {
        assert_eq!(other_version(b"rkeyCON2whatever"), Some(2));
        for none in [
            &encode(&Packet::Ready)[..],
            b"rkeyCONx",
            b"rkeyCON",
            b"GET /",
        ] {
            assert_eq!(other_version(none), None);
        }
    }

    #[test]
    fn other_bytes_are_not_a_packet() {
        assert_eq!(decode(b""), None);
        assert_eq!(decode(b"GET / HTTP/1.1"), None);
        let mut bytes = encode(&Packet::Ready);
        bytes.push(0);
        assert_eq!(decode(&bytes), None);
        // A length past the end of the packet.
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&[0, 1, 1, 0xff, 0xff, 0xff, 0xff, 0x0f]);
        assert_eq!(decode(&bytes), None);
    }

    #[test]
    fn text_of_a_peer_is_safe_to_print() {
        assert_eq!(printable("no\x1b[2J\nroom"), "no [2J room");
    }
}
