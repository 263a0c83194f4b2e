//! Peers that are stopped in the middle of traffic: memory that is taken back from them stays untouched.
// UNSAFETY: registers memory, whose bytes are checked after it was closed.
#![allow(unsafe_code)]

mod common;

use std::time::{Duration, Instant};

use common::process::{Holdings, Peer, address, alone, role};
use common::side::{AREA, INBOX, Remote, SINK, SINK_COUNT, SINK_WORDS, Side, seed_of};
use common::traffic::Traffic;
use common::{LONG, Random, pattern, until};
use rkey_device::base::range::VaRange;
use rkey_device::core::{Access, Key, Region, RegionSpec, WireKey};
use rkey_device::engine::{QpState, Status};

/// Sends and receives, one connection after the other, until the test is over.
fn peer_with_traffic() {
    let side = Side::open(seed_of(3));
    for round in 0.. {
        side.empty_inbox();
        let (offer, qp) = (side.offer(), side.qp());
        let invitation = side.invitation(&offer);
        let Ok(peer) = side
            .device
            .connect(address(), &[&qp], &invitation, Duration::from_secs(3))
        else {
            return;
        };
        let remote = Remote::from(&peer.private_data[..]);
        let mut traffic = Traffic::new(&side, &qp, &offer, remote, Random::from(round));
        while traffic.first_failure.is_none() {
            traffic.fill();
            traffic.step(false);
        }
        traffic.drain();
        traffic.close();
        drop(qp);
        side.withdraw(&offer);
    }
}

/// A peer is stopped at a random moment of mixed traffic in both directions. What is outstanding ends
/// with a time-out and flushes; regions can be closed; what then happens to the memory is our business
/// alone, also when the peer continues; and the device serves the same peer again.
#[test]
fn stopped_in_the_middle_of_traffic() {
    const TEST: &str = "stopped_in_the_middle_of_traffic";
    match role().as_deref() {
        None | Some("alone") => {}
        Some(_) => return peer_with_traffic(),
    }
    if !alone(TEST) {
        return;
    }
    let mut random = Random::seeded(TEST);
    let mut side = Side::open(seed_of(4));
    let listener = side.listen();
    let peer = Peer::start(TEST, "peer", listener.local_address());
    let mut holdings = None;
    for round in 0..4 {
        let when = format!("round {round}");
        side.empty_inbox();
        let (offer, qp) = (side.offer(), side.qp());
        let remote = side.accept(&listener, &qp, &offer);
        let mut traffic = Traffic::new(&side, &qp, &offer, remote, random.clone());
        let end = Instant::now() + Duration::from_micros(10_000 + random.below(60_000));
        while Instant::now() < end {
            traffic.fill();
            traffic.step(false);
        }
        assert_eq!(traffic.first_failure, None, "{when}");
        peer.stop();
        let stopped = Instant::now();
        while traffic.first_failure.is_none() {
            traffic.fill();
            traffic.step(round % 2 == 1);
            assert!(stopped.elapsed() < LONG, "{when}: no error came");
        }
        traffic.drain();
        let (opcode, status) = traffic.first_failure.unwrap();
        assert_eq!(status, Status::RetryExceeded, "{when}: {opcode:?}");
        let failed = stopped.elapsed();
        assert_eq!(qp.query().unwrap().state, QpState::Error);
        traffic.close();
        let mut qp = Some(qp);
        if round % 2 == 0 {
            drop(qp.take());
        }
        // All the memory is closed while the peer is stopped; it may have been about to push what it was
        // asked to read.
        side.withdraw(&offer);
        side.close_local();
        let closed = stopped.elapsed();
        side.check_memory(remote.seed, &when);
        let memory = &side.memory;
        let fill = |word: usize| pattern(seed_of(100 + round), word);
        memory.fill(SINK, SINK_COUNT * SINK_WORDS, fill);
        memory.fill(INBOX, AREA, fill);
        peer.go_on();
        drop(qp);
        std::thread::sleep(Duration::from_millis(100));
        for (start, words) in [(SINK, SINK_COUNT * SINK_WORDS), (INBOX, AREA)] {
            let other = memory.first_other(start, words, |word, value| value == fill(word));
            assert_eq!(other, None, "{when}: written after the region was closed");
        }
        side.open_local();
        eprintln!("{TEST}: {when}: time-out after {failed:.0?}, closed after {closed:.0?}");
        until("the end of the old queue pair", || {
            side.device.inspect().unwrap().qps.is_empty()
        });
        if round > 0 {
            let now = Holdings::now();
            let before: Holdings = *holdings.get_or_insert(now);
            assert!(
                now.descriptors <= before.descriptors && now.mappings <= before.mappings,
                "{when}: {now:?} after {before:?}"
            );
        }
    }
    // After all that, the same peer and the same device work together.
    side.empty_inbox();
    let (offer, qp) = (side.offer(), side.qp());
    let remote = side.accept(&listener, &qp, &offer);
    side.verify(&qp, &remote, "at the end");
    drop(qp);
    side.withdraw(&offer);
}

