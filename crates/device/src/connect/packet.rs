//! The packets of the handshake, and those that follow it between hosts.

use rkey_link::NodeId;
use rkey_roce::packet::Mtu;
use serde::{Deserialize, Serialize};

use super::frames::Frames;
use crate::error::DeviceError;
use crate::objects::qp_address::QpAddress;

/// The first bytes of every packet; the digit is the version of the protocol.
const MAGIC: &[u8; 8] = b"rkeyCON5";
/// The prefix that all versions share.
const ANY: &[u8] = b"rkeyCON";
/// The peer has closed its socket.
pub(super) const PEER_CLOSED: DeviceError =
    DeviceError::Handshake("the peer closed the connection");
/// The maximum private data of one side, in bytes.
pub const PRIVATE_DATA_MAX: usize = 4096;
/// The maximum number of queue pairs of one connection.
pub const QPS_MAX: usize = 64;
/// The maximum length of a packet.
pub(super) const PACKET_MAX: usize = 8192;

/// One side of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Introduction {
    pub(super) node: NodeId,
    pub(super) qps: Vec<QpAddress>,
    pub(super) private_data: Vec<u8>,
    /// What this side allows between hosts; 0 for peers on the same host.
    pub(super) path: PathTerms,
}

/// What one side allows between hosts: the code of the largest path MTU, plus [`PathTerms::SELECTIVE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PathTerms(pub(super) u8);

impl PathTerms {
    /// This side uses selective retransmission if the other side does. Sides that do not set it use the standard.
    const SELECTIVE: u8 = 0x80;

    /// What a connector offers over a path with this MTU; `None`: on the same host.
    pub(super) fn offered(mtu: Option<Mtu>) -> Self {
        mtu.map_or_else(Self::default, |mtu| Self::new(mtu, true))
    }

    /// A side that allows this path MTU, and perhaps selective retransmission.
    pub(super) fn new(mtu: Mtu, selective: bool) -> Self {
        let flag = if selective { Self::SELECTIVE } else { 0 };
        Self(mtu.code() | flag)
    }

    /// The largest path MTU; `None` if the code is unknown.
    pub(super) fn mtu(self) -> Option<Mtu> {
        Mtu::from_code(self.0 & !Self::SELECTIVE)
    }

    pub(super) fn is_selective(self) -> bool {
        self.0 & Self::SELECTIVE != 0
    }
}

impl Introduction {
    /// Whether the numbers and lengths are possible.
    pub(super) fn is_valid(&self) -> bool {
        let fits = |qp: &QpAddress| qp.qpn >> 24 == 0 && qp.msn >> 24 == 0;
        self.qps.len() <= QPS_MAX
            && self.private_data.len() <= PRIVATE_DATA_MAX
            && self.qps.iter().all(fits)
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ConnectMessage {
    Request(Introduction),
    Accepted(Introduction),
    Rejected(String),
    Ready,
    /// Between hosts, after the handshake: the sender destroys a queue pair, and has executed all requests of the receiver's queue
    /// pair `qpn` up to the packet with this PSN. The acknowledgement itself is a packet, which may be lost.
    Executed {
        qpn: u32,
        psn: u32,
    },
    /// Between hosts, after the handshake: the sender has ended the connection of the receiver's queue pair `qpn`, for a reason that
    /// the programs agree on.
    Left {
        qpn: u32,
        why: u8,
    },
}

/// The result of reading a socket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PacketRead {
    Packet(ConnectMessage),
    Nothing,
    /// The peer has closed its socket.
    Closed,
    /// The peer has closed its socket without reading what we sent (unix(7): `ECONNRESET`).
    Reset,
}

/// A packet that has arrived.
pub(super) fn parse(bytes: &[u8]) -> Result<ConnectMessage, DeviceError> {
    decode(bytes).ok_or_else(|| match other_version(bytes) {
        Some(there) => DeviceError::Version {
            protocol: "connection protocol",
            there,
            here: version_of(MAGIC).unwrap_or_default(),
        },
        None => DeviceError::Handshake("the peer does not use rkey's connection protocol"),
    })
}

pub(crate) fn encode(packet: &ConnectMessage) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    // Writing plain data into a Vec cannot fail.
    if let Ok(body) = postcard::to_stdvec(packet) {
        bytes.extend_from_slice(&body);
    }
    bytes
}

