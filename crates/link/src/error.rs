//! Errors of a link, as values.

use rkey_base::fault::Fault;

/// The peer wrote something invalid. The link is dead afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer violated the protocol: {reason}")]
pub struct Malformed {
    /// The invalid part, in a few words.
    pub reason: &'static str,
}

impl Malformed {
    /// An error that names the broken rule.
    #[inline]
    pub const fn new(reason: &'static str) -> Self {
        Self { reason }
    }
}

/// Why a request or response could not be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No slot or no room for the payload at the moment: try again after progress.
    #[error("the ring to the peer is full")]
    Full,
    /// The caller's memory could not be read; nothing was sent.
    #[error("the payload could not be read: {0}")]
    Fault(Fault),
    /// The link is down ([`crate::Link::is_up`] says why); nothing more can be sent.
    #[error("the link is down")]
    Down,
}

/// Why a link no longer works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DownReason {
    /// The peer process ended or closed the link.
    #[error("the peer is gone")]
    PeerGone,
    /// The peer broke the protocol.
    #[error(transparent)]
    Malformed(Malformed),
    /// This side closed it.
    #[error("closed by this side")]
    Closed,
    /// The peer does not respond, and requests named memory that the owner needs back.
    #[error("the peer does not respond")]
    Silent,
}

/// Why a remote iovec could not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// Memory of this process could not be accessed.
    #[error("local memory could not be accessed: {0}")]
    Local(Fault),
    /// The peer's memory could not be accessed; the address is the peer's, exact to the part that one system call
    /// copies.
    #[error("the peer's memory at {0:#x} could not be accessed")]
    Remote(u64),
    /// The kernel does not permit it, or no longer does; the message must be sent in fragments.
    #[error("the kernel does not permit access to the peer's memory")]
    Refused,
    /// The peer process no longer exists.
    #[error("the peer is gone")]
    Gone,
}
