//! Settings of a manager.

use crate::address::Guid;
use crate::ids::IdSpace;
use crate::time::Timing;

/// Limits on what peers can make a manager remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of connections and requests in all states. At this limit, `connect` and `resolve_datagram` fail,
    /// a REQ is refused for lack of resources, and a SIDR_REQ is dropped.
    pub connections: usize,
    /// The maximum number of undecided requests from one peer: from one address, or from one party if the host
    /// distinguishes parties that share an address ([`receive_from_party`](super::Manager::receive_from_party)). Further
    /// requests are dropped, and the peer retransmits them.
    pub undecided_per_peer: usize,
    /// The maximum number of refused requests and answered datagram requests that are kept to retransmit the answer. Above
    /// this limit, a retransmitted request counts as new.
    pub lingering: usize,
    /// The maximum number of messages waiting to be sent before answers that belong to no connection are dropped.
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
    /// The GUID of this device instance. No other instance may use the same GUID, not even an earlier one of this program.
    /// Each service of each peer address sees a different GUID, derived from this one, so no peer can pose as us to
    /// another.
    pub guid: Guid,
    /// 128 random bits from the operating system. They make ids unpredictable.
    pub secret: u128,
    /// The communication ids that may be used.
    pub ids: IdSpace,
    /// Response times, and how often messages are retransmitted.
    pub timing: Timing,
    /// Limits on what peers can make us remember.
    pub limits: Limits,
}

impl Config {
    /// The default settings for this GUID and secret.
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
