//! Order, fences, limits of operations in flight, and many messages at once.

use crate::support::*;
use rkey_engine::*;
use rkey_link::Capabilities;

/// A message is scattered over the buffers of the receive in order, and gathered from those of
/// the send.
#[test]
fn messages_are_gathered_and_scattered_in_order() {
    for remote_iovec in [false, true] {
        let caps = Capabilities {
            remote_iovec,
            remote_iovec_min: 100,
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
        pair.run_until_idle();
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
        // Read the bytes back.
        let back = [(50_000u64, 1u32), (60_000, 1875), (70_000, 1)];
        let sges = back.map(|(at, len)| pair.nodes[0].sge(&mine, at, len));
        pair.nodes[1].fill(100_000, &whole);
        let remote = pair.nodes[1].target(&theirs, 100_000);
        pair.send(0, &a, &SendRequest::new(2, Work::Read { remote }, &sges));
        pair.run_until_idle();
        assert_eq!(statuses(&a.poll()), [(2, Status::Success)]);
        let got: Vec<u8> = back
            .iter()
            .flat_map(|&(at, len)| pair.nodes[0].bytes(at, len as usize))
            .collect();
        assert_eq!(got, whole);
    }
}

#[test]
fn unsignalled_work_completes_silently() {
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
            pair.run_until_idle();
        }
        let want = if signal_all { 256 } else { 3 }; // one poll of 256
        assert_eq!(a.poll().len(), want);
    }
}

/// A fenced request waits for earlier reads and atomics; others may complete before them.
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
        pair.run_until_idle();
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
        pair.run_until_idle();
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

#[test]
fn draining_a_send_queue_finishes_only_started_requests() {
    let mut pair = Pair::new();
    let ([a, _], [mine, theirs]) = transfer(&mut pair);
    let sge = [pair.nodes[0].sge(&mine, 0, 8192)]; // more than the window, so it stops in the middle
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
    pair.run_until_idle();
    assert_eq!(statuses(&a.poll()), [(1, Status::Success)]);
    let events = pair.nodes[0].events();
    assert!(
        matches!(events[..], [Event::Async(AsyncEvent::SqDrained { .. })]),
        "{events:?}"
    );
    pair.nodes[0]
        .engine
        .modify_qp(a.id, &QpAttributes::to(QpState::Rts))
        .unwrap();
    pair.run_until_idle();
    assert_eq!(statuses(&a.poll()), [(2, Status::Success)]);
}

/// Messages larger than the window, on a wire that carries one fragment at a time, with both directions busy and little
/// room for responses.
#[test]
fn many_messages_arrive_in_order_over_a_narrow_wire() {
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
    pair.run_until_idle();
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

#[test]
fn an_idle_engine_does_nothing_and_has_no_deadline() {
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
