//! What each peer may do: rights, ranges, domains, keys, connections.

use crate::support::*;
use rkey_core::{Access, Key, RKey, Reason, RegionSpec};
use rkey_engine::*;

/// Every right grants its own kind of operation and no other; a refused operation changes nothing.
///
/// Proves: VB-010, VB-011, VB-012
#[test]
fn a_region_grants_only_the_operations_of_its_rights() {
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

/// The data of a read needs a region with the right for read results, or for messages if the
/// request asks for that.
#[test]
fn a_read_can_require_the_receive_right_instead_of_the_read_right() {
    let flags = [SendFlags::empty(), SendFlags::RECEIVES];
    for (granted, allowed) in [(Access::READ, flags[0]), (Access::RECV, flags[1])] {
        for flag in flags {
            for (remote_iovec, len) in [(false, 8), (false, 4096), (true, 4096)] {
                let caps = rkey_link::Capabilities {
                    remote_iovec,
                    ..CAPS
                };
                let mut pair = Pair::with(caps, EngineConfig::default());
                let qps = pair.connect(|_, _| {});
                let mine = pair.nodes[0].register(0, 4096, granted);
                let theirs = pair.nodes[1].register(0, 4096, Access::REMOTE_READ);
                pair.nodes[1].fill(0, &[7; 4096]);
                let remote = pair.nodes[1].target(&theirs, 0);
                let sge = [pair.nodes[0].sge(&mine, 0, len)];
                let request = SendRequest {
                    flags: SendFlags::SIGNALED | flag,
                    ..SendRequest::new(1, Work::Read { remote }, &sge)
                };
                pair.send(0, &qps[0], &request);
                pair.run(10);
                let (status, value) = match flag == allowed {
                    true => (Status::Success, 7),
                    false => (Status::LocalProtection, 0),
                };
                assert_eq!(
                    statuses(&qps[0].poll()),
                    [(1, status)],
                    "{granted} {flag:?}"
                );
                let bytes = pair.nodes[0].bytes(0, len as usize);
                assert!(
                    bytes.iter().all(|byte| *byte == value),
                    "{granted} {flag:?}"
                );
            }
        }
    }
}

/// The target's queue pair must also allow the operation.
///
/// Proves: VB-I06
#[test]
fn the_targets_queue_pair_must_also_grant_the_right() {
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

/// No access reaches a byte outside the region, with any copy mechanism.
///
/// Proves: VB-I04
#[test]
fn access_to_one_byte_outside_the_region_is_refused() {
    for (offset, len, ok) in [
        (4096, 4096, true),
        (8191, 1, true),
        (8192, 1, false),
        (4095, 1, false),
        (4096, 4097, false),
        (4095, 4097, false),
    ] {
        for remote_iovec in [false, true] {
            for read in [false, true] {
                let caps = rkey_link::Capabilities {
                    remote_iovec,
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
                assert_eq!(outcome.status, want, "{offset} {len} {remote_iovec} {read}");
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

/// A key works only on queue pairs of its domain, both as a local and as a remote key.
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
    // The peer was not involved, so its queue pair stays in service.
    assert_eq!(outcome.states, [QpState::Error, QpState::Rts]);
    assert_eq!(denied(&outcome.events[0])[0].side, Side::Local);
}

/// A key that was never issued, and a key whose region was deregistered.
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
        pair.run_until_idle();
        assert_eq!(statuses(&qps[0].poll()), [(1, Status::Success)]);
        if stale {
            assert!(pair.nodes[1].close(&theirs));
        } else {
            remote.key = RKey::Device(Key(theirs.key.0 ^ 0x5555_5500));
        }
        let outcome = attempt(&mut pair, &qps, Work::Write { remote, imm: None }, &sge);
        assert_eq!(outcome.status, Status::RemoteAccess);
    }
}

/// A receive, or the result of a read or an atomic, needs its right on the local region, and so does a send.
///
/// Proves: VB-009
#[test]
fn local_rights_apply_to_local_memory() {
    let local = Access::LOCAL_READ;
    // The receive lacks the right: the sender also gets an error.
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
            "the peer received no request"
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

/// If a region is deregistered while a message is in flight, the rest of the message is refused.
#[test]
fn deregistering_stops_a_message_in_progress() {
    for remote_iovec in [false, true] {
        let caps = rkey_link::Capabilities {
            remote_iovec,
            ..CAPS
        };
        let mut pair = Pair::with(caps, EngineConfig::default());
        let qps = pair.connect(|_, _| {});
        let mine = pair.nodes[0].register(0, 1 << 20, ALL);
        let theirs = pair.nodes[1].register(0, 1 << 20, ALL);
        pair.nodes[0].fill(0, &vec![7; 1 << 20]);
        let sge = [pair.nodes[0].sge(&mine, 0, 1 << 20)];
        let remote = pair.nodes[1].target(&theirs, 0);
        let start = remote.addr;
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
        let over = pair.nodes[1].close(&theirs);
        assert!(over, "no grant outlives a step");
        pair.run_until_idle();
        assert_eq!(statuses(&qps[0].poll()), [(1, Status::RemoteAccess)]);
        // Both reports name the whole write, not the fragment that came too late.
        for at in 0..2 {
            let reports = pair.nodes[at].engine.reports().all();
            let denial = &reports[0].denial;
            assert_eq!((denial.addr, denial.len), (start, 1 << 20), "{at}");
        }
        let after = pair.nodes[1]
            .bytes(0, 1 << 20)
            .iter()
            .filter(|byte| **byte == 7)
            .count();
        assert_eq!(moved, after);
    }
}

/// A denial of our own memory names the whole scatter/gather entry, which is what the program posted, not the fragment that
/// came too late.
#[test]
fn a_local_denial_names_the_whole_scatter_gather_entry() {
    const LEN: u32 = 1 << 16;
    for (read, at) in [(true, 0), (false, 0), (false, 1)] {
        let mut pair = Pair::new();
        let qps = pair.connect(|_, _| {});
        let regions = [0, 1].map(|at| pair.nodes[at].register(0, LEN.into(), ALL));
        let [mine, theirs] = &regions;
        let sge = [pair.nodes[0].sge(mine, 0, LEN)];
        let sink = [pair.nodes[1].sge(theirs, 0, LEN)];
        let remote = pair.nodes[1].target(theirs, 0);
        let work = if read {
            Work::Read { remote }
        } else {
            send_work()
        };
        pair.recv(1, &qps[1], 9, &sink);
        pair.send(0, &qps[0], &SendRequest::new(1, work, &sge));
        // A few fragments get through.
        pair.carry_requests(0, 4);
        pair.drive(1, 4);
        pair.carry_responses(0, 4);
        pair.drive(0, 4);
        pair.nodes[at].close(&regions[at]);
        pair.run_until_idle();
        let reports = pair.nodes[at].engine.reports().all();
        let report = &reports[0];
        assert_eq!(report.side, Side::Local, "{read} {at}");
        let start = [&sge, &sink][at][0].addr;
        let named = (report.denial.addr, report.denial.len);
        assert_eq!(named, (start, u64::from(LEN)), "{read} {at}");
    }
}

/// Inline data needs no key, and its buffer may be reused at once.
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
    pair.run_until_idle();
    assert_eq!(data, [6; 32]);
    assert_eq!(statuses(&qps[0].poll()), [(1, Status::Success)]);
    assert_eq!(pair.nodes[1].bytes(0, 32), [5; 32]);
}

/// Only requests from the connected queue pair of the connected device are accepted.
#[test]
fn requests_from_unconnected_queue_pairs_are_ignored() {
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
    pair.run_until_idle();
    assert_eq!(statuses(&a.poll()), [(2, Status::Success)]);
}
