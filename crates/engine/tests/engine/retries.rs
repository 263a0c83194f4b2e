//! Receivers that are not ready, peers that do not exist yet, and how long a requester waits for them.

use crate::support::*;
use rkey_engine::*;

#[test]
fn a_send_waits_until_the_receiver_posts_a_receive() {
    let mut pair = Pair::new();
    let ([a, b], [mine, theirs]) = transfer(&mut pair);
    pair.nodes[0].fill(0, &pattern(1, 2048));
    for id in 0..8u64 {
        let sge = [pair.nodes[0].sge(&mine, id * 256, 256)];
        pair.send(0, &a, &SendRequest::new(id, send_work(), &sge));
    }
    pair.run_until_idle();
    assert!(a.poll().is_empty());
    // The receiver sets the delay: 0.64 ms.
    let deadline = pair.drive(0, 64).next_deadline.unwrap();
    assert!(deadline <= pair.now + 640_000);
    for id in 0..8u64 {
        let room = [pair.nodes[1].sge(&theirs, id * 256, 256)];
        pair.recv(1, &b, 100 + id, &room);
    }
    pair.run_until_idle();
    assert!(a.poll().is_empty(), "no retry before the delay is over");
    pair.run(5 * MS);
    let want: Vec<_> = (0..8).map(|id| (id, Status::Success)).collect();
    assert_eq!(statuses(&a.poll()), want);
    let want: Vec<_> = (100..108).map(|id| (id, Status::Success)).collect();
    assert_eq!(statuses(&b.poll()), want);
    assert_eq!(pair.nodes[1].bytes(0, 2048), pattern(1, 2048));
}

#[test]
fn rnr_retries_end_at_their_limit_unless_it_is_seven() {
    for retries in [0u8, 2, 7] {
        let mut pair = Pair::new();
        let qps = [0, 1].map(|at| pair.nodes[at].qp(|_| {}));
        pair.ready(&qps, |_, step| {
            if step.rnr_retry.is_some() {
                step.rnr_retry = Some(retries);
            }
        });
        let mine = pair.nodes[0].register(0, 64, ALL);
        let sge = [pair.nodes[0].sge(&mine, 0, 8)];
        pair.send(0, &qps[0], &SendRequest::new(1, send_work(), &sge));
        pair.send(0, &qps[0], &SendRequest::new(2, send_work(), &sge));
        let start = pair.now;
        pair.run(start + 20 * MS);
        let done = statuses(&qps[0].poll());
        if retries == 7 {
            assert!(done.is_empty(), "7 means forever");
            continue;
        }
        assert_eq!(done, [(1, Status::RnrRetryExceeded), (2, Status::Flushed)]);
        assert_eq!(pair.nodes[0].state(&qps[0]), QpState::Error);
        assert_eq!(
            pair.nodes[1].state(&qps[1]),
            QpState::Rts,
            "the receiver did nothing wrong"
        );
    }
}

/// Requests wait for a peer that comes up later, and reach it in order.
#[test]
fn a_peer_that_is_not_ready_yet_is_retried() {
    let mut pair = Pair::new();
    let [a, b] = [0, 1].map(|at| pair.nodes[at].qp(|_| {}));
    let regions = [0, 1].map(|at| pair.nodes[at].register(0, 1 << 16, ALL));
    pair.up(0, &a, &b, |_, _| {});
    pair.nodes[0].fill(0, &pattern(9, 4096));
    for id in 0..4u64 {
        let sge = [pair.nodes[0].sge(&regions[0], id * 1024, 1024)];
        let remote = pair.nodes[1].target(&regions[1], id * 1024);
        pair.send(
            0,
            &a,
            &SendRequest::new(id, Work::Write { remote, imm: None }, &sge),
        );
    }
    pair.run(100 * MS);
    assert!(a.poll().is_empty());
    // The process, or the machine, is stopped for longer than any timeout; then everything continues.
    pair.now += 3_600_000 * MS;
    pair.run(pair.now + 50 * MS);
    assert!(a.poll().is_empty());
    pair.up(1, &b, &a, |_, _| {});
    pair.now += MS;
    pair.run(pair.now + 10 * MS);
    assert_eq!(
        statuses(&a.poll()),
        (0..4).map(|id| (id, Status::Success)).collect::<Vec<_>>()
    );
    assert_eq!(pair.nodes[1].bytes(0, 4096), pattern(9, 4096));
}

