//! Links that come up late, and links that break.

use crate::support::*;
use rkey_engine::*;
use rkey_link::{Capabilities, DownReason};

/// Requests posted before there is a link wait for it.
#[test]
fn requests_wait_for_a_link() {
    let mut pair = Pair::new();
    let [a, b] = [0, 1].map(|at| pair.nodes[at].qp(|_| {}));
    let mine = pair.nodes[0].register(0, 64, ALL);
    let sge = [pair.nodes[0].sge(&mine, 0, 8)];
    for step in steps(
        QpType::Rc,
        Peer {
            qpn: b.qpn,
            node: None,
        },
        0,
    ) {
        pair.nodes[0].engine.modify_qp(a.id, &step).unwrap();
    }
    pair.send(0, &a, &SendRequest::new(1, send_work(), &sge));
    let events = pair.nodes[0].events();
    assert!(
        matches!(events[..], [Event::LinkNeeded { .. }]),
        "asked once: {events:?}"
    );
    pair.run(500 * MS);
    pair.up(1, &b, &a, |_, _| {});
    pair.recv(1, &b, 5, &[]);
    pair.nodes[0].engine.connect_qp(a.id, pair.ends[0]).unwrap();
    pair.run_until_idle();
    // The posted receive has no buffer, so it is too small for the message.
    assert_eq!(statuses(&a.poll()), [(1, Status::RemoteInvalidRequest)]);

    // Without a link, the timeout ends the wait.
    let [c, d] = [0, 1].map(|at| pair.nodes[at].qp(|_| {}));
    for step in steps(
        QpType::Rc,
        Peer {
            qpn: d.qpn,
            node: None,
        },
        0,
    ) {
        pair.nodes[0].engine.modify_qp(c.id, &step).unwrap();
    }
    pair.send(0, &c, &SendRequest::new(2, send_work(), &sge));
    pair.run(pair.now + 2000 * MS);
    assert_eq!(statuses(&c.poll()), [(2, Status::RetryExceeded)]);
}

