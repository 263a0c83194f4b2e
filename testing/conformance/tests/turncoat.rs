//! An honest peer that turns hostile and writes garbage over everything that it shares with us.

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::garbage::scribble;
use common::process::{Holdings, Peer, alone, command, role, sleep_in_read};
use common::side::{Side, seed_of};
use common::traffic::{HANG, Traffic};
use common::{Random, setting, until};
use rkey_engine::QpState;

const TEST: &str = "a_peer_that_starts_to_write_garbage_harms_only_itself";
/// How much garbage the peer writes before it checks whether its link has been cut: little at first, to be plausible, then
/// more and more.
const DOSES: [u64; 6] = [1, 1, 2, 4, 16, 256];

/// Works like an honest peer briefly, then writes garbage. Keeps the connection as long as it can, and lives until the
/// test ends it.
fn turncoat(round: u64) {
    let side = Side::open(seed_of(round));
    let (offer, qp) = (side.offer(), side.qp());
    let remote = side.connect_to_test(&qp, &offer);
    let mut random = Random::from(seed_of(round ^ 0xbad));
    let mut traffic = Traffic::new(&side, &qp, &offer, remote, random.clone());
    traffic.peer_is_honest = false;
    let good = Instant::now() + Duration::from_micros(random.below(10_000));
    while Instant::now() < good {
        traffic.fill();
        traffic.step(false);
    }
    let eof = std::thread::spawn(sleep_in_read);
    for turn in 0.. {
        if eof.is_finished() {
            break;
        }
        scribble(&mut random, DOSES[turn.min(DOSES.len() - 1)]);
        let pause = Instant::now() + Duration::from_micros(random.below(2_000));
        while Instant::now() < pause {
            // The peer's own engine also continues, with the garbage in its rings.
            if round.is_multiple_of(2) && traffic.first_failure.is_none() {
                traffic.fill();
            }
            traffic.step(false);
        }
    }
    // Errors of its own device do not matter.
    std::process::exit(0);
}

/// One peer of this kind. Returns the first failure, and the time until the last error.
fn round(side: &Side, number: u64, random: &mut Random, when: &str) -> (String, Duration) {
    side.empty_inbox();
    let (offer, qp, listener) = (side.offer(), side.qp(), side.listen());
    let role = number.to_string();
    let mut peer = Peer(
        command(TEST, &role, listener.local_address())
            .spawn()
            .unwrap(),
    );
    let remote = side.accept(&listener, &qp, &offer);
    let mut traffic = Traffic::new(side, &qp, &offer, remote, random.clone());
    traffic.peer_is_honest = false;
    let started = Instant::now();
    // The peer stays alive, so only the device can detect its garbage.
    while traffic.first_failure.is_none() {
        traffic.fill();
        traffic.step(number % 4 == 3);
        assert!(
            started.elapsed() < HANG,
            "{when}: no error; {} outstanding",
            traffic.outstanding()
        );
    }
    traffic.drain();
    let took = started.elapsed();
    assert_eq!(qp.query().unwrap().state, QpState::Error, "{when}");
    assert!(side.cq.is_empty(), "{when}: something completed twice");
    let failure = format!("{:?}", traffic.first_failure.unwrap());
    traffic.close();
    drop((qp, listener));
    // The memory is ours again, although the peer is still alive and may have been in the middle of any operation.
    side.withdraw(&offer);
    side.check_outside(when);
    drop(peer.0.stdin.take());
    // The peer may have died of its own garbage.
    peer.wait();
    (failure, took)
}

/// Many peers start to write garbage, each in its own way. Whatever the words in the rings contain, every outstanding
/// request completes, once and in order. Nothing outside the granted memory changes, no resource is leaked, no other peer
/// is affected, and the next peer is served.
#[test]
fn a_peer_that_starts_to_write_garbage_harms_only_itself() {
    match role().as_deref() {
        None | Some("alone") => {}
        Some("honest") => return honest(),
        Some(round) => return turncoat(round.parse().unwrap()),
    }
    if !alone(TEST) {
        return;
    }
    let mut random = Random::seeded(TEST);
    let first = random.next() >> 1;
    let side = Side::open(seed_of(1 << 42));
    let cq = side.device.create_cq(64, None).unwrap();
    let (offer, qp, listener) = (side.offer(), side.qp_on(&cq), side.listen());
    let honest = Peer::start(TEST, "honest", listener.local_address());
    let remote = side.accept(&listener, &qp, &offer);
    drop(listener);
    side.withdraw(&offer);
    side.verify(&qp, &remote, "at first");
    // The links go to ourselves, to the honest peer, and from it, once it has connected.
    let links = 3;
    until("the honest peer's links", || {
        side.device.inspect().unwrap().links.len() == links
    });
    let holdings = Holdings::settled();
    let (mut slowest, mut failures) = (Duration::ZERO, BTreeMap::<String, u32>::new());
    for number in 0..setting("RKEY_TURNCOATS", 24) {
        let seed = first.wrapping_add(number);
        let when = format!("round {number} (the peer has seed {seed})");
        let (failure, took) = round(&side, seed, &mut random, &when);
        slowest = slowest.max(took);
        *failures.entry(failure).or_default() += 1;
        side.verify(&qp, &remote, &when);
        until("the hostile peer's links to close", || {
            side.device.inspect().unwrap().links.len() == links
        });
        holdings.wait_for(&when);
    }
    eprintln!("{TEST}: the last error of a round came at most {slowest:.1?} after its start");
    eprintln!("{TEST}: first failures: {failures:?}");
    honest.finish();
}

/// The peer that must not be affected.
fn honest() {
    let side = Side::open(seed_of(1 << 43));
    let (offer, qp) = (side.offer(), side.qp());
    side.connect_to_test(&qp, &offer);
    sleep_in_read();
}
