//! Unreliable connections: losses are not reported.

use crate::support::*;
use rkey_engine::*;

/// The sender of an unreliable connection is told nothing about the receiver.
#[test]
fn unreliable_connections_lose_messages_silently() {
    let mut pair = Pair::new();
    let [a, b] = pair.connect(|_, config| config.qp_type = QpType::Uc);
    let mine = pair.nodes[0].register(0, 4096, ALL);
    let theirs = pair.nodes[1].register(0, 4096, ALL);
    pair.nodes[0].fill(0, &pattern(1, 4096));
    let sge = [pair.nodes[0].sge(&mine, 0, 1000)];
    // First without a receive, then with one, then with a bad key; valid requests still work.
    pair.send(0, &a, &SendRequest::new(1, send_work(), &sge));
    pair.run_until_idle();
    pair.recv(1, &b, 50, &[pair.nodes[1].sge(&theirs, 0, 1000)]);
    let mut bad = pair.nodes[1].target(&theirs, 0);
    bad.addr -= 1;
    pair.send(
        0,
        &a,
        &SendRequest::new(
            2,
            Work::Write {
                remote: bad,
                imm: None,
            },
            &sge,
        ),
    );
    pair.send(0, &a, &SendRequest::new(3, send_work(), &sge));
    let good = pair.nodes[1].target(&theirs, 2000);
    pair.send(
        0,
        &a,
        &SendRequest::new(
            4,
            Work::Write {
                remote: good,
                imm: None,
            },
            &sge,
        ),
    );
    pair.run_until_idle();
    let want: Vec<_> = (1..=4).map(|id| (id, Status::Success)).collect();
    assert_eq!(statuses(&a.poll()), want);
    assert_eq!(statuses(&b.poll()), [(50, Status::Success)]);
    assert_eq!(pair.nodes[1].bytes(0, 1000), pattern(1, 4096)[..1000]);
    assert_eq!(pair.nodes[1].bytes(2000, 1000), pattern(1, 4096)[..1000]);
    assert_eq!(pair.nodes[1].state(&b), QpState::Rts);
}

/// Requests that a peer sends before we know its device are not lost, even on services without
/// retries: they wait until the search ends.
#[test]
fn requests_that_arrive_before_the_peer_is_found_are_kept() {
    for found in [true, false] {
        let mut pair = Pair::new();
        let [a, b] = [0, 1].map(|at| pair.nodes[at].qp(|config| config.qp_type = QpType::Uc));
        let mine = pair.nodes[0].register(0, 4096, ALL);
        let theirs = pair.nodes[1].register(0, 8192, ALL);
        pair.nodes[0].fill(0, &pattern(3, 4096));
        let peer = Peer {
            qpn: a.qpn,
            node: None,
        };
        for step in &steps(QpType::Uc, peer, 1)[..2] {
            pair.nodes[1].engine.modify_qp(b.id, step).unwrap();
        }
        pair.recv(1, &b, 50, &[pair.nodes[1].sge(&theirs, 0, 1000)]);
        pair.recv(1, &b, 51, &[pair.nodes[1].sge(&theirs, 1000, 1000)]);
        pair.up(0, &a, &b, |_, _| {});
        for id in 0..2 {
            let sge = [pair.nodes[0].sge(&mine, id * 1000, 1000)];
            pair.send(0, &a, &SendRequest::new(id, send_work(), &sge));
        }
        pair.run_until_idle();
        assert!(a.poll().is_empty() && b.poll().is_empty());
        if found {
            let end = pair.ends[1];
            pair.nodes[1].engine.connect_qp(b.id, end).unwrap();
        } else {
            pair.nodes[1].engine.unreachable(b.id, a.qpn);
        }
        pair.run_until_idle();
        let sent = [(0, Status::Success), (1, Status::Success)];
        assert_eq!(
            statuses(&a.poll()),
            sent,
            "an unreliable sender is told nothing"
        );
        if found {
            assert_eq!(
                statuses(&b.poll()),
                [(50, Status::Success), (51, Status::Success)]
            );
            assert_eq!(pair.nodes[1].bytes(0, 2000), pattern(3, 4096)[..2000]);
        } else {
            assert!(b.poll().is_empty());
            assert_eq!(pair.nodes[1].bytes(0, 2000), [0; 2000]);
        }
    }
}
