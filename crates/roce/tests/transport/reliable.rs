//! Two queue pairs of a reliable connection: the cost of single losses, and when they give up.

use crate::model::target;
use crate::network::{A, B, LATENCY};
use crate::world::{World, read, send, write};
use rkey_roce::packet::{Body, Packet, Request, Response};
use rkey_roce::transport::{
    Access, Atomic, Config, Event, Operation, Status, WorkRequest, timeout_ns,
};
use std::cell::RefCell;
use std::rc::Rc;

/// Loses the packets for which `lost` returns true, and counts each side's packets.
fn lose(world: &mut World, mut lost: impl FnMut(usize, &Packet<'_>) -> bool + 'static) {
    world.network.drop_if = Some(Box::new(move |side, packet| lost(side, packet)));
}

/// Loses the `number`-th packet of a side, from 0.
fn lose_one(world: &mut World, side: usize, number: u32) {
    let mut count = 0;
    lose(world, move |from, _| {
        count += u32::from(from == side);
        from == side && count == number + 1
    });
}

fn world() -> World {
    World::with(|_| {})
}

/// Posts a send of `length` bytes from A, and a receive at B.
fn send_from_a(world: &mut World, length: usize) {
    world.sides[B]
        .program
        .receives
        .push_back((1, vec![0; length]));
    world.sides[A].post(send(1, length), vec![7; length]);
}

#[test]
fn without_loss_a_message_takes_one_round_trip_and_one_acknowledgement() {
    let mut world = world();
    send_from_a(&mut world, 100 * 1024);
    let start = world.now;
    world.run_until(start + 2 * LATENCY);
    assert_eq!(world.statuses(A), [Status::Success]);
    assert_eq!(world.network.sent, [100, 1]);
    assert_eq!(world.sides[B].received[0].1, vec![7; 100 * 1024]);
}

#[test]
fn a_lost_packet_costs_one_more_round_trip() {
    let mut world = world();
    send_from_a(&mut world, 10 * 1024);
    lose_one(&mut world, A, 3);
    let start = world.now;
    world.run_until(start + 4 * LATENCY);
    assert_eq!(world.statuses(A), [Status::Success]);
    assert_eq!(world.network.sent, [10 + 7, 2]);
    let counters = world.sides[A].connection.counters();
    assert_eq!((counters.sequence_naks, counters.timeouts), (1, 0));
}

#[test]
fn a_lost_last_packet_or_acknowledgement_costs_a_timeout_or_a_probe() {
    for (side, probes) in [(A, false), (B, false), (A, true), (B, true)] {
        let mut world = World::with(|config| {
            config.probe_after = config.probe_after.filter(|_| probes);
        });
        send_from_a(&mut world, 1);
        lose_one(&mut world, side, 0);
        let start = world.now;
        // No round trip has been measured.
        let timeout = if probes {
            20_000_000
        } else {
            timeout_ns(14).unwrap()
        };
        world.run_until(start + timeout + 2 * LATENCY - 1);
        assert_eq!(world.statuses(A), []);
        world.run_until(start + timeout + 2 * LATENCY);
        assert_eq!(world.statuses(A), [Status::Success]);
        assert_eq!(world.sides[B].received.len(), 1);
        let duplicates = world.sides[B].connection.counters().duplicates;
        assert_eq!(duplicates, u64::from(side == B));
    }
}

#[test]
fn a_silent_peer_is_retried_as_often_as_the_retry_count_allows() {
    for retry_count in [0, 3, 7] {
        let mut world = World::with(|config| {
            (config.retry_count, config.probe_after) = (retry_count, None);
        });
        lose(&mut world, |from, _| from == A);
        send_from_a(&mut world, 1);
        world.sides[A].post(send(2, 1), vec![0]);
        let start = world.now;
        // The timeout doubles twice.
        let waits = [1, 2].into_iter().chain(std::iter::repeat(4));
        let timeout =
            timeout_ns(14).unwrap() * waits.take(usize::from(retry_count) + 1).sum::<u64>();
        world.run_until(start + timeout - 1);
        assert_eq!(world.statuses(A), []);
        world.run();
        assert_eq!(world.statuses(A), [Status::RetryExceeded, Status::Flushed]);
        assert_eq!(world.sides[A].failures, [Event::Failed]);
        let counters = world.sides[A].connection.counters();
        assert_eq!(counters.timeouts, u64::from(retry_count) + 1);
        assert_eq!(world.network.sent[A], 2 * (u64::from(retry_count) + 1));
    }
}

#[test]
fn a_timeout_of_zero_waits_forever() {
    let mut world = World::with(|config| config.timeout = 0);
    lose(&mut world, |_, _| true);
    send_from_a(&mut world, 1);
    world.run();
    assert_eq!(world.statuses(A), []);
    assert_eq!(world.network.sent, [1, 0]);
}

#[test]
fn an_unacknowledged_window_stops_the_requester() {
    let mut world = World::with(|config| (config.window, config.timeout) = (10, 0));
    lose(&mut world, |from, _| from == B);
    send_from_a(&mut world, 100 * 1024);
    world.run();
    assert_eq!(world.network.sent[A], 10);
}

#[test]
fn lost_read_data_is_requested_from_the_first_missing_byte() {
    let mut world = world();
    world.sides[B].program.exposed = (0..16 << 10).map(|i| (i / 64) as u8).collect();
    world.sides[A].post(read(1, target(0), 8 * 1024), vec![0; 8 * 1024]);
    let requested = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&requested);
    let mut count = 0;
    lose(&mut world, move |_, packet| {
        if let Body::Request(_, Request::Read(reth)) = packet.headers.body {
            seen.borrow_mut().push((
                packet.headers.psn.get(),
                reth.address - target(0).address,
                reth.length,
            ));
        }
        count += u32::from(matches!(packet.headers.body, Body::Response(..)));
        count == 3
    });
    world.run();
    assert_eq!(world.statuses(A), [Status::Success]);
    assert_eq!(
        world.sides[A].program.requests[&1],
        world.sides[B].program.exposed[..8 * 1024]
    );
    let again = (0xff_fff2, 2 * 1024, 6 * 1024);
    assert_eq!(requested.borrow()[..], [(0xff_fff0, 0, 8 * 1024), again]);
}

