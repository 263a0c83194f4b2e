//! Queues as objects: limits, wrong states, events, overruns, shared receives, datagrams.

use crate::support::*;
use rkey_core::WireKey;
use rkey_engine::*;

fn refused(node: &mut Node, qp: &Qp, request: &SendRequest<'_>) -> PostError {
    node.engine.post_send(qp.id, request).unwrap_err()
}

#[test]
fn posts_in_a_wrong_state_are_refused() {
    let mut node = Node::new(1);
    let qp = node.qp(|_| {});
    let send = SendRequest::new(1, send_work(), &[]);
    let recv = RecvRequest { id: 1, sges: &[] };
    let peer = Peer { qpn: 9, node: None };
    assert_eq!(
        node.engine.post_recv(qp.id, &recv),
        Err(PostError::WrongState(QpState::Reset))
    );
    for step in steps(QpType::Rc, peer, 0) {
        let state = node.state(&qp);
        assert_eq!(refused(&mut node, &qp, &send), PostError::WrongState(state));
        node.engine.modify_qp(qp.id, &step).unwrap();
        node.engine.post_recv(qp.id, &recv).unwrap();
    }
    node.engine.post_send(qp.id, &send).unwrap();
    assert!(qp.poll().is_empty());
    node.engine
        .modify_qp(qp.id, &QpAttributes::to(QpState::Error))
        .unwrap();
    node.engine.post_send(qp.id, &send).unwrap();
    assert_eq!(statuses(&qp.poll()), [(1, Status::Flushed); 5]);
    node.engine
        .modify_qp(qp.id, &QpAttributes::to(QpState::Reset))
        .unwrap();
    assert!(qp.poll().is_empty(), "a reset forgets");
}

/// A queue pair that is reset or destroyed takes along the completions that nobody has taken; others' stay.
#[test]
fn completions_end_with_their_queue_pair() {
    let mut node = Node::new(1);
    let first = node.qp(|_| {});
    let cq = first.cq.id();
    let second = node.qp(|config| (config.send_cq, config.recv_cq) = (cq, cq));
    let flush = |node: &mut Node, ids: &[(u64, &Qp)]| {
        for (id, qp) in ids {
            if node.state(qp) == QpState::Reset {
                let init = QpAttributes::init(ALL);
                node.engine.modify_qp(qp.id, &init).unwrap();
                let error = QpAttributes::to(QpState::Error);
                node.engine.modify_qp(qp.id, &error).unwrap();
            }
            let recv = RecvRequest { id: *id, sges: &[] };
            node.engine.post_recv(qp.id, &recv).unwrap();
        }
    };
    flush(
        &mut node,
        &[(1, &first), (2, &second), (3, &first), (4, &second)],
    );
    let reset = QpAttributes::to(QpState::Reset);
    node.engine.modify_qp(first.id, &reset).unwrap();
    assert_eq!(
        statuses(&first.poll()),
        [(2, Status::Flushed), (4, Status::Flushed)]
    );
    flush(&mut node, &[(5, &first), (6, &second), (7, &first)]);
    node.engine.destroy_qp(second.id).unwrap();
    assert_eq!(
        statuses(&first.poll()),
        [(5, Status::Flushed), (7, Status::Flushed)]
    );
}

#[test]
fn a_step_needs_its_attributes_and_takes_no_others() {
    let mut node = Node::new(1);
    let qp = node.qp(|_| {});
    let mut modify = |change: &QpAttributes| node.engine.modify_qp(qp.id, change);
    let jump = modify(&QpAttributes::to(QpState::Rts));
    assert!(matches!(
        jump,
        Err(ModifyError::Step {
            from: QpState::Reset,
            ..
        })
    ));
    let bare = modify(&QpAttributes::to(QpState::Init));
    assert_eq!(bare, Err(ModifyError::Missing(Attributes::ACCESS)));
    let mut init = QpAttributes::init(ALL);
    init.timeout = Some(3);
    assert_eq!(
        modify(&init),
        Err(ModifyError::NotAllowed(Attributes::TIMEOUT))
    );
    modify(&QpAttributes::init(ALL)).unwrap();
    let mut rtr = QpAttributes::rtr(
        Peer {
            qpn: 1 << 24,
            node: None,
        },
        0,
    );
    assert!(matches!(
        modify(&rtr),
        Err(ModifyError::Value {
            given: 0x100_0000,
            ..
        })
    ));
    rtr.peer = Some(Peer { qpn: 5, node: None });
    rtr.min_rnr_timer = None;
    let missing = modify(&rtr).unwrap_err();
    assert_eq!(missing.to_string(), "the step needs min_rnr_timer");
    assert_eq!(node.state(&qp), QpState::Init, "nothing changed");
}

