//! The header of the RDMA IP CM service, which precedes the program's private data in a REQ and a SIDR_REQ (annex A11
//! of the InfiniBand specification).

use crate::address::Gid;
use core::net::IpAddr;

/// The addresses and the source port that the peer's program used. The destination port is in the service id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// The port of the active side.
    pub source_port: u16,
    /// The address of the active side.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
}

impl IpHeader {
    /// The header's length, in bytes.
    pub const LEN: usize = 36;

    /// Encodes the header. The IP version is that of the destination.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[1] = match self.destination {
            IpAddr::V4(_) => 4 << 4,
            IpAddr::V6(_) => 6 << 4,
        };
        bytes[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        bytes[4..20].copy_from_slice(&field(self.source));
        bytes[20..].copy_from_slice(&field(self.destination));
        bytes
    }

    /// Decodes a header; `None` if the version of the header or of IP is unknown, or if an IPv4 address is longer than
    /// 4 bytes. The low 4 bits of the byte with the IP version are reserved and ignored.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Option<Self> {
        if bytes[0] != 0 {
            return None;
        }
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[at..at + 16]);
            match bytes[1] >> 4 {
                4 if octets[..12] == [0; 12] => Some(IpAddr::from([
                    octets[12], octets[13], octets[14], octets[15],
                ])),
                6 => Some(IpAddr::from(octets)),
                _ => None,
            }
        };
        Some(Self {
            source_port: u16::from_be_bytes([bytes[2], bytes[3]]),
            source: address(4)?,
            destination: address(20)?,
        })
    }

    /// Whether the addresses are those that the message travelled between: a peer that states other addresses deceives
    /// the program.
    #[must_use]
    pub fn agrees_with(&self, from: IpAddr, to: IpAddr) -> bool {
        Gid::from(self.source) == Gid::from(from) && Gid::from(self.destination) == Gid::from(to)
    }
}

/// An IPv4 address occupies the last 4 bytes.
fn field(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_compatible().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(source: &str, destination: &str) -> IpHeader {
        IpHeader {
            source_port: 0xe809,
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        }
    }

    #[test]
    fn the_ip_header_round_trips_in_both_ip_versions() {
        for it in [header("10.77.0.2", "10.77.0.1"), header("fe80::2", "::1")] {
            assert_eq!(IpHeader::decode(&it.encode()), Some(it));
        }
        let bytes = header("10.77.0.2", "10.77.0.1").encode();
        assert_eq!(bytes[..4], [0, 0x40, 0xe8, 0x09]);
        assert_eq!(
            (&bytes[16..20], &bytes[32..]),
            (&[10, 77, 0, 2][..], &[10, 77, 0, 1][..])
        );
    }

    #[test]
    fn unknown_versions_and_long_ipv4_addresses_are_refused() {
        let good = header("10.77.0.2", "10.77.0.1").encode();
        for (at, value) in [(0, 1), (1, 0x50), (1, 0x00), (4, 1), (31, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(IpHeader::decode(&bad), None, "byte {at}");
        }
        let mut reserved = good;
        reserved[1] |= 0xf;
        assert_eq!(IpHeader::decode(&reserved), IpHeader::decode(&good));
    }

    #[test]
    fn addresses_that_differ_from_the_packet_are_detected() {
        let it = header("10.77.0.2", "10.77.0.1");
        let address = |text: &str| text.parse().unwrap();
        assert!(it.agrees_with(address("10.77.0.2"), address("10.77.0.1")));
        assert!(!it.agrees_with(address("10.77.0.3"), address("10.77.0.1")));
        assert!(!it.agrees_with(address("10.77.0.2"), address("10.77.0.9")));
    }
}
