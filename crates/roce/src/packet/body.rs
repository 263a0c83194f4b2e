//! The content of a packet: its operation with the headers that belong to it. The opcode follows from it.

use super::opcode::{self, Class, Opcode, Position};
use super::{Aeth, AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, Mtu, Reth, XrcEth};
use core::ops::RangeInclusive;

/// The content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// From a requester to a responder.
    Request(Service, Request),
    /// From a responder to a requester.
    Response(Reliable, Response),
    /// A congestion notification packet (CNP): packets that the destination queue pair sent have met congestion (annex A17.9.3).
    /// The sender sets [`becn`](super::Headers::becn).
    Congestion,
}

/// The transport service of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection: sends without invalidation, and writes.
    Uc,
    /// Unreliable datagram: single-packet sends without invalidation.
    Ud(Deth),
    /// Extended reliable connection.
    Xrc(XrcEth),
}

/// A transport service with responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reliable {
    /// Reliable connection.
    Rc,
    /// Extended reliable connection.
    Xrc,
}

/// A packet from a requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first packet of a send.
    SendFirst,
    /// A packet in the middle of a send.
    SendMiddle,
    /// The last packet of a send.
    SendLast(Tail),
    /// A send that fits in one packet.
    SendOnly(Tail),
    /// The first packet of an RDMA write.
    WriteFirst(Reth),
    /// A packet in the middle of an RDMA write.
    WriteMiddle,
    /// The last packet of an RDMA write.
    WriteLast(Option<ImmDt>),
    /// An RDMA write that fits in one packet.
    WriteOnly(Reth, Option<ImmDt>),
    /// An RDMA read.
    Read(Reth),
    /// A compare-and-swap.
    CompareSwap(AtomicEth),
    /// A fetch-and-add.
    FetchAdd(AtomicEth),
}

/// What a send carries besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    None,
    /// Immediate data.
    Immediate(ImmDt),
    /// A key that the receiver invalidates.
    Invalidate(Ieth),
}

/// A packet from a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// The first packet of an RDMA read response.
    ReadFirst(Aeth),
    /// A packet in the middle of an RDMA read response. It acknowledges nothing.
    ReadMiddle,
    /// The last packet of an RDMA read response.
    ReadLast(Aeth),
    /// An RDMA read response that fits in one packet.
    ReadOnly(Aeth),
    /// An acknowledgement, or a NAK.
    Acknowledge(Aeth),
    /// The result of an atomic operation.
    AtomicAcknowledge(Aeth, AtomicAckEth),
}

/// The valid lengths of a payload.
struct Lengths(usize, usize);

impl std::fmt::Display for Lengths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(least, most) = self;
        match least == most {
            true => write!(f, "{most}"),
            false => write!(f, "{least} to {most}"),
        }
    }
}

/// A packet's payload has an invalid length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the payload is {length} B long, but must be {} B long in this packet", Lengths(*least, *most))]
pub struct WrongLength {
    /// The length of the payload, in bytes.
    pub length: usize,
    /// The minimum length, in bytes.
    pub least: usize,
    /// The maximum length, in bytes.
    pub most: usize,
}

impl Body {
    /// The opcode; `None` if the service lacks this operation.
    #[must_use]
    pub const fn opcode(&self) -> Option<Opcode> {
        match self {
            Self::Request(service, request) => Opcode::of(service.class(), request.code()),
            Self::Response(Reliable::Rc, response) => Opcode::of(Class::Rc, response.code()),
            Self::Response(Reliable::Xrc, response) => Opcode::of(Class::Xrc, response.code()),
            Self::Congestion => Opcode::of(Class::Cnp, opcode::NOTIFICATION),
        }
    }

    /// The type of queue pair that the packet is for.
    #[must_use]
    pub const fn class(&self) -> Class {
        match self {
            Self::Request(service, _) => service.class(),
            Self::Response(Reliable::Rc, _) => Class::Rc,
            Self::Response(Reliable::Xrc, _) => Class::Xrc,
            Self::Congestion => Class::Cnp,
        }
    }

    /// Whether message bytes may follow the headers.
    #[must_use]
    pub const fn has_payload(&self) -> bool {
        match self {
            Self::Request(_, request) => request.has_payload(),
            Self::Response(_, response) => response.has_payload(),
            Self::Congestion => false,
        }
    }

    /// The valid payload lengths on a path with this MTU, in bytes (IBA volume 1, 9.7.4.1, from C9-92 on): first and middle
    /// packets are full, and last packets have at least one byte.
    #[must_use]
    pub const fn lengths(&self, mtu: Mtu) -> RangeInclusive<usize> {
        let position = match self {
            Self::Request(_, request) if request.has_payload() => request.position(),
            Self::Response(_, response) if response.has_payload() => response.position(),
            _ => return 0..=0,
        };
        match position {
            Position::First | Position::Middle => mtu.bytes()..=mtu.bytes(),
            Position::Last => 1..=mtu.bytes(),
            Position::Only => 0..=mtu.bytes(),
        }
    }

