//! The encoding of packets, from the base transport header to the padding: the content of a UDP datagram before the invariant
//! checksum.
//!
//! [`Packet::decode`] fails for bytes that are not a packet, and the receiver drops them. A decoded packet may still break a rule
//! of its queue pair: [`Body::check_length`] has the rules for the payload's length. Reserved bits are written as 0 and
//! ignored, as the specification demands, except by two sides that have agreed to
//! [selective retransmission](crate::transport::early_mark). The payload of a packet to queue pair 1 is a management datagram,
//! which is not decoded here.
//!
//! | file | header |
//! | --- | --- |
//! | `bth.rs` | base transport header, in every packet |
//! | `deth.rs` | datagrams: Q_Key and source |
//! | `xrc_eth.rs` | requests to an XRC shared receive queue |
//! | `reth.rs` | writes and reads: address, key, length |
//! | `atomic_eth.rs` | atomic operations: address, key, operands |
//! | `imm_dt.rs` | immediate data |
//! | `ieth.rs` | the key that a send invalidates |
//! | `aeth.rs` | acknowledgements and read responses |
//! | `atomic_ack_eth.rs` | the result of an atomic operation |
//!
//! Layouts: InfiniBand specification, volume 1, chapter 9.

mod aeth;
mod atomic_ack_eth;
mod atomic_eth;
mod body;
mod bth;
mod bytes;
mod deth;
mod headers;
mod ieth;
mod imm_dt;
mod mtu;
mod opcode;
mod psn;
mod reth;
mod xrc_eth;

pub use aeth::{Aeth, Credits, NakCode, ReservedSyndrome, RnrTimer, Syndrome, only_acknowledges};
pub use atomic_ack_eth::AtomicAckEth;
pub use atomic_eth::AtomicEth;
pub use body::{Body, Reliable, Request, Response, Service, Tail, WrongLength};
pub use bth::Bth;
pub use deth::Deth;
pub use headers::{HeaderBytes, Headers};
pub use ieth::Ieth;
pub use imm_dt::ImmDt;
pub use mtu::Mtu;
pub use opcode::{Class, Opcode, Position};
pub use psn::Psn;
pub use reth::Reth;
pub use xrc_eth::XrcEth;

/// The longest payload of a packet, in bytes: the largest path MTU.
pub const MAX_PAYLOAD: usize = Mtu::Bytes4096.bytes();

/// A packet.
///
/// ```
/// use rkey_roce::packet::{Body, Headers, Packet, Psn, Request, Service, Tail};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let body = Body::Request(Service::Rc, Request::SendOnly(Tail::None));
/// let packet = Packet {
///     headers: Headers::new(0x11, Psn::new(7), body),
///     payload: b"hello",
/// };
/// let mut bytes = Vec::new();
/// packet.encode(&mut bytes)?;
/// // 12 bytes of header, 5 of payload, 3 of padding.
/// assert_eq!(bytes.len(), 20);
/// assert_eq!(Packet::decode(&bytes)?, packet);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The headers.
    pub headers: Headers,
    /// The payload, without padding.
    pub payload: &'a [u8],
}

/// Why bytes are not a packet. The receiver drops them silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes end within the headers.
    #[error("a packet of {0} B is too short for its headers")]
    Short(usize),
    /// The version of the transport is not 0.
    #[error("unknown transport version {0}")]
    Version(u8),
    /// The opcode is unknown.
    #[error("unknown opcode {0:#04x}")]
    Opcode(u8),
    /// The payload with its padding is longer than the largest path MTU, is not a multiple of 4 bytes, or is shorter than the
    /// padding.
    #[error("invalid payload: {length} B after the headers, with {pad} B of padding")]
    Payload {
        /// The number of bytes after the headers.
        length: usize,
        /// The number of padding bytes, according to the header.
        pad: u8,
    },
    /// The operation has no payload.
    #[error("{opcode} has no payload, but {length} B follow its headers")]
    Unexpected {
        /// The operation.
        opcode: Opcode,
        /// The number of bytes after the headers.
        length: usize,
    },
}

/// Why a packet cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unencodable {
    /// Unreliable connections support only sends and writes; unreliable datagrams support only single-packet sends without
    /// invalidation.
    #[error("{0} does not support this operation")]
    Operation(Class),
    /// The payload is longer than [`MAX_PAYLOAD`], or the operation has none.
    #[error("a payload of {length} B is too long for {opcode}")]
    Payload {
        /// The operation.
        opcode: Opcode,
        /// The length of the payload, in bytes.
        length: usize,
    },
}

impl<'a> Packet<'a> {
    /// Appends the encoded packet, including its padding.
    ///
    /// # Errors
    ///
    /// The packet cannot be encoded; `to` is unchanged.
    pub fn encode(&self, to: &mut Vec<u8>) -> Result<(), Unencodable> {
        let headers = self.headers.encode(self.payload.len())?;
        to.extend_from_slice(headers.as_ref());
        to.extend_from_slice(self.payload);
        to.resize(to.len() + padding(self.payload.len()), 0);
        Ok(())
    }

    /// Decodes a packet: a datagram without its last 4 bytes, the invariant checksum.
    ///
    /// # Errors
    ///
    /// The bytes are not a packet.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (headers, opcode, pad, rest) = Headers::decode(bytes)?;
        let wrong = Malformed::Payload {
            length: rest.len(),
            pad,
        };
        let length = rest.len().checked_sub(usize::from(pad)).ok_or(wrong)?;
        if length > MAX_PAYLOAD || !rest.len().is_multiple_of(4) {
            return Err(wrong);
        }
        if !rest.is_empty() && !headers.body.has_payload() {
            return Err(Malformed::Unexpected {
                opcode,
                length: rest.len(),
            });
        }
        Ok(Self {
            headers,
            payload: &rest[..length],
        })
    }
}

/// How many bytes pad a payload of this length to a multiple of 4.
///
/// ```
/// assert_eq!(rkey_roce::packet::padding(61), 3);
/// assert_eq!(rkey_roce::packet::padding(64), 0);
/// ```
#[must_use]
pub const fn padding(length: usize) -> usize {
    length.wrapping_neg() & 3
}
