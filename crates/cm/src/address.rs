//! Identifiers in messages: GUIDs, GIDs, service ids.

use core::fmt;
use core::hash::Hasher;
use core::net::{IpAddr, Ipv6Addr};
use siphasher::sip::SipHasher13;

/// The identity of a device instance ("CA GUID"). Peers use it as a table key, so no two instances may share one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub [u8; 8]);

/// The key of the checksum in the GUIDs of this implementation. It is no secret.
const SELECTIVE: (u64, u64) = (
    u64::from_le_bytes(*b"rkey sel"),
    u64::from_le_bytes(*b"ective 2"),
);

impl Guid {
    /// A GUID from random bytes that says that its device uses selective retransmission: the last three bytes are a checksum of the
    /// others. Other implementations see an ordinary GUID. Two bits of the first byte mark it as locally administered (not assigned by a
    /// manufacturer).
    pub(crate) fn selective(random: [u8; 8]) -> Self {
        let mut guid = random;
        guid[0] = guid[0] & !1 | 2;
        let checksum = checksum(&guid);
        guid[5..].copy_from_slice(&checksum);
        Self(guid)
    }

    /// Whether the device uses selective retransmission if its peer does: it is one of this implementation. One in 2²⁴ GUIDs of other
    /// implementations that are locally administered says so by chance.
    #[must_use]
    pub fn is_selective(self) -> bool {
        self.0[0] & 3 == 2 && self.0[5..] == checksum(&self.0)
    }
}

/// The checksum of the first five bytes.
fn checksum(guid: &[u8; 8]) -> [u8; 3] {
    let mut hasher = SipHasher13::new_with_keys(SELECTIVE.0, SELECTIVE.1);
    hasher.write(&guid[..5]);
    let [first, second, third, ..] = hasher.finish().to_le_bytes();
    [first, second, third]
}

/// The address of a port: an IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`, as on RoCE.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self(address.to_ipv6_mapped().octets()),
            IpAddr::V6(address) => Self(address.octets()),
        }
    }
}

impl Gid {
    /// The IP address of this GID.
    #[must_use]
    pub fn address(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({})", Ipv6Addr::from(self.0))
    }
}

/// The port spaces of `rdma_cm(7)` that exist on RoCE. Each has its own port numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortSpace {
    /// Connected queue pairs.
    Tcp,
    /// Datagram queue pairs.
    Udp,
    /// Queue pairs of any type (`RDMA_PS_IB`).
    Ib,
}

impl PortSpace {
    /// The number in Linux's ABI: `RDMA_PS_TCP`, `RDMA_PS_UDP`, `RDMA_PS_IB`.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Tcp => 0x0106,
            Self::Udp => 0x0111,
            Self::Ib => 0x013f,
        }
    }
}

/// The destination of a request: a port in a port space, encoded as the RDMA IP CM service does (annex A11 of the
/// InfiniBand specification).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The service id of a port.
    #[must_use]
    pub const fn new(space: PortSpace, port: u16) -> Self {
        Self((space.number() as u64) << 16 | port as u64)
    }

    /// The port.
    #[must_use]
    pub const fn port(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceId({:#018x})", self.0)
    }
}

/// Whether a program's queue pair can have this number: 24 bits, and not 0, 1 (management) or 0xffffff (multicast).
#[must_use]
pub const fn is_queue_pair(qpn: u32) -> bool {
    qpn > 1 && qpn < 0xff_ffff
}

/// Whether this address can be the source of a message and the destination of its answer.
#[must_use]
pub fn is_unicast(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !address.is_multicast() && !address.is_unspecified() && !broadcast
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_round_trips_through_its_gid() {
        for text in ["10.77.0.2", "127.0.0.1", "fe80::1", "::1"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(Gid::from(address).address(), address);
        }
    }

    #[test]
    fn service_ids_match_annex_a11() {
        let id = ServiceId::new(PortSpace::Tcp, 7174);
        assert_eq!((id.0, id.port()), (0x0000_0000_0106_1c06, 7174));
        assert_eq!(ServiceId::new(PortSpace::Udp, 7174).0, 0x0111_1c06);
        assert_eq!(ServiceId::new(PortSpace::Ib, 1).0, 0x013f_0001);
    }

    #[test]
    fn management_and_multicast_numbers_are_not_queue_pairs() {
        for qpn in [0, 1, 0xff_ffff, 0x100_0000, u32::MAX] {
            assert!(!is_queue_pair(qpn), "{qpn:#x}");
        }
        assert!(is_queue_pair(2) && is_queue_pair(0xff_fffe));
    }

    #[test]
    fn multicast_and_unspecified_addresses_are_not_unicast() {
        for text in ["224.0.0.1", "ff02::1", "0.0.0.0", "::", "255.255.255.255"] {
            assert!(!is_unicast(text.parse().unwrap()), "{text}");
        }
        assert!(is_unicast("10.0.0.1".parse().unwrap()));
    }
}
