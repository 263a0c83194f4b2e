//! What a peer may not do, and what becomes of it on both sides.

use crate::support::*;
use rkey_core::{Access, Key, Reason, RegionSpec, WireKey};
use rkey_engine::*;

/// What became of one request of node 0.
struct Outcome {
    status: Status,
    vendor: u32,
    states: [QpState; 2],
    events: [Vec<Event>; 2],
}

fn attempt(pair: &mut Pair, qps: &[Qp; 2], work: Work, sges: &[Sge]) -> Outcome {
    pair.send(0, &qps[0], &SendRequest::new(77, work, sges));
    pair.settle();
    let done = qps[0].poll();
    assert_eq!((done.len(), done[0].id), (1, 77));
    Outcome {
        status: done[0].status,
        vendor: done[0].vendor,
        states: [0, 1].map(|at| pair.nodes[at].state(&qps[at])),
        events: [0, 1].map(|at| pair.nodes[at].events()),
    }
}

fn denied(events: &[Event]) -> Vec<&DenialReport> {
    let report = |event: &'_ Event| matches!(event, Event::Denied(_));
    let all = events.iter().filter(|event| report(event));
    all.map(|event| match event {
        Event::Denied(report) => &**report,
        _ => unreachable!("filtered"),
    })
    .collect()
}

fn works(remote: Target) -> [(Work, Access); 4] {
    [
        (Work::Write { remote, imm: None }, Access::REMOTE_WRITE),
        (Work::Read { remote }, Access::REMOTE_READ),
        (
            Work::CompareSwap {
                remote,
                compare: 0,
                swap: 1,
            },
            Access::REMOTE_ATOMIC,
        ),
        (Work::FetchAdd { remote, add: 1 }, Access::REMOTE_ATOMIC),
    ]
}

/// Every right grants its own kind of operation and no other; what is refused changes nothing.
///
/// Proves: VB-010, VB-011, VB-012
#[test]
fn rights_of_the_region_decide() {
    for granted in 0..8u32 {
        let granted =
            Access::from_bits_retain(granted << Access::REMOTE_READ.bits().trailing_zeros());
        for which in 0..4 {
            let mut pair = Pair::new();
            let qps = pair.connect(|_, _| {});
            let mine = pair.nodes[0].register(0, 64, ALL);
            let theirs = pair.nodes[1].register(0, 64, granted);
            let sge = [pair.nodes[0].sge(&mine, 0, 8)];
            pair.nodes[0].fill(0, &[1; 8]);
            let (work, needs) = works(pair.nodes[1].target(&theirs, 0))[which];
            let outcome = attempt(&mut pair, &qps, work, &sge);
            if granted.contains(needs) {
                assert_eq!(outcome.status, Status::Success, "{work:?} with {granted}");
            } else {
                assert_eq!(
                    outcome.status,
                    Status::RemoteAccess,
                    "{work:?} with {granted}"
                );
                assert_eq!(pair.nodes[1].bytes(0, 8), [0; 8]);
                assert_eq!(pair.nodes[0].bytes(0, 8), [1; 8]);
            }
        }
    }
}

/// The queue pair of the target has to allow it, too.
///
/// Proves: VB-I06
#[test]
fn rights_of_the_queue_pair_decide_too() {
    for which in 0..4 {
        for allowed in [true, false] {
            let mut pair = Pair::new();
            let qps = [0, 1].map(|at| pair.nodes[at].qp(|_| {}));
            let theirs = pair.nodes[1].register(0, 64, ALL);
            let (work, needs) = works(pair.nodes[1].target(&theirs, 0))[which];
            let others = Access::REMOTE.difference(needs);
            pair.ready(&qps, |at, step| {
                if at == 1 && step.access.is_some() {
                    step.access = Some(if allowed { needs } else { others });
                }
            });
            let mine = pair.nodes[0].register(0, 64, ALL);
            let sge = [pair.nodes[0].sge(&mine, 0, 8)];
            let outcome = attempt(&mut pair, &qps, work, &sge);
            if allowed {
                assert_eq!(outcome.status, Status::Success);
                continue;
            }
            assert_eq!(outcome.status, Status::RemoteAccess);
            let reports = denied(&outcome.events[0]);
            assert!(matches!(reports[0].denial.reason, Reason::QueuePair { .. }));
            assert_eq!(reports[0].id, outcome.vendor);
        }
    }
}