#[test]
fn an_atomic_whose_result_is_lost_is_executed_once() {
    let mut world = world();
    let operation = Operation::Atomic {
        target: target(0),
        operation: Atomic::FetchAdd { add: 3 },
    };
    for id in 0..2 {
        world.sides[A].post(WorkRequest::new(id, operation, 8), vec![0; 8]);
    }
    lose_one(&mut world, B, 0);
    world.run();
    assert_eq!(world.statuses(A), [Status::Success; 2]);
    assert_eq!(world.sides[B].program.exposed[0], 6);
    let results = [0, 1].map(|id| world.sides[A].program.requests[&id][0]);
    assert_eq!(results, [0, 3]);
}

/// A peer that is refused learns why even if the first refusal is lost.
#[test]
fn a_lost_refusal_is_retransmitted() {
    let access = |world: &mut World| world.sides[B].program.rights = vec![Access::Read];
    for lost in [0, 1, 2] {
        let mut world = world();
        access(&mut world);
        world.sides[A].post(write(1, target(0), 5000), vec![1; 5000]);
        world.sides[A].post(send(2, 1), vec![1]);
        let mut left = lost;
        lose(&mut world, move |_, packet| {
            let refusal = matches!(
                packet.headers.body,
                Body::Response(_, Response::Acknowledge(_))
            );
            let is_lost = refusal && left > 0;
            left -= u32::from(is_lost);
            is_lost
        });
        world.run();
        assert_eq!(world.statuses(A), [Status::RemoteAccess, Status::Flushed]);
        assert_eq!(world.sides[B].failures.len(), 1);
        assert_eq!(world.sides[B].program.accesses, 0);
    }
}

#[test]
fn both_directions_share_a_connection() {
    let mut world = World::with(|config: &mut Config| config.window = 4);
    for side in [A, B] {
        for id in 0..20 {
            world.sides[1 - side]
                .program
                .receives
                .push_back((id, vec![0; 3000]));
            world.sides[side].post(send(id, 3000), vec![id as u8; 3000]);
            world.sides[side].post(read(100 + id, target(0), 3000), vec![1; 3000]);
        }
    }
    world.run();
    for side in [A, B] {
        assert_eq!(world.statuses(side), [Status::Success; 40]);
        let counters = world.sides[side].connection.counters();
        assert_eq!((counters.retransmitted, counters.timeouts), (0, 0));
        let bytes: Vec<u8> = world.sides[side]
            .received
            .iter()
            .map(|(_, bytes)| bytes[2999])
            .collect();
        assert!(bytes.iter().copied().eq(0..20));
    }
}
