//! Peers that do not answer, have no receive posted, or are the wrong peer; and how queue pairs leave service.

use super::network::FAIR;
use super::*;
use rkey_roce::packet::Body;

#[test]
fn a_message_waits_for_a_receive() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect(|_, _| {});
    hosts.send(0, &a, &SendRequest::new(1, send_work(), &[]));
    let mut naks = 0;
    for _ in 0..1000 {
        hosts.transmit(0);
        let arrival = hosts.network.next_arrival();
        let deadline = hosts.nodes[0].engine.drive(hosts.now, 64).next_deadline;
        hosts.now = arrival
            .into_iter()
            .chain(deadline)
            .min()
            .unwrap()
            .max(hosts.now);
        hosts.nodes[0].engine.drive(hosts.now, 64);
        while let Some((to, packet)) = hosts.network.arrive(hosts.now) {
            hosts.deliver(to, path(to), &packet);
            hosts.transmit(1);
            naks += 1;
        }
    }
    assert!(naks > 50, "it keeps retrying: {naks}");
    assert!(a.poll().is_empty());
    hosts.recv(1, &b, 50, &[]);
    assert!(hosts.run());
    assert_eq!(statuses(&a.poll()), [(1, Status::Success)]);
    assert_eq!(statuses(&b.poll()), [(50, Status::Success)]);
}

#[test]
fn rnr_retries_are_limited() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect_with(
        |_, _| {},
        |_, step| step.rnr_retry = step.rnr_retry.map(|_| 2),
    );
    for id in 1..3 {
        hosts.send(0, &a, &SendRequest::new(id, send_work(), &[]));
    }
    assert!(hosts.run());
    use Status::{Flushed, RnrRetryExceeded};
    assert_eq!(statuses(&a.poll()), [(1, RnrRetryExceeded), (2, Flushed)]);
    assert_eq!(hosts.nodes[0].state(&a), QpState::Error);
    assert_eq!(hosts.nodes[1].state(&b), QpState::Rts);
}

#[test]
fn the_engine_gives_up_on_a_silent_peer() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect(|_, _| {});
    hosts.recv(0, &a, 40, &[]);
    hosts.network.censor = Some(Box::new(|from, _| from == 1));
    hosts.recv(1, &b, 50, &[]);
    for id in 1..3 {
        hosts.send(0, &a, &SendRequest::new(id, send_work(), &[]));
    }
    let before = hosts.now;
    assert!(hosts.run());
    use Status::{Flushed, RetryExceeded, Success};
    assert_eq!(
        statuses(&a.poll()),
        [(1, RetryExceeded), (2, Flushed), (40, Flushed)]
    );
    // The timeout has the code 15, and doubles twice during the five retries.
    let patience = (1 + 2 + 4 * 4) * (4096 << 15);
    assert!((patience..2 * patience).contains(&(hosts.now - before)));
    // The message has arrived once.
    assert_eq!(statuses(&b.poll()), [(50, Success)]);
}

/// A sender at another address, or one that sends to another address of ours, is not the peer.
#[test]
fn packets_that_are_not_from_the_peer_are_dropped() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect(|_, _| {});
    let other = hosts.nodes[1].qp(|_| {});
    hosts.recv(1, &b, 50, &[]);
    hosts.send(0, &a, &SendRequest::new(1, send_work(), &[]));
    let mut place: Box<PacketBuffer> = Box::new([0; _]);
    let (_, length) = hosts.nodes[0].engine.wire_transmit(1, &mut place).unwrap();
    let stranger = "192.0.2.9".parse().unwrap();
    for from in [
        WirePeer {
            remote: stranger,
            ..path(1)
        },
        WirePeer {
            local: stranger,
            ..path(1)
        },
    ] {
        hosts.deliver(1, from, &place[..length]);
    }
    let mut packet = place[..length].to_vec();
    for number in [other.qpn, 0xabcdef] {
        packet[5..8].copy_from_slice(&number.to_be_bytes()[1..]);
        hosts.deliver(1, path(1), &packet);
    }
    assert!(b.poll().is_empty() && !hosts.nodes[1].engine.has_wire_output());
    let drops = hosts.nodes[1].engine.wire_drops();
    assert_eq!((drops.wrong_address, drops.unknown), (2, 2));
    hosts.deliver(1, path(1), &place[..length]);
    assert_eq!(statuses(&b.poll()), [(50, Status::Success)]);
}

