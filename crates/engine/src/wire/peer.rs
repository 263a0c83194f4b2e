//! The address of a peer on another host.

use crate::Route;
use crate::ud::GRH_LEN;
use core::net::{IpAddr, Ipv6Addr};

/// UDP's IP protocol number.
const UDP: u8 = 17;
/// How many bytes of a packet after the IP header are not payload: UDP header, base and datagram transport headers, checksum.
const OVERHEAD: u32 = 8 + 12 + 8 + 4;
/// The hop limit in the route header of a received datagram. A socket does not report the real one.
const HOP_LIMIT: u8 = 64;

/// The two ends of a path to another host. IPv4 addresses are `IpAddr::V4`, not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WirePeer {
    /// Our address, which the peer knows.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
}

impl WirePeer {
    /// The path of a datagram. A GID is the IP address of its host (IBA annex A17).
    #[must_use]
    pub fn of(route: &Route) -> Self {
        Self {
            local: address_of(route.source),
            remote: address_of(route.target),
        }
    }

    /// Whether packets from the peer come over IPv4, so that [`WirePeer::header_of_received`] is an IPv4 header.
    pub(crate) const fn is_ipv4(&self) -> bool {
        self.local.is_ipv4() && self.remote.is_ipv4()
    }

    /// The route header of a datagram with `len` bytes of payload from the peer: an IPv6 header, or an IPv4 header in the last
    /// 20 of the 40 bytes (IBA annex A17, 4.5).
    pub(crate) fn header_of_received(&self, len: u32) -> [u8; GRH_LEN as usize] {
        let (IpAddr::V4(from), IpAddr::V4(to)) = (self.remote, self.local) else {
            let route = Route {
                source: gid_of(self.remote),
                target: gid_of(self.local),
                hop_limit: HOP_LIMIT,
                ..Route::default()
            };
            let mut header = route.grh(len + OVERHEAD);
            header[6] = UDP;
            return header;
        };
        let mut header = [0; GRH_LEN as usize];
        let ip = &mut header[20..];
        ip[0] = 0x45;
        let total = (20 + len + OVERHEAD) as u16;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[6] = 0x40; // don't fragment
        (ip[8], ip[9]) = (HOP_LIMIT, UDP);
        ip[12..16].copy_from_slice(&from.octets());
        ip[16..].copy_from_slice(&to.octets());
        let sum: u32 = ip
            .chunks_exact(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        let folded = (sum >> 16) + (sum & 0xffff);
        let checksum = !((folded >> 16) + folded) as u16;
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    }
}

fn address_of(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(local: &str, remote: &str) -> WirePeer {
        WirePeer {
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
        }
    }

    #[test]
    fn gids_map_to_ip_addresses() {
        let mut route = Route::default();
        (route.source, route.target) = ([0; 16], [0; 16]);
        route.source[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
        route.target[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 2]);
        let four = peer("10.0.0.1", "10.0.0.2");
        assert_eq!(WirePeer::of(&route), four);
        let six = peer("fd77::1", "fd77::2");
        let route = Route {
            source: gid_of(six.local),
            target: gid_of(six.remote),
            ..Route::default()
        };
        assert_eq!(WirePeer::of(&route), six);
    }

    #[test]
    fn the_ipv4_header_has_a_valid_length_and_checksum() {
        let header = peer("10.0.0.1", "10.0.0.2").header_of_received(100);
        assert_eq!(header[..20], [0; 20]);
        let ip = &header[20..];
        assert_eq!((ip[0], ip[9]), (0x45, 17));
        assert_eq!(u16::from_be_bytes([ip[2], ip[3]]), 152);
        assert!(ip[12..16] == [10, 0, 0, 2] && ip[16..] == [10, 0, 0, 1]);
        // The one's complement sum of a header with a valid checksum is all ones.
        let words = ip.chunks_exact(2);
        let sum: u32 = words
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        assert_eq!((sum >> 16) + (sum & 0xffff), 0xffff);
    }

    #[test]
    fn the_ipv6_header_names_udp() {
        let header = peer("fd77::1", "fd77::2").header_of_received(100);
        assert_eq!(header[..8], [0x60, 0, 0, 0, 0, 132, 17, 64]);
        assert_eq!(header[8..24], gid_of("fd77::2".parse().unwrap()));
        assert_eq!(header[24..], gid_of("fd77::1".parse().unwrap()));
    }
}
