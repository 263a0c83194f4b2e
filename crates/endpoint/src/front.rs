//! What the driver asks of the front end above it.

use super::Driver;
use rkey_device::{DeviceError, Qp};
use rkey_rdm::endpoint::Host;
use rkey_rdm::error::Error;
use std::net::SocketAddr;

/// What a front end adds to the host of an endpoint, for the driver.
pub trait Front: Host<Qp = Qp> + Send + Sync + 'static {
    /// Who the peer at an address is to the host.
    fn identity(&self, peer: SocketAddr) -> Self::Identity;
    /// The number by which regions that serve one peer know it.
    fn peer_number(identity: &Self::Identity) -> Option<u32>;
    /// Describes an error of the device to the program or a peer.
    fn error_of(error: &DeviceError) -> Error;
    /// Whether a peer can be reached is known now: callers that were told to retry, and wait for this, should do so.
    fn come_again(&self);
}

/// What keeps a driver: the endpoint of a front end. Threads of the driver hold it while they run.
pub trait Holder: Send + Sync + 'static {
    /// The front end.
    type Front: Front;
    /// The driver, from the time when there is one.
    fn driver(&self) -> Option<&Driver<Self::Front>>;
}