/// A refusal ends the request at the initiator and takes both queue pairs out of service; both
/// sides can say why.
///
/// Proves: VB-I21
#[test]
fn a_refusal_is_told_on_both_sides_and_flushes() {
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
    pair.settle();
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
            .any(|event| matches!(event, Event::AccessError { .. }))
    );
    // What is posted now is flushed at once.
    pair.send(0, &qps[0], &SendRequest::new(9, send_work(), &sge));
    pair.recv(0, &qps[0], 51, &sge);
    assert_eq!(statuses(&qps[0].poll()), [(9, Flushed), (51, Flushed)]);
}

/// Not one byte outside of the region, whichever way the bytes travel.
///
/// Proves: VB-I04
#[test]
fn one_byte_outside_is_refused() {
    for (offset, len, ok) in [
        (4096, 4096, true),
        (8191, 1, true),
        (8192, 1, false),
        (4095, 1, false),
        (4096, 4097, false),
        (4095, 4097, false),
    ] {
        for by_reference in [false, true] {
            for read in [false, true] {
                let caps = rkey_link::Capabilities {
                    by_reference,
                    ..CAPS
                };
                let mut pair = Pair::with(caps, EngineConfig::default());
                let qps = pair.connect(|_, _| {});
                let mine = pair.nodes[0].register(0, 1 << 16, ALL);
                let theirs = pair.nodes[1].register(4096, 4096, ALL);
                pair.nodes[0].fill(0, &vec![7; len as usize]);
                let sge = [pair.nodes[0].sge(&mine, 0, len)];
                let remote = pair.nodes[1].target(&theirs, offset);
                let work = if read {
                    Work::Read { remote }
                } else {
                    Work::Write { remote, imm: None }
                };
                let outcome = attempt(&mut pair, &qps, work, &sge);
                let want = if ok {
                    Status::Success
                } else {
                    Status::RemoteAccess
                };
                assert_eq!(outcome.status, want, "{offset} {len} {by_reference} {read}");
                if !ok && !read {
                    assert!(
                        pair.nodes[1]
                            .bytes(0, 1 << 16)
                            .iter()
                            .all(|byte| *byte == 0)
                    );
                }
            }
        }
    }
}

/// A key works only on queue pairs of its domain, as a local and as a remote one.
///
/// Proves: VB-I05, DA-I10
#[test]
fn keys_of_another_domain_are_refused() {
    let mut pair = Pair::new();
    let qps = pair.connect(|_, _| {});
    let other = pair.nodes[1].protection.create_domain().unwrap();
    let range = [pair.nodes[1].memory.range()];
    let foreign = pair.nodes[1]
        .protection
        .register(&RegionSpec::new(other, &range, ALL))
        .unwrap();
    let mine = pair.nodes[0].register(0, 64, ALL);
    let sge = [pair.nodes[0].sge(&mine, 0, 8)];
    let remote = pair.nodes[1].target(&foreign, 0);
    let outcome = attempt(&mut pair, &qps, Work::Write { remote, imm: None }, &sge);
    assert_eq!(outcome.status, Status::RemoteAccess);
    let reports = denied(&outcome.events[1]);
    assert!(matches!(
        reports[0].denial.reason,
        Reason::OtherDomain { .. }
    ));

    let mut pair = Pair::new();
    let qps = pair.connect(|_, _| {});
    let other = pair.nodes[0].protection.create_domain().unwrap();
    let range = [pair.nodes[0].memory.range()];
    let foreign = pair.nodes[0]
        .protection
        .register(&RegionSpec::new(other, &range, ALL))
        .unwrap();
    let sge = [pair.nodes[0].sge(&foreign, 0, 8)];
    let outcome = attempt(&mut pair, &qps, send_work(), &sge);
    assert_eq!(outcome.status, Status::LocalProtection);
    // Nobody else was involved: the peer stays in service.
    assert_eq!(outcome.states, [QpState::Error, QpState::Rts]);
    assert_eq!(denied(&outcome.events[0])[0].side, Side::Local);
}

