//! What the driver needs from the front end above it.

use super::Driver;
use rkey_device::{DeviceError, Qp};
use rkey_rdm::endpoint::Host;
use rkey_rdm::error::Error;
use std::net::SocketAddr;

/// What a front end adds to the host of an endpoint, for the driver.
pub trait Front: Host<Qp = Qp> + Send + Sync + 'static {
    /// How the host identifies the peer at an address.
    fn identity(&self, peer: SocketAddr) -> Self::Identity;
    /// The peer's number, for regions that serve one peer only.
    fn peer_number(identity: &Self::Identity) -> Option<u32>;
    /// Describes an error of the device to the program or a peer.
    fn error_of(error: &DeviceError) -> Error;
    /// Called when it is known whether a peer can be reached. The front end wakes the callers that
    /// wait for this, and they retry.
    fn wake_retrying(&self);
}

/// The owner of a driver: the endpoint of a front end. The driver's threads hold it while they run.
pub trait Holder: Send + Sync + 'static {
    /// The front end.
    type Front: Front;
    /// The driver, once there is one.
    fn driver(&self) -> Option<&Driver<Self::Front>>;
}
