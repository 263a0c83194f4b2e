//! The text form of an endpoint's address, which endpoints use to identify themselves to peers. It is libfabric's form
//! (`fi_av(3)`).

use core::net::SocketAddr;

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
    fn addresses_come_back_from_their_text() {
        for text in ["127.0.0.1:80", "[::1]:7471", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(from_text(&to_text(address)), Some(address));
            assert_eq!(from_text(&format!("fi_sockaddr://{text}")), Some(address));
            assert_eq!(from_text(text), None, "without a prefix");
        }
        assert_eq!(from_text("fi_sockaddr_in://name"), None);
    }
}
