//! The hello that the two sides of a connection exchange first, and whether they may connect at all.

use crate::address::{Destination, from_text, to_text};
use crate::authorization::{self, Proof};
use core::net::SocketAddr;
use rkey_link::NodeId;

/// One side's hello.
#[derive(Clone, Debug)]
pub struct Hello {
    /// The type of the sender's endpoint: only endpoints of the same type connect.
    pub ep_type: u8,
    /// Whether its device chooses the keys of its regions.
    pub device_keys: bool,
    /// Whether the sender only sends over the connection: another endpoint receives at its address.
    pub one_way: bool,
    /// The receive context that the sender requests.
    pub context: u8,
    /// The proof that the sender has the authorization key.
    pub proof: Proof,
    /// The address where the sender accepts connections.
    pub name: SocketAddr,
    /// The data from the sender's program for the peer's program.
    pub data: Vec<u8>,
}

/// The first bytes of a hello; the digit is the version.
const HELLO: [u8; 3] = *b"fi4";

/// The refusal for a peer whose hello cannot be parsed: it carries our version, whatever the peer's is.
pub const NOT_UNDERSTOOD: &str =
    "the peer speaks version 4 of rkey's endpoint protocol, but the request has another version";

/// Why bytes are not the hello of an endpoint of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// The bytes are the hello of another version.
    #[error(
        "the peer speaks version {there} of the endpoint protocol, but this process speaks version {here}"
    )]
    Version {
        /// The peer's version.
        there: u32,
        /// Our version.
        here: u32,
    },
    /// The bytes are not a hello.
    #[error("the peer is not an endpoint")]
    NoEndpoint,
}

impl HelloError {
    /// Why these bytes cannot be parsed.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let version = |hello: &[u8]| {
            let digit = hello.strip_prefix(b"fi")?.first()?;
            char::from(*digit).to_digit(10)
        };
        match (version(bytes), version(&HELLO)) {
            (Some(there), Some(here)) if there != here => Self::Version { there, here },
            _ => Self::NoEndpoint,
        }
    }
}

impl Hello {
    /// The encoded hello.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let name = to_text(self.name);
        let mut bytes = HELLO.to_vec();
        let flags = u8::from(self.device_keys) | u8::from(self.one_way) << 1;
        bytes.extend([self.ep_type << 2 | flags, self.context]);
        bytes.extend(self.proof);
        bytes.push(name.len() as u8);
        bytes.extend(name.as_bytes());
        bytes.extend(&self.data);
        bytes
    }

    /// Parses a peer's hello. If that fails, [`HelloError::of`] returns the reason.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&HELLO)?;
        let (&[flags, context], rest) = rest.split_first_chunk()?;
        let (proof, rest) = rest.split_first_chunk()?;
        let (&len, rest) = rest.split_first()?;
        let (name, data) = rest.split_at_checked(len.into())?;
        Some(Self {
            ep_type: flags >> 2,
            device_keys: flags & 1 != 0,
            one_way: flags & 2 != 0,
            context,
            proof: *proof,
            name: from_text(std::str::from_utf8(name).ok()?)?,
            data: data.to_vec(),
        })
    }
}

/// Why an endpoint refuses a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The peer's hello cannot be parsed.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The peer is an endpoint of another type.
    #[error("the endpoints are of different types")]
    OtherType,
    /// The peer has not proved that it has the authorization key.
    #[error("the endpoints have different authorization keys")]
    OtherKey,
}

/// The peers that an endpoint accepts: endpoints of the same type with the same authorization key (FI-119).
#[derive(Clone, Debug)]
pub struct Admission {
    /// The type of the endpoint.
    pub ep_type: u8,
    /// Whether its device chooses the keys of its regions.
    pub device_keys: bool,
    /// Whether the endpoint only sends: another endpoint receives at its address.
    pub one_way: bool,
    /// The authorization key. May be empty.
    pub key: Vec<u8>,
    /// The device of the endpoint.
    pub device: NodeId,
}

impl Admission {
    /// The hello of the endpoint, which has the address `name`, when it requests a connection.
    #[must_use]
    pub fn ask(&self, name: SocketAddr, to: Destination, data: &[u8]) -> Hello {
        let proof = authorization::ask(&self.key, self.device, to.address.port());
        Hello {
            one_way: self.one_way,
            context: to.context,
            ..self.hello(name, proof, data)
        }
    }

