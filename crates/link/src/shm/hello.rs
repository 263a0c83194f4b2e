//! The packets of the control socket.
//!
//! Every packet of more than one byte starts with 8 bytes: `"rkey"`, the protocol version (u16) and the kind (u16),
//! little-endian; the rest depends on the kind. (A packet of one byte is the doorbell.) The first packet of a
//! connection is a [`Hello`], which requests a link, or something else that the device interprets; the reply to a hello
//! is a [`Welcome`] or a refusal.

use super::socket::PACKET_MAX;
use crate::ring::Geometry;
use crate::{Malformed, NodeId};
use serde::{Deserialize, Serialize};

/// The version of the whole protocol: packets, segment layout, slots.
pub const PROTOCOL_VERSION: u16 = 4;
/// The maximum length of [`Hello::purpose`], in bytes.
pub const PURPOSE_MAX: usize = 1024;

const MAGIC: [u8; 4] = *b"rkey";
const HEADER: usize = 8;

/// The maximum length of the contents of a control packet, or of another first packet, in bytes.
pub const CONTROL_MAX: usize = PACKET_MAX - HEADER;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Kind {
    /// Requests a link; carries the requester's segment, and the permit for access to its memory.
    Hello = 1,
    /// Accepts the link; carries the responder's segment.
    Welcome = 2,
    /// Refuses the link; carries the reason as text.
    Refusal = 3,
    /// A first packet that does not request a link: the device interprets it.
    Other = 4,
    /// Any later message between the devices.
    Control = 5,
}

/// The sizes of a segment, as packets carry them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Sizes {
    slots: u32,
    payload: u32,
    fragment_max: u32,
}

impl From<Geometry> for Sizes {
    fn from(g: Geometry) -> Self {
        Self {
            slots: g.slots,
            payload: g.payload,
            fragment_max: g.fragment_max,
        }
    }
}

impl TryFrom<Sizes> for Geometry {
    type Error = Malformed;

    fn try_from(s: Sizes) -> Result<Self, Malformed> {
        let geometry = Self {
            slots: s.slots,
            payload: s.payload,
            fragment_max: s.fragment_max,
        };
        geometry.check()?;
        Ok(geometry)
    }
}

/// Random bytes in the sender's memory, for the receiver to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Probe {
    /// The address of the bytes; 0 if the sender does not allow access to its memory.
    pub(crate) address: u64,
    /// The value of the bytes.
    pub(crate) nonce: [u8; 16],
}

/// The requester's introduction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) node: NodeId,
    pub(crate) sizes: Sizes,
    /// Whether the sender is registered for heavy barriers and issues them before it sleeps.
    pub(crate) membarrier: bool,
    pub(crate) probe: Probe,
    /// The requesting device's message to the other device.
    pub(crate) purpose: Vec<u8>,
}

/// The responder's acceptance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) node: NodeId,
    pub(crate) sizes: Sizes,
    pub(crate) membarrier: bool,
    pub(crate) probe: Probe,
    /// Whether the responder found the requester's nonce.
    pub(crate) remote_iovec: bool,
    /// The size from which the responder prefers remote iovecs.
    pub(crate) remote_iovec_min: u32,
}

/// Puts a header before `body`.
pub(crate) fn frame(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(HEADER + body.len());
    packet.extend_from_slice(&MAGIC);
    packet.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    packet.extend_from_slice(&(kind as u16).to_le_bytes());
    packet.extend_from_slice(body);
    packet
}

/// Puts a header before a message.
pub(crate) fn encode<T: Serialize>(kind: Kind, message: &T) -> Result<Vec<u8>, Malformed> {
    let body = postcard::to_stdvec(message).map_err(|_| Malformed::new("cannot be encoded"))?;
    Ok(frame(kind, &body))
}

/// The contents of a packet, if it is one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    /// A packet of this version.
    Known(Kind, &'a [u8]),
    /// A packet of another version of this protocol.
    OtherVersion(u16),
}

