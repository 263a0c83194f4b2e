//! Addresses of endpoints.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;

/// The length of [`Address::to_bytes`], in bytes.
pub const ADDRESS_BYTES: usize = 22;

/// The address of an endpoint: what a peer needs to send to it.
///
/// It is a plain value. Send it to a peer as text (`Display`, `FromStr`), as bytes, or through serde, for example in a
/// message. Peers on other hosts reach it if it is one of the addresses of the wire ([`Device::wire`](crate::Device::wire)).
///
/// ```
/// # use rkey::endpoint::Address;
/// let address: Address = "127.0.0.1:7471".parse()?;
/// assert_eq!(Address::from_bytes(&address.to_bytes())?, address);
/// assert_eq!(address.to_string(), "127.0.0.1:7471");
/// # Ok::<(), rkey::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "[u8; ADDRESS_BYTES]", try_from = "[u8; ADDRESS_BYTES]")]
pub struct Address(pub(crate) SocketAddr);

impl Address {
    /// Encodes the address: IPv6 address (or a mapped IPv4 address), port and scope, in network byte order.
    #[must_use]
    pub fn to_bytes(self) -> [u8; ADDRESS_BYTES] {
        let (ip, scope) = match self.0 {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        let mut bytes = [0; ADDRESS_BYTES];
        bytes[..16].copy_from_slice(&ip.octets());
        bytes[16..18].copy_from_slice(&self.0.port().to_be_bytes());
        bytes[18..].copy_from_slice(&scope.to_be_bytes());
        bytes
    }
}

impl From<Address> for [u8; ADDRESS_BYTES] {
    fn from(address: Address) -> Self {
        address.to_bytes()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