/// What a queue pair was not made for is refused when it is posted, and nothing of it is posted.
#[test]
fn work_that_does_not_fit_is_refused() {
    let remote = Target {
        addr: 0,
        key: WireKey::Device(NO_RKEY),
    };
    let read = Work::Read { remote };
    let swap = Work::CompareSwap {
        remote,
        compare: 0,
        swap: 0,
    };
    let add = Work::FetchAdd { remote, add: 0 };
    let write = Work::Write { remote, imm: None };
    let send_inv = Work::Send {
        imm: None,
        invalidate: Some(NO_RKEY),
    };
    let invalidate = Work::Invalidate { key: NO_RKEY };
    let ud = Some(UdAddress {
        link: None,
        qpn: 1,
        qkey: 1,
        route: Route::default(),
    });
    for (qp_type, allowed) in [
        (QpType::Rc, [true; 7]),
        (QpType::Uc, [true, true, true, true, false, false, false]),
        (QpType::Ud, [true, false, false, false, false, false, false]),
    ] {
        let mut node = Node::new(1);
        let qp = node.qp(|config| config.qp_type = qp_type);
        for step in steps(qp_type, Peer { qpn: 9, node: None }, 0) {
            node.engine.modify_qp(qp.id, &step).unwrap();
        }
        let works = [send_work(), write, send_inv, invalidate, read, swap, add];
        for (work, allowed) in works.into_iter().zip(allowed) {
            let mut request = SendRequest::new(1, work, &[]);
            request.ud = ud;
            let posted = node.engine.post_send(qp.id, &request);
            assert_eq!(posted.is_ok(), allowed, "{qp_type:?} {work:?}");
            assert!(allowed || matches!(posted, Err(PostError::NotSupported(_))));
        }
    }
}

#[test]
fn posts_that_are_too_large_are_refused() {
    let mut pair = Pair::new();
    let [a, b] = pair.connect(|_, config| {
        config.max_send = 3;
        config.max_recv = 2;
        config.max_send_sge = 1;
        config.max_recv_sge = 1;
        config.max_inline = 8;
    });
    let sges = [Sge {
        addr: 0,
        len: 0,
        key: NO_KEY,
    }; 2];
    let node = &mut pair.nodes[0];
    let too_many = refused(node, &a, &SendRequest::new(1, send_work(), &sges));
    assert_eq!(too_many, PostError::TooManySges { given: 2, max: 1 });
    let mut inline = SendRequest::new(1, send_work(), &[]);
    inline.inline = Some(&[0; 9]);
    assert_eq!(
        refused(node, &a, &inline),
        PostError::InlineTooLong { given: 9, max: 8 }
    );
    let huge = [Sge {
        addr: 0,
        len: u32::MAX,
        key: NO_KEY,
    }];
    let too_long = refused(node, &a, &SendRequest::new(1, send_work(), &huge));
    assert_eq!(too_long, PostError::TooLong(u64::from(u32::MAX)));
    for id in 0..3 {
        node.engine
            .post_send(a.id, &SendRequest::new(id, send_work(), &[]))
            .unwrap();
    }
    let full = refused(node, &a, &SendRequest::new(3, send_work(), &[]));
    assert_eq!(full, PostError::QueueFull(3));
    let recv = RecvRequest { id: 7, sges: &[] };
    let node = &mut pair.nodes[1];
    assert_eq!(
        node.engine
            .post_recv(b.id, &RecvRequest { id: 7, sges: &sges }),
        Err(PostError::TooManySges { given: 2, max: 1 })
    );
    for _ in 0..2 {
        node.engine.post_recv(b.id, &recv).unwrap();
    }
    assert_eq!(
        node.engine.post_recv(b.id, &recv),
        Err(PostError::QueueFull(2))
    );
    // Completing makes room.
    pair.settle();
    assert_eq!(
        statuses(&a.poll()),
        [(0, Status::Success), (1, Status::Success)]
    );
    pair.send(0, &a, &SendRequest::new(3, send_work(), &[]));
}

