//! An idle device uses no CPU, and wakes up every time there is work.

mod common;

use std::time::Duration;

use common::{Peer, Remote, Side, role, sleep_in_read};
use rkey_device::Qp;
use rkey_engine::{SendRequest, Status, Work};

/// How many times the engine threads of this process have slept so far, and how many nanoseconds they have run.
fn activity() -> (u64, u64) {
    let mut sum = (0, 0);
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        let read = |file: &str| std::fs::read_to_string(path.join(file)).unwrap_or_default();
        if !read("comm").starts_with("rkey-engine") {
            continue;
        }
        let status = read("status");
        let sleeps = status
            .lines()
            .find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        sum.0 += sleeps.unwrap().trim().parse::<u64>().unwrap();
        let schedule = read("schedstat");
        sum.1 += schedule
            .split_ascii_whitespace()
            .next()
            .unwrap()
            .parse::<u64>()
            .unwrap();
    }
    sum
}

/// How many times the engine thread wakes in 300 ms, once everything has settled. How long settling takes depends
/// on how busy the machine is, so the quietest of several measurements counts; periodic work would show in each of
/// them.
fn wake_ups_while_idle() -> u64 {
    let mut fewest = u64::MAX;
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(150));
        let before = activity();
        std::thread::sleep(Duration::from_millis(300));
        let after = activity();
        assert!(after.1 - before.1 < 100_000_000, "the engine thread spins");
        fewest = fewest.min(after.0 - before.0);
        if fewest == 0 {
            break;
        }
    }
    fewest
}

fn write(side: &Side, qp: &Qp, remote: Remote) {
    side.run(
        qp,
        Work::Write {
            remote: remote.at(0),
            imm: None,
        },
        &[side.sge(0, 8)],
    );
}

/// There is no periodic work after opening, after polling, after waiting, or with links.
#[test]
fn an_idle_device_has_no_periodic_work() {
    match role().as_deref() {
        Some("target") => {
            let side = Side::open();
            let (_qp, _) = side.connect();
            // The initiator reads this word: how many times our engine thread woke while nothing happened.
            side.set(1, 1000 + wake_ups_while_idle());
            sleep_in_read();
        }
        Some(_) => idle_after_everything(),
        // The test runs in its own process, without the engine threads of other tests.
        None => Peer::start(IDLE, "alone", "127.0.0.1:1".parse().unwrap()).finish(),
    }
}

const IDLE: &str = "an_idle_device_has_no_periodic_work";

fn idle_after_everything() {
    let side = Side::open();
    assert_eq!(wake_ups_while_idle(), 0, "after opening");
    let listener = side.listen();
    let peer = Peer::start(IDLE, "target", listener.local_address());
    let (qp, remote) = side.accept(&listener);
    write(&side, &qp, remote);
    assert_eq!(wake_ups_while_idle(), 0, "after polling");
    side.next_within(Duration::from_millis(20));
    assert_eq!(wake_ups_while_idle(), 0, "after polling without success");
    assert!(!side.cq.wait(Some(Duration::from_millis(20))).unwrap());
    assert_eq!(wake_ups_while_idle(), 0, "after waiting without success");
    loop {
        std::thread::sleep(Duration::from_millis(300));
        side.run(
            &qp,
            Work::Read {
                remote: remote.at(1),
            },
            &[side.sge(5, 8)],
        );
        if side.word(5) != 0 {
            break;
        }
    }
    // Our reads may have disturbed its measurement: each wakes it briefly.
    assert!(
        side.word(5) <= 1010,
        "the target woke {} times",
        side.word(5) - 1000
    );
    peer.finish();
    // A device that talked to itself, with every kind of response.
    let (a, b) = (side.qp(), side.qp());
    a.connect(side.device.node(), b.address()).unwrap();
    b.connect(side.device.node(), a.address()).unwrap();
    let own = Remote::from(&side.invitation()[..]);
    write(&side, &a, own);
    side.run(&a, Work::Read { remote: own.at(1) }, &[side.sge(5, 8)]);
    side.run(
        &a,
        Work::FetchAdd {
            remote: own.at(1),
            add: 1,
        },
        &[side.sge(5, 8)],
    );
    assert_eq!(wake_ups_while_idle(), 0, "after talking to itself");
}

/// Operations at random intervals, so that both devices are caught in every stage of falling asleep.
#[test]
fn no_wake_up_is_lost() {
    if role().is_some() {
        let side = Side::open();
        let (_qp, _) = side.connect();
        return sleep_in_read();
    }
    let side = Side::open();
    let listener = side.listen();
    let peer = Peer::start("no_wake_up_is_lost", "target", listener.local_address());
    let (qp, remote) = side.accept(&listener);
    let mut random = 1u64;
    for round in 0..3000u64 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let distance = Duration::from_nanos((random >> 33) % 120_000);
        let until = std::time::Instant::now() + distance;
        while std::time::Instant::now() < until {
            std::hint::spin_loop();
        }
        let work = Work::Write {
            remote: remote.at(0),
            imm: None,
        };
        qp.post_send(&SendRequest::new(round, work, &[side.sge(0, 8)]))
            .unwrap();
        let done = if random >> 63 == 0 {
            side.next()
        } else {
            side.next_asleep()
        };
        assert_eq!((done.id, done.status), (round, Status::Success));
    }
    peer.finish();
}
