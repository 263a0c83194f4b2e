//! The headers of datagrams: one for UDP, and another for datagrams between queue pairs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Distinguishes our datagrams from other UDP datagrams.
const TAG: u32 = 0x5555_5555;
const VERSION: u8 = 1;
/// The datagram has data.
const DATA: u8 = 0;
/// The datagram only announces the sender's queue pair.
const CONTROL: u8 = 7;
/// The lengths of the header over UDP, with an IPv4 and with an IPv6 address.
const OVER_UDP: (u8, u8) = (16, 28);
/// The lengths of the header between queue pairs, with an IPv4 and with an IPv6 address.
const BETWEEN: (u8, u8) = (8, 24);
/// The longest header.
pub const LEN_MAX: usize = 28;

fn len(ip: IpAddr, (v4, v6): (u8, u8)) -> u8 {
    if ip.is_ipv4() { v4 } else { v6 }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    Some(match bytes.len() {
        4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
        16 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
        _ => return None,
    })
}

/// A datagram over UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverUdp<'a> {
    /// The number of the sender's queue pair.
    pub qpn: u32,
    /// The data; `None` if the datagram only announces the queue pair.
    pub data: Option<&'a [u8]>,
}

impl<'a> OverUdp<'a> {
    /// Encodes the datagram, with the sender's address.
    #[must_use]
    pub fn encode(&self, from: IpAddr) -> Vec<u8> {
        let operation = if self.data.is_some() { DATA } else { CONTROL };
        let mut bytes = TAG.to_be_bytes().to_vec();
        bytes.extend([VERSION, operation, len(from, OVER_UDP), 0]);
        bytes.extend((self.qpn << 8).to_be_bytes());
        bytes.extend(octets(from));
        bytes.extend(self.data.unwrap_or_default());
        bytes
    }

    /// Decodes a datagram. Ignores the address in it: the source address of the UDP datagram is reliable, and this one is not.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first_chunk::<4>()?;
        let (&[version, operation, len, _], rest) = rest.split_first_chunk::<4>()?;
        let (qpn, _) = rest.split_first_chunk::<4>()?;
        let has_len = len == OVER_UDP.0 || len == OVER_UDP.1;
        if u32::from_be_bytes(*tag) != TAG || version != VERSION || !has_len {
            return None;
        }
        let data = bytes.get(usize::from(len)..)?;
        let data = match operation {
            DATA => Some(data),
            CONTROL if data.is_empty() => None,
            _ => return None,
        };
        let qpn = u32::from_be_bytes(*qpn) >> 8;
        Some(Self { qpn, data })
    }
}

/// Encodes the header between queue pairs, which has the sender's address.
#[must_use]
pub fn between(from: SocketAddr) -> Vec<u8> {
    let mut bytes = vec![VERSION, len(from.ip(), BETWEEN)];
    bytes.extend(from.port().to_be_bytes());
    if from.is_ipv6() {
        bytes.extend([0; 4]);
    }
    bytes.extend(octets(from.ip()));
    bytes
}

/// The length of the header that the device puts before each received datagram.
pub const ROUTE_LEN: usize = 40;

/// The sender's address, from the header that the device puts before a datagram: a global routing header (GRH), or 20 unused bytes
/// and an IPv4 header.
#[must_use]
pub fn origin(route: &[u8; ROUTE_LEN]) -> IpAddr {
    const IPV4: u8 = 0x45;
    if route[..4] == [0; 4] && route[20] == IPV4 {
        return Ipv4Addr::new(route[32], route[33], route[34], route[35]).into();
    }
    let source = route[8..].first_chunk::<16>().copied();
    IpAddr::from(source.unwrap_or_default()).to_canonical()
}

/// Decodes the header between queue pairs. Returns the sender's address and the length of the header.
#[must_use]
pub fn sender(bytes: &[u8]) -> Option<(SocketAddr, usize)> {
    let (&[version, len, high, low], _) = bytes.split_first_chunk::<4>()?;
    let start = match len {
        _ if version != VERSION => return None,
        len if len == BETWEEN.0 => 4,
        len if len == BETWEEN.1 => 8,
        _ => return None,
    };
    let len = usize::from(len);
    let ip = ip(bytes.get(start..len)?)?;
    let port = u16::from_be_bytes([high, low]);
    Some((SocketAddr::new(ip, port), len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_over_udp_carry_the_queue_pair_number() {
        let from = "10.1.2.3".parse().unwrap();
        let with_data = OverUdp {
            qpn: 0x12_3456,
            data: Some(b"hi"),
        };
        let bytes = with_data.encode(from);
        let expected = [
            0x55, 0x55, 0x55, 0x55, 1, 0, 16, 0, 0x12, 0x34, 0x56, 0, 10, 1, 2, 3, b'h', b'i',
        ];
        assert_eq!(bytes, expected);
        assert_eq!(OverUdp::decode(&bytes), Some(with_data));
        let control = OverUdp { qpn: 7, data: None };
        let bytes = control.encode("fd00::1".parse().unwrap());
        assert_eq!((bytes.len(), bytes[5], bytes[6]), (28, 7, 28));
        assert_eq!(OverUdp::decode(&bytes), Some(control));
        for at in [0, 4, 5, 6] {
            let mut bad = bytes.clone();
            bad[at] ^= 0x40;
            assert_eq!(OverUdp::decode(&bad), None, "byte {at}");
        }
        for len in 0..bytes.len() {
            assert_eq!(OverUdp::decode(&bytes[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn the_global_route_header_of_a_datagram_names_the_sender() {
        let mut route = [0; ROUTE_LEN];
        route[0] = 0x60;
        let (v4, v6): (IpAddr, Ipv6Addr) =
            ("10.1.2.3".parse().unwrap(), "fd00::1".parse().unwrap());
        route[8..24].copy_from_slice(&v6.octets());
        assert_eq!(origin(&route), IpAddr::V6(v6));
        route[8..24].copy_from_slice(&Ipv4Addr::new(10, 1, 2, 3).to_ipv6_mapped().octets());
        assert_eq!(origin(&route), v4);
        let mut route = [0; ROUTE_LEN];
        route[20] = 0x45;
        route[32..36].copy_from_slice(&[10, 1, 2, 3]);
        assert_eq!(origin(&route), v4);
    }

    #[test]
    fn datagrams_between_queue_pairs_carry_the_sender() {
        for (text, len) in [("10.1.2.3:7471", 8), ("[fd00::1]:9", 24)] {
            let from: SocketAddr = text.parse().unwrap();
            let bytes = between(from);
            assert_eq!(bytes.len(), len);
            assert_eq!(sender(&bytes), Some((from, len)));
            for short in 0..len {
                assert_eq!(sender(&bytes[..short]), None);
            }
        }
        assert_eq!(sender(&[2, 8, 0, 0, 1, 2, 3, 4]), None);
        assert_eq!(sender(&[1, 9, 0, 0, 1, 2, 3, 4, 5]), None);
    }
}