/// A peer that never comes up costs the transport timeout, and not more or much less.
#[test]
fn a_request_to_a_peer_that_is_never_ready_times_out() {
    for exists in [false, true] {
        let mut pair = Pair::new();
        let [a, b] = [0, 1].map(|at| pair.nodes[at].qp(|_| {}));
        if !exists {
            pair.nodes[1].engine.destroy_qp(b.id).unwrap();
        }
        pair.up(0, &a, &b, |_, _| {});
        let mine = pair.nodes[0].register(0, 64, ALL);
        let sge = [pair.nodes[0].sge(&mine, 0, 8)];
        pair.send(0, &a, &SendRequest::new(1, send_work(), &sge));
        pair.send(0, &a, &SendRequest::new(2, send_work(), &sge));
        pair.run(700 * MS);
        assert!(a.poll().is_empty());
        pair.run(1100 * MS);
        let want = [(1, Status::RetryExceeded), (2, Status::Flushed)];
        assert_eq!(statuses(&a.poll()), want);
        assert_eq!(pair.nodes[0].state(&a), QpState::Error);
    }
}

/// A peer whose device still searches for ours gets more time than the timeout, because a NIC needs no search; but not without end.
#[test]
fn a_request_waits_while_the_peers_device_searches_for_ours() {
    for finds in [Some(true), Some(false), None] {
        let mut pair = Pair::new();
        let [a, b] = [0, 1].map(|at| pair.nodes[at].qp(|_| {}));
        let regions = [0, 1].map(|at| pair.nodes[at].register(0, 64, ALL));
        pair.up(0, &a, &b, |_, _| {});
        let peer = Peer {
            qpn: a.qpn,
            node: None,
        };
        for step in steps(QpType::Rc, peer, 1) {
            pair.nodes[1].engine.modify_qp(b.id, &step).unwrap();
        }
        let needed = |event: &Event| matches!(event, Event::LinkNeeded { qp, .. } if *qp == b.id);
        assert!(pair.nodes[1].events().iter().any(needed));
        pair.nodes[0].fill(0, &pattern(3, 8));
        let sge = [pair.nodes[0].sge(&regions[0], 0, 8)];
        let remote = pair.nodes[1].target(&regions[1], 0);
        let write = SendRequest::new(1, Work::Write { remote, imm: None }, &sge);
        pair.send(0, &a, &write);
        // The timeout is less than 1.1 seconds.
        pair.run(59_000 * MS);
        assert!(a.poll().is_empty());
        match finds {
            Some(true) => pair.nodes[1].engine.connect_qp(b.id, pair.ends[1]).unwrap(),
            Some(false) => pair.nodes[1].engine.unreachable(b.id, a.qpn),
            None => {}
        }
        pair.run(59_100 * MS);
        let done = statuses(&a.poll());
        match finds {
            Some(true) => {
                assert_eq!(done, [(1, Status::Success)]);
                assert_eq!(pair.nodes[1].bytes(0, 8), pattern(3, 8));
            }
            Some(false) => assert_eq!(done, [(1, Status::RetryExceeded)]),
            None => {
                assert!(done.is_empty());
                pair.run(61_000 * MS);
                assert_eq!(statuses(&a.poll()), [(1, Status::RetryExceeded)]);
            }
        }
    }
}

