//! Unmapped memory: which side gets the error, and which bytes have changed.

use crate::support::*;
use rkey_core::Reason;
use rkey_engine::*;

/// Unmapped memory is an error on both sides, and both report the address.
#[test]
fn unmapped_memory_is_an_error_on_both_sides() {
    for remote_iovec in [false, true] {
        let caps = rkey_link::Capabilities {
            remote_iovec,
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
                    "{remote_iovec} {read}"
                );
                // Even when the peer found the fault, the report has our key and the exact address.
                let reports = denied(&outcome.events[0]);
                assert_eq!(reports.len(), 1, "{remote_iovec} {read}");
                let denial = &reports[0].denial;
                assert_eq!(denial.key, rkey_core::NamedKey::Local(mine.local_key));
                assert_eq!(denial.reason, Reason::Fault { at: hole.start() });
                continue;
            }
            assert_eq!(
                outcome.status,
                Status::RemoteOperation,
                "{remote_iovec} {read}"
            );
            assert_eq!(outcome.states, [QpState::Error; 2]);
            for at in 0..2 {
                let reports = denied(&outcome.events[at]);
                assert!(matches!(reports[0].denial.reason, Reason::Fault { .. }));
            }
        }
    }
}

/// A write that fails, at its beginning or after a part of it has arrived, leaves everything outside the region
/// unchanged.
///
/// Proves: FI-I39
#[test]
fn a_failed_write_changes_nothing_outside_the_region() {
    const START: u64 = 4096;
    const LEN: u64 = 8192;
    for remote_iovec in [false, true] {
        let caps = rkey_link::Capabilities {
            remote_iovec,
            ..CAPS
        };
        // The ranges are past the end, before the start, around the end of the address space, and across an unmapped
        // page.
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
            assert_eq!(outcome.status, status, "{what} {remote_iovec}");
            let before = pair.nodes[1].bytes(0, START as usize);
            assert!(before.iter().all(|b| *b == 1), "{what} {remote_iovec}");
            let after = START + LEN;
            let after = pair.nodes[1].bytes(after, (1 << 16) - after as usize);
            assert!(after.iter().all(|b| *b == 1), "{what} {remote_iovec}");
            if what == "hole" && !remote_iovec {
                // A part of the write had arrived.
                assert_eq!(pair.nodes[1].bytes(START, 256), [7; 256]);
            }
        }
    }
}

/// With `survive_remote_error`, a payload that the peer cannot fetch ends only one message.
#[test]
fn unmapped_memory_of_the_requester_fails_one_message() {
    let caps = rkey_link::Capabilities {
        remote_iovec: true,
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
    pair.run_until_idle();
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
