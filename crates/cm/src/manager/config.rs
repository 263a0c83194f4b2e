//! Settings of a manager.

use crate::address::Guid;
use crate::ids::IdSpace;
use crate::time::Timing;

/// How much peers can make a manager remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections and requests in all states. At this limit, `connect` and `resolve_datagram` fail, a REQ is refused for
    /// lack of resources, and a SIDR_REQ is dropped.
    pub connections: usize,
    /// Undecided requests from one peer: from one address, or from one of the parties that share the address if the host
    /// distinguishes them ([`receive_from_party`](super::Manager::receive_from_party)). Further ones are dropped; the peer
    /// repeats them.
    pub undecided_per_peer: usize,
    /// Refused requests and answered datagram requests that are kept to repeat the answer. Above this limit, a repeated
    /// request counts as new.
    pub lingering: usize,
    /// If this many messages wait to be sent, an answer that belongs to no connection is dropped.
    pub answers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 32_768,
            undecided_per_peer: 1024,
            lingering: 4096,
            answers: 1024,
        }
    }
}

/// The settings of a [`Manager`](super::Manager).
#[derive(Clone, Debug)]
pub struct Config {
    /// The GUID of this device instance. No other instance may have the same, not even an earlier one of this program. Each
    /// service of each peer address sees a different GUID, derived from this one, so no peer can pose as us to another.
    pub guid: Guid,
    /// 128 random bits from the operating system. They keep ids from being guessed.
    pub secret: u128,
    /// The communication ids that may be used.
    pub ids: IdSpace,
    /// How messages are repeated.
    pub timing: Timing,
    /// What peers can make us remember.
    pub limits: Limits,
}

impl Config {
    /// The default settings.
    #[must_use]
    pub fn new(guid: Guid, secret: u128) -> Self {
        Self {
            guid,
            secret,
            ids: IdSpace::ALL,
            timing: Timing::default(),
            limits: Limits::default(),
        }
    }
}
