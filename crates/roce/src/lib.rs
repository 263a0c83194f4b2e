//! RoCEv2: InfiniBand's transport in UDP datagrams, as annex A17 of the InfiniBand specification defines it.
//!
//! Like the engine, this crate has no thread, clock, socket or log. Bytes of a datagram go in, packets come out, and the
//! other way round. A host has the sockets.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`packet`] | packets, byte by byte: one file for each header |
//!
//! A peer is a hostile stranger: bytes that are not a packet are an error that says why, and the receiver drops them.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(
    not(test),
    warn(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)
)]

pub mod packet;
