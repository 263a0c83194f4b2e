//! Why two endpoints cannot communicate, as a device error.

use rkey_device::DeviceError;
use rkey_rdm::hello::{HelloError, Refusal};

/// Why bytes are not the hello of an endpoint of this version.
#[must_use]
pub fn why_not(bytes: &[u8]) -> DeviceError {
    refused(Refusal::Hello(HelloError::of(bytes)))
}

/// Why we refuse a peer.
pub(super) fn refused(why: Refusal) -> DeviceError {
    match why {
        Refusal::Hello(HelloError::Version { there, here }) => DeviceError::Version {
            protocol: "rkey endpoint protocol",
            there,
            here,
        },
        Refusal::Hello(HelloError::NoEndpoint) => {
            DeviceError::Handshake("the peer is not an endpoint")
        }
        Refusal::OtherType => DeviceError::Handshake("the endpoints are of different types"),
        Refusal::OtherKey => {
            DeviceError::Handshake("the endpoints have different authorization keys")
        }
    }
}