/// A key that nobody gave out, and a key whose region is gone.
///
/// Proves: VB-006
#[test]
fn unknown_and_stale_keys_are_refused() {
    for stale in [false, true] {
        let mut pair = Pair::new();
        let qps = pair.connect(|_, _| {});
        let mine = pair.nodes[0].register(0, 64, ALL);
        let theirs = pair.nodes[1].register(0, 64, ALL);
        let sge = [pair.nodes[0].sge(&mine, 0, 8)];
        let mut remote = pair.nodes[1].target(&theirs, 0);
        pair.send(
            0,
            &qps[0],
            &SendRequest::new(1, Work::Write { remote, imm: None }, &sge),
        );
        pair.settle();
        assert_eq!(statuses(&qps[0].poll()), [(1, Status::Success)]);
        if stale {
            let closing = pair.nodes[1].protection.close_region(theirs.id).unwrap();
            assert!(closing.is_drained() && closing.finish().is_ok());
        } else {
            remote.key = WireKey::Device(Key(theirs.key.0 ^ 0x5555_5500));
        }
        let outcome = attempt(&mut pair, &qps, Work::Write { remote, imm: None }, &sge);
        assert_eq!(outcome.status, Status::RemoteAccess);
    }
}

/// A receive or a read result needs the right to write locally; a region without any right can
/// still not be sent from.
///
/// Proves: VB-009
#[test]
fn local_rights_decide_at_home() {
    let local = Access::LOCAL_READ;
    // Receive without the right: the sender hears of it, too.
    let mut pair = Pair::new();
    let qps = pair.connect(|_, _| {});
    let mine = pair.nodes[0].register(0, 64, local);
    let theirs = pair.nodes[1].register(0, 64, local);
    let room = [pair.nodes[1].sge(&theirs, 0, 8)];
    pair.recv(1, &qps[1], 5, &room);
    let sge = [pair.nodes[0].sge(&mine, 0, 8)];
    let outcome = attempt(&mut pair, &qps, send_work(), &sge);
    assert_eq!(outcome.status, Status::RemoteOperation);
    assert_eq!(statuses(&qps[1].poll()), [(5, Status::LocalProtection)]);
    assert_eq!(outcome.states, [QpState::Error; 2]);
    // Read and atomic results.
    for which in 1..4 {
        let mut pair = Pair::new();
        let qps = pair.connect(|_, _| {});
        let mine = pair.nodes[0].register(0, 64, local);
        let theirs = pair.nodes[1].register(0, 64, ALL);
        let sge = [pair.nodes[0].sge(&mine, 0, 8)];
        let (work, _) = works(pair.nodes[1].target(&theirs, 0))[which];
        let outcome = attempt(&mut pair, &qps, work, &sge);
        assert_eq!(outcome.status, Status::LocalProtection);
        assert_eq!(
            pair.nodes[1].bytes(0, 8),
            [0; 8],
            "nothing was asked of the peer"
        );
    }
    // Sending needs the right to send.
    let mut pair = Pair::new();
    let qps = pair.connect(|_, _| {});
    let mine = pair.nodes[0].register(0, 64, Access::RECV);
    let sge = [pair.nodes[0].sge(&mine, 0, 8)];
    assert_eq!(
        attempt(&mut pair, &qps, send_work(), &sge).status,
        Status::LocalProtection
    );
}

/// A region that is closed while a message is under way refuses the rest of it.
#[test]
fn closing_a_region_stops_a_message_in_its_middle() {
    for by_reference in [false, true] {
        let caps = rkey_link::Capabilities {
            by_reference,
            ..CAPS
        };
        let mut pair = Pair::with(caps, EngineConfig::default());
        let qps = pair.connect(|_, _| {});
        let mine = pair.nodes[0].register(0, 1 << 20, ALL);
        let theirs = pair.nodes[1].register(0, 1 << 20, ALL);
        pair.nodes[0].fill(0, &vec![7; 1 << 20]);
        let sge = [pair.nodes[0].sge(&mine, 0, 1 << 20)];
        let remote = pair.nodes[1].target(&theirs, 0);
        pair.send(
            0,
            &qps[0],
            &SendRequest::new(1, Work::Write { remote, imm: None }, &sge),
        );
        pair.carry_all();
        pair.drive(1, 4);
        let moved = pair.nodes[1]
            .bytes(0, 1 << 20)
            .iter()
            .filter(|byte| **byte == 7)
            .count();
        assert!(moved > 0 && moved < 1 << 20, "{moved}");
        let closing = pair.nodes[1].protection.close_region(theirs.id).unwrap();
        assert!(closing.is_drained(), "no lease outlives a step");
        closing.finish().unwrap_or_else(|_| panic!("drained"));
        pair.settle();
        assert_eq!(statuses(&qps[0].poll()), [(1, Status::RemoteAccess)]);
        let after = pair.nodes[1]
            .bytes(0, 1 << 20)
            .iter()
            .filter(|byte| **byte == 7)
            .count();
        assert_eq!(moved, after);
    }
}

