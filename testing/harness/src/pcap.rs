//! Reads capture files: classic pcap with times in nanoseconds, whose packets are UDP datagrams that begin with their IP headers.

use std::net::SocketAddr;
use std::time::Duration;

/// Times are in nanoseconds. In the byte order of this machine, like all fields of the format but those of the packets.
const MAGIC: u32 = 0xa1b2_3c4d;
/// The version of the format, 2.4; times are in UTC, with an accuracy that is not stated.
const VERSION: [u16; 2] = [2, 4];
/// Packets begin with an IP header, of either version.
const LINKTYPE_RAW: u32 = 101;
/// The length of the file's header.
const HEADER: usize = 24;
/// The length of a UDP header.
const UDP: usize = 8;
/// The protocol number of UDP.
const PROTOCOL: u8 = 17;

/// A packet of a capture file.
#[derive(Debug, PartialEq, Eq)]
pub struct Record {
    /// When it was captured, since the Unix epoch.
    pub at: Duration,
    /// Where it came from, and where it went to.
    pub flow: (SocketAddr, SocketAddr),
    /// The identification of its IPv4 header; 0 with IPv6.
    pub identification: u16,
    /// The congestion bits of its IP header, among the other bits of their byte.
    pub ecn: u8,
    /// The payload of its UDP datagram.
    pub datagram: Vec<u8>,
}

/// Reads a file.
///
/// # Panics
/// The file has another format, or a header of a packet has a wrong length or checksum.
#[must_use]
pub fn read(file: &[u8]) -> Vec<Record> {
    let (first, mut rest) = file.split_at(HEADER);
    assert_eq!(word(0, first), MAGIC);
    let version = [4, 6].map(|at| u16::from_ne_bytes([first[at], first[at + 1]]));
    assert_eq!(version, VERSION);
    assert_eq!([word(8, first), word(12, first)], [0; 2]);
    let (longest, link) = (word(16, first), word(20, first));
    assert_eq!(link, LINKTYPE_RAW);
    let mut records = Vec::new();
    while !rest.is_empty() {
        let at = Duration::new(word(0, rest).into(), word(4, rest));
        let length = word(8, rest);
        assert!(word(12, rest) == length && length <= longest);
        let (packet, more) = rest[16..].split_at(length as usize);
        rest = more;
        records.push(record(at, packet));
    }
    records
}

fn word(at: usize, bytes: &[u8]) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn short(at: usize, bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn record(at: Duration, packet: &[u8]) -> Record {
    let (is_v4, ip) = match packet[0] >> 4 {
        4 => (true, &packet[..20]),
        _ => (false, &packet[..40]),
    };
    let udp = &packet[ip.len()..];
    assert_eq!(usize::from(short(4, udp)), udp.len());
    let (addresses, identification, ecn) = if is_v4 {
        assert_eq!((usize::from(short(2, ip)), ip[9]), (packet.len(), PROTOCOL));
        assert_eq!(checksum(&[ip]), 0);
        (&ip[12..20], short(4, ip), ip[1])
    } else {
        assert_eq!((usize::from(short(4, ip)), ip[6]), (udp.len(), PROTOCOL));
        (&ip[8..40], 0, ip[1] >> 4)
    };
    let pseudo = [0, PROTOCOL, udp[4], udp[5]];
    assert_eq!(checksum(&[addresses, &pseudo, udp]), 0);
    let (from, to) = addresses.split_at(addresses.len() / 2);
    Record {
        at,
        flow: (address(from, short(0, udp)), address(to, short(2, udp))),
        identification,
        ecn,
        datagram: udp[UDP..].to_vec(),
    }
}

fn address(bytes: &[u8], port: u16) -> SocketAddr {
    match <[u8; 4]>::try_from(bytes) {
        Ok(octets) => SocketAddr::new(octets.into(), port),
        Err(_) => {
            let octets: [u8; 16] = bytes.try_into().expect("an address of IPv6");
            SocketAddr::new(octets.into(), port)
        }
    }
}

/// The internet checksum of these parts, all of even length except the last: 0 if they include their own checksum.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let word = |it: &[u8]| u16::from_be_bytes([it[0], it.get(1).copied().unwrap_or(0)]);
    let mut sum: u64 = words.map(|it| u64::from(word(it))).sum();
    while sum > u64::from(u16::MAX) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