/// A marked packet is answered with a congestion notification to its sender, which obeys it. Notifications from other addresses, or
/// for other queue pairs, are dropped.
#[test]
fn congestion_notifications_are_obeyed_only_if_they_come_from_the_peer() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect(|_, _| {});
    let regions = hosts.regions();
    let from = [hosts.nodes[0].sge(&regions[0], 0, 60_000)];
    hosts.recv(1, &b, 50, &[hosts.nodes[1].sge(&regions[1], 0, 60_000)]);
    hosts.send(0, &a, &SendRequest::new(1, send_work(), &from));
    let mut place: Box<PacketBuffer> = Box::new([0; _]);
    let (_, length) = hosts.nodes[0].engine.wire_transmit(1, &mut place).unwrap();
    hosts.deliver_with(1, path(1), &place[..length], true);
    let (to, length) = hosts.nodes[1].engine.wire_transmit(1, &mut place).unwrap();
    let notification = place[..length].to_vec();
    assert_eq!((to, notification[0], length), (path(1), 0x81, 28));
    let network = |hosts: &Hosts, at: usize| {
        let snapshot = hosts.nodes[at].engine.snapshot();
        snapshot.qps.iter().find_map(|qp| qp.network).unwrap()
    };
    let seen = network(&hosts, 1);
    assert_eq!((seen.marked, seen.cnps_sent, seen.cnps_received), (1, 1, 0));

    let stranger = "192.0.2.77".parse().unwrap();
    let from = WirePeer {
        remote: stranger,
        ..path(0)
    };
    hosts.deliver(0, from, &notification);
    let mut misled = notification.clone();
    misled[5..8].copy_from_slice(&0xabcdef_u32.to_be_bytes()[1..]);
    hosts.deliver(0, path(0), &misled);
    let drops = hosts.nodes[0].engine.wire_drops();
    assert_eq!((drops.wrong_address, drops.unknown), (1, 1));
    let seen = network(&hosts, 0);
    assert_eq!((seen.cnps_received, seen.slowed), (0, 0));
    hosts.deliver(0, path(0), &notification);
    hosts.deliver(0, path(0), &notification);
    let seen = network(&hosts, 0);
    assert_eq!((seen.cnps_received, seen.slowed), (2, 1));
    assert!(hosts.run());
    assert_eq!(statuses(&b.poll()), [(50, Status::Success)]);
}

#[test]
fn the_error_state_flushes_and_sends_nothing() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect(|_, _| {});
    let regions = hosts.regions();
    let from = [hosts.nodes[0].sge(&regions[0], 0, 60_000)];
    hosts.recv(0, &a, 40, &[]);
    for id in 1..3 {
        hosts.send(0, &a, &SendRequest::new(id, send_work(), &from));
    }
    hosts.recv(1, &b, 50, &[hosts.nodes[1].sge(&regions[1], 0, 60_000)]);
    // Some packets have arrived, and some are in flight.
    let mut place: Box<PacketBuffer> = Box::new([0; _]);
    for packet in 0..8 {
        let (_, length) = hosts.nodes[0].engine.wire_transmit(1, &mut place).unwrap();
        if packet < 4 {
            hosts.deliver(1, path(1), &place[..length]);
        }
    }
    for (at, qp) in [(0, &a), (1, &b)] {
        let engine = &mut hosts.nodes[at].engine;
        engine
            .modify_qp(qp.id, &QpAttributes::to(QpState::Error))
            .unwrap();
    }
    let flushed = |id| (id, Status::Flushed);
    assert_eq!(statuses(&a.poll()), [1, 2, 40].map(flushed));
    assert_eq!(statuses(&b.poll()), [50].map(flushed));
    assert!(hosts.run());
    assert!(a.poll().is_empty() && b.poll().is_empty());
    hosts.send(0, &a, &SendRequest::new(9, send_work(), &from));
    assert_eq!(statuses(&a.poll()), [9].map(flushed));
    // After a reset, the queue pairs are like new.
    for (at, qp, other) in [(0, &a, b.qpn), (1, &b, a.qpn)] {
        let engine = &mut hosts.nodes[at].engine;
        engine
            .modify_qp(qp.id, &QpAttributes::to(QpState::Reset))
            .unwrap();
        assert_eq!(engine.query_qp(qp.id).unwrap().attributes.wire, None);
        hosts.up(at, qp, other, |_, _| {});
    }
    hosts.recv(1, &b, 51, &[]);
    hosts.send(0, &a, &SendRequest::new(10, send_work(), &[]));
    assert!(hosts.run());
    assert_eq!(statuses(&a.poll()), [(10, Status::Success)]);
    assert_eq!(statuses(&b.poll()), [(51, Status::Success)]);
}

