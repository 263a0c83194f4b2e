//! The result of a refused request, and the state of the queue pairs on both sides.

use crate::support::*;
use rkey_core::{Access, Reason};
use rkey_engine::*;

/// A refusal ends the request at the initiator and moves both queue pairs to the error state; both sides have the
/// reason.
///
/// Proves: VB-I21
#[test]
fn a_refusal_is_reported_on_both_sides_and_flushes_the_queue_pairs() {
    let mut pair = Pair::new();
    let qps = pair.connect(|_, _| {});
    let mine = pair.nodes[0].register(0, 4096, ALL);
    let theirs = pair.nodes[1].register(0, 4096, Access::REMOTE_READ);
    let sge = [pair.nodes[0].sge(&mine, 0, 8)];
    let remote = pair.nodes[1].target(&theirs, 0);
    pair.recv(0, &qps[0], 50, &sge);
    pair.recv(1, &qps[1], 60, &[]);
    for (id, work) in [
        (1, Work::Read { remote }),
        (2, Work::Write { remote, imm: None }),
        (3, Work::Read { remote }),
        (4, send_work()),
    ] {
        let mut request = SendRequest::new(id, work, &sge);
        request.flags.set(SendFlags::SIGNALED, id != 3); // an error completes in any case
        pair.send(0, &qps[0], &request);
    }
    pair.run_until_idle();
    let done = qps[0].poll();
    use Status::{Flushed, RemoteAccess, Success};
    let want = [
        (1, Success),
        (2, RemoteAccess),
        (3, Flushed),
        (4, Flushed),
        (50, Flushed),
    ];
    assert_eq!(statuses(&done), want);
    assert_eq!(done[1].qpn, qps[0].qpn);
    assert_eq!(statuses(&qps[1].poll()), [(60, Flushed)]);
    for at in 0..2 {
        assert_eq!(pair.nodes[at].state(&qps[at]), QpState::Error);
    }
    let events = [0, 1].map(|at| pair.nodes[at].events());
    let (initiator, target) = (denied(&events[0]), denied(&events[1]));
    assert_eq!((initiator.len(), target.len()), (1, 1));
    assert_eq!(
        (initiator[0].side, target[0].side),
        (Side::Initiator, Side::Target)
    );
    assert_eq!(
        (initiator[0].id, initiator[0].work_id),
        (done[1].vendor, Some(2))
    );
    assert_eq!(initiator[0].denial.reason, target[0].denial.reason);
    assert!(matches!(target[0].denial.reason, Reason::Right { .. }));
    assert!(
        initiator[0].to_string().contains("remote write"),
        "{}",
        initiator[0]
    );
    assert_eq!((target[0].peer.pid, target[0].peer_qpn), (1, qps[0].qpn));
    assert!(
        events[1]
            .iter()
            .any(|event| matches!(event, Event::Async(AsyncEvent::AccessError { .. })))
    );
    // Later posts are flushed at once.
    pair.send(0, &qps[0], &SendRequest::new(9, send_work(), &sge));
    pair.recv(0, &qps[0], 51, &sge);
    assert_eq!(statuses(&qps[0].poll()), [(9, Flushed), (51, Flushed)]);
}

/// With the policy of libfabric's reliable datagrams, a refused request fails alone: earlier and
/// later ones succeed, and both queue pairs stay in service.
#[test]
fn a_refusal_can_leave_the_queue_pairs_in_service() {
    for len in [8, 5000] {
        for remote_iovec in [false, true] {
            let caps = rkey_link::Capabilities {
                remote_iovec,
                ..CAPS
            };
            let mut pair = Pair::with(caps, EngineConfig::default());
            let qps = pair.connect(|_, config| config.survive_remote_error = true);
            let mine = pair.nodes[0].register(0, 1 << 16, ALL);
            let theirs = pair.nodes[1].register(0, 1 << 16, ALL);
            let closed = pair.nodes[1].register(0, 1 << 16, Access::empty());
            pair.nodes[0].fill(0, &vec![7; len as usize]);
            let sge = [pair.nodes[0].sge(&mine, 0, len)];
            let good = pair.nodes[1].target(&theirs, 10_000);
            let bad = pair.nodes[1].target(&closed, 0);
            let small = [pair.nodes[1].sge(&theirs, 30_000, len - 1)];
            let room = [pair.nodes[1].sge(&theirs, 40_000, len)];
            pair.recv(1, &qps[1], 100, &small);
            pair.recv(1, &qps[1], 101, &room);
            for (id, work) in [
                (
                    1,
                    Work::Write {
                        remote: good,
                        imm: None,
                    },
                ),
                (
                    2,
                    Work::Write {
                        remote: bad,
                        imm: None,
                    },
                ),
                (3, Work::Read { remote: good }),
                (4, Work::Read { remote: bad }),
                (5, send_work()),
                (6, send_work()),
            ] {
                pair.send(0, &qps[0], &SendRequest::new(id, work, &sge));
            }
            pair.run_until_idle();
            use Status::{LocalLength, RemoteAccess, RemoteInvalidRequest, Success};
            assert_eq!(
                statuses(&qps[0].poll()),
                [
                    (1, Success),
                    (2, RemoteAccess),
                    (3, Success),
                    (4, RemoteAccess),
                    (5, RemoteInvalidRequest),
                    (6, Success)
                ]
            );
            assert_eq!(
                statuses(&qps[1].poll()),
                [(100, LocalLength), (101, Success)]
            );
            for at in 0..2 {
                assert_eq!(pair.nodes[at].state(&qps[at]), QpState::Rts);
            }
            assert_eq!(
                pair.nodes[1].bytes(40_000, len as usize),
                vec![7; len as usize]
            );
        }
    }
}

/// An atomic at an address that is not a multiple of 8 is invalid.
#[test]
fn unaligned_atomics_are_invalid() {
    for which in [2, 3] {
        let mut pair = Pair::new();
        let qps = pair.connect(|_, _| {});
        let mine = pair.nodes[0].register(0, 64, ALL);
        let theirs = pair.nodes[1].register(0, 64, ALL);
        let sge = [pair.nodes[0].sge(&mine, 0, 8)];
        let (work, _) = works(pair.nodes[1].target(&theirs, 4))[which];
        let outcome = attempt(&mut pair, &qps, work, &sge);
        assert_eq!(outcome.status, Status::RemoteInvalidRequest);
        assert!(
            outcome.events[1]
                .iter()
                .any(|e| matches!(e, Event::Async(AsyncEvent::RequestError { .. })))
        );
    }
}

#[test]
fn a_receive_that_is_too_small_is_an_error_on_both_sides() {
    for len in [9u32, 5000] {
        let mut pair = Pair::new();
        let ([a, b], [mine, theirs]) = transfer(&mut pair);
        let room = [pair.nodes[1].sge(&theirs, 0, 8)];
        pair.recv(1, &b, 5, &room);
        let sge = [pair.nodes[0].sge(&mine, 0, len)];
        pair.send(0, &a, &SendRequest::new(1, send_work(), &sge));
        pair.run_until_idle();
        assert_eq!(statuses(&a.poll()), [(1, Status::RemoteInvalidRequest)]);
        assert_eq!(statuses(&b.poll()), [(5, Status::LocalLength)]);
        assert_eq!(
            [0, 1].map(|at| pair.nodes[at].state([&a, &b][at])),
            [QpState::Error; 2]
        );
    }
}
