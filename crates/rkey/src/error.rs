//! Errors, whose messages say what to do.

use crate::address::Address;
use rkey_core::Denial;
use rkey_device::cm::Why as Refusal;
use std::time::Duration;

/// The result of every fallible operation in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. Messages are for people; programs match on the variant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The owner of the memory denied the access, or our own device denied the local memory of the operation. The
    /// denial says which rule was broken and by how much; [`Error::explain`] adds its advice. The connection on which
    /// it happened is broken.
    #[error("{0}")]
    Denied(Box<Denial>),

    /// An access was denied without an explanation: the owner's log has the reason (run `rkey explain` on the owner's host).
    #[error(
        "the {side} refused the operation ({status}) and gave no reason; run `rkey explain` on the {side}'s host to see why"
    )]
    Refused {
        /// The side that refused: "peer" or "local device".
        side: &'static str,
        /// The status in words.
        status: String,
    },

    /// The operation was not executed, because an earlier one on this connection failed.
    #[error(
        "flushed: an earlier operation of this connection failed ({first}); open a new connection"
    )]
    Flushed {
        /// The result of the first operation that failed.
        first: String,
    },

    /// The peer closed the connection, exited, or stopped responding.
    #[error("the peer is no longer connected ({how}); reconnect when it is available again")]
    PeerGone {
        /// How the loss of the peer was detected.
        how: String,
    },

    /// The peer responds, but its program did not post a receive for our message in time.
    #[error(
        "the peer is not receiving: its program must call receive() more often, or post more receives"
    )]
    NotReceiving,

    /// A blocking call exceeded its time limit.
    #[error(
        "timed out after {after:?} waiting for {what}; set a longer timeout if this is expected"
    )]
    Timeout {
        /// The event that the call waited for.
        what: &'static str,
        /// How long the call waited.
        after: Duration,
    },

    /// The owner permanently revoked the lease on the mapped memory.
    #[error("the owner deregistered the mapped memory; ask the owner for a new key")]
    Revoked,

    /// The memory of a key cannot be mapped; it can still be used through the connection.
    #[error(
        "this memory cannot be mapped ({0}); its owner must allocate it with Device::allocate and hand out the key of a whole region. Reads and writes work without mapping"
    )]
    NotMappable(String),

    /// A range is not inside a region, a key or a buffer. Nothing was sent.
    #[error("{len} B at offset {offset} do not fit into this {what} of {available} B{}", fitting(*.offset, *.available))]
    OutOfRange {
        /// The object that the range must be inside.
        what: &'static str,
        /// Where the range begins, in bytes.
        offset: u64,
        /// How long the range is, in bytes.
        len: u64,
        /// The length of that object, in bytes.
        available: u64,
    },

    /// An atomic needs an address that is a multiple of 8.
    #[error(
        "atomics need an address that is a multiple of 8, but offset {offset} is at {address:#x}; register a Vec<u64> or shared memory, and use offsets that are multiples of 8"
    )]
    Misaligned {
        /// The requested offset, in bytes.
        offset: u64,
        /// The address at that offset.
        address: u64,
    },

    /// The requested rights contradict each other or the memory.
    #[error("these rights cannot be granted: {0}")]
    Rights(String),

    /// The bytes are not a remote key.
    #[error("not a remote key: {0}")]
    BadKey(String),

    /// A message does not fit into the buffers that both sides allocate for messages.
    #[error(
        "the message has {len} B, but the limit is {limit} B; move large data with write(), or raise the builder's max_message on both sides"
    )]
    MessageTooLong {
        /// The length of the message when serialised, in bytes.
        len: usize,
        /// The limit, in bytes.
        limit: usize,
    },

    /// A value cannot be sent as a message: it does not serialise, or the receiver would refuse it because it nests
    /// deeper than 128 levels or has too many elements for its bytes.
    #[error("this value cannot be sent as a message: {0}")]
    Unsendable(String),

    /// A message arrived that is not what the program expected.
    #[error(
        "the peer's message does not have the expected type ({0}); do both sides run the same version?"
    )]
    BadMessage(String),

    /// The other end does not use this version of the protocol.
    #[error("the peer does not use this version of the protocol: {0}")]
    Protocol(String),

    /// The object is still in use and cannot be closed or changed now.
    #[error("still in use: {0}")]
    Busy(String),

    /// A message was longer than the buffer of its receive. The message is lost.
    #[error("a message of {len} B arrived for a receive of {room} B; receive into a longer buffer")]
    Truncated {
        /// The length of the message, in bytes.
        len: usize,
        /// The length of the receive's buffer, in bytes.
        room: usize,
    },

    /// No connection to an endpoint could be made. Nothing was sent.
    #[error("the endpoint at {address} cannot be reached: {why}")]
    Unreachable {
        /// The endpoint's address.
        address: Address,
        /// The reason.
        why: &'static str,
    },

    /// The text or the bytes are not the address of an endpoint.
    #[error("not the address of an endpoint: {0}")]
    BadAddress(String),

    /// A connection through the connection manager ([`cm`](crate::cm)) was not made.
    #[error("cannot connect to {address}: {why}. {}", .why.advice())]
    ConnectionRefused {
        /// The peer's address.
        address: std::net::SocketAddr,
        /// The reason.
        why: Refusal,
        /// The private data of the peer's program, with zeros after it; empty if the peer did not answer.
        private_data: Vec<u8>,
    },

    /// A limit of the device, or an unsupported operand.
    #[error("{0}")]
    Device(#[from] rkey_device::DeviceError),

    /// The device refused to create or change an object.
    #[error("{0}")]
    Object(String),
}

/// The part of the message that says how many bytes would fit; empty if none would.
fn fitting(offset: u64, available: u64) -> String {
    match available.checked_sub(offset) {
        None | Some(0) => String::new(),
        Some(fits) => format!(": at most {fits} B fit at this offset"),
    }
}

impl Error {
    /// The whole explanation: for a denied access several lines with advice, otherwise the message.
    #[must_use]
    pub fn explain(&self) -> String {
        match self {
            Self::Denied(denial) => denial.explain(),
            other => other.to_string(),
        }
    }

    /// The denial, if an access was denied and explained.
    #[must_use]
    pub fn denial(&self) -> Option<&Denial> {
        match self {
            Self::Denied(denial) => Some(denial),
            _ => None,
        }
    }

    /// Whether the peer has exited or closed the connection.
    #[must_use]
    pub fn is_peer_gone(&self) -> bool {
        matches!(self, Self::PeerGone { .. })
    }
}

impl From<rkey_core::CoreError> for Error {
    fn from(error: rkey_core::CoreError) -> Self {
        Self::Device(error.into())
    }
}
