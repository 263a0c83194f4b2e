//! The headers of a packet: everything but its payload. A sender encodes them separately, and then copies the payload
//! directly from its source.

use super::bytes::Cursor;
use super::opcode::{self as op, Class, Opcode};
use super::{
    Aeth, AtomicAckEth, AtomicEth, Body, Bth, Deth, Ieth, ImmDt, MAX_PAYLOAD, Malformed, Psn,
    Reliable, Request, Response, Reth, Service, Tail, Unencodable, XrcEth, padding,
};

/// The headers of a packet. The fields before the body are those of the base transport header; its opcode and its pad
/// count follow from the body and the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The number of the destination queue pair, 24 bits.
    pub destination: u32,
    /// The packet's sequence number.
    pub psn: Psn,
    /// The partition key.
    pub pkey: u16,
    /// The requester wants an acknowledgement.
    pub ack_request: bool,
    /// Solicited event: the responder's completion raises an event even if only solicited ones do.
    pub solicited: bool,
    /// The migration state: see [`Bth::migrated`].
    pub migrated: bool,
    /// The path is congested (forward).
    pub fecn: bool,
    /// The path back is congested (backward).
    pub becn: bool,
    /// The reserved bits: see [`Bth::reserved`].
    pub reserved: u16,
    /// The content of the packet.
    pub body: Body,
}

/// The encoded headers of a packet.
#[derive(Clone, Copy)]
pub struct HeaderBytes {
    bytes: [u8; Headers::MAX],
    length: usize,
}

/// The default partition key: a full member of the default partition.
const DEFAULT_PKEY: u16 = 0xffff;

/// The reserved bytes of a congestion notification.
const CONGESTION: usize = 16;

impl Headers {
    /// The length of the longest headers, in bytes: those of an XRC atomic operation.
    pub const MAX: usize = Bth::LEN + XrcEth::LEN + AtomicEth::LEN;

    /// Headers with the default partition key and no flags.
    #[must_use]
    pub const fn new(destination: u32, psn: Psn, body: Body) -> Self {
        Self {
            destination,
            psn,
            pkey: DEFAULT_PKEY,
            ack_request: false,
            solicited: false,
            migrated: false,
            fecn: false,
            becn: false,
            reserved: 0,
            body,
        }
    }

    /// Encodes the headers for a payload of `length` bytes. The payload must follow, and then [`padding`] zero bytes.
    ///
    /// # Errors
    ///
    /// The service lacks this operation, or the operation cannot have this payload.
    pub fn encode(&self, length: usize) -> Result<HeaderBytes, Unencodable> {
        let opcode = self
            .body
            .opcode()
            .ok_or(Unencodable::Operation(self.body.class()))?;
        if length > MAX_PAYLOAD || (length > 0 && !self.body.has_payload()) {
            return Err(Unencodable::Payload { opcode, length });
        }
        let bth = Bth {
            opcode,
            solicited: self.solicited,
            migrated: self.migrated,
            pad: padding(length) as u8,
            pkey: self.pkey,
            fecn: self.fecn,
            becn: self.becn,
            reserved: self.reserved,
            destination: self.destination,
            ack_request: self.ack_request,
            psn: self.psn,
        };
        let mut to = HeaderBytes {
            bytes: [0; Self::MAX],
            length: 0,
        };
        to.push(bth.encode());
        match &self.body {
            Body::Request(service, request) => {
                match service {
                    Service::Rc | Service::Uc => {}
                    Service::Ud(deth) => to.push(deth.encode()),
                    Service::Xrc(xrc) => to.push(xrc.encode()),
                }
                to.push_request(request);
            }
            Body::Response(_, response) => to.push_response(response),
            Body::Congestion => to.push([0; CONGESTION]),
        }
        Ok(to)
    }

    /// Decodes the headers at the start of a packet. Returns them, the opcode, the pad count, and the bytes after them.
    ///
    /// # Errors
    ///
    /// The bytes do not start with the headers of a packet.
    #[inline]
    pub(super) fn decode(bytes: &[u8]) -> Result<(Self, Opcode, u8, &[u8]), Malformed> {
        let mut from = Cursor::new(bytes);
        let bth = Bth::decode(from.take()?)?;
        let body = body(bth.opcode, &mut from)?;
        let headers = Self {
            destination: bth.destination,
            psn: bth.psn,
            pkey: bth.pkey,
            ack_request: bth.ack_request,
            solicited: bth.solicited,
            migrated: bth.migrated,
            fecn: bth.fecn,
            becn: bth.becn,
            reserved: bth.reserved,
            body,
        };
        Ok((headers, bth.opcode, bth.pad, from.rest()))
    }
}

fn body(opcode: Opcode, from: &mut Cursor<'_>) -> Result<Body, Malformed> {
    let service = match opcode.class() {
        Class::Cnp => {
            from.take::<CONGESTION>()?;
            return Ok(Body::Congestion);
        }
        Class::Rc if opcode.is_response() => {
            return Ok(Body::Response(Reliable::Rc, response(opcode, from)?));
        }
        Class::Xrc if opcode.is_response() => {
            return Ok(Body::Response(Reliable::Xrc, response(opcode, from)?));
        }
        Class::Rc => Service::Rc,
        Class::Uc => Service::Uc,
        Class::Ud => Service::Ud(Deth::decode(from.take()?)),
        Class::Xrc => Service::Xrc(XrcEth::decode(from.take()?)),
    };
    Ok(Body::Request(service, request(opcode, from)?))
}

