//! Datagrams between two hosts.

use super::network::FAIR;
use super::*;

/// A GID that is an IPv4 address.
fn gid(address: std::net::IpAddr) -> [u8; 16] {
    match address {
        std::net::IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(address) => address.octets(),
    }
}

fn address(to: &Qp) -> UdAddress {
    UdAddress {
        link: None,
        wire: true,
        qpn: to.qpn,
        qkey: 0x1111,
        route: Route {
            source: gid(path(0).local),
            target: gid(path(0).remote),
            ..Route::default()
        },
    }
}

#[test]
fn a_datagram_is_stored_after_its_route_header() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect(|_, config| config.qp_type = QpType::Ud);
    let regions = hosts.regions();
    let into = [hosts.nodes[1].sge(&regions[1], 0, 1040)];
    let from = [hosts.nodes[0].sge(&regions[0], 9, 1000)];
    hosts.recv(1, &b, 50, &into);
    let work = Work::Send {
        imm: Some(5),
        invalidate: None,
    };
    let mut request = SendRequest::new(1, work, &from);
    request.ud = Some(address(&b));
    hosts.send(0, &a, &request);
    assert!(a.poll().is_empty(), "it has not left");
    assert!(hosts.run());
    assert_eq!(statuses(&a.poll()), [(1, Status::Success)]);
    let got = b.poll();
    assert_eq!(statuses(&got), [(50, Status::Success)]);
    assert_eq!((got[0].bytes, got[0].imm, got[0].src_qpn), (1040, 5, a.qpn));
    let flags = CompletionFlags::GRH | CompletionFlags::IMM | CompletionFlags::IPV4;
    assert_eq!(got[0].flags, flags);
    let here = hosts.nodes[1].bytes(0, 1040);
    assert!(here[40..] == hosts.nodes[0].bytes(9, 1000));
    assert_eq!((here[20], here[29]), (0x45, 17), "an IPv4 header with UDP");
    assert_eq!(
        (&here[32..36], &here[36..40]),
        (&[192, 0, 2, 1][..], &[192, 0, 2, 2][..])
    );
}

#[test]
fn datagrams_with_a_wrong_key_number_or_length_are_lost() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect(|_, config| config.qp_type = QpType::Ud);
    let regions = hosts.regions();
    let from = [hosts.nodes[0].sge(&regions[0], 0, 100)];
    let good = address(&b);
    let wrong_key = UdAddress {
        qkey: 0x2222,
        ..good
    };
    let unknown = UdAddress { qpn: 0x77, ..good };
    let own_key = UdAddress {
        qkey: 1 << 31,
        ..good
    };
    hosts.recv(1, &b, 50, &[hosts.nodes[1].sge(&regions[1], 0, 139)]);
    for (id, to) in [wrong_key, unknown, good].into_iter().enumerate() {
        let mut request = SendRequest::new(id as u64, send_work(), &from);
        request.ud = Some(to);
        hosts.send(0, &a, &request);
    }
    assert!(hosts.run());
    assert_eq!(
        statuses(&a.poll()),
        [0, 1, 2].map(|id| (id, Status::Success))
    );
    assert!(b.poll().is_empty(), "the last one does not fit");
    let short = [hosts.nodes[0].sge(&regions[0], 0, 99)];
    let mut request = SendRequest::new(3, send_work(), &short);
    request.ud = Some(own_key);
    hosts.send(0, &a, &request);
    assert!(hosts.run());
    let got = b.poll();
    assert_eq!((got[0].id, got[0].bytes), (50, 139));
}

/// Datagrams to this host and to another leave in the order in which they were posted.
#[test]
fn datagrams_to_this_and_another_host_keep_their_order() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect(|_, config| config.qp_type = QpType::Ud);
    let near = UdAddress {
        wire: false,
        ..address(&b)
    };
    let order = [true, false, false, true, false];
    for (id, wire) in order.into_iter().enumerate() {
        let mut request = SendRequest::new(id as u64, send_work(), &[]);
        request.ud = Some(UdAddress { wire, ..near });
        hosts.send(0, &a, &request);
        if wire {
            hosts.recv(
                1,
                &b,
                50 + id as u64,
                &[hosts.nodes[1].sge(&hosts.nodes[1].register(0, 40, ALL), 0, 40)],
            );
        }
    }
    hosts.transmit(0);
    let needed = |event: &Event| matches!(event, Event::LinkNeeded { .. });
    // The second datagram waits until its receiver is found, and all later datagrams wait behind it.
    assert_eq!(
        hosts.nodes[0]
            .events()
            .iter()
            .filter(|event| needed(event))
            .count(),
        1
    );
    assert_eq!(statuses(&a.poll()), [(0, Status::Success)]);
    hosts.nodes[0].engine.unreachable(a.id, b.qpn);
    assert!(hosts.run());
    assert_eq!(
        statuses(&a.poll()),
        [1, 2, 3].map(|id| (id, Status::Success))
    );
    hosts.nodes[0].engine.unreachable(a.id, b.qpn);
    assert_eq!(statuses(&a.poll()), [(4, Status::Success)]);
    assert_eq!(
        statuses(&b.poll()),
        [50, 53].map(|id| (id, Status::Success))
    );
}

#[test]
fn a_receive_that_cannot_be_filled_fails_the_queue_pair() {
    for length in [8, 0] {
        let mut hosts = Hosts::new(1, FAIR);
        let [a, b] = hosts.connect(|_, config| config.qp_type = QpType::Ud);
        let regions = hosts.regions();
        let beyond = [hosts.nodes[1].sge(&regions[1], (1 << 16) - 4, 48)];
        hosts.recv(1, &b, 50, &beyond);
        let from = [hosts.nodes[0].sge(&regions[0], 0, length)];
        let mut request = SendRequest::new(1, send_work(), &from);
        request.ud = Some(address(&b));
        hosts.send(0, &a, &request);
        assert!(hosts.run());
        assert_eq!(statuses(&a.poll()), [(1, Status::Success)]);
        assert_eq!(statuses(&b.poll()), [(50, Status::LocalProtection)]);
        assert_eq!(hosts.nodes[1].state(&b), QpState::Error);
    }
}

#[test]
fn a_datagram_from_inaccessible_memory_fails_the_send_queue() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect(|_, config| config.qp_type = QpType::Ud);
    let regions = hosts.regions();
    let beyond = [hosts.nodes[0].sge(&regions[0], (1 << 16) - 4, 8)];
    for id in 1..3 {
        let mut request = SendRequest::new(id, send_work(), &beyond);
        request.ud = Some(address(&b));
        hosts.send(0, &a, &request);
    }
    assert!(hosts.run());
    use Status::{Flushed, LocalProtection};
    assert_eq!(statuses(&a.poll()), [(1, LocalProtection), (2, Flushed)]);
    assert_eq!(hosts.nodes[0].state(&a), QpState::Sqe);
}
