//! Counters that are bound to regions.

use crate::support::*;
use rkey_engine::*;

/// A counter that is bound to a region counts peers' operations on it.
#[test]
fn a_bound_counter_counts_each_operation_of_a_peer_once() {
    let mut pair = Pair::new();
    let [a, _] = pair.connect(|_, _| {});
    let mine = pair.nodes[0].register(0, 1000, ALL);
    let node = &pair.nodes[1];
    let range = [node.memory.range()];
    let mut spec = rkey_core::RegionSpec::new(node.domain, &range, ALL);
    spec.disabled = true;
    let theirs = node.protection.register(&spec).unwrap();
    node.protection.bind_counter(theirs.id, 42).unwrap();
    node.protection.enable(theirs.id).unwrap();
    // The long messages take several fragments but count once.
    for len in [8, 1000] {
        let sge = [pair.nodes[0].sge(&mine, 0, len)];
        let remote = pair.nodes[1].target(&theirs, 0);
        pair.send(
            0,
            &a,
            &SendRequest::new(1, Work::Write { remote, imm: None }, &sge),
        );
        pair.send(0, &a, &SendRequest::new(2, Work::Read { remote }, &sge));
        pair.run_until_idle();
    }
    let hits: Vec<_> = pair.nodes[1]
        .events()
        .iter()
        .filter_map(|e| match e {
            Event::CounterHit {
                counter,
                bytes,
                write,
                ..
            } => Some((*counter, *bytes, *write)),
            _ => None,
        })
        .collect();
    assert_eq!(
        hits,
        [
            (42, 8, true),
            (42, 8, false),
            (42, 1000, true),
            (42, 1000, false)
        ]
    );
}