/// A broken link fails its outstanding requests at once, and affects nothing else.
#[test]
fn a_broken_link_fails_outstanding_requests() {
    let mut pair = Pair::new();
    let ([a, _], [mine, _]) = transfer(&mut pair);
    let [c, d] = pair.connect(|_, _| {});
    let sge = [pair.nodes[0].sge(&mine, 0, 8)];
    pair.recv(0, &a, 50, &sge);
    pair.recv(0, &c, 51, &sge);
    for id in 1..=3 {
        pair.send(0, &a, &SendRequest::new(id, send_work(), &sge));
    }
    pair.end(0).down = Some(DownReason::PeerGone);
    pair.drive(0, 64);
    use Status::{Flushed, RetryExceeded};
    let want = [
        (1, RetryExceeded),
        (2, Flushed),
        (3, Flushed),
        (50, Flushed),
    ];
    assert_eq!(statuses(&a.poll()), want);
    assert_eq!(pair.nodes[0].state(&a), QpState::Error);
    assert!(c.poll().is_empty());
    assert_eq!(pair.nodes[0].state(&c), QpState::Rts);
    let events = pair.nodes[0].events();
    let gone: Vec<_> = events
        .iter()
        .filter_map(|e| {
            if let Event::Async(AsyncEvent::PeerGone { qp, .. }) = e {
                Some(*qp)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(gone, [a.id, c.id]);
    let link = events.iter().find_map(|e| match e {
        Event::LinkDown {
            link,
            reason: DownReason::PeerGone,
        } => Some(*link),
        _ => None,
    });
    assert!(pair.nodes[0].engine.take_detached(link.unwrap()).is_some());
    // The next post requests a link, and the device reports that there is none.
    pair.send(0, &c, &SendRequest::new(9, send_work(), &sge));
    let events = pair.nodes[0].events();
    assert!(
        matches!(events[..], [Event::LinkNeeded { qp, peer }] if qp == c.id && peer == d.qpn),
        "{events:?}"
    );
    pair.nodes[0].engine.unreachable(c.id, d.qpn);
    assert_eq!(statuses(&c.poll()), [(9, RetryExceeded), (51, Flushed)]);
}

/// A requester that dies while its payload is being fetched has broken no rule: the responder reports no error, and the
/// receive of the message is flushed with the others.
#[test]
fn the_death_of_a_requester_in_the_middle_of_a_message_is_no_error() {
    let caps = Capabilities {
        remote_iovec: true,
        remote_iovec_min: 100,
        ..CAPS
    };
    let mut pair = Pair::with(caps, EngineConfig::default());
    let ([a, b], [mine, theirs]) = transfer(&mut pair);
    pair.recv(1, &b, 50, &[pair.nodes[1].sge(&theirs, 0, 8)]);
    pair.recv(1, &b, 51, &[pair.nodes[1].sge(&theirs, 0, 8)]);
    let write = Work::Write {
        remote: pair.nodes[1].target(&theirs, 64),
        imm: Some(7),
    };
    let sge = [pair.nodes[0].sge(&mine, 0, 4096)];
    pair.send(0, &a, &SendRequest::new(1, write, &sge));
    pair.carry_requests(0, usize::MAX);
    pair.tail(1).peer_memory = None;
    for _ in 0..3 {
        pair.drive(1, 64);
    }
    let events = pair.nodes[1].events();
    let blamed = |event: &Event| {
        matches!(
            event,
            Event::Async(AsyncEvent::RequestError { .. })
                | Event::Async(AsyncEvent::QpFatal { .. })
        )
    };
    assert!(!events.iter().any(blamed), "{events:?}");
    assert!(events.iter().any(
        |event| matches!(event, Event::Async(AsyncEvent::PeerGone { qp, .. }) if *qp == b.id)
    ));
    assert!(b.poll().is_empty());
    pair.nodes[1]
        .engine
        .modify_qp(b.id, &QpAttributes::to(QpState::Error))
        .unwrap();
    assert_eq!(
        statuses(&b.poll()),
        [(50, Status::Flushed), (51, Status::Flushed)]
    );
}

/// Requests that the peer executed before it ended succeed, even if their acknowledgement is the
/// last thing that arrived from it.
#[test]
fn requests_acknowledged_before_a_link_breaks_succeed() {
    let mut pair = Pair::new();
    let ([a, _], [mine, theirs]) = transfer(&mut pair);
    let sge = [pair.nodes[0].sge(&mine, 0, 8)];
    let remote = pair.nodes[1].target(&theirs, 0);
    pair.send(0, &a, &SendRequest::new(1, Work::Read { remote }, &sge));
    pair.send(
        0,
        &a,
        &SendRequest::new(2, Work::Write { remote, imm: None }, &sge),
    );
    pair.carry_all();
    pair.drive(1, 64);
    pair.carry_all();
    pair.send(
        0,
        &a,
        &SendRequest::new(3, Work::Write { remote, imm: None }, &sge),
    );
    let end = pair.ends[0];
    assert!(
        pair.nodes[0]
            .engine
            .detach(end, DownReason::PeerGone)
            .is_some()
    );
    let want = [
        (1, Status::Success),
        (2, Status::Success),
        (3, Status::RetryExceeded),
    ];
    assert_eq!(statuses(&a.poll()), want);
}

/// A message that arrived before its sender ended is received, whichever link between the two is found broken first.
#[test]
fn a_message_that_arrived_before_its_sender_ended_is_received() {
    for first in 0..2 {
        let mut pair = Pair::new();
        let ([a, b], _) = transfer(&mut pair);
        pair.recv(0, &a, 50, &[]);
        pair.recv(0, &a, 51, &[]);
        pair.send(0, &a, &SendRequest::new(1, send_work(), &[]));
        pair.send(1, &b, &SendRequest::new(2, send_work(), &[]));
        pair.carry_requests(1, 1);
        let links = [pair.ends[0], pair.tails[0]];
        let engine = &mut pair.nodes[0].engine;
        assert!(engine.detach(links[first], DownReason::PeerGone).is_some());
        assert!(
            engine
                .detach(links[1 - first], DownReason::PeerGone)
                .is_some()
        );
        use Status::{Flushed, RetryExceeded, Success};
        assert_eq!(
            statuses(&a.poll()),
            [(50, Success), (1, RetryExceeded), (51, Flushed)]
        );
    }
}
