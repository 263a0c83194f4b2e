//! The invariant checksum (ICRC): the last 4 bytes of a datagram. It covers the packet and the IP and UDP header fields that
//! routers do not change (IBA volume 1, 7.8, and annex A17).
//!
//! It is Ethernet's CRC, stored with its least significant byte first, over 8 bytes of ones in place of InfiniBand's local route
//! header, the IP header, the UDP header and the packet. Fields that may change in transit count as ones: the traffic class, the
//! time to live, both checksums, the flow label, and byte 4 of the packet, which contains its congestion bits.
//!
//! A program with a UDP socket does not see the IP header. It derives the header from the addresses and the length, except for
//! one field: the IPv4 identification. [`Flow`] describes how senders and receivers handle it.

mod identification;
#[cfg(test)]
mod tests;

use crate::packet::Bth;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use crc32fast::Hasher;

/// The destination UDP port of every RoCEv2 datagram.
pub const PORT: u16 = 4791;

/// The length of the checksum, in bytes.
pub const LEN: usize = 4;

/// The addresses and ports of a datagram.
///
/// Every covered field of an IPv6 header is known. An IPv4 header is assumed to have no options, not to be a fragment, and to
/// have the "don't fragment" flag set. Its identification depends on the sender:
///
/// * The sender passes the identification that the kernel writes. On Linux, that of an unconnected socket with `IP_PMTUDISC_DO`
///   is 0; with `UDP_SEGMENT`, the segments of a call have 0, 1, 2 and so on. For connected sockets, and for other values of
///   `IP_MTU_DISCOVER`, it is a counter that the sender does not know.
/// * The receiver searches for an identification that makes the checksum correct. If there is one, `open` returns it. Random
///   damage goes undetected with a probability of 2⁻¹⁶. A receiver that knows the sender's next identification can compare the
///   two, and then effectively checks all 32 bits.
///
/// ```
/// use rkey_roce::icrc::Flow;
/// use std::net::SocketAddr;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (from, to): (SocketAddr, SocketAddr) = ("10.77.0.2:49332".parse()?, "10.77.0.1:4791".parse()?);
/// let flow = Flow::new(from, to).ok_or("two versions of IP")?;
///
/// let mut datagram = b"a packet with its padding...".to_vec();
/// flow.seal(&mut datagram, 7);
/// let opened = flow.open(&datagram)?;
/// assert_eq!(opened.packet, b"a packet with its padding...");
/// assert_eq!(opened.identification, Some(7));
///
/// let elsewhere = Flow::new(from, "10.77.0.3:4791".parse()?).ok_or("two versions of IP")?;
/// assert!(elsewhere.open(&datagram).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flow {
    /// Over IPv4.
    V4 {
        /// The source address and port.
        source: SocketAddrV4,
        /// The destination address and port.
        destination: SocketAddrV4,
    },
    /// Over IPv6.
    V6 {
        /// The source address and port.
        source: SocketAddrV6,
        /// The destination address and port.
        destination: SocketAddrV6,
    },
}

/// A datagram with a correct checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// The datagram without its checksum.
    pub packet: &'a [u8],
    /// The identification that makes the checksum correct; `None` for IPv6, which has none.
    pub identification: Option<u16>,
}

/// The checksum of a datagram is wrong. The receiver drops the datagram silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the invariant checksum of a datagram of {length} B is wrong")]
pub struct WrongChecksum {
    /// The length of the datagram, in bytes.
    pub length: usize,
}

/// The length of InfiniBand's local route header, in place of which the checksum covers ones.
const LOCAL_ROUTE: usize = 8;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
/// UDP's IP protocol number.
const PROTOCOL: u8 = 17;
/// The offset of the byte of a packet that counts as ones: it contains the congestion bits.
pub const CONGESTION: usize = 4;

