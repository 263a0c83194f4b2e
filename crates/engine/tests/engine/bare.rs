//! Peers that are not told why: what they can tell from a refusal.

use crate::support::*;
use rkey_base::range::VaRange;
use rkey_core::{Access, Key, Reason, RegionSpec, WireKey};
use rkey_engine::*;
use std::collections::HashSet;

fn stranger() -> Origin {
    Origin {
        process: Process {
            user: 7,
            pid: 42,
            started: 1,
        },
        here: false,
        explain: false,
    }
}

/// A key and an offset that node 1 denies to node 0, each for another reason.
fn mistakes(pair: &Pair, foreign_qp: u32) -> Vec<(WireKey, u64)> {
    let node = &pair.nodes[1];
    let range = [VaRange::new(node.base(), 64).unwrap()];
    let spec = RegionSpec::new(node.domain, &range, ALL);
    let register = |spec: &RegionSpec<'_>| node.protection.register(spec).unwrap();
    let close = |region: &rkey_core::Region| {
        let closing = node.protection.close_region(region.id).unwrap();
        assert!(closing.finish().is_ok());
    };
    let base = node.base();
    let good = register(&spec);
    let gone = register(&spec);
    close(&gone);
    let elsewhere = node.protection.create_domain().unwrap();
    let foreign = register(&RegionSpec::new(elsewhere, &range, ALL));
    let read_only = register(&RegionSpec::new(node.domain, &range, Access::REMOTE_READ));
    let zero_based = register(&spec.clone().zero_based());
    let disabled = register(&spec.clone().disabled());
    let bound = register(&spec.clone().for_endpoint(foreign_qp));
    let device = |key: Key, addr| (WireKey::Device(key), addr);
    vec![
        device(Key(0x7777_7777), base),
        (WireKey::Requested(5), base),
        device(gone.key, base),
        device(foreign.key, base),
        device(Key(good.local_key.0), base),
        device(read_only.key, base),
        device(disabled.key, base),
        device(bound.key, base),
        device(good.key, base + 60),
        device(good.key, base - 4),
        device(good.key, 0),
        device(good.key, u64::MAX - 2),
        device(zero_based.key, base),
    ]
}
