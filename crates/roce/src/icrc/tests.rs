//! The checksum against packets of Linux's Soft-RoCE, and against damage. The captures in `tests/packets` have many more.

use super::*;
use proptest::prelude::*;

/// Bytes from hexadecimal digits.
fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn flow(source: &str, destination: &str) -> Flow {
    Flow::new(source.parse().unwrap(), destination.parse().unwrap()).expect("one version of IP")
}

/// An acknowledgement that Soft-RoCE accepted; its IPv4 header has the identification 0.
const ACKNOWLEDGEMENT: &str = "1100ffff00000015002e8ce6 1f000001 355deaad";

#[test]
fn the_checksum_of_a_known_packet_is_right() {
    let datagram = bytes(ACKNOWLEDGEMENT);
    let flow = flow("10.77.0.1:4791", "10.77.0.2:4791");
    let opened = flow.open(&datagram).expect("a right checksum");
    assert_eq!(opened.identification, Some(0));
    assert_eq!(opened.packet, &datagram[..16]);
    assert_eq!(flow.checksum(opened.packet, 0), datagram[16..]);
}

/// A send of 64 bytes from Soft-RoCE, whose IPv4 header had the identification 0xbd23.
#[test]
fn the_identification_of_a_known_packet_is_found() {
    let mut datagram = bytes("0400ffff00000123802e8ce6");
    datagram.extend([0x7b; 64]);
    datagram.extend(bytes("d9115d0b"));
    let flow = flow("10.77.0.2:55263", "10.77.0.1:4791");
    let opened = flow.open(&datagram).expect("a right checksum");
    assert_eq!(opened.identification, Some(0xbd23));
}

#[test]
fn congestion_bits_may_change_on_the_way_and_nothing_else() {
    let good = bytes(ACKNOWLEDGEMENT);
    let flow = flow("[fd77::1]:4791", "[fd77::2]:4791");
    let mut datagram = good[..16].to_vec();
    flow.seal(&mut datagram, 0);
    for at in 0..datagram.len() {
        for bit in 0..8 {
            let mut changed = datagram.clone();
            changed[at] ^= 1 << bit;
            assert_eq!(flow.open(&changed).is_ok(), at == CONGESTION, "byte {at}");
        }
    }
}

#[test]
fn a_datagram_from_or_for_another_address_is_wrong() {
    for (from, to, others) in [
        (
            "10.0.0.1:50000",
            "10.0.0.2:4791",
            ["10.0.0.3:50000", "10.0.0.1:50001"],
        ),
        (
            "[fd00::1]:50000",
            "[fd00::2]:4791",
            ["[fd00::3]:50000", "[fd00::1]:50001"],
        ),
    ] {
        let mut datagram = bytes(ACKNOWLEDGEMENT)[..16].to_vec();
        flow(from, to).seal(&mut datagram, 0);
        assert!(flow(from, to).open(&datagram).is_ok());
        for other in others {
            let wrong = flow(other, to).open(&datagram).unwrap_err();
            assert_eq!(
                wrong.to_string(),
                "the invariant checksum of 20 B is wrong",
                "{other}"
            );
            assert!(flow(to, from).open(&datagram).is_err());
        }
    }
}

#[test]
fn datagrams_that_are_too_short_are_wrong() {
    for flow in [
        flow("10.0.0.1:50000", "10.0.0.2:4791"),
        flow("[fd00::1]:50000", "[fd00::2]:4791"),
    ] {
        for length in 0..LEN {
            assert_eq!(
                flow.open(&[0; LEN][..length]),
                Err(WrongChecksum { length })
            );
        }
        // The checksum alone says nothing about what a packet is.
        let mut nothing = Vec::new();
        flow.seal(&mut nothing, 0);
        assert!(flow.open(&nothing).is_ok_and(|it| it.packet.is_empty()));
    }
}

#[test]
fn a_flow_has_one_version_of_ip() {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let (v4, v6) = (address("10.0.0.1:4791"), address("[fd00::1]:4791"));
    assert_eq!(Flow::new(v4, v6), None);
    assert_eq!(Flow::new(v6, v4), None);
    let mapped = address("[::ffff:10.0.0.1]:4791");
    assert_eq!(Flow::new(mapped, v4), Flow::new(v4, v4));
}

proptest! {
    /// Whatever identification a sender has, the receiver finds it; and on IPv6 the checksum does not depend on it.
    #[test]
    fn a_sealed_packet_opens(
        words in prop::collection::vec(any::<[u8; 4]>(), 0..300),
        ports in any::<(u16, u16)>(),
        addresses in any::<([u8; 4], [u8; 4])>(),
        identification: u16,
    ) {
        let packet = words.concat();
        let (from, to) = (Ipv4Addr::from(addresses.0), Ipv4Addr::from(addresses.1));
        let v4 = Flow::V4 {
            source: SocketAddrV4::new(from, ports.0),
            destination: SocketAddrV4::new(to, ports.1),
        };
        let mut datagram = packet.clone();
        v4.seal(&mut datagram, identification);
        let opened = Opened { packet: &packet, identification: Some(identification) };
        prop_assert_eq!(v4.open(&datagram), Ok(opened));
        let v6 = Flow::V6 {
            source: SocketAddrV6::new(from.to_ipv6_compatible(), ports.0, 0, 0),
            destination: SocketAddrV6::new(to.to_ipv6_compatible(), ports.1, 0, 0),
        };
        prop_assert_eq!(v6.checksum(&packet, identification), v6.checksum(&packet, 0));
    }

    /// Any bytes are right or wrong, and what is right has the checksum that is in it.
    #[test]
    fn any_bytes_are_right_or_wrong(datagram in prop::collection::vec(any::<u8>(), 0..200)) {
        let flow = flow("10.0.0.1:50000", "10.0.0.2:4791");
        if let Ok(opened) = flow.open(&datagram) {
            let identification = opened.identification.expect("IPv4 has one");
            let checksum = flow.checksum(opened.packet, identification);
            prop_assert_eq!(&datagram[datagram.len() - LEN..], checksum);
        }
    }
}
