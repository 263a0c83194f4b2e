//! The packets between the connection managers of two processes: a MAD and the two addresses that would be in its IP header.

use std::net::{IpAddr, Ipv6Addr};

use rkey_cm::wire::MAD;

/// The length of every packet, in bytes.
pub(crate) const LEN: usize = 4 + 16 + 16 + MAD;
/// The first four bytes: the protocol version.
const MAGIC: [u8; 4] = *b"rcm1";

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CmPacket {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) mad: [u8; MAD],
}

impl CmPacket {
    pub(crate) fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..20].copy_from_slice(&octets(self.from));
        bytes[20..36].copy_from_slice(&octets(self.to));
        bytes[36..].copy_from_slice(&self.mad);
        bytes
    }

    /// Decodes a packet. `None` if the bytes are not a packet.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        if bytes[..4] != MAGIC {
            return None;
        }
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[at..at + 16]);
            Ipv6Addr::from(octets).to_canonical()
        };
        let mut mad = [0; MAD];
        mad.copy_from_slice(&bytes[36..]);
        Some(Self {
            from: address(4),
            to: address(20),
            mad,
        })
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_round_trip_and_malformed_packets_are_refused() {
        let packet = CmPacket {
            from: "10.0.0.1".parse().unwrap(),
            to: "fd00::2".parse().unwrap(),
            mad: [7; MAD],
        };
        let bytes = packet.encode();
        assert_eq!(CmPacket::decode(&bytes), Some(packet));
        assert_eq!(CmPacket::decode(&bytes[1..]), None);
        assert_eq!(CmPacket::decode(&[&bytes[..], &[0]].concat()), None);
        assert_eq!(CmPacket::decode(&[0; LEN]), None);
        assert_eq!(CmPacket::decode(&[]), None);
    }
}
