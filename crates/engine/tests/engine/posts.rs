//! Posts that are refused at once because the state is wrong, the request is too large, or this kind of queue pair does
//! not support it.

use crate::support::*;
use rkey_core::RKey;
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
    assert!(qp.poll().is_empty(), "a reset clears the queue pair");
}

#[test]
fn a_transition_requires_its_attributes_and_refuses_others() {
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
    assert_eq!(
        missing.to_string(),
        "the transition lacks required attributes: min_rnr_timer"
    );
    assert_eq!(node.state(&qp), QpState::Init, "nothing changed");
}

#[test]
fn work_that_a_queue_pair_type_does_not_support_is_refused() {
    let remote = Target {
        addr: 0,
        key: RKey::Device(NO_RKEY),
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
        wire: false,
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

/// A post that exceeds the queue pair's sizes is refused, and nothing is posted.
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
    pair.run_until_idle();
    assert_eq!(
        statuses(&a.poll()),
        [(0, Status::Success), (1, Status::Success)]
    );
    pair.send(0, &a, &SendRequest::new(3, send_work(), &[]));
}
