//! The encoding of the connection manager's messages: management datagrams (MADs) of exactly 256 bytes to queue pair 1.
//!
//! [`Mad::decode`] fails for packets that are not messages of this protocol, and the receiver drops them. A decoded message may
//! still contain an impossible request; [`Req::check`] returns the reason for the refusal. Reserved bits are ignored, as the
//! specification demands, and written as 0. Alternate paths (LAP, APR) do not exist on RoCE, so their messages are dropped.
//!
//! Layouts: InfiniBand specification, volume 1, chapter 12.

mod bytes;
mod data;
mod detail;
mod ip_header;
mod reject;
mod reply;
mod request;
mod short;
mod sidr;
#[cfg(test)]
mod tests;

use crate::address::ServiceId;
use bytes::{BODY, Reader, Writer};

pub use data::{PrivateData, TooLong};
pub use detail::Detail;
pub use ip_header::IpHeader;
pub use reject::{About, Rej, RejectReason};
pub use reply::Rep;
pub use request::{Ece, Mtu, Path, Req, Transport};
pub use short::{Drep, Dreq, Mra, Rtu};
pub use sidr::{SidrRep, SidrReq, SidrStatus};

/// The length of every message, in bytes.
pub const MAD: usize = 256;
const HEADER: usize = MAD - BODY;

const BASE_VERSION: u8 = 1;
const CLASS: u8 = 7;
const CLASS_VERSION: u8 = 2;
/// The method of all messages: `Send`.
const METHOD: u8 = 3;

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Requests a connection.
    Req(Req),
    /// The answer takes longer.
    Mra(Mra),
    /// Refuses or gives up a connection.
    Rej(Rej),
    /// Accepts a connection.
    Rep(Rep),
    /// Both sides are ready.
    Rtu(Rtu),
    /// Asks to end the connection.
    Dreq(Dreq),
    /// The connection has ended.
    Drep(Drep),
    /// Requests a datagram queue pair.
    SidrReq(SidrReq),
    /// Names a datagram queue pair.
    SidrRep(SidrRep),
}

/// Which of several managers that share an address receives a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// The manager that listens for a service.
    Service(ServiceId),
    /// The manager that issued a communication id: see [`IdSpace`](crate::ids::IdSpace).
    Communication(u32),
}

impl Message {
    /// The manager that a message is for, if several share an address. A REJ sent before the first answer does not contain the
    /// receiver's communication id: its addressee is [`Addressee::Communication`] with id 0, and it must go where the REQ went.
    #[must_use]
    pub const fn addressee(&self) -> Addressee {
        match self {
            Self::Req(it) => Addressee::Service(it.service),
            Self::SidrReq(it) => Addressee::Service(it.service),
            Self::Mra(it) => Addressee::Communication(it.remote),
            Self::Rej(it) => Addressee::Communication(it.remote),
            Self::Rep(it) => Addressee::Communication(it.remote),
            Self::Rtu(it) => Addressee::Communication(it.remote),
            Self::Dreq(it) => Addressee::Communication(it.remote),
            Self::Drep(it) => Addressee::Communication(it.remote),
            Self::SidrRep(it) => Addressee::Communication(it.request),
        }
    }

    /// The message's attribute id.
    const fn attribute(&self) -> u16 {
        match self {
            Self::Req(_) => 0x10,
            Self::Mra(_) => 0x11,
            Self::Rej(_) => 0x12,
            Self::Rep(_) => 0x13,
            Self::Rtu(_) => 0x14,
            Self::Dreq(_) => 0x15,
            Self::Drep(_) => 0x16,
            Self::SidrReq(_) => 0x17,
            Self::SidrRep(_) => 0x18,
        }
    }
}

/// Why bytes are not a message of this protocol. The receiver drops them silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The length is not 256 bytes.
    #[error("the message is {0} B long, not 256 B")]
    Length(usize),
    /// The management class, version or method is not that of the connection manager.
    #[error("not a message of the connection manager, version 2")]
    Header,
    /// The message is LAP or APR, or the attribute is unknown.
    #[error("unsupported attribute {0:#x}")]
    Attribute(u16),
}

/// A management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad {
    /// The transaction id, chosen by the sender of a REQ, SIDR_REQ or DREQ; answers carry the same id.
    pub tid: u64,
    /// The attribute modifier: ECE options.
    pub modifier: u32,
    /// The message.
    pub message: Message,
}

impl Mad {
    /// A message without ECE options.
    #[must_use]
    pub const fn new(tid: u64, message: Message) -> Self {
        Self {
            tid,
            modifier: 0,
            message,
        }
    }

    /// Encodes the datagram.
    #[must_use]
    pub fn encode(&self) -> [u8; MAD] {
        let mut mad = [0; MAD];
        mad[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, METHOD]);
        mad[8..16].copy_from_slice(&self.tid.to_be_bytes());
        mad[16..18].copy_from_slice(&self.message.attribute().to_be_bytes());
        mad[20..24].copy_from_slice(&self.modifier.to_be_bytes());
        let mut body = [0; BODY];
        let fields = &mut Writer(&mut body);
        match &self.message {
            Message::Req(it) => it.write(fields),
            Message::Mra(it) => it.write(fields),
            Message::Rej(it) => it.write(fields),
            Message::Rep(it) => it.write(fields),
            Message::Rtu(it) => it.write(fields),
            Message::Dreq(it) => it.write(fields),
            Message::Drep(it) => it.write(fields),
            Message::SidrReq(it) => it.write(fields),
            Message::SidrRep(it) => it.write(fields),
        }
        mad[HEADER..].copy_from_slice(&body);
        mad
    }

    /// Decodes a datagram.
    ///
    /// # Errors
    ///
    /// The bytes are not a message of this protocol.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mad: &[u8; MAD] = bytes
            .try_into()
            .map_err(|_| Malformed::Length(bytes.len()))?;
        if mad[..4] != [BASE_VERSION, CLASS, CLASS_VERSION, METHOD] {
            return Err(Malformed::Header);
        }
        let mut body = [0; BODY];
        body.copy_from_slice(&mad[HEADER..]);
        let fields = Reader(&body);
        let message = match u16::from_be_bytes([mad[16], mad[17]]) {
            0x10 => Message::Req(Req::read(fields)),
            0x11 => Message::Mra(Mra::read(fields)),
            0x12 => Message::Rej(Rej::read(fields)),
            0x13 => Message::Rep(Rep::read(fields)),
            0x14 => Message::Rtu(Rtu::read(fields)),
            0x15 => Message::Dreq(Dreq::read(fields)),
            0x16 => Message::Drep(Drep::read(fields)),
            0x17 => Message::SidrReq(SidrReq::read(fields)),
            0x18 => Message::SidrRep(SidrRep::read(fields)),
            other => return Err(Malformed::Attribute(other)),
        };
        let mut tid = [0; 8];
        tid.copy_from_slice(&mad[8..16]);
        Ok(Self {
            tid: u64::from_be_bytes(tid),
            modifier: u32::from_be_bytes([mad[20], mad[21], mad[22], mad[23]]),
            message,
        })
    }
}