/// Reads the header of a packet.
///
/// # Errors
/// It is not a packet of this protocol, or its kind does not exist.
pub(crate) fn parse(packet: &[u8]) -> Result<Frame<'_>, Malformed> {
    let Some((&[m0, m1, m2, m3, v0, v1, k0, k1], body)) = packet.split_first_chunk::<HEADER>()
    else {
        return Err(Malformed::new("a packet without a header"));
    };
    if [m0, m1, m2, m3] != MAGIC {
        return Err(Malformed::new("a packet of another protocol"));
    }
    let version = u16::from_le_bytes([v0, v1]);
    if version != PROTOCOL_VERSION {
        return Ok(Frame::OtherVersion(version));
    }
    let kind = match u16::from_le_bytes([k0, k1]) {
        1 => Kind::Hello,
        2 => Kind::Welcome,
        3 => Kind::Refusal,
        4 => Kind::Other,
        5 => Kind::Control,
        _ => return Err(Malformed::new("a packet of an unknown kind")),
    };
    Ok(Frame::Known(kind, body))
}

/// Reads the body of a packet.
pub(crate) fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Malformed> {
    postcard::from_bytes(body).map_err(|_| Malformed::new("a packet that cannot be decoded"))
}

/// The text of a refusal, made printable.
pub(crate) fn refusal_text(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(512)])
        .chars()
        .filter(|c| !c.is_control())
        .collect()
}

/// Reads arbitrary bytes as a packet, exactly as a link does with a peer's; returns whether they are valid.
pub(crate) fn accepts(bytes: &[u8]) -> bool {
    let sizes_fit = |sizes: Sizes| Geometry::try_from(sizes).is_ok();
    match parse(bytes) {
        Ok(Frame::Known(Kind::Hello, body)) => {
            decode::<Hello>(body).is_ok_and(|hello| sizes_fit(hello.sizes))
        }
        Ok(Frame::Known(Kind::Welcome, body)) => {
            decode::<Welcome>(body).is_ok_and(|welcome| sizes_fit(welcome.sizes))
        }
        Ok(Frame::Known(Kind::Refusal, body)) => !refusal_text(body).contains(char::is_control),
        Ok(Frame::Known(Kind::Other | Kind::Control, _)) => true,
        Ok(Frame::OtherVersion(_)) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_frames_are_distinguished() {
        assert_eq!(
            parse(&frame(Kind::Other, b"abc")),
            Ok(Frame::Known(Kind::Other, b"abc"))
        );
        let mut other = frame(Kind::Hello, b"");
        other[4] = 9;
        assert_eq!(parse(&other), Ok(Frame::OtherVersion(9)));
        other[0] = b'x';
        assert!(parse(&other).is_err());
        assert!(parse(b"rkey").is_err());
        let mut unknown = frame(Kind::Hello, b"");
        unknown[6] = 77;
        assert!(parse(&unknown).is_err());
    }

    #[test]
    fn hello_messages_round_trip_and_truncated_ones_are_refused() {
        let geometry = Geometry {
            slots: 256,
            payload: 1 << 18,
            fragment_max: 1 << 14,
        };
        let hello = Hello {
            node: NodeId { pid: 1, nonce: 2 },
            sizes: geometry.into(),
            membarrier: true,
            probe: Probe {
                address: 3,
                nonce: [4; 16],
            },
            purpose: vec![5; PURPOSE_MAX],
        };
        let packet = encode(Kind::Hello, &hello).unwrap();
        assert!(packet.len() <= PACKET_MAX && accepts(&packet));
        for cut in 0..packet.len() {
            assert!(!accepts(&packet[..cut]));
        }
        let Ok(Frame::Known(Kind::Hello, body)) = parse(&packet) else {
            panic!()
        };
        let again: Hello = decode(body).unwrap();
        assert_eq!(
            (again.node, again.probe, again.purpose.clone()),
            (hello.node, hello.probe, hello.purpose)
        );
        for broken in [
            Geometry {
                slots: 100,
                ..geometry
            },
            Geometry {
                slots: 1 << 31,
                ..geometry
            },
            Geometry {
                payload: 1 << 31,
                ..geometry
            },
            Geometry {
                fragment_max: 1 << 18,
                ..geometry
            },
        ] {
            let sizes = Sizes::from(broken);
            assert!(!accepts(
                &encode(
                    Kind::Hello,
                    &Hello {
                        sizes,
                        ..again.clone()
                    }
                )
                .unwrap()
            ));
        }
    }

    #[test]
    fn the_text_of_a_refusal_has_no_control_characters() {
        assert_eq!(refusal_text(b"no\x1b[31m\n\xff"), "no[31m\u{fffd}");
    }
}