fn request(opcode: Opcode, from: &mut Cursor<'_>) -> Result<Request, Malformed> {
    Ok(match opcode.code() {
        op::SEND_FIRST => Request::SendFirst,
        op::SEND_MIDDLE => Request::SendMiddle,
        op::SEND_LAST => Request::SendLast(Tail::None),
        op::SEND_LAST_IMMEDIATE => Request::SendLast(immediate(from)?),
        op::SEND_LAST_INVALIDATE => Request::SendLast(invalidate(from)?),
        op::SEND_ONLY => Request::SendOnly(Tail::None),
        op::SEND_ONLY_IMMEDIATE => Request::SendOnly(immediate(from)?),
        op::SEND_ONLY_INVALIDATE => Request::SendOnly(invalidate(from)?),
        op::WRITE_FIRST => Request::WriteFirst(Reth::decode(from.take()?)),
        op::WRITE_MIDDLE => Request::WriteMiddle,
        op::WRITE_LAST => Request::WriteLast(None),
        op::WRITE_LAST_IMMEDIATE => Request::WriteLast(Some(ImmDt::decode(from.take()?))),
        op::WRITE_ONLY => Request::WriteOnly(Reth::decode(from.take()?), None),
        op::WRITE_ONLY_IMMEDIATE => {
            let reth = Reth::decode(from.take()?);
            Request::WriteOnly(reth, Some(ImmDt::decode(from.take()?)))
        }
        op::READ_REQUEST => Request::Read(Reth::decode(from.take()?)),
        op::COMPARE_SWAP => Request::CompareSwap(AtomicEth::decode(from.take()?)),
        op::FETCH_ADD => Request::FetchAdd(AtomicEth::decode(from.take()?)),
        _ => return Err(Malformed::Opcode(opcode.to_byte())),
    })
}

fn response(opcode: Opcode, from: &mut Cursor<'_>) -> Result<Response, Malformed> {
    if opcode.code() == op::READ_RESPONSE_MIDDLE {
        return Ok(Response::ReadMiddle);
    }
    let aeth = Aeth::decode(from.take()?);
    Ok(match opcode.code() {
        op::READ_RESPONSE_FIRST => Response::ReadFirst(aeth),
        op::READ_RESPONSE_LAST => Response::ReadLast(aeth),
        op::READ_RESPONSE_ONLY => Response::ReadOnly(aeth),
        op::ACKNOWLEDGE => Response::Acknowledge(aeth),
        op::ATOMIC_ACKNOWLEDGE => {
            Response::AtomicAcknowledge(aeth, AtomicAckEth::decode(from.take()?))
        }
        _ => return Err(Malformed::Opcode(opcode.to_byte())),
    })
}

fn immediate(from: &mut Cursor<'_>) -> Result<Tail, Malformed> {
    Ok(Tail::Immediate(ImmDt::decode(from.take()?)))
}

fn invalidate(from: &mut Cursor<'_>) -> Result<Tail, Malformed> {
    Ok(Tail::Invalidate(Ieth::decode(from.take()?)))
}

impl HeaderBytes {
    /// Appends a header. [`Headers::MAX`] suffices for the longest sequence that the functions below append.
    fn push<const N: usize>(&mut self, header: [u8; N]) {
        self.bytes[self.length..self.length + N].copy_from_slice(&header);
        self.length += N;
    }

    fn push_request(&mut self, request: &Request) {
        match request {
            Request::SendFirst
            | Request::SendMiddle
            | Request::SendLast(Tail::None)
            | Request::SendOnly(Tail::None)
            | Request::WriteMiddle
            | Request::WriteLast(None) => {}
            Request::SendLast(Tail::Immediate(immediate))
            | Request::SendOnly(Tail::Immediate(immediate))
            | Request::WriteLast(Some(immediate)) => self.push(immediate.encode()),
            Request::SendLast(Tail::Invalidate(ieth))
            | Request::SendOnly(Tail::Invalidate(ieth)) => self.push(ieth.encode()),
            Request::WriteFirst(reth) | Request::Read(reth) | Request::WriteOnly(reth, None) => {
                self.push(reth.encode());
            }
            Request::WriteOnly(reth, Some(immediate)) => {
                self.push(reth.encode());
                self.push(immediate.encode());
            }
            Request::CompareSwap(atomic) | Request::FetchAdd(atomic) => {
                self.push(atomic.encode());
            }
        }
    }

    fn push_response(&mut self, response: &Response) {
        if let Some(aeth) = response.aeth() {
            self.push(aeth.encode());
        }
        if let Response::AtomicAcknowledge(_, original) = response {
            self.push(original.encode());
        }
    }
}

impl AsRef<[u8]> for HeaderBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl core::fmt::Debug for HeaderBytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("HeaderBytes").field(&self.as_ref()).finish()
    }
}