#[test]
fn limits_are_named() {
    let config = EngineConfig {
        max_qps: 1,
        max_cqs: 1,
        max_cq_depth: 10,
        ..Default::default()
    };
    let mut node = Node::with(1, config);
    let too_deep = node.engine.create_cq(11).unwrap_err();
    assert_eq!(
        too_deep.to_string(),
        "the depth of the completion queue is 11, but the limit is 10"
    );
    let cq = node.engine.create_cq(10).unwrap();
    assert!(node.engine.create_cq(10).is_err());
    let config = QpConfig::new(QpType::Rc, node.domain, cq.id());
    assert_eq!(
        node.engine.create_qp(&config, 1 << 24),
        Err(EngineError::Number(1 << 24))
    );
    let qp = node.engine.create_qp(&config, 300).unwrap();
    let second = node.engine.create_qp(&config, 301).unwrap_err();
    assert!(second.to_string().contains("queue pairs"), "{second}");
    // Busy, until the queue pair goes; and the domain as well.
    let busy = node.engine.destroy_cq(cq.id());
    assert_eq!(
        busy,
        Err(EngineError::Busy {
            what: "completion queue",
            users: 2
        })
    );
    assert!(node.protection.close_domain(node.domain).is_err());
    node.engine.destroy_qp(qp).unwrap();
    assert_eq!(
        node.engine.destroy_qp(qp),
        Err(EngineError::NoSuch("queue pair"))
    );
    node.engine.destroy_cq(cq.id()).unwrap();
    node.protection.close_domain(node.domain).unwrap();
}

/// A completion that finds no room breaks the queue and its queue pairs, and says so once.
#[test]
fn an_overrun_is_noticed() {
    let mut pair = Pair::new();
    let small = pair.nodes[0].engine.create_cq(2).unwrap();
    let [a, _] = pair.connect(|at, config| {
        if at == 0 {
            config.send_cq = small.id();
        }
    });
    let theirs = pair.nodes[1].register(0, 64, ALL);
    let remote = pair.nodes[1].target(&theirs, 0);
    for id in 0..3 {
        pair.send(
            0,
            &a,
            &SendRequest::new(id, Work::Write { remote, imm: None }, &[]),
        );
    }
    pair.settle();
    assert!(small.is_overrun());
    assert_eq!(pair.nodes[0].state(&a), QpState::Error);
    let events = pair.nodes[0].events();
    assert!(
        matches!(events[..], [Event::CqOverrun(cq), Event::QpFatal { .. }] if cq == small.id()),
        "{events:?}"
    );
    let mut all = [Completion::default(); 8];
    assert_eq!(small.pop(&mut all), 2);
    assert_eq!(
        statuses(&all[..2]),
        [(0, Status::Success), (1, Status::Success)]
    );
}

