//! The hello that the two sides of a connection exchange first.

use crate::address::{from_text, to_text};
use crate::authorization::Proof;
use core::net::SocketAddr;

/// One side's hello.
#[derive(Clone, Debug)]
pub struct Hello {
    /// The type of its endpoint: only endpoints of the same type connect.
    pub ep_type: u8,
    /// Whether its device chooses the keys of its regions.
    pub device_keys: bool,
    /// The proof that it has the authorization key.
    pub proof: Proof,
    /// The address where it accepts connections.
    pub name: SocketAddr,
    /// Its program's data for the peer's program.
    pub data: Vec<u8>,
}

/// The digit is the version.
const HELLO: [u8; 3] = *b"fi3";

/// The refusal for a peer whose hello cannot be parsed: it has our version, whatever the peer's is.
pub const NOT_UNDERSTOOD: &str =
    "the peer speaks version 3 of rkey's libfabric protocol, and the request has another version";

/// Why some bytes are not the hello of an endpoint of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// It is the hello of another version.
    #[error("the peer speaks version {there} of the protocol, this process version {here}")]
    Version {
        /// The peer's version.
        there: u32,
        /// Our version.
        here: u32,
    },
    /// It is not a hello.
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
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let name = to_text(self.name);
        let mut bytes = HELLO.to_vec();
        bytes.push(self.ep_type << 1 | u8::from(self.device_keys));
        bytes.extend(self.proof);
        bytes.push(name.len() as u8);
        bytes.extend(name.as_bytes());
        bytes.extend(&self.data);
        bytes
    }

    /// Parses what a peer sent; `None` if that is impossible, and [`HelloError::of`] says why.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&HELLO)?;
        let (&flags, rest) = rest.split_first()?;
        let (proof, rest) = rest.split_first_chunk()?;
        let (&len, rest) = rest.split_first()?;
        let (name, data) = rest.split_at_checked(len.into())?;
        Some(Self {
            ep_type: flags >> 1,
            device_keys: flags & 1 != 0,
            proof: *proof,
            name: from_text(std::str::from_utf8(name).ok()?)?,
            data: data.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_survive_the_way() {
        let hello = Hello {
            ep_type: 3,
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
        assert_eq!(
            HelloError::of(b"fi2whatever"),
            HelloError::Version { there: 2, here: 3 }
        );
        assert_eq!(HelloError::of(&bytes[..4]), HelloError::NoEndpoint);
        for cut in 0..bytes.len() - 3 {
            assert!(Hello::decode(&bytes[..cut]).is_none());
        }
    }
}
