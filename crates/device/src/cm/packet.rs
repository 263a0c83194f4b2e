//! The packets between the connection managers of two processes: a MAD, the two addresses that would be in its IP header, and how it
//! was protected on its way from another host.

use std::net::IpAddr;

use rkey_cm::address::Gid;
use rkey_cm::wire::MAD;

/// The length of every packet, in bytes.
pub(crate) const LEN: usize = 4 + 16 + 16 + Protection::LEN + MAD;
/// The first four bytes: the protocol version.
const MAGIC: [u8; 4] = *b"rcm2";

/// How the datagram of a message from another host was protected. All zero for messages of this host, and without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Protection {
    /// The fingerprint of the key (`RKEY_WIRE_KEY`).
    pub(crate) key: [u8; 16],
    /// The sender, and the number of the datagram.
    pub(crate) sender: [u8; 16],
    pub(crate) number: u64,
}

impl Protection {
    /// The length when encoded, in bytes.
    const LEN: usize = 16 + 16 + 8;

    fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.key);
        bytes[16..32].copy_from_slice(&self.sender);
        bytes[32..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let (mut key, mut sender, mut number) = ([0; 16], [0; 16], [0; 8]);
        key.copy_from_slice(&bytes[..16]);
        sender.copy_from_slice(&bytes[16..32]);
        number.copy_from_slice(&bytes[32..]);
        Self {
            key,
            sender,
            number: u64::from_be_bytes(number),
        }
    }
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CmPacket {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protection: Protection,
    pub(crate) mad: [u8; MAD],
}

impl CmPacket {
    pub(crate) fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..20].copy_from_slice(&Gid::from(self.from).0);
        bytes[20..36].copy_from_slice(&Gid::from(self.to).0);
        bytes[36..36 + Protection::LEN].copy_from_slice(&self.protection.encode());
        bytes[36 + Protection::LEN..].copy_from_slice(&self.mad);
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
            Gid(octets).address()
        };
        let mut mad = [0; MAD];
        let mut protection = [0; Protection::LEN];
        protection.copy_from_slice(&bytes[36..36 + Protection::LEN]);
        mad.copy_from_slice(&bytes[36 + Protection::LEN..]);
        Some(Self {
            from: address(4),
            to: address(20),
            protection: Protection::decode(&protection),
            mad,
        })
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
            protection: Protection {
                key: [1; 16],
                sender: [2; 16],
                number: 3,
            },
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
