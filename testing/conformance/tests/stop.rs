//! Peers are stopped in the middle of traffic, and memory that is taken back from them stays unchanged.
// UNSAFETY: registers memory, whose bytes are checked after it was deregistered.
#![allow(unsafe_code)]

mod common;

use std::time::{Duration, Instant};

use common::process::{Holdings, Peer, address, alone, role, sleep_in_read};
use common::side::{AREA, INBOX, Remote, SINK, SINK_COUNT, SINK_WORDS, Side, seed_of};
use common::traffic::Traffic;
use common::{LONG, Random, pattern, until};
use rkey_base::range::VaRange;
use rkey_core::{Access, Key, RKey, Region, RegionSpec};
use rkey_device::{Config, DeviceError, SharedMemory};
use rkey_engine::{Completion, QpState, SendRequest, Status, Target, Work};
use rkey_link::direct::DirectError;

/// A side with rings so small that many messages travel as remote iovecs.
fn small_ring(seed: u64) -> Side {
    let mut config = Config::from_env().unwrap();
    config.ring_bytes = 64 << 10;
    Side::with(config, seed)
}

/// Sends and receives on one connection after the other until the test has ended.
fn peer_with_traffic() {
    let side = small_ring(seed_of(3));
    for round in 0.. {
        side.empty_inbox();
        let (offer, qp) = (side.offer(), side.qp());
        let invitation = side.invitation(&offer);
        let Ok(peer) = side.device.connect(address(), &[&qp], &invitation, LONG) else {
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

/// A peer is stopped at a random moment of mixed traffic in both directions. Outstanding requests time out or are
/// flushed, and regions can be deregistered. From then on only we access the memory, even when the peer continues, and
/// the device serves the same peer again.
#[test]
fn memory_can_be_taken_back_from_a_peer_stopped_in_traffic() {
    const TEST: &str = "memory_can_be_taken_back_from_a_peer_stopped_in_traffic";
    match role().as_deref() {
        None | Some("alone") => {}
        Some(_) => return peer_with_traffic(),
    }
    if !alone(TEST) {
        return;
    }
    let mut random = Random::seeded(TEST);
    let mut side = small_ring(seed_of(4));
    let listener = side.listen();
    let before = Holdings::settled();
    let peer = Peer::start(TEST, "peer", listener.local_address());
    let mut most = None;
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
        let linked = Holdings::now();
        peer.stop();
        let stopped = Instant::now();
        while traffic.first_failure.is_none() {
            traffic.fill();
            traffic.step(round % 2 == 1);
            assert!(stopped.elapsed() < LONG, "{when}: no error");
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
        // All memory is deregistered while the peer is stopped; it may have been about to write the result of a
        // read.
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
            assert_eq!(
                other, None,
                "{when}: written after the region was deregistered"
            );
        }
        side.open_local();
        eprintln!("{TEST}: {when}: timeout after {failed:.0?}, deregistered after {closed:.0?}");
        until("the old queue pair to be destroyed", || {
            side.device.inspect().unwrap().qps.is_empty()
        });
        // Links that did not have to be cut remain. The other links are freed once the peer is known to have stopped
        // accessing our memory.
        let most = *most.get_or_insert(linked);
        until("the stopped peer's links to be freed", || {
            let now = Holdings::now();
            now.descriptors <= most.descriptors && now.mappings <= most.mappings
        });
    }
    // Afterwards, the same peer and the same device still work.
    side.empty_inbox();
    let (offer, qp) = (side.offer(), side.qp());
    let remote = side.accept(&listener, &qp, &offer);
    side.verify(&qp, &remote, "at the end");
    drop(qp);
    side.withdraw(&offer);
    drop(peer);
    before.wait_for("after the peer has exited");
}

/// A passive peer that offers memory to read.
fn peer_that_is_read() {
    let side = small_ring(seed_of(5));
    let offer = side.offer();
    let mut qps = Vec::new();
    loop {
        let qp = side.qp();
        let to = side.invitation(&offer);
        // Waits until the test accepts the next connection.
        if side.device.connect(address(), &[&qp], &to, LONG).is_err() {
            return;
        }
        qps.push(qp);
    }
}

/// A peer is stopped while it writes the results of our reads directly to our memory. The region can be deregistered,
/// and the memory reused: when the peer continues, it writes nothing.
#[test]
fn a_peer_stopped_while_it_writes_read_data_cannot_write_later() {
    const TEST: &str = "a_peer_stopped_while_it_writes_read_data_cannot_write_later";
    if role().is_some() {
        return peer_that_is_read();
    }
    let mut side = small_ring(seed_of(6));
    let listener = side.listen();
    let peer = Peer::start(TEST, "peer", listener.local_address());
    let offer = side.offer();
    let seed = seed_of(5);
    for round in 0..4 {
        let qp = side.qp();
        let remote = side.accept(&listener, &qp, &offer);
        let mut direct = None;
        until("a link to the peer", || {
            let links = side.device.inspect().unwrap().links;
            let ours = links.iter().find(|link| link.role == "requester");
            direct = ours.map(|link| link.remote_iovec);
            direct.is_some()
        });
        if direct == Some(false) {
            eprintln!("SKIP: the kernel does not permit copies between processes here");
            return side.withdraw(&offer);
        }
        let mut posted = 0;
        let mut done = 0;
        let mut batch = [Completion::default(); 16];
        // Another thread stops the peer, so that it has work until then.
        std::thread::scope(|scope| {
            let stopper = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20 + round));
                peer.stop();
            });
            while !stopper.is_finished() {
                while posted - done < 64 {
                    let place = SINK + posted as usize * AREA % (SINK_COUNT * SINK_WORDS);
                    let read = Work::Read {
                        remote: remote.pattern(0),
                    };
                    let sges = [side.sge(place, AREA)];
                    qp.post_send(&SendRequest::new(posted, read, &sges))
                        .unwrap();
                    posted += 1;
                }
                let count = side.cq.poll(&mut batch).unwrap();
                for completion in &batch[..count] {
                    assert_eq!(completion.status, Status::Success);
                    done += 1;
                }
            }
        });
        let stopped = Instant::now();
        side.close_local();
        let closed = stopped.elapsed();
        let fill = |word: usize| pattern(seed ^ round, word);
        side.memory.fill(SINK, SINK_COUNT * SINK_WORDS, fill);
        peer.go_on();
        while done < posted {
            let next = side.next();
            // Some reads completed before the peer was stopped; those that had not been sent yet fail because their
            // region no longer exists.
            assert!(
                matches!(
                    next.status,
                    Status::Success
                        | Status::RetryExceeded
                        | Status::LocalProtection
                        | Status::Flushed
                ),
                "{next:?}"
            );
            done += 1;
        }
        drop(qp);
        std::thread::sleep(Duration::from_millis(50));
        let words = SINK_COUNT * SINK_WORDS;
        let right = |word: usize, value| value == fill(word);
        let other = side.memory.first_other(SINK, words, right);
        assert_eq!(
            other, None,
            "round {round}: written after the region was deregistered"
        );
        side.open_local();
        eprintln!("{TEST}: round {round}: deregistered after {closed:.1?}");
    }
    side.withdraw(&offer);
}

