//! Reliable datagrams over queue pairs: the protocol between two endpoints, and its state machines.
//!
//! An endpoint exchanges messages with any number of peers, over one connection (a reliable queue pair) for each.
//! Messages are matched with receives by sender and tag. Short messages carry their payload while the sender has
//! credit. Long ones use rendezvous: the receiver reads them from the sender's memory once a receive matches. Atomics,
//! durable writes and collective operations have their own kinds of messages.
//!
//! Like the engine, this crate has no thread, clock, socket or log. Time is an argument, and the host that drives it
//! owns the queue pairs and the threads ([`endpoint::Host`]).
//!
//! | module | what it is |
//! | --- | --- |
//! | [`endpoint`] | the state machine of an endpoint, and the trait of its host |
//! | [`error`] | why operations fail |
//! | [`limits`] | the sizes that both sides rely on |
//! | [`address`], [`authorization`], [`hello`] | what the two sides of a connection exchange first |
//! | [`header`] | the header of every message |
//! | [`connection`] | connections: their states, their slots, and when they are removed |
//! | [`peers`] | the peers of an endpoint, by destination and by number |
//! | [`routes`] | the connection to each peer, made when it is needed |
//! | [`matching`] | which receive a message matches |
//! | [`operation_id`] | operations in flight, by number |
//! | [`draining`] | ended operations whose memory a peer may still access |
//! | [`order`] | results in the order in which their transfers began |
//! | [`credit`] | how much a peer may send before the program receives it |
//! | [`backlog`] | requests that wait for room on a connection |
//! | [`atomic`] | operations on numbers in a peer's memory |
//! | [`commit`] | requests to make writes durable |
//! | [`collective`] | operations of groups of endpoints |
//! | [`sges`] | local memory of an operation |
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

pub mod address;
pub mod atomic;
pub mod authorization;
pub mod backlog;
pub mod collective;
pub mod commit;
pub mod connection;
pub mod credit;
pub mod draining;
pub mod endpoint;
pub mod error;
pub mod header;
pub mod hello;
pub mod limits;
pub mod matching;
pub mod operation_id;
pub mod order;
pub mod peers;
pub mod routes;
pub mod sges;
