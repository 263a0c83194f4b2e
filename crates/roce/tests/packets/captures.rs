//! Packets that Linux's Soft-RoCE sent or accepted are decoded and encoded byte for byte.

use rkey_roce::icrc::{Flow, Opened, PORT};
use rkey_roce::packet::{
    Aeth, AtomicAckEth, AtomicEth, Body, Credits, Deth, Headers, Mtu, NakCode, Packet, Psn,
    Reliable, Request, Response, Reth, Service, Syndrome, Tail,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::LazyLock;

/// One line of the captures.
pub(crate) struct Captured {
    pub(crate) flow: Flow,
    /// The identification in the IPv4 header.
    identification: Option<u16>,
    pub(crate) datagram: Vec<u8>,
}

/// All captured packets.
pub(crate) static CAPTURED: LazyLock<Vec<Captured>> = LazyLock::new(|| {
    let lines = include_str!("soft-roce.hex").lines();
    lines
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let pairs = (0..line.len()).step_by(2);
            let bytes: Vec<u8> = pairs
                .map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap())
                .collect();
            ip(&bytes)
        })
        .collect()
});

/// Parses an IP packet.
fn ip(bytes: &[u8]) -> Captured {
    let field = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let (source, destination, identification, udp): (IpAddr, IpAddr, _, _) = match bytes[0] >> 4 {
        4 => {
            let address = |at: usize| {
                let octets: [u8; 4] = bytes[at..at + 4].try_into().unwrap();
                Ipv4Addr::from(octets).into()
            };
            (address(12), address(16), Some(field(4)), 20)
        }
        6 => {
            let address = |at: usize| {
                let octets: [u8; 16] = bytes[at..at + 16].try_into().unwrap();
                Ipv6Addr::from(octets).into()
            };
            (address(8), address(24), None, 40)
        }
        version => panic!("IP version {version}"),
    };
    let source = SocketAddr::new(source, field(udp));
    let destination = SocketAddr::new(destination, field(udp + 2));
    assert_eq!(destination.port(), PORT);
    assert_eq!(usize::from(field(udp + 4)), bytes.len() - udp);
    Captured {
        flow: Flow::new(source, destination).unwrap(),
        identification,
        datagram: bytes[udp + 8..].to_vec(),
    }
}

#[test]
fn every_captured_checksum_is_correct() {
    for it in CAPTURED.iter() {
        let opened = it.flow.open(&it.datagram).unwrap();
        assert_eq!(opened.identification, it.identification);
        let mut again = opened.packet.to_vec();
        it.flow.seal(&mut again, it.identification.unwrap_or(0));
        assert_eq!(again, it.datagram);
    }
}

/// A receiver that does not know the identification detects damage to any byte that the checksum covers.
#[test]
fn damage_to_a_captured_packet_is_detected() {
    for it in CAPTURED.iter() {
        // All bytes of short packets, and some of long ones.
        let step = if it.datagram.len() < 200 { 1 } else { 23 };
        for at in (0..it.datagram.len()).step_by(step) {
            let mut damaged = it.datagram.clone();
            damaged[at] ^= 0x40;
            let opened = it.flow.open(&damaged);
            // Byte 4 contains the congestion bits, which routers set.
            assert_eq!(opened.is_ok(), at == 4, "byte {at}: {opened:?}");
        }
    }
}

/// An example from NVIDIA's documentation: a notification that a network card sent.
#[test]
fn a_congestion_notification_round_trips() {
    let mut bytes = vec![0x81, 0, 0xff, 0xff, 0x40, 0, 0, 0xd2, 0, 0, 0, 0];
    bytes.extend([0; 16]);
    let headers = Headers {
        becn: true,
        ..Headers::new(0xd2, Psn::new(0), Body::Congestion)
    };
    let packet = Packet {
        headers,
        payload: &[],
    };
    assert_eq!(Packet::decode(&bytes), Ok(packet));
    let mut again = Vec::new();
    packet.encode(&mut again).unwrap();
    assert_eq!(again, bytes);
}

#[test]
fn every_captured_packet_round_trips() {
    for it in CAPTURED.iter() {
        let Opened { packet: bytes, .. } = it.flow.open(&it.datagram).unwrap();
        let packet = Packet::decode(bytes).unwrap();
        let mut again = Vec::new();
        packet.encode(&mut again).unwrap();
        assert_eq!(again, bytes, "{packet:?}");
        let length = packet.payload.len();
        packet
            .headers
            .body
            .check_length(length, Mtu::Bytes1024)
            .unwrap();
    }
}

