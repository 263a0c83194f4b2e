//! Datagrams: what is received, what is lost, and what waits for its link.

use crate::support::*;
use rkey_engine::*;

#[test]
fn datagrams_arrive_or_are_lost_silently() {
    let route = Route {
        source: std::array::from_fn(|i| i as u8),
        target: std::array::from_fn(|i| i as u8 + 100),
        hop_limit: 7,
        ..Route::default()
    };
    let mut pair = Pair::with(
        rkey_link::Capabilities {
            fragment_max: 8192,
            ..CAPS
        },
        EngineConfig::default(),
    );
    let [a, b] = pair.connect(|_, config| config.qp_type = QpType::Ud);
    let mine = pair.nodes[0].register(0, 1 << 16, ALL);
    let theirs = pair.nodes[1].register(0, 1 << 16, ALL);
    let data = pattern(4, 4096);
    pair.nodes[0].fill(0, &data);
    let address = UdAddress {
        link: Some(pair.ends[0]),
        wire: false,
        qpn: b.qpn,
        qkey: 0x1111,
        route,
    };
    let send = |pair: &mut Pair, id, len, to: UdAddress| {
        let sge = [pair.nodes[0].sge(&mine, 0, len)];
        let mut request = SendRequest::new(
            id,
            Work::Send {
                imm: Some(id as u32),
                invalidate: None,
            },
            &sge,
        );
        request.ud = Some(to);
        pair.send(0, &a, &request);
        pair.run_until_idle();
    };
    // A datagram without a receiver, with the wrong key or with the wrong number is dropped silently and reported as
    // sent.
    send(&mut pair, 1, 100, address);
    let room = [pair.nodes[1].sge(&theirs, 0, 40 + 4096)];
    pair.recv(1, &b, 50, &room);
    send(
        &mut pair,
        2,
        100,
        UdAddress {
            qkey: 0x2222,
            ..address
        },
    );
    send(
        &mut pair,
        3,
        100,
        UdAddress {
            qpn: 0x77,
            ..address
        },
    );
    assert!(b.poll().is_empty());
    send(&mut pair, 4, 4096, address);
    let got = b.poll();
    assert_eq!(statuses(&got), [(50, Status::Success)]);
    assert_eq!((got[0].bytes, got[0].imm, got[0].src_qpn), (4136, 4, a.qpn));
    assert_eq!(got[0].flags, CompletionFlags::IMM | CompletionFlags::GRH);
    assert_eq!(pair.nodes[1].bytes(0, 40), route.grh(4096));
    assert_eq!(pair.nodes[1].bytes(40, 4096), data);
    // The highest bit of the key selects the sender's own key.
    pair.recv(1, &b, 51, &room);
    send(
        &mut pair,
        5,
        0,
        UdAddress {
            qkey: 1 << 31,
            ..address
        },
    );
    assert_eq!(b.poll()[0].bytes, 40);
    // A receive that is too small is kept for a datagram that fits.
    pair.recv(1, &b, 52, &[pair.nodes[1].sge(&theirs, 0, 48)]);
    send(&mut pair, 6, 9, address);
    assert!(b.poll().is_empty());
    send(&mut pair, 7, 8, address);
    assert_eq!(statuses(&b.poll()), [(52, Status::Success)]);
    let want: Vec<_> = (1..=7).map(|id| (id, Status::Success)).collect();
    assert_eq!(statuses(&a.poll()), want);
    // A datagram longer than an MTU stops the send queue; receives continue.
    pair.recv(0, &a, 60, &[]);
    send(&mut pair, 8, 4097, address);
    send(&mut pair, 9, 1, address);
    let want = [(8, Status::LocalLength), (9, Status::Flushed)];
    assert_eq!(statuses(&a.poll()), want);
    assert_eq!(pair.nodes[0].state(&a), QpState::Sqe);
    pair.nodes[0]
        .engine
        .modify_qp(a.id, &QpAttributes::to(QpState::Rts))
        .unwrap();
    pair.recv(1, &b, 53, &room);
    send(&mut pair, 10, 1, address);
    assert_eq!(statuses(&a.poll()), [(10, Status::Success)]);
    assert_eq!(statuses(&b.poll()), [(53, Status::Success)]);
}

#[test]
fn a_datagram_waits_until_its_receiver_is_found_or_unreachable() {
    let mut pair = Pair::new();
    let [a, b] = pair.connect(|_, config| config.qp_type = QpType::Ud);
    let theirs = pair.nodes[1].register(0, 64, ALL);
    let post = |pair: &mut Pair, id, qpn| {
        let mut request = SendRequest::new(id, send_work(), &[]);
        request.ud = Some(UdAddress {
            link: None,
            wire: false,
            qpn,
            qkey: 0x1111,
            route: Route::default(),
        });
        pair.send(0, &a, &request);
    };
    pair.recv(1, &b, 50, &[pair.nodes[1].sge(&theirs, 0, 64)]);
    post(&mut pair, 1, 0x99);
    post(&mut pair, 2, b.qpn);
    let events = pair.nodes[0].events();
    assert!(
        matches!(events[..], [Event::LinkNeeded { peer: 0x99, .. }]),
        "{events:?}"
    );
    pair.nodes[0].engine.unreachable(a.id, 0x99);
    assert_eq!(
        statuses(&a.poll()),
        [(1, Status::Success)],
        "lost, as on any network"
    );
    let events = pair.nodes[0].events();
    assert!(matches!(events[..], [Event::LinkNeeded { peer, .. }] if peer == b.qpn));
    pair.nodes[0].engine.connect_qpn(b.qpn, pair.ends[0]);
    pair.run_until_idle();
    assert_eq!(statuses(&a.poll()), [(2, Status::Success)]);
    assert_eq!(statuses(&b.poll()), [(50, Status::Success)]);
}

/// Finding the receiver takes longer than sending: a program that changes its memory in the meantime, as it may on any
/// network, does not change the datagram.
#[test]
fn a_waiting_datagram_is_sent_as_posted() {
    let mut pair = Pair::new();
    let [a, b] = pair.connect(|_, config| {
        config.qp_type = QpType::Ud;
        config.max_send_sge = 2;
    });
    let mine = pair.nodes[0].register(0, 4096, ALL);
    let theirs = pair.nodes[1].register(0, 4096, ALL);
    for id in 0..3 {
        pair.nodes[0].fill(0, &pattern(id, 256));
        let parts = [
            pair.nodes[0].sge(&mine, 0, 100),
            pair.nodes[0].sge(&mine, 156, 100),
        ];
        let mut request = SendRequest::new(id, send_work(), &parts);
        request.ud = Some(UdAddress {
            link: None,
            wire: false,
            qpn: b.qpn,
            qkey: 0x1111,
            route: Route::default(),
        });
        pair.send(0, &a, &request);
        let room = pair.nodes[1].sge(&theirs, id * 1024, 240);
        pair.recv(1, &b, 50 + id, &[room]);
    }
    pair.nodes[0].fill(0, &[0xee; 256]);
    pair.nodes[0].engine.connect_qpn(b.qpn, pair.ends[0]);
    pair.run_until_idle();
    let sent: Vec<_> = (0..3).map(|id| (id, Status::Success)).collect();
    assert_eq!(statuses(&a.poll()), sent);
    assert_eq!(b.poll().len(), 3);
    for id in 0..3 {
        let posted = pattern(id, 256);
        let got = pair.nodes[1].bytes(id * 1024 + 40, 200);
        assert_eq!(got, [&posted[..100], &posted[156..]].concat(), "{id}");
    }
}