    /// Checks the length of the payload against [`lengths`](Self::lengths). A responder refuses a request with a wrong length
    /// with [`NakCode::InvalidRequest`](super::NakCode::InvalidRequest).
    ///
    /// # Errors
    ///
    /// The length is not valid for this packet.
    ///
    /// ```
    /// use rkey_roce::packet::{Body, Mtu, Request, Service, Tail};
    ///
    /// let first = Body::Request(Service::Rc, Request::SendFirst);
    /// assert!(first.check_length(1024, Mtu::Bytes1024).is_ok());
    /// assert!(first.check_length(1020, Mtu::Bytes1024).is_err());
    /// let only = Body::Request(Service::Rc, Request::SendOnly(Tail::None));
    /// assert!(only.check_length(0, Mtu::Bytes1024).is_ok());
    /// ```
    pub fn check_length(&self, length: usize, mtu: Mtu) -> Result<(), WrongLength> {
        let lengths = self.lengths(mtu);
        if lengths.contains(&length) {
            return Ok(());
        }
        Err(WrongLength {
            length,
            least: *lengths.start(),
            most: *lengths.end(),
        })
    }
}

impl Service {
    /// The type of queue pair.
    #[must_use]
    pub const fn class(&self) -> Class {
        match self {
            Self::Rc => Class::Rc,
            Self::Uc => Class::Uc,
            Self::Ud(_) => Class::Ud,
            Self::Xrc(_) => Class::Xrc,
        }
    }
}

impl Request {
    /// The packet's position in its message. Reads and atomic operations are requests of one packet.
    #[must_use]
    pub const fn position(&self) -> Position {
        match self {
            Self::SendFirst | Self::WriteFirst(_) => Position::First,
            Self::SendMiddle | Self::WriteMiddle => Position::Middle,
            Self::SendLast(_) | Self::WriteLast(_) => Position::Last,
            Self::SendOnly(_)
            | Self::WriteOnly(..)
            | Self::Read(_)
            | Self::CompareSwap(_)
            | Self::FetchAdd(_) => Position::Only,
        }
    }

    /// Whether message bytes may follow the headers: in sends and writes.
    #[must_use]
    pub const fn has_payload(&self) -> bool {
        !matches!(
            self,
            Self::Read(_) | Self::CompareSwap(_) | Self::FetchAdd(_)
        )
    }

    const fn code(&self) -> u8 {
        match self {
            Self::SendFirst => opcode::SEND_FIRST,
            Self::SendMiddle => opcode::SEND_MIDDLE,
            Self::SendLast(Tail::None) => opcode::SEND_LAST,
            Self::SendLast(Tail::Immediate(_)) => opcode::SEND_LAST_IMMEDIATE,
            Self::SendLast(Tail::Invalidate(_)) => opcode::SEND_LAST_INVALIDATE,
            Self::SendOnly(Tail::None) => opcode::SEND_ONLY,
            Self::SendOnly(Tail::Immediate(_)) => opcode::SEND_ONLY_IMMEDIATE,
            Self::SendOnly(Tail::Invalidate(_)) => opcode::SEND_ONLY_INVALIDATE,
            Self::WriteFirst(_) => opcode::WRITE_FIRST,
            Self::WriteMiddle => opcode::WRITE_MIDDLE,
            Self::WriteLast(None) => opcode::WRITE_LAST,
            Self::WriteLast(Some(_)) => opcode::WRITE_LAST_IMMEDIATE,
            Self::WriteOnly(_, None) => opcode::WRITE_ONLY,
            Self::WriteOnly(_, Some(_)) => opcode::WRITE_ONLY_IMMEDIATE,
            Self::Read(_) => opcode::READ_REQUEST,
            Self::CompareSwap(_) => opcode::COMPARE_SWAP,
            Self::FetchAdd(_) => opcode::FETCH_ADD,
        }
    }
}

impl Response {
    /// The packet's position in its message. Acknowledgements are messages of one packet.
    #[must_use]
    pub const fn position(&self) -> Position {
        match self {
            Self::ReadFirst(_) => Position::First,
            Self::ReadMiddle => Position::Middle,
            Self::ReadLast(_) => Position::Last,
            Self::ReadOnly(_) | Self::Acknowledge(_) | Self::AtomicAcknowledge(..) => {
                Position::Only
            }
        }
    }

    /// Whether message bytes may follow the headers: in read responses.
    #[must_use]
    pub const fn has_payload(&self) -> bool {
        !matches!(self, Self::Acknowledge(_) | Self::AtomicAcknowledge(..))
    }

    /// The acknowledge header; `None` in the middle of a read response.
    #[must_use]
    pub const fn aeth(&self) -> Option<Aeth> {
        match self {
            Self::ReadMiddle => None,
            Self::ReadFirst(aeth)
            | Self::ReadLast(aeth)
            | Self::ReadOnly(aeth)
            | Self::Acknowledge(aeth)
            | Self::AtomicAcknowledge(aeth, _) => Some(*aeth),
        }
    }

    const fn code(&self) -> u8 {
        match self {
            Self::ReadFirst(_) => opcode::READ_RESPONSE_FIRST,
            Self::ReadMiddle => opcode::READ_RESPONSE_MIDDLE,
            Self::ReadLast(_) => opcode::READ_RESPONSE_LAST,
            Self::ReadOnly(_) => opcode::READ_RESPONSE_ONLY,
            Self::Acknowledge(_) => opcode::ACKNOWLEDGE,
            Self::AtomicAcknowledge(..) => opcode::ATOMIC_ACKNOWLEDGE,
        }
    }
}
