//! Datagrams to groups, and raw frames.

use crate::support::*;
use rkey_engine::groups::GROUP_QPN;
use rkey_engine::spread::KEY_LEN;
use rkey_engine::*;

const GROUP: [u8; 16] = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

fn to_group(target: [u8; 16]) -> Option<UdAddress> {
    Some(UdAddress {
        link: None,
        qpn: GROUP_QPN,
        qkey: 0x1111,
        route: Route {
            target,
            ..Route::default()
        },
    })
}

/// A raw queue pair that is ready.
fn raw(node: &mut Node, change: impl FnOnce(&mut QpConfig)) -> Qp {
    let qp = node.qp(|config| {
        config.qp_type = QpType::Raw;
        change(config);
    });
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        node.engine
            .modify_qp(qp.id, &QpAttributes::to(state))
            .unwrap();
    }
    qp
}

fn frame(first: u8) -> Vec<u8> {
    let mut frame = pattern(9, 60);
    frame[0] = first;
    frame
}

#[test]
fn what_is_sent_to_a_group_reaches_its_members() {
    let mut pair = Pair::new();
    let [a, b] = pair.connect(|_, config| config.qp_type = QpType::Ud);
    let c = pair.nodes[1].qp(|config| config.qp_type = QpType::Ud);
    for step in steps(QpType::Ud, Peer { qpn: 0, node: None }, 1) {
        pair.nodes[1].engine.modify_qp(c.id, &step).unwrap();
    }
    let theirs = pair.nodes[1].register(0, 4096, ALL);
    for (place, qp) in [(0, &b), (1, &c)] {
        let group = Group::Gid(GROUP);
        pair.nodes[1].engine.join_group(qp.id, group).unwrap();
        pair.nodes[1].engine.join_group(qp.id, group).unwrap();
        for id in 0..3 {
            let sges = [pair.nodes[1].sge(&theirs, place * 2048 + id * 128, 100)];
            pair.recv(1, qp, id, &sges);
        }
    }
    let post = |pair: &mut Pair, id, target| {
        let mut request = SendRequest::new(id, send_work(), &[]);
        request.ud = to_group(target);
        request.inline = Some(b"to all");
        pair.send(0, &a, &request);
        let asked = pair.nodes[0].events();
        assert!(
            asked
                .iter()
                .all(|event| matches!(event, Event::GroupNeeded { .. })),
            "{asked:?}"
        );
        asked.len()
    };
    // The device is asked where the members are, and the datagram waits for the answer.
    assert_eq!(post(&mut pair, 1, GROUP), 1);
    pair.settle();
    assert!(a.poll().is_empty() && b.poll().is_empty());
    let links = vec![pair.ends[0]];
    pair.nodes[0].engine.connect_group(Group::Gid(GROUP), links);
    pair.settle();
    assert_eq!(statuses(&a.poll()), [(1, Status::Success)]);
    for (place, qp) in [(0, &b), (1, &c)] {
        let got = qp.poll();
        assert_eq!(
            statuses(&got),
            [(0, Status::Success)],
            "once, though it joined twice"
        );
        assert_eq!((got[0].bytes, got[0].src_qpn), (46, a.qpn));
        let bytes = pair.nodes[1].bytes(place * 2048, 46);
        assert_eq!((&bytes[24..40], &bytes[40..]), (&GROUP[..], &b"to all"[..]));
    }
    // Who left hears nothing more; nor does another group's member.
    pair.nodes[1].engine.leave_group(b.id, Group::Gid(GROUP));
    assert_eq!(post(&mut pair, 2, GROUP), 0, "the answer is still good");
    pair.settle();
    assert_eq!((b.poll().len(), c.poll().len()), (0, 1));
    assert_eq!(post(&mut pair, 3, [0xff; 16]), 1);
    pair.nodes[0]
        .engine
        .connect_group(Group::Gid([0xff; 16]), vec![pair.ends[0]]);
    pair.settle();
    assert_eq!((b.poll().len(), c.poll().len()), (0, 0));
    assert_eq!(
        statuses(&a.poll()),
        [(2, Status::Success), (3, Status::Success)]
    );
    // A destroyed member is none.
    pair.nodes[1].engine.destroy_qp(c.id).unwrap();
    post(&mut pair, 4, GROUP);
    pair.settle();
    assert_eq!(statuses(&a.poll()), [(4, Status::Success)]);
}

/// Memory that may not be sent is an error whether there are members or not.
#[test]
fn a_datagram_to_nobody_still_has_to_be_in_order() {
    let mut pair = Pair::new();
    let [a, _] = pair.connect(|_, config| config.qp_type = QpType::Ud);
    let foreign = Sge {
        addr: 0,
        len: 8,
        key: rkey_core::LocalKey(77),
    };
    let sges = [foreign];
    let mut request = SendRequest::new(1, send_work(), &sges);
    request.ud = to_group(GROUP);
    pair.send(0, &a, &request);
    pair.nodes[0]
        .engine
        .connect_group(Group::Gid(GROUP), Vec::new());
    assert_eq!(statuses(&a.poll()), [(1, Status::LocalProtection)]);
}