#[test]
fn completion_queues_change_their_depth() {
    let mut pair = Pair::new();
    let [a, _] = pair.connect(|_, _| {});
    let node = &mut pair.nodes[0];
    node.engine.resize_cq(a.cq.id(), 2).unwrap();
    for id in 0..2 {
        node.engine
            .post_send(a.id, &SendRequest::new(id, send_work(), &[]))
            .unwrap();
    }
    node.engine
        .modify_qp(a.id, &QpAttributes::to(QpState::Error))
        .unwrap();
    assert_eq!(a.cq.len(), 2);
    let holds = node.engine.resize_cq(a.cq.id(), 1);
    assert_eq!(holds, Err(EngineError::CqHolds { held: 2, asked: 1 }));
    node.engine.resize_cq(a.cq.id(), 3).unwrap();
    assert_eq!(a.cq.depth(), 3);
    node.engine
        .post_send(a.id, &SendRequest::new(2, send_work(), &[]))
        .unwrap();
    assert_eq!(a.poll().iter().map(|c| c.id).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(!a.cq.is_overrun());
}

/// One event for each arming; a queue that waits for solicited entries sleeps through others,
/// except for errors.
#[test]
fn armed_queues_raise_one_event() {
    let mut pair = Pair::new();
    let [a, b] = pair.connect(|_, _| {});
    let ready = |pair: &mut Pair| {
        let events = pair.nodes[1].events();
        events
            .iter()
            .filter(|e| matches!(e, Event::CqReady(_)))
            .count()
    };
    let send = |pair: &mut Pair, solicited| {
        pair.recv(1, &b, 5, &[]);
        let mut request = SendRequest::new(1, send_work(), &[]);
        request.flags.set(SendFlags::SOLICITED, solicited);
        pair.send(0, &a, &request);
        pair.settle();
    };
    send(&mut pair, true);
    assert_eq!(ready(&mut pair), 0, "not armed");
    pair.nodes[1].engine.arm_cq(b.cq.id(), false).unwrap();
    assert_eq!(ready(&mut pair), 0, "what was there before does not count");
    send(&mut pair, false);
    send(&mut pair, false);
    assert_eq!(ready(&mut pair), 1);
    pair.nodes[1].engine.arm_cq(b.cq.id(), true).unwrap();
    send(&mut pair, false);
    assert_eq!(ready(&mut pair), 0);
    send(&mut pair, true);
    assert_eq!(ready(&mut pair), 1);
    pair.nodes[1].engine.arm_cq(b.cq.id(), true).unwrap();
    pair.recv(1, &b, 6, &[]);
    pair.nodes[1]
        .engine
        .modify_qp(b.id, &QpAttributes::to(QpState::Error))
        .unwrap();
    assert_eq!(ready(&mut pair), 1, "an error counts as solicited");
}

#[test]
fn queue_pairs_share_receives() {
    let mut pair = Pair::new();
    let domain = pair.nodes[1].domain;
    let srq = pair.nodes[1].engine.create_srq(domain, 8, 1).unwrap();
    let share = |at: usize, config: &mut QpConfig| {
        if at == 1 {
            config.srq = Some(srq);
        }
    };
    let [a, b] = pair.connect(share);
    let [c, d] = pair.connect(share);
    let recv = RecvRequest { id: 0, sges: &[] };
    assert_eq!(
        pair.nodes[1].engine.post_recv(b.id, &recv),
        Err(PostError::UsesSrq)
    );
    for id in 0..4 {
        pair.nodes[1]
            .engine
            .post_srq_recv(srq, &RecvRequest { id, sges: &[] })
            .unwrap();
    }
    pair.nodes[1].engine.modify_srq(srq, Some(3), None).unwrap();
    assert!(pair.nodes[1].events().is_empty());
    pair.send(0, &a, &SendRequest::new(1, send_work(), &[]));
    pair.settle();
    assert!(pair.nodes[1].events().is_empty(), "3 are left");
    pair.send(0, &c, &SendRequest::new(2, send_work(), &[]));
    pair.settle();
    let events = pair.nodes[1].events();
    assert!(
        matches!(events[..], [Event::SrqLimit(it)] if it == srq),
        "{events:?}"
    );
    pair.send(0, &c, &SendRequest::new(3, send_work(), &[]));
    pair.settle();
    assert!(pair.nodes[1].events().is_empty(), "only once");
    assert_eq!(statuses(&b.poll()), [(0, Status::Success)]);
    assert_eq!(
        statuses(&d.poll()),
        [(1, Status::Success), (2, Status::Success)]
    );
    // An error of one queue pair leaves the others' receives alone.
    pair.nodes[1]
        .engine
        .modify_qp(b.id, &QpAttributes::to(QpState::Error))
        .unwrap();
    let events = pair.nodes[1].events();
    assert!(
        matches!(events[..], [Event::LastWqeReached { .. }]),
        "{events:?}"
    );
    pair.nodes[1].engine.modify_srq(srq, None, Some(2)).unwrap();
    pair.nodes[1].engine.post_srq_recv(srq, &recv).unwrap();
    assert_eq!(
        pair.nodes[1].engine.post_srq_recv(srq, &recv),
        Err(PostError::QueueFull(2))
    );
    pair.send(0, &c, &SendRequest::new(4, send_work(), &[]));
    pair.settle();
    assert_eq!(
        statuses(&d.poll()),
        [(3, Status::Success)],
        "the resize kept the receive"
    );
    let busy = pair.nodes[1].engine.destroy_srq(srq);
    assert_eq!(
        busy,
        Err(EngineError::Busy {
            what: "shared receive queue",
            users: 2
        })
    );
    for qp in [b, d] {
        pair.nodes[1].engine.destroy_qp(qp.id).unwrap();
    }
    pair.nodes[1].engine.destroy_srq(srq).unwrap();
}

#[test]
fn datagrams() {
    let route = Route {
        source: std::array::from_fn(|i| i as u8),
        target: std::array::from_fn(|i| i as u8 + 100),
        hop_limit: 7,
        ..Route::default()
    };
    let mut pair = Pair::with(
        rkey_link::Capabilities {
            piece_max: 8192,
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
        pair.settle();
    };
    // Nobody listens; the wrong key; the wrong number: all silent, all "sent".
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
    assert_eq!(pair.nodes[1].bytes(0, 40), route.header(4096));
    assert_eq!(pair.nodes[1].bytes(40, 4096), data);
    // The highest bit of the key stands for the sender's own.
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
    // More than an MTU stops the send queue; receives go on.
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
fn datagrams_wait_for_their_link_and_no_longer() {
    let mut pair = Pair::new();
    let [a, b] = pair.connect(|_, config| config.qp_type = QpType::Ud);
    let theirs = pair.nodes[1].register(0, 64, ALL);
    let post = |pair: &mut Pair, id, qpn| {
        let mut request = SendRequest::new(id, send_work(), &[]);
        request.ud = Some(UdAddress {
            link: None,
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
    pair.settle();
    assert_eq!(statuses(&a.poll()), [(2, Status::Success)]);
    assert_eq!(statuses(&b.poll()), [(50, Status::Success)]);
}

/// Finding the receiver takes longer than a datagram takes to leave: a program that changes its memory
/// meanwhile, as it may on any network, does not change what it has sent.
#[test]
fn a_datagram_that_waits_is_as_it_was_posted() {
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
    pair.settle();
    let sent: Vec<_> = (0..3).map(|id| (id, Status::Success)).collect();
    assert_eq!(statuses(&a.poll()), sent);
    assert_eq!(b.poll().len(), 3);
    for id in 0..3 {
        let posted = pattern(id, 256);
        let got = pair.nodes[1].bytes(id * 1024 + 40, 200);
        assert_eq!(got, [&posted[..100], &posted[156..]].concat(), "{id}");
    }
}

/// Counters that are bound to a region hear of what peers did with it.
#[test]
fn bound_counters_are_told() {
    let mut pair = Pair::new();
    let [a, _] = pair.connect(|_, _| {});
    let mine = pair.nodes[0].register(0, 1000, ALL);
    let node = &pair.nodes[1];
    let range = [node.memory.range()];
    let mut spec = rkey_core::RegionSpec::new(node.domain, &range, ALL);
    spec.disabled = true;
    let theirs = node.protection.register(&spec).unwrap();
    node.protection.bind_counter(theirs.id, 42).unwrap();
    node.protection.enable(theirs.id).unwrap();
    // The long ones take several pieces, and count once.
    for len in [8, 1000] {
        let sge = [pair.nodes[0].sge(&mine, 0, len)];
        let remote = pair.nodes[1].target(&theirs, 0);
        pair.send(
            0,
            &a,
            &SendRequest::new(1, Work::Write { remote, imm: None }, &sge),
        );
        pair.send(0, &a, &SendRequest::new(2, Work::Read { remote }, &sge));
        pair.settle();
    }
    let hits: Vec<_> = pair.nodes[1]
        .events()
        .iter()
        .filter_map(|e| match e {
            Event::CounterHit {
                counter,
                bytes,
                write,
                ..
            } => Some((*counter, *bytes, *write)),
            _ => None,
        })
        .collect();
    assert_eq!(
        hits,
        [
            (42, 8, true),
            (42, 8, false),
            (42, 1000, true),
            (42, 1000, false)
        ]
    );
}

/// Receives in a shared queue use keys of the queue's domain, whatever the queue pair's is.
#[test]
fn shared_receives_have_the_domain_of_their_queue() {
    let mut pair = Pair::new();
    let node = &mut pair.nodes[1];
    let other = node.protection.create_domain().unwrap();
    let range = [node.memory.range()];
    let region = node
        .protection
        .register(&rkey_core::RegionSpec::new(other, &range, ALL))
        .unwrap();
    let srq = node.engine.create_srq(other, 8, 1).unwrap();
    let [a, b] = pair.connect(|at, config| {
        if at == 1 {
            config.srq = Some(srq);
        }
    });
    let room = [pair.nodes[1].sge(&region, 0, 8)];
    pair.nodes[1]
        .engine
        .post_srq_recv(srq, &RecvRequest { id: 5, sges: &room })
        .unwrap();
    let mut request = SendRequest::new(1, send_work(), &[]);
    request.inline = Some(&[3; 8]);
    pair.send(0, &a, &request);
    pair.settle();
    assert_eq!(statuses(&b.poll()), [(5, Status::Success)]);
    assert_eq!(pair.nodes[1].bytes(0, 8), [3; 8]);
}
