//! What a refusal reveals to peers that must not be told the reason.

use crate::support::*;
use rkey_base::range::VaRange;
use rkey_core::{Access, Addressing, Key, RKey, Reason, RegionSpec, WindowKind};
use rkey_engine::*;
use std::collections::HashSet;

fn peer(explain: bool) -> Origin {
    Origin {
        process: Process {
            user: 7,
            pid: 42,
            started: 1,
            host: None,
        },
        here: false,
        explain,
    }
}

/// Keys and addresses that node 1 denies to node 0, each for a different reason.
fn mistakes(node: &mut Node) -> Vec<(RKey, u64)> {
    let range = [VaRange::new(node.base(), 64).unwrap()];
    let spec = RegionSpec::new(node.domain, &range, ALL);
    let gone = node.protection.register(&spec).unwrap();
    assert!(node.close(&gone));
    let register = |spec: RegionSpec<'_>| node.protection.register(&spec).unwrap();
    let good = register(spec);
    let domain = node.protection.create_domain().unwrap();
    let foreign = register(RegionSpec { domain, ..spec });
    let read_only = register(RegionSpec {
        access: Access::REMOTE_READ,
        ..spec
    });
    let disabled = register(RegionSpec {
        disabled: true,
        ..spec
    });
    let of_another = register(RegionSpec {
        peer: Some(5),
        ..spec
    });
    let zero_based = register(RegionSpec {
        addressing: Addressing::Zero,
        ..spec
    });
    let window = node
        .protection
        .create_window(node.domain, WindowKind::Type1)
        .unwrap();
    let base = node.base();
    let mut all = vec![(RKey::Requested(5), base)];
    let device = [
        (Key(0x7777_7777), base),
        (gone.key, base),
        (foreign.key, base),
        (Key(good.local_key.0), base),
        (read_only.key, base),
        (disabled.key, base),
        (of_another.key, base),
        (window.key, base),
        (good.key, base + 60),
        (good.key, base - 4),
        (good.key, 0),
        (good.key, u64::MAX - 2),
        (zero_based.key, base),
    ];
    all.extend(device.map(|(key, addr)| (RKey::Device(key), addr)));
    all
}

/// The response to each mistake, without message numbers, and what is reported to the initiator and the target.
fn answers(explain: bool) -> (Vec<String>, Vec<Reason>, Vec<Reason>) {
    let mut pair = Pair::new();
    let qps = pair.connect(|_, config| config.survive_remote_error = true);
    let [_, tail] = pair.add_wire(peer(explain), &qps[0]);
    let mine = pair.nodes[0].register(0, 64, ALL);
    let mut wires = Vec::new();
    for (key, addr) in mistakes(&mut pair.nodes[1]) {
        let sge = [pair.nodes[0].sge(&mine, 0, 8)];
        let remote = Target { addr, key };
        let write = Work::Write { remote, imm: None };
        pair.send(0, &qps[0], &SendRequest::new(1, write, &sge));
        // Like `run_until_idle`, but records the responses.
        for _ in 0..8 {
            pair.drive(0, 64);
            pair.drive(1, 64);
            let tail = pair.nodes[1].engine.link_mut(tail).unwrap();
            for passing in &tail.outbox {
                if let Passing::Fragment(header, bytes) = passing {
                    let header = rkey_link::Header { msn: 0, ..*header };
                    wires.push(format!("{header:?} {bytes:?}"));
                }
            }
            pair.carry_all();
        }
        let done = qps[0].poll();
        assert_eq!(done[0].status, Status::RemoteAccess);
        let told = pair.nodes[0].engine.reports().find(done[0].vendor);
        let told = told.expect("a report for the completion");
        assert_eq!((told.denial.addr, told.denial.len), (addr, 8));
    }
    let [near, far] = [0, 1].map(|at| {
        let reports = pair.nodes[at].engine.reports().all();
        reports.iter().map(|it| it.denial.reason).collect()
    });
    (wires, near, far)
}

/// A peer that must not be told the reason gets the same bytes for every reason; the owner's report has the reason. A
/// peer that may be told gets each reason.
#[test]
fn refusals_without_explanation_do_not_differ_by_reason() {
    let (wires, near, far) = answers(false);
    assert_eq!(wires.len(), far.len());
    assert!(wires.iter().all(|wire| *wire == wires[0]), "{wires:#?}");
    assert!(near.iter().all(|reason| *reason == Reason::Withheld));
    let kinds: HashSet<_> = far.iter().map(std::mem::discriminant).collect();
    assert!(kinds.len() >= 11, "{far:?}");

    let (wires, near, told) = answers(true);
    assert!(wires.iter().any(|wire| *wire != wires[0]));
    assert_eq!((&near, &told), (&far, &far));
}

/// The same holds for keys that a peer asks to invalidate.
#[test]
fn refused_invalidations_without_explanation_do_not_differ() {
    for explain in [false, true] {
        let mut pair = Pair::new();
        let qps = pair.connect(|_, config| config.survive_remote_error = true);
        let [_, tail] = pair.add_wire(peer(explain), &qps[0]);
        let theirs = pair.nodes[1].register(0, 64, ALL);
        let mut wires = HashSet::new();
        for key in [theirs.key, Key(0x7777_7777)] {
            pair.recv(1, &qps[1], 9, &[]);
            let work = Work::Send {
                imm: None,
                invalidate: Some(key),
            };
            pair.send(0, &qps[0], &SendRequest::new(1, work, &[]));
            for _ in 0..8 {
                pair.drive(0, 64);
                pair.drive(1, 64);
                let tail = pair.nodes[1].engine.link_mut(tail).unwrap();
                for passing in &tail.outbox {
                    if let Passing::Fragment(header, bytes) = passing {
                        let header = rkey_link::Header { msn: 0, ..*header };
                        wires.insert(format!("{header:?} {bytes:?}"));
                    }
                }
                pair.carry_all();
            }
            assert_eq!(statuses(&qps[0].poll()), [(1, Status::RemoteAccess)]);
        }
        assert_eq!(wires.len(), if explain { 2 } else { 1 });
    }
}
