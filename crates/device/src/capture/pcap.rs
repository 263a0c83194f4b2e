//! The format of capture files: classic pcap with times in nanoseconds, whose packets begin with their IP headers.
//!
//! A program with a UDP socket does not see the IP and UDP headers. The capture rebuilds them from the addresses, the ports, the
//! length and the identification that the invariant checksum covers. The congestion bits are the real ones. The time to live is not known: it is written as 64.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use rkey_roce::icrc::Flow;

use crate::ecn::Ecn;

/// Times are in nanoseconds. In the byte order of this machine, like all fields of the format.
const MAGIC: u32 = 0xa1b2_3c4d;
const VERSION: (u16, u16) = (2, 4);
/// The longest packet.
const SNAP: u32 = 1 << 16;
/// Packets begin with an IP header, of either version.
const LINKTYPE_RAW: u32 = 101;

const UDP: usize = 8;
const PROTOCOL: u8 = 17;
const TIME_TO_LIVE: u8 = 64;

/// The beginning of a file.
pub(super) fn header() -> Vec<u8> {
    let mut bytes = MAGIC.to_ne_bytes().to_vec();
    bytes.extend(VERSION.0.to_ne_bytes());
    bytes.extend(VERSION.1.to_ne_bytes());
    // Times are in UTC; their accuracy is not stated.
    bytes.extend([0; 8]);
    bytes.extend(SNAP.to_ne_bytes());
    bytes.extend(LINKTYPE_RAW.to_ne_bytes());
    bytes
}

/// Appends a datagram; `at` is when it was sent or received, since the Unix epoch. `identification` is that of its IPv4 header, and
/// `ecn` has the congestion bits of its IP header.
/// Returns false, and appends nothing, if the addresses differ in IP version or the datagram is too long.
pub(super) fn append(
    file: &mut Vec<u8>,
    at: Duration,
    (from, to): (SocketAddr, SocketAddr),
    (identification, ecn): (u16, Ecn),
    datagram: &[u8],
) -> bool {
    let Ok(udp_length) = u16::try_from(UDP + datagram.len()) else {
        return false;
    };
    let (ip, pseudo) = match Flow::new(from, to) {
        Some(Flow::V4 {
            source,
            destination,
        }) => {
            let (from, to) = (*source.ip(), *destination.ip());
            let Some(header) = ipv4(from, to, udp_length, identification, ecn) else {
                return false;
            };
            (header.to_vec(), [from.octets(), to.octets()].concat())
        }
        Some(Flow::V6 {
            source,
            destination,
        }) => {
            let (from, to) = (*source.ip(), *destination.ip());
            let header = ipv6(from, to, udp_length, ecn);
            (header.to_vec(), [from.octets(), to.octets()].concat())
        }
        None => return false,
    };
    let mut udp = [0; UDP];
    udp[..2].copy_from_slice(&from.port().to_be_bytes());
    udp[2..4].copy_from_slice(&to.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_length.to_be_bytes());
    let rest = [0, PROTOCOL, udp[4], udp[5]];
    // As a checksum of 0 means that there is none, UDP sends all ones instead.
    let checksum = match checksum([&pseudo[..], &rest, &udp, datagram]) {
        0 => u16::MAX,
        sum => sum,
    };
    udp[6..].copy_from_slice(&checksum.to_be_bytes());

    let length = (ip.len() + UDP + datagram.len()) as u32;
    file.extend((at.as_secs() as u32).to_ne_bytes());
    file.extend(at.subsec_nanos().to_ne_bytes());
    file.extend(length.to_ne_bytes());
    file.extend(length.to_ne_bytes());
    file.extend(ip);
    file.extend(udp);
    file.extend(datagram);
    true
}