#[test]
fn a_queue_pair_can_be_destroyed_in_the_middle_of_a_message() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect(|_, _| {});
    let regions = hosts.regions();
    let remote = hosts.nodes[1].target(&regions[1], 0);
    let from = [hosts.nodes[0].sge(&regions[0], 0, 60_000)];
    hosts.send(
        0,
        &a,
        &SendRequest::new(1, Work::Write { remote, imm: None }, &from),
    );
    hosts.nodes[0].engine.destroy_qp(a.id).unwrap();
    assert!(hosts.run());
    let [c, d] = hosts.connect(|_, _| {});
    hosts.recv(1, &d, 50, &[]);
    hosts.send(0, &c, &SendRequest::new(2, send_work(), &[]));
    hosts.nodes[1].engine.destroy_qp(b.id).unwrap();
    assert!(hosts.run());
    assert_eq!(statuses(&c.poll()), [(2, Status::Success)]);
}

/// A drained send queue starts nothing, and continues afterwards.
#[test]
fn a_drained_send_queue_starts_no_request_until_it_resumes() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect(|_, _| {});
    hosts.recv(1, &b, 50, &[]);
    hosts.recv(1, &b, 51, &[]);
    hosts.send(0, &a, &SendRequest::new(1, send_work(), &[]));
    let to = |hosts: &mut Hosts, state| {
        let engine = &mut hosts.nodes[0].engine;
        engine.modify_qp(a.id, &QpAttributes::to(state)).unwrap();
    };
    to(&mut hosts, QpState::Sqd);
    hosts.send(0, &a, &SendRequest::new(2, send_work(), &[]));
    assert!(hosts.run());
    assert_eq!(statuses(&a.poll()), [(1, Status::Success)]);
    let events = hosts.nodes[0].events();
    let drained = |event: &Event| matches!(event, Event::Async(AsyncEvent::SqDrained { .. }));
    assert_eq!(events.iter().filter(|event| drained(event)).count(), 1);
    to(&mut hosts, QpState::Rts);
    assert!(hosts.run());
    assert_eq!(statuses(&a.poll()), [(2, Status::Success)]);
    assert_eq!(
        statuses(&b.poll()),
        [(50, Status::Success), (51, Status::Success)]
    );
}

/// An unreliable queue pair that has failed sends again after a program has brought it back.
#[test]
fn an_unreliable_queue_pair_can_send_again_after_an_error() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect(|_, config| config.qp_type = QpType::Uc);
    let regions = hosts.regions();
    let beyond = [hosts.nodes[0].sge(&regions[0], (1 << 16) - 4, 8)];
    for id in 50..52 {
        hosts.recv(1, &b, id, &[]);
    }
    hosts.send(0, &a, &SendRequest::new(1, send_work(), &[]));
    hosts.send(0, &a, &SendRequest::new(2, send_work(), &beyond));
    hosts.send(0, &a, &SendRequest::new(3, send_work(), &[]));
    assert!(hosts.run());
    use Status::{Flushed, LocalProtection, Success};
    assert_eq!(
        statuses(&a.poll()),
        [(1, Success), (2, LocalProtection), (3, Flushed)]
    );
    assert_eq!(hosts.nodes[0].state(&a), QpState::Sqe);
    let engine = &mut hosts.nodes[0].engine;
    engine
        .modify_qp(a.id, &QpAttributes::to(QpState::Rts))
        .unwrap();
    hosts.send(0, &a, &SendRequest::new(4, send_work(), &[]));
    assert!(hosts.run());
    assert_eq!(statuses(&a.poll()), [(4, Success)]);
    assert_eq!(statuses(&b.poll()), [(50, Success), (51, Success)]);
}

