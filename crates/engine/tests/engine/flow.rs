//! Order, fences, retries, timeouts and links that break.

use crate::support::*;
use rkey_engine::*;
use rkey_link::{Capabilities, DownReason};

const MS: u64 = 1_000_000;

fn transfer(pair: &mut Pair) -> ([Qp; 2], [rkey_core::Region; 2]) {
    let qps = pair.connect(|_, _| {});
    let regions = [0, 1].map(|at| pair.nodes[at].register(0, 1 << 20, ALL));
    (qps, regions)
}

#[test]
fn a_sender_waits_for_the_receiver() {
    let mut pair = Pair::new();
    let ([a, b], [mine, theirs]) = transfer(&mut pair);
    pair.nodes[0].fill(0, &pattern(1, 2048));
    for id in 0..8u64 {
        let sge = [pair.nodes[0].sge(&mine, id * 256, 256)];
        pair.send(0, &a, &SendRequest::new(id, send_work(), &sge));
    }
    pair.settle();
    assert!(a.poll().is_empty());
    // The delay is the one that the receiver asks for: 0.64 ms.
    let deadline = pair.drive(0, 64).next_deadline.unwrap();
    assert!(deadline <= pair.now + 640_000);
    for id in 0..8u64 {
        let room = [pair.nodes[1].sge(&theirs, id * 256, 256)];
        pair.recv(1, &b, 100 + id, &room);
    }
    pair.settle();
    assert!(
        a.poll().is_empty(),
        "nothing is tried before the delay is over"
    );
    pair.run(5 * MS);
    let want: Vec<_> = (0..8).map(|id| (id, Status::Success)).collect();
    assert_eq!(statuses(&a.poll()), want);
    let want: Vec<_> = (100..108).map(|id| (id, Status::Success)).collect();
    assert_eq!(statuses(&b.poll()), want);
    assert_eq!(pair.nodes[1].bytes(0, 2048), pattern(1, 2048));
}

