//! Paths with long round trips: windows beyond the first, without longer bursts.

use crate::model::target;
use crate::network::{A, B, Buffer, Conditions, FAIR};
use crate::program::{BASE, KEY};
use crate::world::{World, read, send};
use rkey_roce::transport::{Status, Target};

const MILLISECOND: u64 = 1_000_000;
/// The round trip.
const ROUND_TRIP: u64 = 50 * MILLISECOND;
/// The length of a message, in bytes: 10,240 packets.
const LONG: usize = 10 << 20;

/// A receiver that takes 200 packets in a millisecond, and whose buffer holds as many as one of 208 KiB does, which is Linux's usual
/// limit: a packet of 1024 bytes counts with 2304.
const RECEIVER: fn() -> Buffer = || Buffer::new(5000, 184);

fn world(conditions: Conditions) -> World {
    let mut world = World::with(|_| {});
    world.network.conditions = Conditions {
        transit: ROUND_TRIP / 2,
        ..conditions
    };
    world
}

/// Sends a message of `length` bytes from A to B. Returns how many round trips that takes.
fn send_one(world: &mut World, id: u64, length: usize) -> f64 {
    let receiver = &mut world.sides[B].program;
    receiver.endless = true;
    receiver.receives.push_back((id, Vec::new()));
    world.sides[A].post(send(id, length), vec![7; length]);
    finish(world, id)
}

/// Waits until a request has ended. Returns how many round trips that takes.
fn finish(world: &mut World, id: u64) -> f64 {
    let (begun, round_trip) = (world.now, 2 * world.network.conditions.transit);
    while world.sides[A].completed.len() as u64 <= id {
        world.run_until(world.now + round_trip / 50);
    }
    assert_eq!(world.sides[A].completed[id as usize], (id, Status::Success));
    (world.now - begun) as f64 / round_trip as f64
}

/// A window of 128 packets would take 80 round trips.
#[test]
#[cfg_attr(miri, ignore)]
fn a_long_message_takes_a_few_round_trips_and_overflows_no_buffer() {
    let mut world = world(FAIR);
    world.network.buffer = Some(RECEIVER());
    let first = send_one(&mut world, 0, LONG);
    assert!(first < 10.0, "{first}");
    // The window is large now: the limit is a burst of 128 packets in each millisecond.
    let second = send_one(&mut world, 1, LONG);
    assert!((1.5..3.5).contains(&second), "{second}");
    let buffer = world.network.buffer.unwrap();
    assert_eq!(buffer.overflowed, 0);
    // The first probe cannot know how long the path is.
    let counters = world.sides[A].connection.counters();
    assert_eq!((counters.retransmitted, counters.timeouts), (1, 0));
}

#[test]
#[cfg_attr(miri, ignore)]
fn on_a_short_path_nothing_is_spread() {
    let mut world = World::with(|_| {});
    for id in 0..2 {
        let round_trips = send_one(&mut world, id, LONG);
        assert!(round_trips < 81.0, "80 windows: {round_trips}");
    }
}

/// The reader's buffer holds all responses that are outstanding.
#[test]
#[cfg_attr(miri, ignore)]
fn a_long_read_on_a_short_path_overflows_no_buffer() {
    let mut world = World::with(|_| {});
    world.network.buffer = Some(RECEIVER());
    world.sides[A].program.exposed = vec![9; 4 << 20];
    world.sides[B].post(read(0, target(0), 4 << 20), vec![0; 4 << 20]);
    while world.sides[B].completed.is_empty() {
        world.run_until(world.now + MILLISECOND);
    }
    assert_eq!(world.sides[B].completed[0], (0, Status::Success));
    assert_eq!(world.network.buffer.unwrap().overflowed, 0);
}

/// A read is requested in parts of 64 packets, at most 16 at once.
#[test]
#[cfg_attr(miri, ignore)]
fn a_long_read_gets_more_than_a_window_in_a_round_trip() {
    let mut world = world(FAIR);
    send_one(&mut world, 0, LONG);
    world.sides[B].program.exposed = (0..4 << 20).map(|at: u32| (at >> 10) as u8).collect();
    let target = Target {
        address: BASE,
        rkey: KEY,
    };
    assert_eq!(target, self::target(0));
    world.sides[A].post(read(1, target, 4 << 20), vec![0; 4 << 20]);
    let round_trips = finish(&mut world, 1);
    // 4096 packets, 1024 in each round trip.
    assert!(round_trips < 4.5, "{round_trips}");
    let [reader, owner] = [A, B].map(|side| &world.sides[side].program);
    assert!(reader.requests[&1] == owner.exposed);
}

