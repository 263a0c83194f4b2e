//! A device that has nothing to do uses no CPU; it wakes up when there is something, every time.

mod common;

use std::time::Duration;

use common::{Peer, Remote, Side, role, sleep_in_read};
use rkey_device::Qp;
use rkey_device::engine::{SendRequest, Status, Work};

/// How often the engine threads of this process have been scheduled so far.
fn wake_ups() -> u64 {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| {
            let path = task.ok()?.path();
            let name = std::fs::read_to_string(path.join("comm")).ok()?;
            let status = std::fs::read_to_string(path.join("status")).ok()?;
            let line = status
                .lines()
                .find(|l| l.starts_with("voluntary_ctxt_switches"))?;
            let count = line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()?;
            name.starts_with("rkey-engine").then_some(count)
        })
        .sum()
}

/// How often the engine thread wakes in 300 ms, once everything has settled.
fn wake_ups_while_idle() -> u64 {
    std::thread::sleep(Duration::from_millis(150));
    let before = wake_ups();
    std::thread::sleep(Duration::from_millis(300));
    wake_ups() - before
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

/// No periodic work: not after opening, not after polling, not after waiting, not with links.
#[test]
fn an_idle_device_does_nothing() {
    if role().is_some() {
        let side = Side::open();
        let (_qp, _) = side.connect();
        // What the initiator reads: how often our engine thread woke while nothing happened.
        side.set(1, 1000 + wake_ups_while_idle());
        return sleep_in_read();
    }
    let side = Side::open();
    assert_eq!(wake_ups_while_idle(), 0, "after opening");
    let listener = side.listen();
    let peer = Peer::start(
        "an_idle_device_does_nothing",
        "target",
        listener.local_address(),
    );
    let (qp, remote) = side.accept(&listener);
    write(&side, &qp, remote);
    assert_eq!(wake_ups_while_idle(), 0, "after polling");
    side.next_within(Duration::from_millis(20));
    assert_eq!(wake_ups_while_idle(), 0, "after polling in vain");
    assert!(!side.cq.wait(Some(Duration::from_millis(20))).unwrap());
    assert_eq!(wake_ups_while_idle(), 0, "after waiting in vain");
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
    // Our reads may have fallen into its measurement; each wakes it for a moment.
    assert!(
        side.word(5) <= 1010,
        "the target woke {} times",
        side.word(5) - 1000
    );
    peer.finish();
}

/// Operations at random distances, so that both devices are caught in every stage of falling asleep.
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
