//! A process that tries keys: reconnecting does not reset its count, and other processes are not affected.

mod common;

use common::{LONG, Peer, Side, address, role};
use rkey_core::{Key, RKey};
use rkey_device::{Config, DeviceError, Listener, Qp, QpOptions};
use rkey_engine::guesses::ALLOWANCE;
use rkey_engine::{SendRequest, Status, Target, Work};
use std::time::{Duration, Instant};

/// Guesses over one connection beyond the allowance, and connections with one guess each.
const BEYOND: u32 = 4;
const RECONNECTS: u32 = 3;

/// A side whose requests never time out: a delayed request is not lost.
fn patient() -> Side {
    let mut config = Config::from_env().unwrap();
    config.timeout = 0;
    Side::with(config)
}

/// A queue pair that survives refusals.
fn qp(side: &Side) -> Qp {
    let options = QpOptions {
        survive_remote_error: true,
        ..QpOptions::new(side.domain, &side.cq)
    };
    side.device.create_qp(&options).unwrap()
}

fn accept(side: &Side, listener: &Listener) -> Qp {
    let qp = qp(side);
    let incoming = listener.accept(Some(LONG)).unwrap();
    incoming.accept(&[&qp], &side.invitation()).unwrap();
    qp
}

fn connect(side: &Side) -> Qp {
    let qp = qp(side);
    let met = side.device.connect(address(), &[&qp], &[], LONG);
    met.unwrap();
    qp
}

/// A different key for each number.
fn key(number: u32) -> RKey {
    RKey::Device(Key(number.wrapping_mul(0x9e37_79b9)))
}

fn guess(side: &Side, qp: &Qp, number: u32) {
    let remote = Target {
        addr: 0x1000,
        key: key(number),
    };
    let write = Work::Write { remote, imm: None };
    let sges = [side.sge(0, 8)];
    let request = SendRequest::new(1, write, &sges);
    qp.post_send(&request).unwrap();
    assert_eq!(side.next().status, Status::RemoteAccess);
}

fn guesser() {
    let begin = Instant::now();
    let side = patient();
    let over_one = connect(&side);
    for number in 1..=ALLOWANCE + BEYOND {
        guess(&side, &over_one, number);
    }
    let mut number = ALLOWANCE + BEYOND;
    for _ in 0..RECONNECTS {
        // Another device, with another identity, links and queue pairs.
        let side = patient();
        let qp = connect(&side);
        number += 1;
        guess(&side, &qp, number);
    }
    // Each guess after the allowance is used up makes the next one wait: 10 ms, 20 ms, 40 ms ...
    let pauses = BEYOND + RECONNECTS - 1;
    let least = Duration::from_millis(10 * ((1 << pauses) - 1));
    let took = begin.elapsed();
    assert!(took >= least, "{took:?}, and not {least:?}");
    // A lease request names a key, too. The device refuses the request at once, without checking the key.
    let refused = (0..40).any(|_| {
        number += 1;
        match over_one.lease(key(number), 0x1000, 8, true, LONG) {
            Err(DeviceError::Refused { reason }) => {
                assert!(reason.contains("too many keys"), "{reason}");
                true
            }
            Err(DeviceError::Denied(_)) => false,
            other => panic!("{other:?}"),
        }
    });
    assert!(refused);
}

fn honest() {
    let side = patient();
    let (qp, remote) = side.connect();
    for round in 0..200 {
        side.set(1, round);
        let write = Work::Write {
            remote: remote.at(1),
            imm: None,
        };
        side.run(&qp, write, &[side.sge(1, 8)]);
    }
    let qp = connect(&side);
    guess(&side, &qp, 7);
}

/// A process that tries keys must wait, even on new connections of new devices, and the owner reports it and its attempts.
/// Another process that makes a mistake does not wait.
#[test]
fn the_guesses_of_a_process_stay_counted_when_it_reconnects() {
    const TEST: &str = "the_guesses_of_a_process_stay_counted_when_it_reconnects";
    match role().as_deref() {
        Some("guesser") => return guesser(),
        Some("honest") => return honest(),
        _ => {}
    }
    let side = Side::open();
    let listener = side.listen();
    let attacker = Peer::start(TEST, "guesser", listener.local_address());
    let attacker_pid = attacker.0.id();
    let mut qps: Vec<Qp> = (0..=RECONNECTS).map(|_| accept(&side, &listener)).collect();
    let other = Peer::start(TEST, "honest", listener.local_address());
    let other_pid = other.0.id();
    qps.push(side.accept(&listener).0);
    qps.push(accept(&side, &listener));
    other.finish();
    attacker.finish();

    let all = side.device.inspect().unwrap().guessers;
    assert_eq!(all.len(), 2, "one entry for each process: {all:?}");
    let [first, second] = [&all[0], &all[1]];
    assert_eq!(first.pid, Some(attacker_pid));
    let tried = u64::from(ALLOWANCE + BEYOND + RECONNECTS);
    let known = side.device.inspect().unwrap();
    assert!(known.denied >= tried, "{known:?}");
    let words = format!("PID {attacker_pid} (user {}) has tried ", known.uid);
    assert!(first.sentence.starts_with(&words), "{first:?}");
    assert!(first.sentence.contains("were never issued"), "{first:?}");
    assert!(
        first.sentence.contains("its requests are paused"),
        "{first:?}"
    );
    assert_eq!(second.pid, Some(other_pid));
    assert_eq!(second.pauses, 0.into(), "{second:?}");
    assert_eq!(second.tried, 1.into(), "{second:?}");
}
