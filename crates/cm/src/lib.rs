//! InfiniBand's connection manager (CM), as it runs over RoCE: how two programs that know an address and a port get a
//! pair of connected queue pairs.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`wire`] | the messages, byte by byte, and which requests are impossible |
//! | [`address`] | names on the wire: GUIDs, GIDs, service ids |
//!
//! ```
//! use rkey_cm::wire::{About, Mad, Message, Rej, RejectReason};
//!
//! // A peer's datagram at queue pair 1 ...
//! let refusal = Rej::bare(0, 0x51, About::Req, RejectReason::SERVICE_ID);
//! let bytes = Mad::new(7, Message::Rej(refusal)).encode();
//! // ... is read without trust.
//! let Ok(Mad { message: Message::Rej(rej), .. }) = Mad::decode(&bytes) else {
//!     panic!("the peer sent something else");
//! };
//! assert_eq!(rej.reason.to_string(), "nothing listens on this port");
//! assert!(Mad::decode(&bytes[1..]).is_err());
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(
    not(test),
    warn(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)
)]

pub mod address;
pub mod wire;