pub(super) fn decode(bytes: &[u8]) -> Option<ConnectMessage> {
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

/// Whether bytes are a packet of the protocol, or begin with one in a byte stream; for fuzzing.
pub(crate) fn decodes(bytes: &[u8]) -> bool {
    let mut frames = Frames::default();
    frames.add(bytes);
    let mut in_stream = std::iter::from_fn(|| frames.next().ok().flatten());
    in_stream.any(|packet| decode(&packet).is_some()) || decode(bytes).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_round_trip() {
        let side = Introduction {
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
            path: PathTerms(0x85),
        };
        for packet in [
            ConnectMessage::Request(side.clone()),
            ConnectMessage::Accepted(side),
            ConnectMessage::Rejected("no".into()),
            ConnectMessage::Ready,
            ConnectMessage::Executed {
                qpn: 0xff_ffff,
                psn: 0xff_ffff,
            },
            ConnectMessage::Left {
                qpn: 0xff_ffff,
                why: 0xff,
            },
        ] {
            let bytes = encode(&packet);
            assert!(bytes.len() <= PACKET_MAX);
            assert_eq!(decode(&bytes), Some(packet));
        }
    }

    /// The code alone is what a side without selective retransmission sends.
    #[test]
    fn terms_say_whether_a_side_is_selective() {
        for mtu in Mtu::ALL {
            for selective in [false, true] {
                let terms = PathTerms::new(mtu, selective);
                assert_eq!((terms.mtu(), terms.is_selective()), (Some(mtu), selective));
            }
            assert_eq!(PathTerms::new(mtu, false), PathTerms(mtu.code()));
        }
        assert_eq!(PathTerms(0x87).mtu(), None);
    }

    #[test]
    fn sides_with_impossible_numbers_or_lengths_are_invalid() {
        let side = |qpn, msn, qps, data| Introduction {
            node: NodeId::default(),
            qps: vec![QpAddress { qpn, msn }; qps],
            private_data: vec![0; data],
            path: PathTerms::default(),
        };
        assert!(side(0xff_ffff, 0xff_ffff, QPS_MAX, PRIVATE_DATA_MAX).is_valid());
        for invalid in [
            side(1 << 24, 0, 1, 0),
            side(0, 1 << 24, 1, 0),
            side(0, 0, QPS_MAX + 1, 0),
            side(0, 0, 0, PRIVATE_DATA_MAX + 1),
        ] {
            assert!(!invalid.is_valid());
        }
    }

    #[test]
    fn a_packet_of_another_version_is_distinguished_from_garbage() {
        assert_eq!(other_version(b"rkeyCON1whatever"), Some(1));
        for none in [
            &encode(&ConnectMessage::Ready)[..],
            b"rkeyCONx",
            b"rkeyCON",
            b"GET /",
        ] {
            assert_eq!(other_version(none), None);
        }
    }

    #[test]
    fn malformed_bytes_are_not_a_packet() {
        assert_eq!(decode(b""), None);
        assert_eq!(decode(b"GET / HTTP/1.1"), None);
        let mut bytes = encode(&ConnectMessage::Ready);
        bytes.push(0);
        assert_eq!(decode(&bytes), None);
        // A length past the end of the packet.
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&[0, 1, 1, 0xff, 0xff, 0xff, 0xff, 0x0f]);
        assert_eq!(decode(&bytes), None);
    }

    #[test]
    fn control_characters_in_the_text_of_a_peer_are_replaced() {
        assert_eq!(printable("no\x1b[2J\nroom"), "no [2J room");
    }
}
