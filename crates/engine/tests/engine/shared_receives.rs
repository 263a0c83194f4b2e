//! Shared receive queues.

use crate::support::*;
use rkey_engine::*;

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
    pair.run_until_idle();
    assert!(pair.nodes[1].events().is_empty(), "3 are left");
    pair.send(0, &c, &SendRequest::new(2, send_work(), &[]));
    pair.run_until_idle();
    let events = pair.nodes[1].events();
    assert!(
        matches!(events[..], [Event::Async(AsyncEvent::SrqLimit(it))] if it == srq),
        "{events:?}"
    );
    pair.send(0, &c, &SendRequest::new(3, send_work(), &[]));
    pair.run_until_idle();
    assert!(pair.nodes[1].events().is_empty(), "only once");
    assert_eq!(statuses(&b.poll()), [(0, Status::Success)]);
    assert_eq!(
        statuses(&d.poll()),
        [(1, Status::Success), (2, Status::Success)]
    );
    // An error of one queue pair does not affect the others' receives.
    pair.nodes[1]
        .engine
        .modify_qp(b.id, &QpAttributes::to(QpState::Error))
        .unwrap();
    let events = pair.nodes[1].events();
    assert!(
        matches!(
            events[..],
            [Event::Async(AsyncEvent::LastWqeReached { .. })]
        ),
        "{events:?}"
    );
    pair.nodes[1].engine.modify_srq(srq, None, Some(2)).unwrap();
    pair.nodes[1].engine.post_srq_recv(srq, &recv).unwrap();
    assert_eq!(
        pair.nodes[1].engine.post_srq_recv(srq, &recv),
        Err(PostError::QueueFull(2))
    );
    pair.send(0, &c, &SendRequest::new(4, send_work(), &[]));
    pair.run_until_idle();
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

/// Receives in a shared queue use keys of the queue's domain, even if the queue pair has another domain.
#[test]
fn shared_receives_use_the_domain_of_their_queue() {
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
    pair.run_until_idle();
    assert_eq!(statuses(&b.poll()), [(5, Status::Success)]);
    assert_eq!(pair.nodes[1].bytes(0, 8), [3; 8]);
}
