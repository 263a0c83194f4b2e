//! RoCEv2: InfiniBand's transport in UDP datagrams, as annex A17 of the InfiniBand specification defines it.
//!
//! Like the engine, this crate has no thread, clock, socket or log. Bytes of a datagram go in and packets come out, and
//! vice versa. A host provides the sockets.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`packet`] | the encoding of packets: one file for each header |
//! | [`icrc`] | the checksum at the end of a datagram |
//! | [`transport`] | queue pairs as state machines: RC, UC and UD |
//!
//! Peers are untrusted: bytes that are not a packet yield an error that says why, and the receiver drops them.
//!
//! # Example
//!
//! One side writes the first 4 bytes of the other side's region with one datagram.
//!
//! ```
//! use rkey_roce::icrc::Flow;
//! use rkey_roce::packet::{Body, Headers, Mtu, Packet, Psn, Request, Reth, Service};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let flow = Flow::new("192.0.2.1:49152".parse()?, "192.0.2.2:4791".parse()?).ok_or("two versions of IP")?;
//! let reth = Reth {
//!     address: 0x7f12_a000,
//!     rkey: 0x5a_03c1,
//!     length: 4,
//! };
//! let body = Body::Request(Service::Rc, Request::WriteOnly(reth, None));
//! let headers = Headers {
//!     ack_request: true,
//!     ..Headers::new(0x11, Psn::new(0x2e_8ce6), body)
//! };
//! let packet = Packet {
//!     headers,
//!     payload: b"data",
//! };
//! let mut datagram = Vec::new();
//! packet.encode(&mut datagram)?;
//! flow.seal(&mut datagram, 0);
//!
//! // On the other side:
//! let opened = flow.open(&datagram)?;
//! let received = Packet::decode(opened.packet)?;
//! received.headers.body.check_length(received.payload.len(), Mtu::Bytes1024)?;
//! assert_eq!(received, packet);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(
    not(test),
    warn(
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::too_many_lines,
        clippy::unwrap_used
    )
)]

pub mod icrc;
pub mod packet;
pub mod transport;