/// Memory from the device's allocator in its own region.
fn share(side: &Side) -> (SharedMemory, Region) {
    let memory = side.device.allocate_shared(LEASED, true).unwrap();
    let region = register(side, &memory);
    (memory, region)
}

fn register(side: &Side, memory: &SharedMemory) -> Region {
    let ranges: [VaRange; 1] = [memory.range().unwrap()];
    let mut spec = RegionSpec::new(side.domain, &ranges, Access::REMOTE);
    spec.memory = memory.kind(0);
    // SAFETY: the memory is only accessed by address, with volatile accesses, and outlives the region.
    unsafe { side.device.register(&spec) }.unwrap()
}

/// The information that a peer needs to request a lease of `memory`.
fn invitation(memory: &SharedMemory, region: Region) -> Vec<u8> {
    let mut bytes = (memory.as_ptr() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(&u64::from(region.key.0).to_le_bytes());
    bytes
}

/// The address and the key in an invitation.
fn invited(bytes: &[u8]) -> (u64, RKey) {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    (word(0), RKey::Device(Key(word(8) as u32)))
}

const LEASED: usize = 1 << 20;

/// Writes through leases as fast as it can: many small copies, or few large ones.
fn peer_with_a_lease() {
    let side = Side::open(5);
    let bytes = vec![0xaau8; LEASED];
    for round in 0.. {
        let qp = side.qp();
        let Ok(peer) = side.device.connect(address(), &[&qp], &[], LONG) else {
            return;
        };
        let (base, key) = invited(&peer.private_data);
        let Ok(mut lease) = qp.lease(key, base, LEASED as u64, true, LONG) else {
            continue;
        };
        let len = if round % 2 == 0 { 64 } else { LEASED };
        while lease.write(0, &bytes[..len]).is_ok() {}
    }
}

/// A peer that writes through a lease is stopped and the region deregistered: from then on no byte of the memory
/// changes, even when the peer continues. Earlier writes are preserved.
#[test]
fn a_peer_stopped_with_a_lease_cannot_write_after_deregistration() {
    const TEST: &str = "a_peer_stopped_with_a_lease_cannot_write_after_deregistration";
    match role().as_deref() {
        None | Some("alone") => {}
        Some(_) => return peer_with_a_lease(),
    }
    if !alone(TEST) {
        return;
    }
    let side = Side::open(6);
    let listener = side.listen();
    let peer = Peer::start(TEST, "peer", listener.local_address());
    let mut holdings = None;
    for round in 0..12 {
        let (memory, region) = share(&side);
        let word = |index: usize| {
            assert!(index < LEASED / 8);
            // SAFETY: inside the memory, aligned, and mapped as long as `memory` lives.
            unsafe { memory.as_ptr().cast::<u64>().add(index) }
        };
        let qp = side.qp();
        let incoming = listener.accept(Some(LONG)).unwrap();
        let to = invitation(&memory, region);
        incoming.accept(&[&qp], &to).unwrap();
        // SAFETY: see `word`.
        until("direct writes", || unsafe { word(0).read_volatile() } != 0);
        std::thread::sleep(Duration::from_micros(500 * (round / 2)));
        peer.stop();
        // SAFETY: see `word`.
        let read = |index| unsafe { word(index).read_volatile() };
        let before: Vec<u64> = (0..LEASED / 8).map(read).collect();
        let stopped = Instant::now();
        side.device.deregister(region).unwrap();
        let closed = stopped.elapsed();
        let after: Vec<u64> = (0..LEASED / 8).map(read).collect();
        assert!(
            before == after,
            "round {round}: deregistering changed the memory"
        );
        for index in 0..LEASED / 8 {
            // SAFETY: see `word`; the region is deregistered, so there is no other writer.
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
        eprintln!("{TEST}: round {round}: deregistered after {closed:.1?}");
        drop((qp, memory));
        until("the old queue pair to be destroyed", || {
            side.device.inspect().unwrap().qps.is_empty()
        });
        let before = *holdings.get_or_insert_with(Holdings::settled);
        before.wait_for(&format!("round {round}"));
    }
}

/// The words that the peer writes; the word in the same page in which the neighbour counts; the neighbour's mark in a
/// page that no other process touches; and the word for its report.
const WRITTEN: usize = 256;
const COUNT: usize = WRITTEN + 50;
const MARK: usize = LEASED / 8 - 512;
const REPORT: usize = LEASED / 8 - 1;

/// Writes to the first page through a lease as fast as it can.
fn peer_in_the_first_page() {
    let side = Side::open(9);
    let qp = side.qp();
    let peer = side.device.connect(address(), &[&qp], &[], LONG).unwrap();
    let (base, key) = invited(&peer.private_data);
    let mut lease = qp.lease(key, base, LEASED as u64, true, LONG).unwrap();
    while lease.write(0, &[0xbb; WRITTEN * 8]).is_ok() {}
    sleep_in_read();
}

/// Counts through a lease until that is revoked, then reports the last number with a request, and requests another
/// lease.
fn neighbour() {
    let side = Side::open(7);
    let qp = side.qp();
    let peer = side.device.connect(address(), &[&qp], &[], LONG).unwrap();
    let (base, key) = invited(&peer.private_data);
    let mut lease = qp.lease(key, base, 4096, true, LONG).unwrap();
    let mut count = 0u64;
    let end = loop {
        match lease.write(8 * COUNT as u64, &(count + 1).to_le_bytes()) {
            Ok(()) => count += 1,
            Err(end) => break end,
        }
    };
    assert!(matches!(end, DirectError::Revoked), "{end}");
    drop(lease);
    let again = qp.lease(key, base, 4096, true, LONG).unwrap_err();
    assert!(matches!(again, DeviceError::Refused { .. }), "{again}");
    // The pages that no copy could touch are still available.
    let rest = base + 8 * MARK as u64;
    let mut lease = qp.lease(key, rest, 8, true, LONG).unwrap();
    lease.write(0, &77u64.to_le_bytes()).unwrap();
    side.memory.set(INBOX, count);
    let write = Work::Write {
        remote: Target {
            addr: base + 8 * REPORT as u64,
            key,
        },
        imm: None,
    };
    side.run(&qp, write, &[side.sge(INBOX, 1)]);
    sleep_in_read();
}

/// Two peers have leases of the same memory, through the keys of two regions. One is stopped in the middle of a copy,
/// and its region deregistered. The other peer loses its lease of the pages in question, but none of its writes, and
/// continues with requests.
#[test]
fn detaching_pages_of_a_stopped_peer_loses_no_write_of_another() {
    const TEST: &str = "detaching_pages_of_a_stopped_peer_loses_no_write_of_another";
    match role().as_deref() {
        None => {}
        Some("neighbour") => return neighbour(),
        Some(_) => return peer_in_the_first_page(),
    }
    let side = Side::open(8);
    for round in 0.. {
        assert!(
            round < 50,
            "the peer was never stopped in the middle of a copy"
        );
        let (memory, region) = share(&side);
        let other = register(&side, &memory);
        let word = |index: usize| {
            assert!(index < LEASED / 8);
            // SAFETY: inside the memory, aligned, and mapped as long as `memory` lives.
            unsafe { memory.as_ptr().cast::<u64>().add(index).read_volatile() }
        };
        let listener = side.listen();
        let place = listener.local_address();
        let [peer, neighbour] = ["peer", "neighbour"].map(|role| Peer::start(TEST, role, place));
        let mut qps = Vec::new();
        for _ in 0..2 {
            let incoming = listener.accept(Some(LONG)).unwrap();
            let ours = incoming.peer().pid == peer.pid();
            let to = invitation(&memory, if ours { region } else { other });
            let qp = side.qp();
            incoming.accept(&[&qp], &to).unwrap();
            qps.push(qp);
        }
        until("direct writes", || word(0) != 0 && word(COUNT) > 1);
        peer.stop();
        let before = word(COUNT);
        side.device.deregister(region).unwrap();
        until("the neighbour to count or to report", || {
            word(COUNT) > before || word(REPORT) != 0
        });
        let counts = word(COUNT);
        until("the neighbour to count again or to report", || {
            word(COUNT) > counts || word(REPORT) != 0
        });
        if word(REPORT) == 0 {
            // The neighbour continues: the peer was between two copies, and no lease had to be revoked.
            continue;
        }
        assert_eq!(word(REPORT), word(COUNT), "a completed write was lost");
        assert_eq!(word(MARK), 77, "the other pages are still leased");
        peer.go_on();
        for end in [peer, neighbour] {
            end.finish();
        }
        assert_eq!(
            word(REPORT),
            word(COUNT),
            "written after the region was deregistered"
        );
        eprintln!("{TEST}: stopped in the middle of a copy in round {round}");
        drop(qps);
        side.device.deregister(other).unwrap();
        return;
    }
}
