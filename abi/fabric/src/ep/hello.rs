//! What the two sides of a connection tell each other first, and whether they may talk at all.

use super::*;
use rkey_device::DeviceError;
use rkey_device::link::NodeId;
use rkey_rdm::authorization::{self, Proof};
use rkey_rdm::hello::{Hello, HelloError};

/// Why something is not the hello of an endpoint of this version.
pub(super) fn why_not(bytes: &[u8]) -> DeviceError {
    match HelloError::of(bytes) {
        HelloError::Version { there, here } => DeviceError::Version {
            protocol: "libfabric protocol of rkey",
            there,
            here,
        },
        HelloError::NoEndpoint => DeviceError::Handshake("the peer is not a libfabric endpoint"),
    }
}

impl Endpoint {
    /// What this endpoint tells when it asks at an address.
    pub(super) fn ask(&self, live: &Live, address: SocketAddr, data: &[u8]) -> Hello {
        let device = self.domain.device.node();
        let proof = authorization::ask(&self.pd.key, device, address.port());
        self.hello(live, proof, data)
    }

    /// What it tells a peer that has asked.
    pub(super) fn answer(&self, live: &Live, asked: &Hello, data: &[u8]) -> Hello {
        let device = self.domain.device.node();
        let proof = authorization::answer(&self.pd.key, device, &asked.proof);
        self.hello(live, proof, data)
    }

    fn hello(&self, live: &Live, proof: Proof, data: &[u8]) -> Hello {
        Hello {
            ep_type: self.ep_type as u8,
            device_keys: self.domain.has(FI_MR_PROV_KEY),
            proof,
            name: *live.name.lock(),
            data: data.to_vec(),
        }
    }

    /// Whether a peer that asks at a port of ours may talk to us: the same kind of endpoint, the same
    /// authorization key (FI-119).
    pub(super) fn admits(
        &self,
        hello: &Hello,
        device: NodeId,
        port: u16,
    ) -> std::result::Result<(), &'static str> {
        let key = &self.pd.key;
        self.fits(
            hello,
            authorization::may_ask(key, device, port, &hello.proof),
        )
    }

    /// The same for one that answers, and what it told.
    pub(super) fn admits_answer(
        &self,
        asked: &Hello,
        device: NodeId,
        answer: &[u8],
    ) -> std::result::Result<Hello, DeviceError> {
        let hello = Hello::decode(answer).ok_or_else(|| why_not(answer))?;
        let key = &self.pd.key;
        let may = authorization::may_answer(key, device, &asked.proof, &hello.proof);
        self.fits(&hello, may).map_err(DeviceError::Handshake)?;
        Ok(hello)
    }

    fn fits(&self, hello: &Hello, authorized: bool) -> std::result::Result<(), &'static str> {
        if hello.ep_type != self.ep_type as u8 {
            return Err("the endpoints are of different types");
        }
        if !authorized {
            return Err("the endpoints have different authorization keys");
        }
        Ok(())
    }
}
