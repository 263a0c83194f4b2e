//! The sizes that both sides of a connection count on, and what one endpoint may have under way.

use crate::header;

/// Payloads up to this length travel with their message, in bytes.
pub const EAGER_MAX: usize = 8192;
/// Buffers for messages that arrive, which all connections of an endpoint share.
pub const BUFFERS: u32 = 256;
/// Bytes of a buffer: the longest message with its header.
pub const BUFFER_LEN: usize = EAGER_MAX + header::MAX_LEN;
/// Requests that one connection can have under way.
pub const SENDS: u32 = 256;
/// So many of them are kept for answers.
pub const RESERVE: u32 = 32;
/// Payload and header up to this length are copied into the request, in bytes.
pub const INLINE_MAX: usize = 512;
/// Operations that an endpoint may have under way.
pub const OPERATIONS_MAX: usize = 4096;
/// Datagrams that are kept for a receive; more are dropped.
pub const DATAGRAMS_MAX: usize = 1024;
/// Messages by rendezvous that one peer may have here; no sender has so many under way.
pub const RENDEZVOUS_MAX: u32 = 2 * OPERATIONS_MAX as u32;