#[test]
fn frames_go_to_who_has_a_flow_for_them() {
    let mut pair = Pair::new();
    let sender = raw(&mut pair.nodes[0], |_| {});
    let takers = [0, 1].map(|_| raw(&mut pair.nodes[1], |_| {}));
    let theirs = pair.nodes[1].register(0, 4096, ALL);
    for (first, qp) in [(7, &takers[0]), (8, &takers[1])] {
        let engine = &mut pair.nodes[1].engine;
        let flow = Flow {
            value: vec![first],
            mask: vec![0xff],
        };
        engine.add_flow(qp.id, u32::from(first), flow).unwrap();
        engine.join_group(qp.id, Group::Wire).unwrap();
        for id in 0..2 {
            let sges = [pair.nodes[1].sge(&theirs, u64::from(first) * 256 + id * 64, 64)];
            pair.recv(1, qp, id, &sges);
        }
    }
    let send = |pair: &mut Pair, id, first| {
        let data = frame(first);
        let request = SendRequest {
            inline: Some(&data),
            ..SendRequest::new(id, send_work(), &[])
        };
        pair.send(0, &sender, &request);
        let links = vec![pair.ends[0]];
        pair.nodes[0].engine.connect_group(Group::Wire, links);
        pair.settle();
        [takers[0].poll(), takers[1].poll()]
    };
    let [one, two] = send(&mut pair, 1, 7);
    assert_eq!((statuses(&one), two.len()), (vec![(0, Status::Success)], 0));
    assert_eq!((one[0].bytes, one[0].flags), (60, CompletionFlags::empty()));
    assert_eq!(pair.nodes[1].bytes(7 * 256, 60), frame(7));
    let [one, two] = send(&mut pair, 2, 8);
    assert_eq!((one.len(), statuses(&two)), (0, vec![(0, Status::Success)]));
    assert!(
        send(&mut pair, 3, 9).iter().all(Vec::is_empty),
        "nobody wants it"
    );
    pair.nodes[1].engine.remove_flow(takers[0].id, 7);
    assert!(
        send(&mut pair, 4, 7).iter().all(Vec::is_empty),
        "not any more"
    );
    let want: Vec<_> = (1..=4).map(|id| (id, Status::Success)).collect();
    assert_eq!(statuses(&sender.poll()), want);
    // Anything but a plain send is refused.
    let mut imm = SendRequest::new(
        5,
        Work::Send {
            imm: Some(1),
            invalidate: None,
        },
        &[],
    );
    imm.inline = Some(&[0; 14]);
    let refused = pair.nodes[0].engine.post_send(sender.id, &imm);
    assert!(matches!(refused, Err(PostError::NotSupported(_))));
}

#[test]
fn frames_are_spread_over_queues() {
    let mut pair = Pair::new();
    let sender = raw(&mut pair.nodes[0], |_| {});
    let node = &mut pair.nodes[1];
    let taker = node.qp(|config| config.qp_type = QpType::Raw);
    let domain = node.domain;
    let cqs = [0, 1].map(|_| node.engine.create_cq(64).unwrap());
    let queues = [0, 1].map(|at| node.engine.create_wq(domain, 16, 1, cqs[at].id()).unwrap());
    let spread = Spread {
        queues: queues.to_vec(),
        key: std::array::from_fn::<u8, KEY_LEN, _>(|i| (i * 37 + 11) as u8),
        fields: HashFields::all(),
    };
    node.engine.spread(taker.id, spread).unwrap();
    node.engine.add_flow(taker.id, 1, Flow::default()).unwrap();
    node.engine.join_group(taker.id, Group::Wire).unwrap();
    let theirs = node.register(0, 4096, ALL);
    for (at, queue) in queues.iter().enumerate() {
        for id in 0..16 {
            let sges = [pair.nodes[1].sge(&theirs, 0, 64)];
            let recv = RecvRequest {
                id: id + 100 * at as u64,
                sges: &sges,
            };
            pair.nodes[1].engine.post_srq_recv(*queue, &recv).unwrap();
        }
    }
    let count = |cq: &CqShared| {
        let mut all = [Completion::default(); 64];
        let n = cq.pop(&mut all);
        assert!(all[..n].iter().all(|entry| entry.status == Status::Success));
        n
    };
    let send = |pair: &mut Pair| {
        for source in 0..16u8 {
            let mut data = frame(0);
            data[12..15].copy_from_slice(&[8, 0, 0x45]);
            data[29] = source;
            let request = SendRequest {
                inline: Some(&data),
                ..SendRequest::new(1, send_work(), &[])
            };
            pair.send(0, &sender, &request);
            let links = vec![pair.ends[0]];
            pair.nodes[0].engine.connect_group(Group::Wire, links);
            pair.settle();
        }
        [count(&cqs[0]), count(&cqs[1])]
    };
    // A queue that is not ready takes nothing.
    pair.nodes[1]
        .engine
        .set_wq_state(queues[0], WqState::Ready)
        .unwrap();
    let [first, none] = send(&mut pair);
    assert!((1..16).contains(&first) && none == 0, "{first} {none}");
    for queue in queues {
        pair.nodes[1]
            .engine
            .set_wq_state(queue, WqState::Ready)
            .unwrap();
    }
    // What is posted is forgotten or flushed, as the state says.
    let node = &mut pair.nodes[1];
    node.engine.set_wq_state(queues[1], WqState::Error).unwrap();
    let mut flushed = [Completion::default(); 64];
    let n = cqs[1].pop(&mut flushed);
    let want: Vec<_> = (100..116).map(|id| (id, Status::Flushed)).collect();
    assert_eq!(statuses(&flushed[..n]), want);
    node.engine.set_wq_state(queues[0], WqState::Reset).unwrap();
    assert!(cqs[0].is_empty());
    assert!(matches!(
        node.engine.destroy_cq(cqs[0].id()),
        Err(EngineError::Busy { .. })
    ));
    node.engine.destroy_qp(taker.id).unwrap();
    for (queue, cq) in queues.into_iter().zip(&cqs) {
        node.engine.destroy_srq(queue).unwrap();
        node.engine.destroy_cq(cq.id()).unwrap();
    }
}