/// Without a write before them: reads alone make the window grow, although the first probe is sent before the first response.
#[test]
#[cfg_attr(miri, ignore)]
fn reads_make_the_window_grow() {
    let mut world = world(FAIR);
    world.sides[B].program.exposed = vec![9; 1 << 20];
    let mut times = Vec::new();
    for id in 0..4 {
        world.sides[A].post(read(id, target(0), 1 << 20), vec![0; 1 << 20]);
        times.push(finish(&mut world, id));
    }
    // 1024 packets: 128 twice, 256, 512; then all at once, within a round trip.
    assert!(times[0] < 6.5 && times[3] < 1.6, "{times:?}");
    assert_eq!(world.sides[A].connection.counters().probes, 1);
}

/// A slow link makes a short path seem long: a quarter of a burst takes three milliseconds. The queue gets no longer than a burst.
#[test]
#[cfg_attr(miri, ignore)]
fn on_a_slow_short_path_the_window_stays_a_burst() {
    let mut world = World::with(|_| {});
    world.network.buffer = Some(Buffer::new(MILLISECOND / 12, 130));
    for id in 0..3 {
        send_one(&mut world, id, LONG);
    }
    assert_eq!(world.network.buffer.unwrap().overflowed, 0);
}

/// A message of one packet, whose acknowledgement takes longer than the first probe, says nothing about losses.
#[test]
#[cfg_attr(miri, ignore)]
fn a_short_first_message_does_not_keep_the_window_small() {
    let mut world = world(FAIR);
    send_one(&mut world, 0, 100);
    let second = send_one(&mut world, 1, LONG);
    assert!(second < 10.0, "{second}");
}

/// The bottleneck passes 10 packets in a millisecond, and its queue holds as many as a round trip has.
#[test]
#[cfg_attr(miri, ignore)]
fn a_bottleneck_on_a_long_path_is_used_although_its_queue_overflows() {
    let mut world = world(FAIR);
    world.network.buffer = Some(Buffer::new(MILLISECOND / 10, 500));
    for id in 0..3 {
        send_one(&mut world, id, LONG);
    }
    let begun = world.now;
    send_one(&mut world, 3, LONG);
    let least = (LONG as u64 / 1024) * MILLISECOND / 10;
    let used = least as f64 / (world.now - begun) as f64;
    assert!(used > 0.9, "{used}");
    let (buffer, counters) = (
        world.network.buffer.unwrap(),
        world.sides[A].connection.counters(),
    );
    assert!(
        buffer.overflowed > 0 && counters.timeouts < 3,
        "{counters:?}"
    );
}

/// One packet in a hundred: the window stays small, but the message arrives, and only probes and reports repair losses.
#[test]
#[cfg_attr(miri, ignore)]
fn losses_on_a_long_path_need_no_timeouts() {
    let mut world = world(Conditions {
        lost: 1,
        most_lost: 1,
        ..FAIR
    });
    send_one(&mut world, 0, 1 << 20);
    assert_eq!(world.sides[A].connection.counters().timeouts, 0);
}

/// The round trip is three times the timeout, and the specification permits four times. Once it is known, no packet is sent twice.
#[test]
#[cfg_attr(miri, ignore)]
fn the_timeout_waits_for_long_round_trips() {
    let mut world = world(FAIR);
    world.network.conditions.transit = 100 * MILLISECOND;
    send_one(&mut world, 0, 1000);
    send_one(&mut world, 1, 1000);
    let before = world.sides[A].connection.counters();
    for id in 2..20 {
        send_one(&mut world, id, 100_000);
    }
    let after = world.sides[A].connection.counters();
    assert_eq!(
        (after.retransmitted, after.timeouts),
        (before.retransmitted, before.timeouts)
    );
}

/// The response to the first copy of a packet shows how long the path is now, if it comes too soon to answer the probe.
#[test]
fn a_path_that_becomes_longer_is_measured_again() {
    let mut world = world(FAIR);
    world.network.conditions.transit = 5 * MILLISECOND;
    for id in 0..20 {
        send_one(&mut world, id, 100);
    }
    let before = world.sides[A].connection.counters().probes;
    world.network.conditions.transit = 8 * MILLISECOND;
    for id in 20..40 {
        send_one(&mut world, id, 100);
    }
    let probes = world.sides[A].connection.counters().probes - before;
    assert!((1..5).contains(&probes), "{probes}");
}
