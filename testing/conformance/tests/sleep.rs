//! The target's program sleeps: one-sided operations complete, and an idle device costs nothing.

mod common;

use std::path::Path;
use std::time::Duration;

use common::process::{Peer, alone, quietest, role, sleep_in_read};
use common::side::{Side, seed_of};
use common::{Random, until};
use rkey_engine::{SendRequest, Status, Work};

/// The processor time that an idle process may use within [`IDLE`]: two ticks of the kernel's clock.
const NOTHING: Duration = Duration::from_millis(20);
const IDLE: Duration = Duration::from_secs(2);

fn target() {
    let side = Side::open(seed_of(7));
    let (offer, qp) = (side.offer(), side.qp());
    side.connect_to_test(&qp, &offer);
    sleep_in_read();
}

/// Whether the program of a process is in read(2), unaware of RDMA. It is enough if one thread is, because the test
/// harness runs each test in its own thread. The device's threads do not count.
fn is_in_read(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let places = tasks.map(|task| task.unwrap().path());
    let told = |place: &Path, name| std::fs::read_to_string(place.join(name));
    let mut programs = places
        .filter(|place| told(place, "comm").is_ok_and(|name| !name.starts_with("rkey-engine")));
    programs.any(|place| match told(&place, "syscall") {
        // On x86-64, call number 0 is read, and descriptor 0 is standard input; not every user may read this file.
        Ok(call) if cfg!(target_arch = "x86_64") => call.starts_with("0 0x0 "),
        _ => told(&place, "stat").is_ok_and(|stat| stat.contains(") S ")),
    })
}

/// Writes, reads and atomics of every size complete while the target's program sleeps in a blocking read(2),
/// even when the initiator sleeps for each completion. Afterwards, with both devices open and connected, neither
/// process uses any processor time for two seconds.
#[test]
fn a_sleeping_target_serves_accesses_and_uses_no_cpu_time_when_idle() {
    const TEST: &str = "a_sleeping_target_serves_accesses_and_uses_no_cpu_time_when_idle";
    match role().as_deref() {
        None | Some("alone") => {}
        Some(_) => return target(),
    }
    if !alone(TEST) {
        return;
    }
    let side = Side::open(seed_of(8));
    let listener = side.listen();
    let peer = Peer::start(TEST, "target", listener.local_address());
    let (offer, qp) = (side.offer(), side.qp());
    let remote = side.accept(&listener, &qp, &offer);
    until("the target to block in read(2)", || is_in_read(peer.pid()));
    side.verify(&qp, &remote, "polling");
    let mut random = Random::seeded(TEST);
    let mut sum = 0u64;
    for id in 0..300 {
        if id % 50 == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let add = random.below(1000);
        let place = common::side::SINK;
        let work = match id % 3 {
            0 => Work::Write {
                remote: remote.inbox(0),
                imm: None,
            },
            1 => Work::Read {
                remote: remote.pattern(3),
            },
            _ => Work::FetchAdd {
                remote: remote.atomic(0),
                add,
            },
        };
        let from = if id % 3 == 0 { 0 } else { place };
        qp.post_send(&SendRequest::new(id, work, &[side.sge(from, 1)]))
            .unwrap();
        let done = side
            .next_within(common::LONG)
            .unwrap_or_else(|| panic!("{id} never completed"));
        assert_eq!((done.id, done.status), (id, Status::Success));
        if id % 3 == 2 {
            assert_eq!(side.memory.word(place), sum);
            sum += add;
        }
        assert!(is_in_read(peer.pid()), "the target's program woke");
    }
    // Both processes fall asleep.
    for (who, pid) in [("initiator", std::process::id()), ("target", peer.pid())] {
        let used = quietest(&[pid], IDLE, NOTHING);
        eprintln!("{TEST}: the {who} idle for {IDLE:?}: {used:?} of processor time");
        assert!(used <= NOTHING, "the {who} used {used:?}");
    }
    drop(qp);
    side.withdraw(&offer);
    peer.finish();
}
