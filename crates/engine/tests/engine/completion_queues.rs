//! Completion queues: depth, overrun, events, and the completions of a queue pair that is reset or destroyed.

use crate::support::*;
use rkey_engine::*;

/// Resetting or destroying a queue pair removes its unpolled completions, and no others.
#[test]
fn completions_are_removed_with_their_queue_pair() {
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

/// A completion that finds no room breaks the queue and its queue pairs, with one event.
#[test]
fn an_overrun_fails_the_completion_queue_and_its_queue_pairs() {
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
    pair.run_until_idle();
    assert!(small.is_overrun());
    assert_eq!(pair.nodes[0].state(&a), QpState::Error);
    let events = pair.nodes[0].events();
    assert!(
        matches!(events[..], [Event::Async(AsyncEvent::CqOverrun(cq)), Event::Async(AsyncEvent::QpFatal { .. })] if cq == small.id()),
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
fn a_completion_queue_can_be_resized_but_loses_no_entry() {
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

/// Each arming raises one event; a queue that is armed for solicited entries ignores others, except errors.
#[test]
fn an_armed_completion_queue_raises_one_event() {
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
        pair.run_until_idle();
    };
    send(&mut pair, true);
    assert_eq!(ready(&mut pair), 0, "not armed");
    pair.nodes[1].engine.arm_cq(b.cq.id(), false).unwrap();
    assert_eq!(ready(&mut pair), 0, "earlier entries do not count");
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

/// A queue is watched for solicited entries and errors independently of how it is armed.
#[test]
fn a_watched_completion_queue_raises_a_separate_event() {
    let mut pair = Pair::new();
    let [a, b] = pair.connect(|_, _| {});
    let told = |pair: &mut Pair| {
        let events = pair.nodes[1].events();
        let ready = |e: &&Event| matches!(e, Event::CqReady(_));
        let seen = |e: &&Event| matches!(e, Event::CqSeen(_));
        (
            events.iter().filter(ready).count(),
            events.iter().filter(seen).count(),
        )
    };
    let send = |pair: &mut Pair, solicited| {
        pair.recv(1, &b, 5, &[]);
        let mut request = SendRequest::new(1, send_work(), &[]);
        request.flags.set(SendFlags::SOLICITED, solicited);
        pair.send(0, &a, &request);
        pair.run_until_idle();
    };
    pair.nodes[1].engine.watch_cq(b.cq.id()).unwrap();
    pair.nodes[1].engine.arm_cq(b.cq.id(), false).unwrap();
    send(&mut pair, false);
    assert_eq!(told(&mut pair), (1, 0), "it is still watched");
    send(&mut pair, true);
    send(&mut pair, true);
    assert_eq!(told(&mut pair), (0, 1), "once, and no longer armed");
    for solicited_only in [false, true] {
        pair.nodes[1].engine.watch_cq(b.cq.id()).unwrap();
        let arm = pair.nodes[1].engine.arm_cq(b.cq.id(), solicited_only);
        arm.unwrap();
        send(&mut pair, true);
        assert_eq!(told(&mut pair), (1, 1));
    }
    pair.nodes[1].engine.watch_cq(b.cq.id()).unwrap();
    pair.recv(1, &b, 6, &[]);
    pair.nodes[1]
        .engine
        .modify_qp(b.id, &QpAttributes::to(QpState::Error))
        .unwrap();
    assert_eq!(told(&mut pair), (0, 1), "an error is seen");
}