#[test]
fn the_captures_contain_the_expected_operations() {
    let mut counts = BTreeMap::new();
    for it in CAPTURED.iter() {
        let packet = Packet::decode(&it.datagram[..it.datagram.len() - 4]).unwrap();
        let opcode = packet.headers.body.opcode().unwrap();
        *counts.entry(opcode.to_string()).or_insert(0) += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(name, &n)| (name.as_str(), n)).collect();
    assert_eq!(
        counts,
        [
            ("RC ATOMIC Acknowledge", 3),
            ("RC Acknowledge", 25),
            ("RC CmpSwap", 3),
            ("RC FetchAdd", 3),
            ("RC RDMA READ Request", 3),
            ("RC RDMA READ response First", 3),
            ("RC RDMA READ response Last", 3),
            ("RC RDMA READ response Middle", 3),
            ("RC RDMA WRITE First", 6),
            ("RC RDMA WRITE Last", 6),
            ("RC RDMA WRITE Middle", 3),
            ("RC RDMA WRITE Only", 6),
            ("RC SEND First", 6),
            ("RC SEND Last", 6),
            ("RC SEND Middle", 6),
            ("RC SEND Only", 16),
            ("UC RDMA WRITE First", 3),
            ("UC RDMA WRITE Last", 3),
            ("UD SEND Only", 9),
        ]
    );
}

/// The first captured packet with this operation, without its payload, and the length of the payload.
fn first(name: &str) -> (Headers, usize) {
    let mut packets = CAPTURED
        .iter()
        .map(|it| Packet::decode(&it.datagram[..it.datagram.len() - 4]).unwrap());
    packets
        .find(|it| it.headers.body.opcode().unwrap().to_string() == name)
        .map(|it| (it.headers, it.payload.len()))
        .expect("a packet")
}

#[test]
fn captured_requests_have_the_expected_fields() {
    let write = Reth {
        address: 0x55d6_0f6d_7000,
        rkey: 0x374,
        length: 3001,
    };
    let request = |request| Body::Request(Service::Rc, request);
    let body = request(Request::WriteFirst(write));
    let headers = Headers::new(0x12, Psn::new(0xff_3238), body);
    assert_eq!(first("RC RDMA WRITE First"), (headers, 1024));

    let last = Headers {
        ack_request: true,
        ..Headers::new(0x12, Psn::new(0xff_323a), request(Request::WriteLast(None)))
    };
    // With 3 bytes of padding.
    assert_eq!(first("RC RDMA WRITE Last"), (last, 3001 - 2 * 1024));

    let read = Reth {
        address: 0x55c8_3683_8000,
        rkey: 0x4bc,
        length: 2999,
    };
    let read = Headers {
        ack_request: true,
        ..Headers::new(0x14, Psn::new(0x6a_e319), request(Request::Read(read)))
    };
    assert_eq!(first("RC RDMA READ Request"), (read, 0));

    let add = AtomicEth {
        address: 0x5652_2a56_b000,
        rkey: 0x583,
        swap_or_add: 1,
        compare: 0,
    };
    let add = Headers {
        ack_request: true,
        ..Headers::new(0x15, Psn::new(0x10_2f3a), request(Request::FetchAdd(add)))
    };
    assert_eq!(first("RC FetchAdd"), (add, 0));
}

#[test]
fn captured_datagrams_have_the_expected_fields() {
    let deth = Deth {
        qkey: 0x8001_0000,
        source: 1,
    };
    let body = Body::Request(Service::Ud(deth), Request::SendOnly(Tail::None));
    // A REQ of the connection manager.
    let headers = Headers {
        ack_request: true,
        ..Headers::new(1, Psn::new(0x2b), body)
    };
    assert_eq!(first("UD SEND Only"), (headers, 256));
}

#[test]
fn captured_responses_have_the_expected_fields() {
    let ack = |msn| Aeth {
        syndrome: Syndrome::Ack(Credits::UNLIMITED),
        msn,
    };
    let response = |destination, psn, response| {
        let body = Body::Response(Reliable::Rc, response);
        Headers::new(destination, Psn::new(psn), body)
    };
    // The first one is a refusal: a packet was missing.
    let nak = Aeth {
        syndrome: Syndrome::Nak(NakCode::PsnSequenceError),
        msn: 0,
    };
    let nak = response(0x342, 0x7e_97bb, Response::Acknowledge(nak));
    assert_eq!(first("RC Acknowledge"), (nak, 0));

    let original = AtomicAckEth {
        original: 0x31da_17f0_b046_27db,
    };
    let atomic = response(
        0x15,
        0x10_2f3a,
        Response::AtomicAcknowledge(ack(1), original),
    );
    assert_eq!(first("RC ATOMIC Acknowledge"), (atomic, 0));

    let read = response(0x14, 0x6a_e319, Response::ReadFirst(ack(1)));
    assert_eq!(first("RC RDMA READ response First"), (read, 1024));
    let read = response(0x14, 0x6a_e31a, Response::ReadMiddle);
    assert_eq!(first("RC RDMA READ response Middle"), (read, 1024));
    let read = response(0x14, 0x6a_e31b, Response::ReadLast(ack(1)));
    assert_eq!(first("RC RDMA READ response Last"), (read, 2999 - 2048));
}
