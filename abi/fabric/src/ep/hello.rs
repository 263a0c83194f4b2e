//! What the two sides of a connection tell each other first, and whether they may talk at all.

use super::*;
use rkey_device::DeviceError;
use rkey_rdm::hello::{Admission, Hello, HelloError, Refusal};

/// Why something is not the hello of an endpoint of this version.
pub(super) fn why_not(bytes: &[u8]) -> DeviceError {
    refused(Refusal::Hello(HelloError::of(bytes)))
}

/// Why we do not talk to a peer.
pub(super) fn refused(why: Refusal) -> DeviceError {
    match why {
        Refusal::Hello(HelloError::Version { there, here }) => DeviceError::Version {
            protocol: "libfabric protocol of rkey",
            there,
            here,
        },
        Refusal::Hello(HelloError::NoEndpoint) => {
            DeviceError::Handshake("the peer is not a libfabric endpoint")
        }
        Refusal::OtherType => DeviceError::Handshake("the endpoints are of different types"),
        Refusal::OtherKey => {
            DeviceError::Handshake("the endpoints have different authorization keys")
        }
    }
}

impl Endpoint {
    /// Whom this endpoint talks to.
    pub(super) fn admission(&self) -> Admission {
        Admission {
            ep_type: self.ep_type as u8,
            device_keys: self.domain.has(FI_MR_PROV_KEY),
            key: self.pd.key.clone(),
            device: self.domain.device.node(),
        }
    }
}

impl Live {
    /// What this endpoint tells when it asks at an address.
    pub(super) fn ask(&self, address: SocketAddr, data: &[u8]) -> Hello {
        self.admission.ask(*self.name.lock(), address.port(), data)
    }

    /// What it tells a peer that has asked.
    pub(super) fn answer(&self, asked: &Hello, data: &[u8]) -> Hello {
        self.admission.answer(*self.name.lock(), asked, data)
    }
}