/// Memory of the device's allocator in a region of its own.
fn share(side: &Side) -> (rkey_device::SharedMemory, Region) {
    let memory = side.device.allocate_shared(LEASED, true).unwrap();
    let ranges: [VaRange; 1] = [memory.range().unwrap()];
    let mut spec = RegionSpec::new(side.domain, &ranges, Access::REMOTE);
    spec.memory = memory.kind(0);
    // SAFETY: the memory is only reached by address, with volatile accesses, and outlives the region.
    let region = unsafe { side.device.register(&spec) }.unwrap();
    (memory, region)
}

const LEASED: usize = 1 << 20;

/// Writes through leases as fast as it can: many small copies, or few large ones.
fn peer_with_a_lease() {
    let side = Side::open(5);
    let bytes = vec![0xaau8; LEASED];
    for round in 0.. {
        let qp = side.qp();
        let Ok(peer) = side
            .device
            .connect(address(), &[&qp], &[], Duration::from_secs(3))
        else {
            return;
        };
        let word =
            |at: usize| u64::from_le_bytes(peer.private_data[at..at + 8].try_into().unwrap());
        let (base, key) = (word(0), WireKey::Device(Key(word(8) as u32)));
        let Ok(mut lease) = qp.lease(key, base, LEASED as u64, true, LONG) else {
            continue;
        };
        let len = if round % 2 == 0 { 64 } else { LEASED };
        while lease.write(0, &bytes[..len]).is_ok() {}
    }
}

/// A peer that writes through a lease is stopped; the region is closed, and from then on not a byte of
/// the memory changes, also when the peer continues.
#[test]
fn stopped_with_a_lease() {
    const TEST: &str = "stopped_with_a_lease";
    if role().is_some() {
        return peer_with_a_lease();
    }
    let side = Side::open(6);
    let listener = side.listen();
    let peer = Peer::start(TEST, "peer", listener.local_address());
    for round in 0..6 {
        let (memory, region) = share(&side);
        let word = |index: usize| {
            assert!(index < LEASED / 8);
            // SAFETY: inside of the memory, aligned, and mapped as long as `memory` lives.
            unsafe { memory.as_ptr().cast::<u64>().add(index) }
        };
        let qp = side.qp();
        let mut invitation = (memory.as_ptr() as u64).to_le_bytes().to_vec();
        invitation.extend_from_slice(&u64::from(region.key.0).to_le_bytes());
        let incoming = listener.accept(Some(LONG)).unwrap();
        incoming.accept(&[&qp], &invitation).unwrap();
        // SAFETY: see `word`.
        until("direct writes", || unsafe { word(0).read_volatile() } != 0);
        std::thread::sleep(Duration::from_micros(500 * round));
        peer.stop();
        let stopped = Instant::now();
        side.device.close_region(region).unwrap();
        let closed = stopped.elapsed();
        for index in 0..LEASED / 8 {
            // SAFETY: see `word`; the region is closed, so nobody else writes.
            unsafe { word(index).write_volatile(pattern(round, index)) };
        }
        peer.go_on();
        std::thread::sleep(Duration::from_millis(50));
        for index in 0..LEASED / 8 {
            // SAFETY: see `word`.
            let now = unsafe { word(index).read_volatile() };
            assert_eq!(
                now,
                pattern(round, index),
                "round {round}: word {index} was changed"
            );
        }
        eprintln!("{TEST}: round {round}: closed after {closed:.1?}");
    }
}
