//! The sizes that both sides of a connection rely on, and the limits of an endpoint.

use crate::header;

/// The maximum length of a message that carries its payload, in bytes.
pub const EAGER_MAX: usize = 8192;
/// How many buffers for arriving messages all connections of an endpoint share.
pub const BUFFERS: u32 = 256;
/// The size of a buffer in bytes: the longest message with its header.
pub const BUFFER_LEN: usize = EAGER_MAX + header::MAX_LEN;
/// How many requests one connection can have in flight.
pub const SENDS: u32 = 256;
/// How many of these [`SENDS`] are reserved for answers.
pub const RESERVE: u32 = 32;
/// The maximum total length of a header and a payload that are copied into the request, in bytes.
pub const INLINE_MAX: usize = 512;
/// How many operations an endpoint may have in flight.
pub const OPERATIONS_MAX: usize = 4096;
/// How many unexpected tagged datagrams an endpoint keeps, and how many untagged ones; more are dropped.
pub const DATAGRAMS_MAX: usize = 1024;
/// How many unexpected rendezvous messages one peer may have; no correct sender has that many in
/// flight.
pub const RENDEZVOUS_MAX: u32 = 2 * OPERATIONS_MAX as u32;
