//! Reading addresses of endpoints.

use crate::address::{ADDRESS_BYTES, Address};
use crate::error::Error;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

impl Address {
    /// Decodes the bytes of [`Address::to_bytes`].
    ///
    /// # Errors
    /// [`Error::BadAddress`]: there are too few bytes or too many, or the port is 0.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let bad = || {
            Error::BadAddress(format!(
                "it has {} B instead of {ADDRESS_BYTES} B",
                bytes.len()
            ))
        };
        let bytes: &[u8; ADDRESS_BYTES] = bytes.try_into().map_err(|_| bad())?;
        let (ip, rest) = bytes.split_first_chunk::<16>().ok_or_else(bad)?;
        let (port, scope) = rest.split_first_chunk::<2>().ok_or_else(bad)?;
        let scope = scope.try_into().map_err(|_| bad())?;
        let (port, scope) = (u16::from_be_bytes(*port), u32::from_be_bytes(scope));
        let ip = Ipv6Addr::from(*ip);
        Self::checked(match ip.to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), port),
            None => SocketAddrV6::new(ip, port, 0, scope).into(),
        })
    }

    fn checked(address: SocketAddr) -> Result<Self, Error> {
        match address.port() {
            0 => Err(Error::BadAddress("its port is 0".into())),
            _ => Ok(Self(address)),
        }
    }
}

impl TryFrom<[u8; ADDRESS_BYTES]> for Address {
    type Error = Error;

    fn try_from(bytes: [u8; ADDRESS_BYTES]) -> Result<Self, Error> {
        Self::from_bytes(&bytes)
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let address: SocketAddr = text.parse().map_err(|_| {
            let text = text.escape_debug();
            Error::BadAddress(format!("`{text}` is not an IP address with a port"))
        })?;
        Self::checked(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_as_text_and_bytes() {
        for text in ["127.0.0.1:1", "[::1]:65535", "[fe80::1%3]:9"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(Address::from_bytes(&address.to_bytes()).unwrap(), address);
            let again: Address =
                postcard::from_bytes(&postcard::to_stdvec(&address).unwrap()).unwrap();
            assert_eq!(again, address);
        }
    }

    #[test]
    fn an_invalid_address_is_an_error() {
        let bytes = "127.0.0.1:7".parse::<Address>().unwrap().to_bytes();
        for bad in [&bytes[..21], &[0; 23], &[0; ADDRESS_BYTES]] {
            assert!(matches!(
                Address::from_bytes(bad),
                Err(Error::BadAddress(_))
            ));
        }
        for bad in ["", "127.0.0.1", "127.0.0.1:0", "host:7"] {
            assert!(matches!(bad.parse::<Address>(), Err(Error::BadAddress(_))));
        }
    }
}
