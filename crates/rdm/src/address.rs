//! Addresses of endpoints, and of their receive contexts. The text form, which endpoints use to identify themselves to peers, is
//! libfabric's (`fi_av(3)`).

use core::fmt;
use core::hash::{Hash, Hasher};
use core::net::SocketAddr;

/// A destination of messages: an endpoint, and one of its receive contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The address where the endpoint accepts connections.
    pub address: SocketAddr,
    /// The index of the receive context. 0 for an endpoint that is not scalable.
    pub context: u8,
}

impl From<SocketAddr> for Destination {
    fn from(address: SocketAddr) -> Self {
        Self {
            address,
            context: 0,
        }
    }
}

impl Hash for Destination {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address.hash(state);
        // Most messages go to the first context. Hashing the index as well would cost each of them 50 instructions.
        if self.context != 0 {
            self.context.hash(state);
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", to_text(self.address))?;
        match self.context {
            0 => Ok(()),
            context => write!(f, ", receive context {context}"),
        }
    }
}

/// The text of an address: `fi_sockaddr_in://1.2.3.4:5` or `fi_sockaddr_in6://[::1]:5`.
#[must_use]
pub fn to_text(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(v4) => format!("fi_sockaddr_in://{v4}"),
        SocketAddr::V6(v6) => format!("fi_sockaddr_in6://{v6}"),
    }
}

/// The address in a text: one from [`to_text`], or one that starts with `fi_sockaddr://`.
#[must_use]
pub fn from_text(text: &str) -> Option<SocketAddr> {
    let rest = ["fi_sockaddr_in://", "fi_sockaddr_in6://", "fi_sockaddr://"]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix))?;
    rest.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_through_text() {
        for text in ["127.0.0.1:80", "[::1]:7471", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(from_text(&to_text(address)), Some(address));
            assert_eq!(from_text(&format!("fi_sockaddr://{text}")), Some(address));
            assert_eq!(from_text(text), None, "no prefix");
        }
        assert_eq!(from_text("fi_sockaddr_in://name"), None);
    }
}
