//! Wires with a key.

use super::tests::{address, capture_on_both_sides, packet, process, process_with, wait_until};
use super::*;
use crate::config::WireKey;
use crate::wire::datagram::Incoming;
use std::net::UdpSocket;

const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

fn with_key(secret: u8) -> WireConfig {
    WireConfig {
        key: WireKey::new(&[secret; 32]),
        ..WireConfig::OFF
    }
}

/// A socket that is no wire, and its address.
fn stranger() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((address(), 0)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// A packet with its checksum.
fn plain(from: SocketAddr, to: SocketAddr, qp: u32) -> Vec<u8> {
    let mut datagram = packet(qp, 1, b"data");
    Flow::new(from, to).unwrap().seal(&mut datagram, 0);
    datagram
}

fn sealed(secret: u8, from: SocketAddr, to: SocketAddr, qp: u32) -> Vec<u8> {
    sealed_by(&seal(secret), from, to, &plain(from, to, qp))
}

fn seal(secret: u8) -> Seal {
    Seal::new(&WireKey::new(&[secret; 32]).unwrap()).unwrap()
}

fn sealed_by(seal: &Seal, from: SocketAddr, to: SocketAddr, plain: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert!(seal.seal(Kind::Packet, from, to, plain, &mut bytes));
    bytes
}

fn dropped(wire: &Wire) -> Vec<(Dropped, u64)> {
    wire.describe().counts.dropped
}

#[test]
fn packets_of_a_wire_with_the_same_key_arrive_at_the_process_that_owns_the_queue_pair() {
    let (ip, from) = (address(), address());
    let setting = with_key(1);
    let processes = [(); 3].map(|()| process_with(ip, &setting));
    let (sender, _) = process_with(from, &setting);
    assert!(sender.describe().sealed);
    let mut outgoing = OutgoingPackets::default();
    for (_, recorder) in &processes {
        for psn in 0..40 {
            outgoing.push(from, ip, &packet(recorder.qp(), psn, &[psn as u8; 1024]));
        }
        outgoing.push(from, ip, &packet(recorder.qp(), 40, b"a shorter one"));
    }
    sender.send(&mut outgoing);
    assert_eq!(sender.describe().counts.sent, 123);
    for (wire, recorder) in &processes {
        wait_until(|| recorder.packets.lock().len() == 41);
        let packets = recorder.packets.lock();
        for (psn, packet) in (0..40u32).zip(packets.iter()) {
            let wanted = (ip, from, psn, vec![psn as u8; 1024], false);
            assert_eq!(*packet, wanted);
        }
        assert_eq!(packets[40].3, b"a shorter one");
        assert_eq!(dropped(wire), []);
    }
    // The kernel gave all of them to one process, which forwarded two thirds, and counts them afterwards.
    let forwarded = |(wire, _): &(Wire, _)| wire.describe().counts.forwarded;
    wait_until(|| processes.iter().map(forwarded).sum::<u64>() == 82);
}

#[test]
fn packets_without_the_key_are_dropped_and_not_answered() {
    let ip = address();
    let (wire, recorder) = process_with(ip, &with_key(1));
    let to = SocketAddr::new(ip, icrc::PORT);
    let (socket, from) = stranger();
    let qp = recorder.qp();
    for bytes in [
        plain(from, to, qp),
        plain(from, to, 1),
        sealed(2, from, to, qp),
        vec![0; 200],
        vec![7],
    ] {
        let before = dropped(&wire).first().map_or(0, |it| it.1);
        socket.send_to(&bytes, to).unwrap();
        wait_until(|| dropped(&wire) == [(Dropped::Forged, before + 1)]);
    }
    // Another host checks whether a program listens, which is no attack.
    socket.send_to(&[], to).unwrap();
    wait_until(|| dropped(&wire) == [(Dropped::Empty, 1), (Dropped::Forged, 5)]);
    assert!(recorder.packets.lock().is_empty());
    socket.set_nonblocking(true).unwrap();
    assert!(socket.recv(&mut [0; 64]).is_err(), "no answer");
    socket.send_to(&sealed(1, from, to, qp), to).unwrap();
    wait_until(|| recorder.packets.lock().len() == 1);
}

#[test]
fn a_forged_or_empty_datagram_does_not_shift_those_that_arrive_with_it() {
    let (ip, first, second) = (address(), address(), address());
    let (wire, recorder) = process_with(ip, &with_key(1));
    let to = SocketAddr::new(ip, icrc::PORT);
    let seal = seal(1);
    let datagram = |from: IpAddr, psn: u32| {
        let from = SocketAddr::new(from, icrc::PORT);
        let mut plain = packet(recorder.qp(), psn, &[psn as u8; 16]);
        Flow::new(from, to).unwrap().seal(&mut plain, 0);
        sealed_by(&seal, from, to, &plain)
    };
    let each = datagram(first, 1).len();
    let mut three = [1, 2, 3].map(|psn| datagram(first, psn)).concat();
    three[2 * each - 1] ^= 1;
    let other = datagram(second, 4);
    let incoming = |from, bytes, ecn| Incoming {
        from: SocketAddr::new(from, icrc::PORT),
        to,
        ecn,
        bytes,
        each,
    };
    let unmarked = Ecn::from_codepoint(None);
    let arrived = [
        incoming(first, &three, unmarked),
        incoming(first, &[], unmarked),
        incoming(second, &other, Ecn::CONGESTED),
    ];
    wire.core.sort(&arrived, None, false);
    let wanted = [(first, 1, false), (first, 3, false), (second, 4, true)]
        .map(|(from, psn, is_marked)| (ip, from, psn, vec![psn as u8; 16], is_marked));
    assert_eq!(*recorder.packets.lock(), wanted);
    assert_eq!(dropped(&wire), [(Dropped::Empty, 1), (Dropped::Forged, 1)]);
}

#[test]
fn a_wire_without_a_key_drops_sealed_packets() {
    let ip = address();
    let (wire, recorder) = process(ip);
    assert!(!wire.describe().sealed);
    let to = SocketAddr::new(ip, icrc::PORT);
    let (socket, from) = stranger();
    let bytes = sealed(1, from, to, recorder.qp());
    socket.send_to(&bytes, to).unwrap();
    wait_until(|| dropped(&wire) == [(Dropped::Checksum, 1)]);
}

/// The attacker also sends from other ports, which the kernel maps to the other process.
#[test]
fn a_repeated_packet_arrives_once() {
    let ip = address();
    let setting = with_key(1);
    let ((wire, recorder), (other, _)) = (process_with(ip, &setting), process_with(ip, &setting));
    let to = SocketAddr::new(ip, icrc::PORT);
    let counts = |why| {
        let all = [&wire, &other].map(dropped).concat();
        all.iter()
            .filter(|it| it.0 == why)
            .map(|it| it.1)
            .sum::<u64>()
    };
    for number in 1..=32 {
        let (socket, from) = stranger();
        let bytes = sealed(1, from, to, recorder.qp());
        socket.send_to(&bytes, to).unwrap();
        wait_until(|| recorder.packets.lock().len() == number);
        socket.send_to(&bytes, to).unwrap();
        wait_until(|| counts(Dropped::Replayed) == number as u64);
        let (elsewhere, _) = stranger();
        elsewhere.send_to(&bytes, to).unwrap();
        wait_until(|| counts(Dropped::Forged) == number as u64);
    }
    assert_eq!(recorder.packets.lock().len(), 32);
    let forwarded = [&wire, &other].map(|it| it.describe().counts.forwarded);
    assert!(forwarded.iter().sum::<u64>() > 0, "{forwarded:?}");
}

#[test]
fn a_key_leaves_less_room_for_packets() {
    use super::addresses::fitting;
    let at_least = 20 + 8 + 36 + icrc::LEN as u32;
    let bytes = 1024 + at_least;
    assert_eq!(fitting(bytes, true, 0), Some(Mtu::Bytes1024));
    assert_eq!(fitting(bytes, true, seal::OVERHEAD), Some(Mtu::Bytes512));
    let with_overhead = bytes + seal::OVERHEAD as u32;
    assert_eq!(
        fitting(with_overhead, true, seal::OVERHEAD),
        Some(Mtu::Bytes1024)
    );
    assert_eq!(fitting(1500, false, seal::OVERHEAD), Some(Mtu::Bytes1024));
}

#[test]
fn wires_of_one_process_with_other_keys_are_not_shared() {
    let ip = address();
    let setting = |secret| WireConfig {
        addresses: WireSetting::Addresses(vec![ip]),
        ..with_key(secret)
    };
    let one = Wire::of_process(&setting(1)).unwrap();
    assert!(Arc::ptr_eq(&one, &Wire::of_process(&setting(1)).unwrap()));
    assert!(!Arc::ptr_eq(&one, &Wire::of_process(&setting(2)).unwrap()));
}

#[test]
fn captures_contain_the_packets_as_they_were_before_they_were_sealed() {
    capture_on_both_sides(&with_key(1));
}

/// Faults meet the bytes on the network.
#[test]
fn injected_duplicates_are_replays_and_injected_damage_is_forged() {
    for (faults, why) in [
        ("duplicate=100%,seed=1", Dropped::Replayed),
        ("corrupt=100%,seed=1", Dropped::Forged),
    ] {
        let (ip, from) = (address(), address());
        let (wire, recorder) = process_with(ip, &with_key(1));
        let mut config = crate::Config::default();
        config.set("RKEY_FAULT", faults).unwrap();
        let setting = WireConfig {
            faults: config.wire.faults,
            ..with_key(1)
        };
        let (sender, _) = process_with(from, &setting);
        let mut outgoing = OutgoingPackets::default();
        for psn in 0..20 {
            outgoing.push(from, ip, &packet(recorder.qp(), psn, b"data"));
        }
        sender.send(&mut outgoing);
        wait_until(|| dropped(&wire) == [(why, 20)]);
        let arrived = if why == Dropped::Replayed { 20 } else { 0 };
        wait_until(|| recorder.packets.lock().len() == arrived);
    }
}

/// A program of the same user without the key passes messages of strangers on. The owner of the key does not take them.
#[test]
fn a_wire_admits_only_messages_that_were_sealed_with_its_key() {
    let wire = |setting: &WireConfig| process_with(address(), setting).0;
    let [ours, same, other, plain] =
        [with_key(1), with_key(1), with_key(2), WireConfig::OFF].map(|it| wire(&it));
    let by = |wire: &Wire, sender: &Wire| {
        let (seal, sender) = (wire.core.seal.as_ref(), sender.core.seal.as_ref());
        let (from, to) = (
            "10.0.0.1:4791".parse().unwrap(),
            "10.0.0.2:4791".parse().unwrap(),
        );
        let mut bytes = Vec::new();
        assert!(
            sender
                .unwrap()
                .seal(Kind::Message, from, to, b"a message", &mut bytes)
        );
        let number = seal.unwrap().open(from, to, &bytes, &mut Vec::new());
        seal.unwrap().protection(number.unwrap())
    };
    let received_by_another_process = by(&same, &same);
    assert!(ours.admits(HOST, &received_by_another_process));
    assert!(!ours.admits(HOST, &received_by_another_process), "a replay");
    assert!(!ours.admits(HOST, &by(&other, &other)), "another key");
    assert!(!ours.admits(HOST, &Protection::default()), "no key");
    let dropped = ours.describe().counts.dropped;
    assert_eq!(dropped, [(Dropped::Forged, 2), (Dropped::Replayed, 1)]);
    assert!(plain.admits(HOST, &Protection::default()));
    assert!(!plain.admits(HOST, &by(&same, &same)));
}

/// A repeated message does not reach the connection manager, and is not answered by the wire.
#[test]
fn a_repeated_message_is_dropped_where_it_arrives() {
    let ip = address();
    let (wire, _) = process_with(ip, &with_key(1));
    let to = SocketAddr::new(ip, icrc::PORT);
    let (socket, from) = stranger();
    let flow = Flow::new(from, to).unwrap();
    let seal = seal(1);
    let mut bytes = Vec::new();
    let message = datagram::write(&flow, &[0; MAD], 1);
    assert!(seal.seal(Kind::Message, from, to, &message, &mut bytes));
    for _ in 0..2 {
        socket.send_to(&bytes, to).unwrap();
    }
    // The first one is dropped as well: it claims to come from this host.
    let wanted = [(Dropped::Replayed, 1), (Dropped::Source, 1)];
    wait_until(|| dropped(&wire) == wanted);
}
