//! The checksum on packets from Linux's Soft-RoCE, and on damaged packets. `tests/packets` checks many more captures.

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

/// An acknowledgement that Soft-RoCE accepted, with IPv4 identification 0.
const ACKNOWLEDGEMENT: &str = "1100ffff00000015002e8ce6 1f000001 355deaad";

#[test]
fn the_checksum_of_a_captured_packet_is_correct() {
    let datagram = bytes(ACKNOWLEDGEMENT);
    let flow = flow("10.77.0.1:4791", "10.77.0.2:4791");
    let opened = flow.open(&datagram).expect("a correct checksum");
    assert_eq!(opened.identification, Some(0));
    assert_eq!(opened.packet, &datagram[..16]);
    assert_eq!(flow.checksum(opened.packet, 0), datagram[16..]);
}

/// A 64-byte send from Soft-RoCE, with IPv4 identification 0xbd23.
#[test]
fn the_identification_of_a_captured_packet_is_found() {
    let mut datagram = bytes("0400ffff00000123802e8ce6");
    datagram.extend([0x7b; 64]);
    datagram.extend(bytes("d9115d0b"));
    let flow = flow("10.77.0.2:55263", "10.77.0.1:4791");
    let opened = flow.open(&datagram).expect("a correct checksum");
    assert_eq!(opened.identification, Some(0xbd23));
}

#[test]
fn only_congestion_bits_may_change_in_transit() {
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
fn a_datagram_with_another_address_is_refused() {
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
                "the invariant checksum of a datagram of 20 B is wrong",
                "{other}"
            );
            assert!(flow(to, from).open(&datagram).is_err());
        }
    }
}

#[test]
fn datagrams_that_are_too_short_are_refused() {
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
        // The checksum does not prove that the bytes are a valid packet.
        let mut nothing = Vec::new();
        flow.seal(&mut nothing, 0);
        assert!(flow.open(&nothing).is_ok_and(|it| it.packet.is_empty()));
    }
}

#[test]
fn both_addresses_of_a_flow_must_have_the_same_ip_version() {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let (v4, v6) = (address("10.0.0.1:4791"), address("[fd00::1]:4791"));
    assert_eq!(Flow::new(v4, v6), None);
    assert_eq!(Flow::new(v6, v4), None);
    let mapped = address("[::ffff:10.0.0.1]:4791");
    assert_eq!(Flow::new(mapped, v4), Flow::new(v4, v4));
}

proptest! {
    /// The receiver finds every identification; on IPv6 the checksum does not depend on it.
    #[test]
    fn a_sealed_packet_opens_with_its_identification(
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

    /// What the receiver expects changes only how long it takes, whatever the length.
    #[test]
    fn an_expected_identification_does_not_change_the_result(
        mut datagram in prop::collection::vec(any::<u8>(), 0..200),
        damage in prop::option::of(0..200_usize),
        (identification, expected) in prop_oneof![any::<(u16, u16)>(), (0..3_u16, 0..3_u16)],
        is_ipv4: bool,
    ) {
        let flow = match is_ipv4 {
            true => flow("10.0.0.1:50000", "10.0.0.2:4791"),
            false => flow("[fd00::1]:50000", "[fd00::2]:4791"),
        };
        flow.seal(&mut datagram, identification);
        if let Some(byte) = damage.and_then(|at| datagram.get_mut(at)) {
            *byte ^= 1;
        }
        prop_assert_eq!(flow.open_expecting(&datagram, expected), flow.open(&datagram));
        let bare = &datagram[..datagram.len() - LEN];
        prop_assert_eq!(flow.open_expecting(bare, expected), flow.open(bare));
    }

    /// Arbitrary bytes never panic, and accepted ones carry the checksum that `seal` computes.
    #[test]
    fn opening_arbitrary_bytes_never_panics(
        datagram in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let flow = flow("10.0.0.1:50000", "10.0.0.2:4791");
        if let Ok(opened) = flow.open(&datagram) {
            let identification = opened.identification.expect("IPv4 has one");
            let checksum = flow.checksum(opened.packet, identification);
            prop_assert_eq!(&datagram[datagram.len() - LEN..], checksum);
        }
    }
}
