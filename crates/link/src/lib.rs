//! Links: how the requests and responses of queue pairs travel between two devices.
//!
//! A link is directional. The device that has requests connects and is the *requester*; the device that accepts is the
//! *responder*. Requests flow one way, responses the other way, each in its own ring, so that two busy devices can
//! never block each other. Two devices that both send requests have two links.
//!
//! A link moves bytes between peers. It does not interpret keys, regions or queue pair states: the engine decides what
//! a request may do. A link only guarantees that every fragment arrives once, whole and in order, and that a request
//! counts as executed only after its responses have been taken ([`Link::acknowledged`]).
//!
//! | module | what it is |
//! | --- | --- |
//! | [`header`] | the header of a fragment: operation, flags, addresses, lengths |
//! | [`fragment`] | fragments as the two sides see them |
//! | [`link`], [`node`] | the [`Link`] trait that the engine uses; the identity of a device |
//! | [`loopback`] | a device talking to itself, in memory |
//! | [`shm`] | two processes of one host: sealed shared segments, rings, doorbells, handshake |
//! | `ring` | slots, payload ring and acknowledgement words, for [`loopback`] and [`shm`] |
//! | [`direct`] | leases: the initiator copies without involving the responder, and the owner can revoke the lease |
//! | [`fault`] | a wrapper that delays, corrupts and goes down, for tests |
//! | [`observed`] | a wrapper that shows an observer what passes, for capture files |
//! | [`peer`] | more about links to other processes: the peer's identity, the control socket, leases |
//! | [`any`] | one type for every kind of link |
//! | [`error`] | errors of a link, as values |
//!
//! Everything that a peer can write is copied out once and then checked. An invalid value is a [`Malformed`] error,
//! and the link is down afterwards.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::unwrap_used))]

pub mod any;
pub mod direct;
pub mod error;
pub mod fault;
pub mod fragment;
#[doc(hidden)]
pub mod fuzzing;
pub mod header;
pub mod link;
pub mod loopback;
pub mod node;
pub mod observed;
pub mod peer;
mod ring;
pub mod shm;

pub use any::AnyLink;
pub use error::{DownReason, Malformed, PullError, SendError};
pub use fragment::{
    AnsweredKind, AnsweredRequest, NotShort, Payload, ReceivedFragment, RemoteIovec, ShortKind,
    ShortRequest, Ticket,
};
pub use header::{Header, HeaderFlags, Op};
pub use link::{Capabilities, Link};
pub use node::NodeId;
pub use peer::{LinkRole, PollHandle, RemotePeer};
pub use ring::PollView;