impl Flow {
    /// The flow between two addresses; `None` if their IP versions differ. An IPv4-mapped IPv6 address counts as IPv4, since the
    /// datagram is sent over IPv4.
    #[must_use]
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        match (canonical(source), canonical(destination)) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => Some(Self::V4 {
                source,
                destination,
            }),
            (SocketAddr::V6(source), SocketAddr::V6(destination)) => Some(Self::V6 {
                source,
                destination,
            }),
            _ => None,
        }
    }

    /// The checksum of a packet, in wire order. `identification` is that of the IPv4 header; for IPv6 it is ignored.
    #[must_use]
    pub fn checksum(&self, packet: &[u8], identification: u16) -> [u8; LEN] {
        self.crc(packet, identification).to_le_bytes()
    }

    /// Appends the checksum to a packet. `identification` is that of the IPv4 header; for IPv6 it is ignored.
    pub fn seal(&self, packet: &mut Vec<u8>, identification: u16) {
        let checksum = self.checksum(packet, identification);
        packet.extend_from_slice(&checksum);
    }

    /// Verifies the checksum of a datagram.
    ///
    /// # Errors
    ///
    /// The checksum is wrong (for IPv4, with every identification). An IPv4 datagram whose length is not a multiple of 4 bytes,
    /// or that is longer than any packet, is accepted only with identification 0.
    pub fn open<'a>(&self, datagram: &'a [u8]) -> Result<Opened<'a>, WrongChecksum> {
        self.open_expecting(datagram, 0)
    }

    /// Like [`Flow::open`], with the same result, but faster if the identification is the expected one.
    ///
    /// # Errors
    ///
    /// Those of [`Flow::open`].
    pub fn open_expecting<'a>(
        &self,
        datagram: &'a [u8],
        identification: u16,
    ) -> Result<Opened<'a>, WrongChecksum> {
        let wrong = WrongChecksum {
            length: datagram.len(),
        };
        let (packet, received) = datagram.split_last_chunk().ok_or(wrong)?;
        let expected = match identification::is_found_at(packet.len()) {
            true => identification,
            false => 0,
        };
        let difference = u32::from_le_bytes(*received) ^ self.crc(packet, expected);
        let identification = match self {
            Self::V4 { .. } if difference == 0 => Some(expected),
            Self::V4 { .. } => {
                let changed = identification::of(difference, packet.len()).ok_or(wrong)?;
                Some(expected ^ changed)
            }
            Self::V6 { .. } if difference == 0 => None,
            Self::V6 { .. } => return Err(wrong),
        };
        Ok(Opened {
            packet,
            identification,
        })
    }

    fn crc(&self, packet: &[u8], identification: u16) -> u32 {
        let mut first = match packet.first_chunk() {
            Some(first) => *first,
            None => {
                let mut first = [0; Bth::LEN];
                first[..packet.len()].copy_from_slice(packet);
                first
            }
        };
        first[CONGESTION] = 0xff;
        let (start, rest) = packet.split_at(packet.len().min(Bth::LEN));
        let length = packet.len() + LEN + UDP;
        let udp = udp(self.ports(), length);
        let mut crc = Hasher::new();
        // One call, because each has a cost of its own. Over IPv4, these are three blocks of 16 bytes.
        match self {
            Self::V4 {
                source,
                destination,
            } => {
                let ip = ipv4(
                    *source.ip(),
                    *destination.ip(),
                    length + IPV4,
                    identification,
                );
                let covered: [u8; LOCAL_ROUTE + IPV4 + UDP + Bth::LEN] = joined(&ip, udp, first);
                crc.update(&covered[..LOCAL_ROUTE + IPV4 + UDP + start.len()]);
            }
            Self::V6 {
                source,
                destination,
            } => {
                let ip = ipv6(*source.ip(), *destination.ip(), length);
                let covered: [u8; LOCAL_ROUTE + IPV6 + UDP + Bth::LEN] = joined(&ip, udp, first);
                crc.update(&covered[..LOCAL_ROUTE + IPV6 + UDP + start.len()]);
            }
        }
        crc.update(rest);
        crc.finalize()
    }

    const fn ports(&self) -> (u16, u16) {
        match self {
            Self::V4 {
                source,
                destination,
            } => (source.port(), destination.port()),
            Self::V6 {
                source,
                destination,
            } => (source.port(), destination.port()),
        }
    }
}

/// The ones in place of the local route header, and these headers. `N` is their total length.
fn joined<const N: usize>(ip: &[u8], udp: [u8; UDP], first: [u8; Bth::LEN]) -> [u8; N] {
    let mut joined = [0xff; N];
    let (before, packet) = joined.split_at_mut(N - Bth::LEN);
    packet.copy_from_slice(&first);
    before[LOCAL_ROUTE..LOCAL_ROUTE + ip.len()].copy_from_slice(ip);
    before[LOCAL_ROUTE + ip.len()..].copy_from_slice(&udp);
    joined
}

fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        core::net::IpAddr::V4(ip) => SocketAddrV4::new(ip, address.port()).into(),
        core::net::IpAddr::V6(_) => address,
    }
}

/// The low 16 bits of a length, which suffice for every datagram.
const fn field(length: usize) -> [u8; 2] {
    (length as u16).to_be_bytes()
}

fn ipv4(from: Ipv4Addr, to: Ipv4Addr, length: usize, identification: u16) -> [u8; IPV4] {
    /// IP version 4, with a header of five words.
    const VERSION: u8 = 0x45;
    /// The "don't fragment" flag; the fragment offset is 0.
    const FLAGS: [u8; 2] = [0x40, 0];
    let mut header = [0xff; IPV4];
    header[0] = VERSION;
    header[2..4].copy_from_slice(&field(length));
    header[4..6].copy_from_slice(&identification.to_be_bytes());
    header[6..8].copy_from_slice(&FLAGS);
    header[9] = PROTOCOL;
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    header
}

fn ipv6(from: Ipv6Addr, to: Ipv6Addr, length: usize) -> [u8; IPV6] {
    /// IP version 6; the low bits belong to the traffic class.
    const VERSION: u8 = 0x6f;
    let mut header = [0xff; IPV6];
    header[0] = VERSION;
    header[4..6].copy_from_slice(&field(length));
    header[6] = PROTOCOL;
    header[8..24].copy_from_slice(&from.octets());
    header[24..40].copy_from_slice(&to.octets());
    header
}

fn udp((from, to): (u16, u16), length: usize) -> [u8; UDP] {
    let mut header = [0xff; UDP];
    header[..2].copy_from_slice(&from.to_be_bytes());
    header[2..4].copy_from_slice(&to.to_be_bytes());
    header[4..6].copy_from_slice(&field(length));
    header
}