/// Requests that packets cannot express are refused here.
#[test]
fn requests_that_packets_cannot_express_fail() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, _] = hosts.connect(|_, _| {});
    let regions = hosts.regions();
    let mut remote = hosts.nodes[1].target(&regions[1], 0);
    let atomic_write = Work::AtomicWrite { remote, value: 1 };
    remote.key = rkey_core::RKey::Requested(5);
    let write = Work::Write { remote, imm: None };
    let write = SendRequest::new(1, write, &[]);
    let refused = hosts.nodes[0].engine.post_send(a.id, &write);
    assert!(matches!(refused, Err(PostError::NotSupported(_))));
    hosts.send(0, &a, &SendRequest::new(2, atomic_write, &[]));
    assert!(hosts.run());
    assert_eq!(statuses(&a.poll()), [(2, Status::LocalQpOperation)]);
}

#[test]
fn only_connected_queue_pairs_get_a_peer_on_another_host() {
    let mut hosts = Hosts::new(1, FAIR);
    let ud = hosts.nodes[0].qp(|config| config.qp_type = QpType::Ud);
    let init = QpAttributes {
        qkey: Some(1),
        wire: Some(path(0)),
        ..QpAttributes::to(QpState::Init)
    };
    let engine = &mut hosts.nodes[0].engine;
    assert_eq!(
        engine.modify_qp(ud.id, &init),
        Err(ModifyError::Wire(QpType::Ud))
    );
    let [a, _] = hosts.connect(|_, _| {});
    let engine = &mut hosts.nodes[0].engine;
    assert_eq!(
        engine.query_qp(a.id).unwrap().attributes.wire,
        Some(path(0))
    );
    engine
        .modify_qp(a.id, &QpAttributes::to(QpState::Sqd))
        .unwrap();
    let home = QpAttributes {
        peer: Some(Peer { qpn: 5, node: None }),
        ..QpAttributes::to(QpState::Sqd)
    };
    assert_eq!(
        engine.modify_qp(a.id, &home),
        Err(ModifyError::Wire(QpType::Rc))
    );
}

/// The first request of the peer establishes the connection; an acknowledgement does not.
#[test]
fn the_first_request_establishes_the_connection() {
    let mut hosts = Hosts::new(1, FAIR);
    let qps = [0, 1].map(|at| hosts.nodes[at].qp(|_| {}));
    hosts.up(0, &qps[0], qps[1].qpn, |_, _| {});
    let peer = Peer {
        qpn: qps[0].qpn,
        node: None,
    };
    for mut step in steps(QpType::Rc, peer, 1).into_iter().take(2) {
        step.wire = step.peer.map(|_| path(1));
        hosts.nodes[1].engine.modify_qp(qps[1].id, &step).unwrap();
    }
    hosts.recv(1, &qps[1], 50, &[]);
    hosts.send(0, &qps[0], &SendRequest::new(1, send_work(), &[]));
    let seen = std::rc::Rc::new(std::cell::Cell::new(0));
    let count = std::rc::Rc::clone(&seen);
    hosts.network.censor = Some(Box::new(move |from, packet| {
        let is_answer = matches!(packet.headers.body, Body::Response(..));
        count.set(count.get() + u32::from(from == 1 && is_answer));
        false
    }));
    assert!(hosts.run());
    assert_eq!(seen.get(), 1);
    assert_eq!(statuses(&qps[0].poll()), [(1, Status::Success)]);
    let established =
        |event: &Event| matches!(event, Event::Async(AsyncEvent::CommEstablished { .. }));
    let events = hosts.nodes[1].events();
    assert_eq!(events.iter().filter(|event| established(event)).count(), 1);
    assert!(hosts.nodes[0].events().is_empty());
}
