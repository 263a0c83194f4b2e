//! What the two sides of a connection tell each other before anything else, and whether they may talk at all.

use super::*;
use crate::authorization::{self, Proof};
use rkey_device::DeviceError;
use rkey_device::link::NodeId;

/// What one side tells.
#[derive(Clone)]
pub(crate) struct Hello {
    pub(super) ep_type: u8,
    pub(super) device_keys: bool,
    /// That it has the authorization key.
    pub(super) proof: Proof,
    pub(super) name: SocketAddr,
    pub(super) data: Vec<u8>,
}

/// The digit is the version.
const HELLO: [u8; 3] = *b"fi3";

/// What a peer is told whose hello cannot be read: with our version, whatever its own is.
pub(super) const NOT_UNDERSTOOD: &str = "the peer there speaks version 3 of the libfabric protocol of rkey, and was asked something else";

/// Why something is not the hello of an endpoint of this version.
pub(super) fn why_not(bytes: &[u8]) -> DeviceError {
    let version = |hello: &[u8]| {
        let digit = hello.strip_prefix(b"fi")?.first()?;
        char::from(*digit).to_digit(10)
    };
    match (version(bytes), version(&HELLO)) {
        (Some(there), Some(here)) if there != here => DeviceError::Version {
            protocol: "libfabric protocol of rkey",
            there,
            here,
        },
        _ => DeviceError::Handshake("the peer is no endpoint of libfabric"),
    }
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let name = crate::address::to_text(self.name);
        let mut bytes = HELLO.to_vec();
        bytes.push(self.ep_type << 1 | u8::from(self.device_keys));
        bytes.extend(self.proof);
        bytes.push(name.len() as u8);
        bytes.extend(name.as_bytes());
        bytes.extend(&self.data);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&HELLO)?;
        let (&flags, rest) = rest.split_first()?;
        let (proof, rest) = rest.split_first_chunk()?;
        let (&len, rest) = rest.split_first()?;
        let (name, data) = rest.split_at_checked(len.into())?;
        Some(Self {
            ep_type: flags >> 1,
            device_keys: flags & 1 != 0,
            proof: *proof,
            name: crate::address::from_text(std::str::from_utf8(name).ok()?)?,
            data: data.to_vec(),
        })
    }
}

impl Endpoint {
    /// What this endpoint tells when it asks at an address.
    pub(super) fn ask(&self, live: &Live, address: SocketAddr, data: &[u8]) -> Hello {
        let device = self.domain.device.node();
        let proof = authorization::ask(&self.group.key, device, address.port());
        self.hello(live, proof, data)
    }

    /// What it tells a peer that has asked.
    pub(super) fn answer(&self, live: &Live, asked: &Hello, data: &[u8]) -> Hello {
        let device = self.domain.device.node();
        let proof = authorization::answer(&self.group.key, device, &asked.proof);
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
        let key = &self.group.key;
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
        let key = &self.group.key;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_survive_the_way() {
        let hello = Hello {
            ep_type: FI_EP_RDM as u8,
            device_keys: true,
            proof: std::array::from_fn(|n| n as u8),
            name: "127.0.0.1:7471".parse().unwrap(),
            data: vec![1, 2, 3],
        };
        let bytes = hello.encode();
        let back = Hello::decode(&bytes).unwrap();
        assert_eq!(
            (back.ep_type, back.device_keys, back.proof),
            (3, true, hello.proof)
        );
        assert_eq!((back.name, back.data), (hello.name, hello.data));
        let other = why_not(b"fi2whatever").to_string();
        assert!(
            other.contains("version 2") && other.contains("version 3"),
            "{other}"
        );
        assert!(why_not(&bytes[..4]).to_string().contains("no endpoint"));
        for cut in 0..bytes.len() - 3 {
            assert!(Hello::decode(&bytes[..cut]).is_none());
        }
    }
}