/// With the policy of libfabric's reliable datagrams a refused request fails by itself: what
/// comes before and after it works, and both queue pairs stay in service.
#[test]
fn a_refusal_can_leave_the_queue_pairs_in_service() {
    for len in [8, 5000] {
        for by_reference in [false, true] {
            let caps = rkey_link::Capabilities {
                by_reference,
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
            pair.settle();
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

/// Memory that is not there is an error on both sides, and both say where.
#[test]
fn faults_are_errors_on_both_sides() {
    for by_reference in [false, true] {
        let caps = rkey_link::Capabilities {
            by_reference,
            ..CAPS
        };
        for (poison_at, read) in [(1, false), (1, true), (0, false), (0, true)] {
            let mut pair = Pair::with(caps, EngineConfig::default());
            let qps = pair.connect(|_, _| {});
            let mine = pair.nodes[0].register(0, 1 << 16, ALL);
            let theirs = pair.nodes[1].register(0, 1 << 16, ALL);
            let hole = pair.nodes[poison_at].base() + 6000;
            let hole = rkey_base::range::VaRange::new(hole, 16).unwrap();
            pair.nodes[poison_at].memory.poison(hole);
            let sge = [pair.nodes[0].sge(&mine, 0, 8192)];
            let remote = pair.nodes[1].target(&theirs, 0);
            let work = if read {
                Work::Read { remote }
            } else {
                Work::Write { remote, imm: None }
            };
            let outcome = attempt(&mut pair, &qps, work, &sge);
            if poison_at == 0 {
                assert_eq!(
                    outcome.status,
                    Status::LocalProtection,
                    "{by_reference} {read}"
                );
                // Also when it was the peer who found it: the key is ours, and the address exact.
                let reports = denied(&outcome.events[0]);
                assert_eq!(reports.len(), 1, "{by_reference} {read}");
                let denial = &reports[0].denial;
                assert_eq!(denial.key, rkey_core::NamedKey::Local(mine.local_key));
                assert_eq!(denial.reason, Reason::Fault { at: hole.start() });
                continue;
            }
            assert_eq!(
                outcome.status,
                Status::RemoteOperation,
                "{by_reference} {read}"
            );
            assert_eq!(outcome.states, [QpState::Error; 2]);
            for at in 0..2 {
                let reports = denied(&outcome.events[at]);
                assert!(matches!(reports[0].denial.reason, Reason::Fault { .. }));
            }
        }
    }
}

/// A write that fails, at its beginning or after a part of it has arrived, leaves everything outside of
/// the region as it was.
///
/// Proves: FI-I39
#[test]
fn a_write_that_fails_changes_nothing_outside_of_the_region() {
    const START: u64 = 4096;
    const LEN: u64 = 8192;
    for by_reference in [false, true] {
        let caps = rkey_link::Capabilities {
            by_reference,
            ..CAPS
        };
        // Past the end, before the beginning, around the top of the addresses; and across a page that is
        // not there.
        let cases: [(&str, u64, u32, Status); 5] = [
            ("end", START + LEN - 2500, 5000, Status::RemoteAccess),
            ("beginning", START - 1, 5000, Status::RemoteAccess),
            ("top", 0, 8, Status::RemoteAccess),
            ("top, long", 0, 5000, Status::RemoteAccess),
            ("hole", START, LEN as u32, Status::RemoteOperation),
        ];
        for (what, offset, len, status) in cases {
            let mut pair = Pair::with(caps, EngineConfig::default());
            let qps = pair.connect(|_, _| {});
            let mine = pair.nodes[0].register(0, 1 << 16, ALL);
            let theirs = pair.nodes[1].register(START, LEN, ALL);
            pair.nodes[0].fill(0, &vec![7; len as usize]);
            pair.nodes[1].fill(0, &[1; 1 << 16]);
            let mut remote = pair.nodes[1].target(&theirs, offset);
            if what.starts_with("top") {
                remote.addr = u64::MAX - 3;
            }
            if what == "hole" {
                let hole = pair.nodes[1].base() + START + LEN - 512;
                let hole = rkey_base::range::VaRange::new(hole, 512).unwrap();
                pair.nodes[1].memory.poison(hole);
            }
            let sge = [pair.nodes[0].sge(&mine, 0, len)];
            let outcome = attempt(&mut pair, &qps, Work::Write { remote, imm: None }, &sge);
            assert_eq!(outcome.status, status, "{what} {by_reference}");
            let before = pair.nodes[1].bytes(0, START as usize);
            assert!(before.iter().all(|b| *b == 1), "{what} {by_reference}");
            let after = START + LEN;
            let after = pair.nodes[1].bytes(after, (1 << 16) - after as usize);
            assert!(after.iter().all(|b| *b == 1), "{what} {by_reference}");
            if what == "hole" && !by_reference {
                // A part of it had arrived.
                assert_eq!(pair.nodes[1].bytes(START, 256), [7; 256]);
            }
        }
    }
}

/// A payload that the peer cannot fetch is the end of one message only, where the policy is so.
#[test]
fn memory_of_the_requester_that_is_not_there_ends_one_message() {
    let caps = rkey_link::Capabilities {
        by_reference: true,
        ..CAPS
    };
    let mut pair = Pair::with(caps, EngineConfig::default());
    let qps = pair.connect(|_, config| config.survive_remote_error = true);
    let mine = pair.nodes[0].register(0, 1 << 17, ALL);
    let theirs = pair.nodes[1].register(0, 1 << 17, ALL);
    let hole = pair.nodes[0].base() + 6000;
    pair.nodes[0]
        .memory
        .poison(rkey_base::range::VaRange::new(hole, 16).unwrap());
    pair.nodes[0].fill(1 << 16, &[9; 8192]);
    let bad = [pair.nodes[0].sge(&mine, 0, 8192)];
    let good = [pair.nodes[0].sge(&mine, 1 << 16, 8192)];
    let remote = pair.nodes[1].target(&theirs, 0);
    pair.recv(
        1,
        &qps[1],
        100,
        &[pair.nodes[1].sge(&theirs, 1 << 16, 8192)],
    );
    let write = Work::Write { remote, imm: None };
    for (id, work, sges) in [
        (1, send_work(), &bad),
        (2, send_work(), &good),
        (3, write, &bad),
        (4, Work::Read { remote }, &bad),
        (5, write, &good),
    ] {
        pair.send(0, &qps[0], &SendRequest::new(id, work, sges));
    }
    pair.settle();
    use Status::{LocalProtection, Success};
    assert_eq!(
        statuses(&qps[0].poll()),
        [
            (1, LocalProtection),
            (2, Success),
            (3, LocalProtection),
            (4, LocalProtection),
            (5, Success)
        ]
    );
    assert_eq!(statuses(&qps[1].poll()), [(100, Success)]);
    assert_eq!(pair.nodes[1].bytes(0, 8192), [9; 8192]);
    assert_eq!(pair.nodes[1].bytes(1 << 16, 8192), [9; 8192]);
}

/// An atomic that is not on a multiple of eight makes no sense at all.
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
                .any(|e| matches!(e, Event::RequestError { .. }))
        );
    }
}

/// Inline data needs no key, and its buffer is free at once.
///
/// Proves: VB-I09
#[test]
fn inline_data_needs_no_key() {
    let mut pair = Pair::new();
    let qps = pair.connect(|_, _| {});
    let theirs = pair.nodes[1].register(0, 64, ALL);
    let remote = pair.nodes[1].target(&theirs, 0);
    let mut data = [5u8; 32];
    let mut request = SendRequest::new(1, Work::Write { remote, imm: None }, &[]);
    request.inline = Some(&data);
    pair.send(0, &qps[0], &request);
    data.fill(6);
    pair.settle();
    assert_eq!(data, [6; 32]);
    assert_eq!(statuses(&qps[0].poll()), [(1, Status::Success)]);
    assert_eq!(pair.nodes[1].bytes(0, 32), [5; 32]);
}