/// A mismatch of the first message numbers never looks like success.
#[test]
fn a_request_with_an_unexpected_message_number_fails() {
    let mut pair = Pair::new();
    let qps = [0, 1].map(|at| pair.nodes[at].qp(|_| {}));
    pair.ready(&qps, |at, step| {
        if at == 1 && step.recv_msn.is_some() {
            step.recv_msn = Some(17);
        }
    });
    let mine = pair.nodes[0].register(0, 64, ALL);
    let theirs = pair.nodes[1].register(0, 64, ALL);
    pair.nodes[0].fill(0, &[1; 8]);
    let sge = [pair.nodes[0].sge(&mine, 0, 8)];
    let remote = pair.nodes[1].target(&theirs, 0);
    pair.send(
        0,
        &qps[0],
        &SendRequest::new(1, Work::Write { remote, imm: None }, &sge),
    );
    pair.run(2000 * MS);
    assert_eq!(statuses(&qps[0].poll()), [(1, Status::RetryExceeded)]);
    assert_eq!(pair.nodes[1].bytes(0, 8), [0; 8]);
}

/// The owner decides whether the engine gives up on a silent peer: requests wait for a peer that could not respond.
#[test]
fn the_engine_waits_for_a_peer_that_could_not_respond() {
    let config = EngineConfig {
        asks_about_silence: true,
        ..EngineConfig::default()
    };
    for (excused, survives) in [(0, false), (3, false), (3, true), (1000, false)] {
        let mut pair = Pair::with(CAPS, config);
        let ([a, b], [mine, theirs]) = transfer(&mut pair);
        let room = [pair.nodes[1].sge(&theirs, 0, 8)];
        pair.recv(1, &b, 9, &room);
        let sge = [pair.nodes[0].sge(&mine, 0, 8)];
        pair.send(0, &a, &SendRequest::new(1, send_work(), &sge));
        let begin = pair.now;
        let mut asked = 0;
        // Nothing is carried to the peer, so it does nothing.
        let done = loop {
            let next = pair.drive(0, 64).next_deadline;
            for event in pair.nodes[0].events() {
                if let Event::PeerSilent { qp, link, peer } = event {
                    assert_eq!((qp, link, peer), (a.id, Some(pair.ends[0]), b.qpn));
                    pair.nodes[0].engine.judge_silence(qp, asked >= excused);
                    asked += 1;
                }
            }
            if survives && asked == excused {
                pair.run_until_idle();
            }
            let done = statuses(&a.poll());
            if !done.is_empty() {
                break done;
            }
            pair.now = next.expect("a request that waits has a deadline");
        };
        let silent = pair.now - begin;
        if survives {
            assert_eq!(done, [(1, Status::Success)]);
            continue;
        }
        assert_eq!(done, [(1, Status::RetryExceeded)], "{excused}");
        if excused == 1000 {
            // The engine gives up on the peer after a minute.
            assert!((60_000 * MS..70_000 * MS).contains(&silent), "{silent}");
        } else {
            assert_eq!(asked, excused + 1);
        }
    }
}

/// Requests to a peer that takes them and does nothing fail after the timeout; those to a slow peer do not, as long as
/// it makes progress.
#[test]
fn requests_to_a_silent_peer_fail_but_not_to_a_slow_peer() {
    for moves in [false, true] {
        let mut pair = Pair::new();
        let ([a, _], [mine, theirs]) = transfer(&mut pair);
        let sge = [pair.nodes[0].sge(&mine, 0, 4096)];
        let remote = pair.nodes[1].target(&theirs, 0);
        pair.send(
            0,
            &a,
            &SendRequest::new(1, Work::Write { remote, imm: None }, &sge),
        );
        for _ in 0..16 {
            pair.now += 300 * MS;
            pair.drive(0, 64);
            if moves {
                pair.carry_requests(0, 1);
                pair.drive(1, 64);
                pair.carry_responses(0, usize::MAX);
            }
        }
        let want = if moves {
            vec![]
        } else {
            vec![(1, Status::RetryExceeded)]
        };
        assert_eq!(statuses(&a.poll()), want);
        if moves {
            pair.run_until_idle();
            assert_eq!(statuses(&a.poll()), [(1, Status::Success)]);
        }
    }
}
