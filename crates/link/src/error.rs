//! Errors of a link, as values.

use rkey_base::fault::Fault;

/// The peer wrote something invalid. The link is down afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer violated the protocol: {reason}")]
pub struct Malformed {
    /// The invalid part, in a few words.
    pub reason: &'static str,
}

impl Malformed {
    /// Creates an error that names the violated rule.
    #[inline]
    pub const fn new(reason: &'static str) -> Self {
        Self { reason }
    }
}

/// Why a request or response could not be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No slot or no payload room at the moment: retry after progress.
    #[error("the ring to the peer is full")]
    Full,
    /// The caller's memory could not be read; nothing was sent.
    #[error("cannot read the payload: {0}")]
    Fault(Fault),
    /// The link is down ([`crate::Link::is_up`] returns the reason); nothing more can be sent.
    #[error("the link is down")]
    Down,
}

/// Why a link is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DownReason {
    /// The peer's process ended, or the peer closed the link.
    #[error("the peer exited or closed the link")]
    PeerGone,
    /// The peer violated the protocol.
    #[error(transparent)]
    Malformed(Malformed),
    /// This side closed the link.
    #[error("this side closed the link")]
    Closed,
    /// The peer does not respond, and requests named memory that the owner needs back.
    #[error("the peer does not respond")]
    Silent,
}

/// Why a remote iovec could not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// Memory of this process could not be accessed.
    #[error("cannot access local memory: {0}")]
    Local(Fault),
    /// The peer's memory could not be accessed. The address is the peer's, accurate to the part that one system
    /// call copies.
    #[error("cannot access the peer's memory at {0:#x}")]
    Remote(u64),
    /// The kernel does not, or no longer, permit it; the message must be sent in fragments.
    #[error("the kernel does not permit access to the peer's memory")]
    Refused,
    /// The peer process no longer exists.
    #[error("the peer's process no longer exists")]
    Gone,
}