    /// The endpoint's answer to a peer that has requested a connection.
    #[must_use]
    pub fn answer(&self, name: SocketAddr, asked: &Hello, data: &[u8]) -> Hello {
        let proof = authorization::answer(&self.key, self.device, &asked.proof);
        self.hello(name, proof, data)
    }

    fn hello(&self, name: SocketAddr, proof: Proof, data: &[u8]) -> Hello {
        Hello {
            ep_type: self.ep_type,
            device_keys: self.device_keys,
            one_way: false,
            context: 0,
            proof,
            name,
            data: data.to_vec(),
        }
    }

    /// Whether a device that requests a connection at our port may connect.
    ///
    /// # Errors
    /// Why not.
    pub fn admits(&self, asked: &Hello, device: NodeId, port: u16) -> Result<(), Refusal> {
        let may = authorization::may_ask(&self.key, device, port, &asked.proof);
        self.fits(asked, may)
    }

    /// Like [`Self::admits`], for the device that answers our request, and its hello.
    ///
    /// # Errors
    /// Why not.
    pub fn admits_answer(
        &self,
        asked: &Hello,
        device: NodeId,
        answer: &[u8],
    ) -> Result<Hello, Refusal> {
        let hello = Hello::decode(answer).ok_or_else(|| HelloError::of(answer))?;
        let may = authorization::may_answer(&self.key, device, &asked.proof, &hello.proof);
        self.fits(&hello, may)?;
        Ok(hello)
    }

    fn fits(&self, hello: &Hello, authorized: bool) -> Result<(), Refusal> {
        if hello.ep_type != self.ep_type {
            return Err(Refusal::OtherType);
        }
        if !authorized {
            return Err(Refusal::OtherKey);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: NodeId = NodeId { pid: 7, nonce: 9 };
    const THERE: NodeId = NodeId { pid: 8, nonce: 9 };

    fn admission(ep_type: u8, key: &[u8], device: NodeId) -> Admission {
        Admission {
            ep_type,
            device_keys: true,
            one_way: true,
            key: key.to_vec(),
            device,
        }
    }

    fn name(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// Each side decides for itself.
    #[test]
    fn only_endpoints_of_the_same_type_and_key_are_admitted() {
        let ours = admission(3, b"a key", HERE);
        let there = Destination {
            address: name(2),
            context: 7,
        };
        let asked = ours.ask(name(1), there, b"asked");
        assert!(asked.one_way && asked.context == 7);
        let peers = [
            (admission(3, b"a key", THERE), Ok(())),
            (admission(2, b"a key", THERE), Err(Refusal::OtherType)),
            (admission(3, b"another", THERE), Err(Refusal::OtherKey)),
        ];
        for (peer, verdict) in peers {
            assert_eq!(peer.admits(&asked, HERE, 2), verdict);
            let answer = peer.answer(name(2), &asked, b"answered");
            let heard = ours.admits_answer(&asked, THERE, &answer.encode());
            assert_eq!(heard.map(|it| assert_eq!(it.data, b"answered")), verdict);
        }
        assert_eq!(ours.admits(&asked, THERE, 2), Err(Refusal::OtherKey));
        let garbled = ours.admits_answer(&asked, THERE, b"fi2and so on");
        let version = HelloError::Version { there: 2, here: 4 };
        assert_eq!(garbled.unwrap_err(), Refusal::Hello(version));
    }

    #[test]
    fn hellos_round_trip() {
        let hello = Hello {
            ep_type: 3,
            device_keys: true,
            one_way: false,
            context: 255,
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
        assert_eq!((back.one_way, back.context), (false, 255));
        let one_way = Hello {
            one_way: true,
            device_keys: false,
            ..hello.clone()
        };
        let back = Hello::decode(&one_way.encode()).unwrap();
        assert_eq!((back.one_way, back.device_keys), (true, false));
        assert_eq!((back.name, back.data), (hello.name, hello.data));
        assert_eq!(
            HelloError::of(b"fi2whatever"),
            HelloError::Version { there: 2, here: 4 }
        );
        assert_eq!(HelloError::of(&bytes[..4]), HelloError::NoEndpoint);
        for cut in 0..bytes.len() - 3 {
            assert!(Hello::decode(&bytes[..cut]).is_none());
        }
    }
}
