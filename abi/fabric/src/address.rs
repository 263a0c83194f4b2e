//! Addresses of endpoints: `sockaddr_in`, `sockaddr_in6`, or their text form.
//!
//! An endpoint accepts connections at its address. The text form is libfabric's own:
//! `fi_sockaddr_in://127.0.0.1:7471`.

use crate::errno::{FiError, Result};
use crate::sys::*;
use rkey_rdm::address::{from_text, to_text};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};

/// The address format that a program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    In,
    In6,
    Text,
}

const IN_LEN: usize = size_of::<libc::sockaddr_in>();
const IN6_LEN: usize = size_of::<libc::sockaddr_in6>();

impl Format {
    /// The format for an `addr_format`; `FI_SOCKADDR` and `FI_FORMAT_UNSPEC` mean IPv4.
    pub(crate) fn of(number: u32) -> Option<Self> {
        match number {
            FI_FORMAT_UNSPEC | FI_SOCKADDR | FI_SOCKADDR_IN => Some(Self::In),
            FI_SOCKADDR_IN6 => Some(Self::In6),
            FI_ADDR_STR => Some(Self::Text),
            _ => None,
        }
    }

    pub(crate) fn number(self) -> u32 {
        match self {
            Self::In => FI_SOCKADDR_IN,
            Self::In6 => FI_SOCKADDR_IN6,
            Self::Text => FI_ADDR_STR,
        }
    }

    /// The address as bytes of this format.
    pub(crate) fn encode(self, address: SocketAddr) -> Vec<u8> {
        if self == Self::Text {
            let mut text = to_text(address).into_bytes();
            text.push(0);
            return text;
        }
        match address {
            SocketAddr::V4(v4) => {
                let mut bytes = vec![0; IN_LEN];
                bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                bytes[2..4].copy_from_slice(&v4.port().to_be_bytes());
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                bytes
            }
            SocketAddr::V6(v6) => {
                let mut bytes = vec![0; IN6_LEN];
                bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                bytes[2..4].copy_from_slice(&v6.port().to_be_bytes());
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                bytes
            }
        }
    }

    /// Decodes the address at the start of the bytes; also returns its length.
    pub(crate) fn decode(self, bytes: &[u8]) -> Option<(SocketAddr, usize)> {
        if self == Self::Text {
            let len = bytes.iter().position(|&byte| byte == 0)?;
            return Some((
                from_text(std::str::from_utf8(&bytes[..len]).ok()?)?,
                len + 1,
            ));
        }
        let family = i32::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
        match family {
            libc::AF_INET => {
                let ip: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
                Some((SocketAddrV4::new(Ipv4Addr::from(ip), port).into(), IN_LEN))
            }
            libc::AF_INET6 => {
                let flow = u32::from_be_bytes(bytes.get(4..8)?.try_into().ok()?);
                let ip: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
                let scope = u32::from_ne_bytes(bytes.get(24..28)?.try_into().ok()?);
                Some((
                    SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into(),
                    IN6_LEN,
                ))
            }
            _ => None,
        }
    }

    /// An address of this format on the loopback interface.
    pub(crate) fn loopback(self, port: u16) -> SocketAddr {
        match self {
            Self::In6 => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port),
            _ => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
        }
    }

    /// Whether an address can be written in this format.
    pub(crate) fn fits(self, address: &SocketAddr) -> bool {
        match self {
            Self::In => address.is_ipv4(),
            Self::In6 => address.is_ipv6(),
            Self::Text => true,
        }
    }
}

/// Resolves a node and a service as for `fi_getinfo` and `fi_av_insertsvc`.
///
/// # Errors
/// `FI_ENODATA`: the service is not a port number, or the node has no address of this format.
pub(crate) fn resolve(
    node: Option<&str>,
    service: Option<&str>,
    format: Format,
    wildcard: bool,
) -> Result<SocketAddr> {
    if let Some(address) = node.and_then(from_text) {
        return Ok(address);
    }
    let port: u16 = match service {
        None => 0,
        Some(service) => service.trim().parse().map_err(|_| FiError::NODATA)?,
    };
    match node {
        None if wildcard => Ok(match format {
            Format::In6 => SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port),
            _ => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port),
        }),
        None => Ok(format.loopback(port)),
        Some(node) => (node, port)
            .to_socket_addrs()
            .map_err(|_| FiError::NODATA)?
            .find(|address| format.fits(address))
            .ok_or(FiError::NODATA),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_encoding_and_decoding() {
        let addresses = ["127.0.0.1:80", "[::1]:7471", "[fe80::1%3]:9"]
            .map(|a| a.parse::<SocketAddr>().unwrap());
        for address in addresses {
            for format in [Format::In, Format::In6, Format::Text] {
                let bytes = format.encode(address);
                assert_eq!(
                    format.decode(&bytes),
                    Some((address, bytes.len())),
                    "{format:?}"
                );
            }
        }
        assert_eq!(Format::In.decode(&[9, 9, 9]), None);
        assert_eq!(Format::Text.decode(b"fi_sockaddr_in://1.2.3.4:5"), None);
    }

    #[test]
    fn a_node_and_a_service_resolve_to_an_address_of_the_format() {
        let four = resolve(Some("127.0.0.1"), Some("81"), Format::In, false).unwrap();
        assert_eq!(four.to_string(), "127.0.0.1:81");
        assert_eq!(
            resolve(None, Some("5"), Format::In, true)
                .unwrap()
                .to_string(),
            "0.0.0.0:5"
        );
        assert_eq!(
            resolve(Some("no such host.invalid"), None, Format::In, false),
            Err(FiError::NODATA)
        );
        assert_eq!(
            resolve(Some("127.0.0.1"), None, Format::In6, false),
            Err(FiError::NODATA)
        );
    }
}