#[test]
fn receiver_not_ready_retries_are_counted() {
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
            assert!(done.is_empty(), "7 is for ever");
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

#[test]
fn a_receive_that_is_too_small_is_an_error_on_both_sides() {
    for len in [9u32, 5000] {
        let mut pair = Pair::new();
        let ([a, b], [mine, theirs]) = transfer(&mut pair);
        let room = [pair.nodes[1].sge(&theirs, 0, 8)];
        pair.recv(1, &b, 5, &room);
        let sge = [pair.nodes[0].sge(&mine, 0, len)];
        pair.send(0, &a, &SendRequest::new(1, send_work(), &sge));
        pair.settle();
        assert_eq!(statuses(&a.poll()), [(1, Status::RemoteInvalidRequest)]);
        assert_eq!(statuses(&b.poll()), [(5, Status::LocalLength)]);
        assert_eq!(
            [0, 1].map(|at| pair.nodes[at].state([&a, &b][at])),
            [QpState::Error; 2]
        );
    }
}

/// A message is scattered over the buffers of the receive in order, and gathered from those of
/// the send.
#[test]
fn scatter_and_gather() {
    for by_reference in [false, true] {
        let caps = Capabilities {
            by_reference,
            reference_min: 100,
            ..CAPS
        };
        let mut pair = Pair::with(caps, EngineConfig::default());
        let ([a, b], [mine, theirs]) = transfer(&mut pair);
        pair.nodes[0].fill(0, &pattern(3, 4096));
        let parts = [(0, 100), (200, 0), (300, 777), (2000, 1000)];
        let from = parts.map(|(at, len)| pair.nodes[0].sge(&mine, at, len));
        let whole: Vec<u8> = parts
            .iter()
            .flat_map(|&(at, len)| pair.nodes[0].bytes(at, len as usize))
            .collect();
        let into = [(10_000u64, 1u32), (20_000, 999), (30_000, 5000)];
        let room = into.map(|(at, len)| pair.nodes[1].sge(&theirs, at, len));
        pair.recv(1, &b, 5, &room);
        pair.send(0, &a, &SendRequest::new(1, send_work(), &from));
        pair.settle();
        assert_eq!(statuses(&a.poll()), [(1, Status::Success)]);
        let got = b.poll();
        assert_eq!(
            (got[0].status, got[0].bytes as usize),
            (Status::Success, whole.len())
        );
        let placed: Vec<u8> = into
            .iter()
            .flat_map(|&(at, len)| pair.nodes[1].bytes(at, len as usize))
            .collect();
        assert_eq!(placed[..whole.len()], whole);
        // And back with a read.
        let back = [(50_000u64, 1u32), (60_000, 1875), (70_000, 1)];
        let sges = back.map(|(at, len)| pair.nodes[0].sge(&mine, at, len));
        pair.nodes[1].fill(100_000, &whole);
        let remote = pair.nodes[1].target(&theirs, 100_000);
        pair.send(0, &a, &SendRequest::new(2, Work::Read { remote }, &sges));
        pair.settle();
        assert_eq!(statuses(&a.poll()), [(2, Status::Success)]);
        let got: Vec<u8> = back
            .iter()
            .flat_map(|&(at, len)| pair.nodes[0].bytes(at, len as usize))
            .collect();
        assert_eq!(got, whole);
    }
}

#[test]
fn unsignalled_work_completes_without_a_word() {
    for signal_all in [false, true] {
        let mut pair = Pair::new();
        let [a, _] = pair.connect(|_, config| config.signal_all = signal_all);
        let mine = pair.nodes[0].register(0, 64, ALL);
        let theirs = pair.nodes[1].register(0, 64, ALL);
        let sge = [pair.nodes[0].sge(&mine, 0, 8)];
        let remote = pair.nodes[1].target(&theirs, 0);
        for id in 0..300 {
            let mut request = SendRequest::new(id, Work::Write { remote, imm: None }, &sge);
            request.flags.set(SendFlags::SIGNALED, id % 100 == 99);
            pair.send(0, &a, &request);
            pair.settle();
        }
        let want = if signal_all { 256 } else { 3 }; // one poll of 256
        assert_eq!(a.poll().len(), want);
    }
}

/// A fenced request waits for earlier reads and atomics; others may overtake their answers.
#[test]
fn a_fence_waits_for_reads() {
    for fence in [false, true] {
        let mut pair = Pair::new();
        let ([a, _], [mine, theirs]) = transfer(&mut pair);
        let sge = [pair.nodes[0].sge(&mine, 0, 8)];
        let remote = pair.nodes[1].target(&theirs, 0);
        pair.send(0, &a, &SendRequest::new(1, Work::Read { remote }, &sge));
        let mut request = SendRequest::new(2, Work::Write { remote, imm: None }, &sge);
        request.flags.set(SendFlags::FENCE, fence);
        pair.send(0, &a, &request);
        assert_eq!(pair.end(0).outbox.len(), if fence { 1 } else { 2 });
        pair.settle();
        assert_eq!(
            statuses(&a.poll()),
            [(1, Status::Success), (2, Status::Success)]
        );
    }
}

#[test]
fn outstanding_reads_are_limited() {
    for limit in [0u8, 1, 3] {
        let mut pair = Pair::new();
        let qps = [0, 1].map(|at| pair.nodes[at].qp(|_| {}));
        pair.ready(&qps, |_, step| {
            if step.max_reads_out.is_some() {
                step.max_reads_out = Some(limit);
            }
        });
        let [a, _] = &qps;
        let regions = [0, 1].map(|at| pair.nodes[at].register(0, 64, ALL));
        let sge = [pair.nodes[0].sge(&regions[0], 0, 8)];
        let remote = pair.nodes[1].target(&regions[1], 0);
        for id in 0..7 {
            let work = if id % 2 == 0 {
                Work::Read { remote }
            } else {
                Work::FetchAdd { remote, add: 1 }
            };
            pair.send(0, a, &SendRequest::new(id, work, &sge));
        }
        assert_eq!(pair.end(0).outbox.len(), usize::from(limit));
        pair.settle();
        let done = a.poll();
        assert_eq!(done.len(), 7);
        if limit == 0 {
            assert_eq!(done[0].status, Status::LocalQpOperation);
        } else {
            assert!(done.iter().all(|c| c.status.is_success()));
            assert_eq!(pair.nodes[1].bytes(0, 8), 3u64.to_ne_bytes());
        }
    }
}

/// A peer that comes up later is waited for; requests reach it in order.
#[test]
fn a_peer_that_is_not_ready_yet_is_asked_again() {
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
    // The process, or the machine, stands still for longer than any timeout; then all goes on.
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

/// One that never comes up costs the transport timeout, no more and not much less.
#[test]
fn a_peer_that_never_is_ready_fails_the_request_in_time() {
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

/// Different ideas about the first message number never look like success.
#[test]
fn message_numbers_that_do_not_match_fail() {
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

/// A peer that takes requests and does nothing fails them after the timeout; one that is slow
/// does not, as long as something moves.
#[test]
fn silence_fails_and_slowness_does_not() {
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
            pair.settle();
            assert_eq!(statuses(&a.poll()), [(1, Status::Success)]);
        }
    }
}

#[test]
fn an_idle_engine_asks_for_no_attention() {
    let mut pair = Pair::new();
    let ([a, b], [mine, theirs]) = transfer(&mut pair);
    let sge = [pair.nodes[0].sge(&mine, 0, 8)];
    pair.recv(1, &b, 5, &[pair.nodes[1].sge(&theirs, 0, 8)]);
    pair.send(0, &a, &SendRequest::new(1, send_work(), &sge));
    pair.run(1000 * MS);
    for at in 0..2 {
        let progress = pair.drive(at, 64);
        assert_eq!(progress, Progress::default());
    }
}

/// A requester that dies while its payload is being fetched has not made a mistake: its message is not looked
/// at twice, and the receive that it had taken is flushed with the others.
#[test]
fn a_requester_that_dies_in_the_middle_of_its_message() {
    let caps = Capabilities {
        by_reference: true,
        reference_min: 100,
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
    let blamed =
        |event: &Event| matches!(event, Event::RequestError { .. } | Event::QpFatal { .. });
    assert!(!events.iter().any(blamed), "{events:?}");
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::PeerGone { qp, .. } if *qp == b.id))
    );
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

/// A broken link fails what is outstanding at once, and leaves the rest alone.
#[test]
fn a_broken_link_fails_what_is_outstanding() {
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
            if let Event::PeerGone { qp, .. } = e {
                Some(*qp)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(gone, [c.id]);
    let link = events.iter().find_map(|e| match e {
        Event::LinkDown {
            link,
            reason: DownReason::PeerGone,
        } => Some(*link),
        _ => None,
    });
    assert!(pair.nodes[0].engine.take_detached(link.unwrap()).is_some());
    // The next post asks for a link, and hears that there is none.
    pair.send(0, &c, &SendRequest::new(9, send_work(), &sge));
    let events = pair.nodes[0].events();
    assert!(
        matches!(events[..], [Event::LinkNeeded { qp, peer }] if qp == c.id && peer == d.qpn),
        "{events:?}"
    );
    pair.nodes[0].engine.unreachable(c.id, d.qpn);
    assert_eq!(statuses(&c.poll()), [(9, RetryExceeded), (51, Flushed)]);
}

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
    pair.settle();
    // The receive without a buffer is too small for it.
    assert_eq!(statuses(&a.poll()), [(1, Status::RemoteInvalidRequest)]);

    // And without a link, the timeout ends the waiting.
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

/// Only the connected queue pair of the connected device is listened to.
#[test]
fn strangers_are_not_listened_to() {
    let mut pair = Pair::new();
    let [a, b] = pair.connect(|_, _| {});
    let [c, _d] = pair.connect(|_, _| {});
    // c claims to be connected to b, which is connected to a.
    pair.nodes[0]
        .engine
        .modify_qp(c.id, &QpAttributes::to(QpState::Reset))
        .unwrap();
    pair.up(0, &c, &b, |_, _| {});
    let regions = [0, 1].map(|at| pair.nodes[at].register(0, 64, ALL));
    pair.nodes[0].fill(0, &[1; 8]);
    let sge = [pair.nodes[0].sge(&regions[0], 0, 8)];
    let remote = pair.nodes[1].target(&regions[1], 0);
    pair.send(
        0,
        &c,
        &SendRequest::new(1, Work::Write { remote, imm: None }, &sge),
    );
    pair.run(2000 * MS);
    assert_eq!(statuses(&c.poll()), [(1, Status::RetryExceeded)]);
    assert_eq!(pair.nodes[1].bytes(0, 8), [0; 8]);
    pair.send(
        0,
        &a,
        &SendRequest::new(2, Work::Write { remote, imm: None }, &sge),
    );
    pair.settle();
    assert_eq!(statuses(&a.poll()), [(2, Status::Success)]);
}

#[test]
fn draining_lets_started_work_end_and_holds_back_the_rest() {
    let mut pair = Pair::new();
    let ([a, _], [mine, theirs]) = transfer(&mut pair);
    let sge = [pair.nodes[0].sge(&mine, 0, 8192)]; // more than the window: stops in the middle
    let remote = pair.nodes[1].target(&theirs, 0);
    for id in 1..=2 {
        pair.send(
            0,
            &a,
            &SendRequest::new(id, Work::Write { remote, imm: None }, &sge),
        );
    }
    pair.nodes[0]
        .engine
        .modify_qp(a.id, &QpAttributes::to(QpState::Sqd))
        .unwrap();
    pair.settle();
    assert_eq!(statuses(&a.poll()), [(1, Status::Success)]);
    let events = pair.nodes[0].events();
    assert!(
        matches!(events[..], [Event::SqDrained { .. }]),
        "{events:?}"
    );
    pair.nodes[0]
        .engine
        .modify_qp(a.id, &QpAttributes::to(QpState::Rts))
        .unwrap();
    pair.settle();
    assert_eq!(statuses(&a.poll()), [(2, Status::Success)]);
}

/// An unreliable connection tells its sender nothing about the receiver.
#[test]
fn unreliable_connections_lose_in_silence() {
    let mut pair = Pair::new();
    let [a, b] = pair.connect(|_, config| config.qp_type = QpType::Uc);
    let mine = pair.nodes[0].register(0, 4096, ALL);
    let theirs = pair.nodes[1].register(0, 4096, ALL);
    pair.nodes[0].fill(0, &pattern(1, 4096));
    let sge = [pair.nodes[0].sge(&mine, 0, 1000)];
    // No receive, then one; a bad key; and what works still works.
    pair.send(0, &a, &SendRequest::new(1, send_work(), &sge));
    pair.settle();
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
    pair.settle();
    let want: Vec<_> = (1..=4).map(|id| (id, Status::Success)).collect();
    assert_eq!(statuses(&a.poll()), want);
    assert_eq!(statuses(&b.poll()), [(50, Status::Success)]);
    assert_eq!(pair.nodes[1].bytes(0, 1000), pattern(1, 4096)[..1000]);
    assert_eq!(pair.nodes[1].bytes(2000, 1000), pattern(1, 4096)[..1000]);
    assert_eq!(pair.nodes[1].state(&b), QpState::Rts);
}

/// What a peer sends before we know which device it is on is not lost, not even where nobody would send
/// it again: it waits for the end of the search.
#[test]
fn an_unreliable_connection_does_not_lose_what_came_while_it_looked_for_its_peer() {
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
        pair.settle();
        assert!(a.poll().is_empty() && b.poll().is_empty());
        if found {
            let end = pair.ends[1];
            pair.nodes[1].engine.connect_qp(b.id, end).unwrap();
        } else {
            pair.nodes[1].engine.unreachable(b.id, a.qpn);
        }
        pair.settle();
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

/// A message that is larger than the window, on a wire that carries one piece at a time, with
/// both directions busy and little room for answers.
#[test]
fn many_at_once_through_a_narrow_wire() {
    let mut pair = Pair::new();
    for at in 0..2 {
        pair.end(at).window = 2;
        pair.tail(at).response_room = 1;
    }
    let mut jobs = Vec::new();
    for which in 0..5u64 {
        let qps = pair.connect(|_, _| {});
        let regions = [0, 1].map(|at| pair.nodes[at].register(0, 1 << 20, ALL));
        for at in 0..2 {
            let data = pattern(which * 2 + at as u64, 3000);
            pair.nodes[at].fill(which * 4096, &data);
            let sge = [pair.nodes[at].sge(&regions[at], which * 4096, 3000)];
            let remote = pair.nodes[1 - at].target(&regions[1 - at], 100_000 + which * 4096);
            pair.send(
                at,
                &qps[at],
                &SendRequest::new(1, Work::Write { remote, imm: None }, &sge),
            );
            let back = [pair.nodes[at].sge(&regions[at], 200_000 + which * 4096, 3000)];
            let mut read = SendRequest::new(2, Work::Read { remote }, &back);
            read.flags |= SendFlags::FENCE;
            pair.send(at, &qps[at], &read);
        }
        jobs.push(qps);
    }
    pair.settle();
    for (which, qps) in jobs.iter().enumerate() {
        for at in 0..2 {
            let want = [(1, Status::Success), (2, Status::Success)];
            assert_eq!(statuses(&qps[at].poll()), want);
            let data = pattern(which as u64 * 2 + at as u64, 3000);
            assert_eq!(
                pair.nodes[at].bytes(200_000 + which as u64 * 4096, 3000),
                data
            );
        }
    }
}

/// What the peer executed before it went away did happen, also if its acknowledgement is the last
/// thing that was heard of it.
#[test]
fn the_last_news_of_a_link_counts() {
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

/// A message that arrived before its sender went away is received, whichever of the links between
/// the two is found broken first.
#[test]
fn the_last_message_of_a_peer_is_received() {
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
