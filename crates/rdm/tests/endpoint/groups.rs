//! Operations of groups of endpoints.

use crate::host::{Op, Told};
use crate::net::{gather, sge};
use crate::world::{Node, World, address};
use rkey_rdm::atomic::{DataType, Op as AtomicOp};
use rkey_rdm::collective::kind::Kind;
use rkey_rdm::endpoint::{Call, Members, Service};
use rkey_rdm::error::Error;

/// The program's number for the group.
const GROUP: u64 = 77;

fn join(world: &mut World, node: usize, n: usize) {
    let members = Members {
        addresses: (0..n).map(address).collect(),
        rank: node,
    };
    let now = world.now;
    let Node { ep, host, .. } = &mut world.nodes[node];
    ep.join(host, members, GROUP, GROUP, false, now);
}

/// A group that all of its `n` endpoints have joined.
fn group(n: usize) -> World {
    let mut world = World::new(n, Service::ReliableDatagram);
    for node in 0..n {
        join(&mut world, node, n);
    }
    world.settle();
    for node in 0..n {
        assert_eq!(world.told(node), [Told::Joined(GROUP, None)]);
        assert!(!world.nodes[node].ep.groups().unwrap().is_joining(GROUP));
    }
    world
}

/// Starts a member's part in adding up `count` numbers of each member; the sums go to `result`.
fn start_sum(world: &mut World, node: usize, count: usize, result: &mut [u64]) {
    let call = Call {
        group: GROUP,
        seat: world.nodes[node].ep.groups().unwrap().seat(GROUP).unwrap(),
        kind: Kind::AllReduce,
        root: 0,
        block: 8 * count,
        reduction: Some((DataType::Uint64, AtomicOp::Sum)),
        result: vec![sge(result.as_mut_ptr() as u64, 8 * count)],
    };
    let op = Op {
        context: node,
        form: None,
    };
    let now = world.now;
    let Node { ep, host, .. } = &mut world.nodes[node];
    let source = (node as u64 + 1).to_ne_bytes().repeat(count);
    let copy = |into: &mut [u8]| {
        into.copy_from_slice(&source);
        Ok(())
    };
    ep.collective(host, call.load(copy).unwrap(), op, now)
        .unwrap();
}

#[test]
fn all_members_get_the_same_sum() {
    // Short chunks carry their payload; long ones are read.
    for (n, count) in [(1, 4), (2, 4), (3, 5000), (5, 4), (8, 5000)] {
        let mut world = group(n);
        let mut results = vec![vec![0u64; count]; n];
        for (node, result) in results.iter_mut().enumerate() {
            start_sum(&mut world, node, count, result);
        }
        world.settle();
        let sum: u64 = (1..=n as u64).sum();
        for (node, result) in results.iter().enumerate() {
            assert_eq!(world.told(node), [Told::Done(node, None)]);
            let bytes = gather(&[sge(result.as_ptr() as u64, 8 * count)]);
            assert_eq!(bytes, sum.to_ne_bytes().repeat(count));
            assert_eq!(world.nodes[node].ep.outbox().operations(), 0);
        }
        assert_eq!(world.net.borrow().exposed(), 0);
    }
}

#[test]
fn collective_operations_fail_when_a_member_exits() {
    let mut world = group(3);
    let mut results = vec![vec![0u64; 4]; 3];
    world.kill(2);
    for (node, result) in results.iter_mut().enumerate().take(2) {
        start_sum(&mut world, node, 4, result);
    }
    world.settle();
    for node in 0..2 {
        let told = world.told(node);
        assert!(
            matches!(told.as_slice(), [Told::Done(it, Some(_))] if *it == node),
            "{told:?}"
        );
        let ep = &world.nodes[node].ep;
        assert_eq!(
            (ep.outbox().operations(), ep.groups().unwrap().under_way()),
            (0, 0)
        );
    }
    drop(results);
}

#[test]
fn members_whose_collective_calls_differ_get_an_error() {
    let mut world = group(2);
    let mut results = [vec![0u64; 4], vec![0u64; 5]];
    for (node, result) in results.iter_mut().enumerate() {
        start_sum(&mut world, node, 4 + node, result);
    }
    world.settle();
    for node in 0..2 {
        let told = world.told(node);
        assert_eq!(told, [Told::Done(node, Some(Error::Invalid))]);
    }
}

#[test]
fn a_waiting_member_gets_an_error_when_another_leaves_the_group() {
    let mut world = group(2);
    let mut result = vec![0u64; 4];
    start_sum(&mut world, 0, 4, &mut result);
    world.settle();
    assert_eq!(world.told(0), [], "the operation waits for member 1");
    let now = world.now;
    let Node { ep, host, .. } = &mut world.nodes[1];
    ep.leave(host, GROUP, now);
    world.settle();
    let told = world.told(0);
    assert!(
        matches!(told.as_slice(), [Told::Done(0, Some(_))]),
        "{told:?}"
    );
}

#[test]
fn joining_a_group_completes_when_the_last_member_joins() {
    let mut world = World::new(3, Service::ReliableDatagram);
    for node in 0..2 {
        join(&mut world, node, 3);
    }
    world.settle();
    assert!((0..2).all(|node| world.nodes[node].ep.groups().unwrap().is_joining(GROUP)));
    assert_eq!((world.told(0), world.told(1)), (vec![], vec![]));
    join(&mut world, 2, 3);
    world.settle();
    for node in 0..3 {
        assert_eq!(world.told(node), [Told::Joined(GROUP, None)]);
    }
}