fn ipv4(
    from: Ipv4Addr,
    to: Ipv4Addr,
    udp_length: u16,
    identification: u16,
    ecn: Ecn,
) -> Option<[u8; 20]> {
    let mut header = [0; 20];
    header[0] = 0x45;
    header[1] = ecn.bits();
    header[2..4].copy_from_slice(&udp_length.checked_add(20)?.to_be_bytes());
    header[4..6].copy_from_slice(&identification.to_be_bytes());
    // "Don't fragment".
    header[6] = 0x40;
    header[8] = TIME_TO_LIVE;
    header[9] = PROTOCOL;
    header[12..16].copy_from_slice(&from.octets());
    header[16..].copy_from_slice(&to.octets());
    let checksum = checksum([&header[..]]);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    Some(header)
}

fn ipv6(from: Ipv6Addr, to: Ipv6Addr, udp_length: u16, ecn: Ecn) -> [u8; 40] {
    let mut header = [0; 40];
    header[0] = 0x60;
    // The traffic class is in the bits 4 to 11; the congestion bits are its lowest two.
    header[1] = ecn.bits() << 4;
    header[4..6].copy_from_slice(&udp_length.to_be_bytes());
    header[6] = PROTOCOL;
    header[7] = TIME_TO_LIVE;
    header[8..24].copy_from_slice(&from.octets());
    header[24..].copy_from_slice(&to.octets());
    header
}

/// The internet checksum of these parts, all of even length except the last.
fn checksum<const N: usize>(parts: [&[u8]; N]) -> u16 {
    let words = parts.into_iter().flat_map(|part| part.chunks(2));
    let word = |it: &[u8]| u16::from_be_bytes([it[0], it.get(1).copied().unwrap_or(0)]);
    let mut sum: u64 = words.map(|it| u64::from(word(it))).sum();
    while sum > u64::from(u16::MAX) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rkey_harness::pcap::{Record, read};

    #[test]
    fn datagrams_get_the_headers_that_the_kernel_would_write() {
        let mut file = header();
        let v4 = ["10.0.0.1:4791", "10.0.0.2:4791"].map(|it| it.parse().unwrap());
        let v6 = ["[fd00::1]:50000", "[fd00::2]:4791"].map(|it| it.parse().unwrap());
        let at = Duration::new(1_700_000_000, 123_456_789);
        assert!(append(
            &mut file,
            at,
            (v4[0], v4[1]),
            (7, Ecn::default()),
            b"odd"
        ));
        assert!(append(
            &mut file,
            at,
            (v6[0], v6[1]),
            (7, Ecn::CONGESTED),
            b"even"
        ));
        let mapped = "[::ffff:10.0.0.1]:4791".parse().unwrap();
        assert!(append(
            &mut file,
            at,
            (mapped, v4[1]),
            (0, Ecn::CONGESTED),
            b""
        ));
        let length = file.len();
        assert!(!append(
            &mut file,
            at,
            (v4[0], v6[1]),
            (7, Ecn::default()),
            b"data"
        ));
        assert!(!append(
            &mut file,
            at,
            (v4[0], v4[1]),
            (7, Ecn::default()),
            &[0; 65_510]
        ));
        assert!(!append(
            &mut file,
            at,
            (v6[0], v6[1]),
            (7, Ecn::default()),
            &[0; 70_000]
        ));
        assert_eq!(file.len(), length, "nothing is added");
        let record = |flow: [SocketAddr; 2], identification, ecn, datagram: &[u8]| Record {
            at,
            flow: (flow[0], flow[1]),
            identification,
            ecn,
            datagram: datagram.to_vec(),
        };
        assert_eq!(
            read(&file),
            [
                record(v4, 7, 0, b"odd"),
                record(v6, 0, 3, b"even"),
                record(v4, 0, 3, b"")
            ]
        );
    }

    #[test]
    fn checksums_are_those_of_rfc_1071() {
        // The example of RFC 1071, 3.
        assert_eq!(
            checksum([&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]]),
            !0xddf2
        );
        assert_eq!(checksum([&[0xff, 0xff][..], &[0x01]]), !0x0100);
    }
}
