//! `kill -9` in the middle of all kinds of traffic: the survivor gets errors, loses nothing else and continues.
#![allow(unsafe_code)] // UNSAFETY: a process kills itself.

mod common;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::process::{
    Holdings, Peer, Warrants, alone, command, litter, name_is_taken, open_files, role,
};
use common::side::{Remote, Side, seed_of};
use common::traffic::{HANG, Traffic};
use common::{LONG, Random, setting, until};
use rkey_base::process::resident;
use rkey_device::names::{Scope, block_name, block_of, listen_name};
use rkey_device::{Cq, Listener, Qp, Share};
use rkey_engine::{QpState, RecvRequest, SendRequest, Status, Work};
use rkey_link::NodeId;

const TEST: &str = "a_peer_killed_during_traffic_leaks_nothing_at_the_survivor";
/// If resident memory grows by more than this, there is a leak.
const GROWTH: u64 = 24 << 20;
/// The number of rounds after which all permanent allocations exist.
const WARM_UP: u64 = 8;

/// The plan of a round, from the role of the victim.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// The victim listens and the survivor connects; otherwise the reverse.
    victim_listens: bool,
    /// Which side sends.
    victim_sends: bool,
    survivor_sends: bool,
    /// The survivor waits for completions instead of polling.
    asleep: bool,
}

impl Plan {
    fn of(round: u64) -> Self {
        let senders = round / 2 % 4;
        Self {
            victim_listens: round % 2 == 1,
            victim_sends: senders != 1,
            survivor_sends: senders != 2,
            asleep: round / 8 % 2 == 1,
        }
    }
}

/// The victim: sends and receives until it is killed.
fn victim(role: &str) {
    let mut words = role.split(' ');
    let round: u64 = words.next().unwrap().parse().unwrap();
    let plan = Plan::of(round);
    let side = Side::open(seed_of(round));
    let offer = side.offer();
    let qp = side.qp();
    let remote = if plan.victim_listens {
        let listener = side.listen();
        println!("{LISTENS}{}", listener.local_address());
        side.accept(&listener, &qp, &offer)
    } else {
        side.connect_to_test(&qp, &offer)
    };
    let mut traffic = Traffic::new(&side, &qp, &offer, remote, Random::from(round));
    let born = Instant::now();
    while born.elapsed() < LONG && traffic.first_failure.is_none() {
        if plan.victim_sends {
            traffic.fill();
        }
        traffic.step(false);
    }
}

/// The bystander, which must not be affected by the others.
fn bystander() {
    let side = Side::open(seed_of(1 << 40));
    let offer = side.offer();
    let qp = side.qp();
    side.connect_to_test(&qp, &offer);
    common::process::sleep_in_read();
}

struct Bystander {
    qp: Qp,
    remote: Remote,
    cq: Cq,
    peer: Peer,
}

/// The text before the victim's address when it listens; the name of the test may precede it.
const LISTENS: &str = "listens on ";

/// The address that the victim prints when it listens.
fn address_of(peer: &mut Peer) -> SocketAddr {
    let output = peer.0.stdout.take().unwrap();
    let mut lines = BufReader::new(output).lines().map(Result::unwrap);
    let address = lines.find_map(|line| Some(line.split_once(LISTENS)?.1.parse().unwrap()));
    address.expect("the victim listens")
}

/// One round. Returns the time until the last error.
fn round(side: &Side, number: u64, random: &mut Random, when: &str) -> Duration {
    let plan = Plan::of(number);
    side.empty_inbox();
    let offer = side.offer();
    let qp = side.qp();
    let listener = (!plan.victim_listens).then(|| side.listen());
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let ours = listener.as_ref().map_or(nowhere, Listener::local_address);
    let mut command = command(TEST, &number.to_string(), ours);
    command.env("TMPDIR", folder()).stdout(Stdio::piped());
    let mut peer = Peer(command.spawn().unwrap());
    let (listens_on, remote) = match &listener {
        Some(listener) => (ours, side.accept(listener, &qp, &offer)),
        None => {
            let theirs = address_of(&mut peer);
            (theirs, side.connect(theirs, &qp, &offer))
        }
    };
    let victim_qpn = qp.query().unwrap().attributes.peer.unwrap().qpn;
    // Everything works for a new peer, whatever happened to earlier ones.
    if !plan.victim_sends {
        side.verify(&qp, &remote, when);
    }
    check_files(&peer);
    let mut traffic = Traffic::new(side, &qp, &offer, remote, random.clone());
    let patience = Duration::from_micros(5_000 + random.below(35_000));
    let (mut last_error, mut killed) = (None, None);
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            std::thread::sleep(patience);
            let now = Instant::now();
            peer.signal(libc::SIGKILL);
            now
        });
        let started = Instant::now();
        while traffic.first_failure.is_none() {
            if plan.survivor_sends {
                traffic.fill();
            }
            traffic.step(plan.asleep);
            assert!(
                started.elapsed() < HANG,
                "{when}: no error; {} outstanding",
                traffic.outstanding()
            );
        }
        traffic.drain();
        last_error = Some(Instant::now());
        killed = Some(killer.join().unwrap());
    });
    let took = last_error
        .zip(killed)
        .map(|(error, killed)| error.saturating_duration_since(killed))
        .unwrap();
    check_end(side, &qp, &remote, &traffic, plan, when);
    traffic.close();
    drop((qp, listener));
    side.withdraw(&offer);
    side.check_memory(remote.seed, when);
    peer.wait();
    check_names(listens_on, victim_qpn, when);
    took
}

/// Checks how the traffic ended.
fn check_end(side: &Side, qp: &Qp, remote: &Remote, traffic: &Traffic, plan: Plan, when: &str) {
    let (opcode, status) = traffic.first_failure.unwrap();
    let expected = if opcode.is_recv() {
        status == Status::Flushed
    } else {
        // The first send to fail is the one that got no response, unless the peer's exit was detected first and failed
        // the queue pair.
        matches!(status, Status::RetryExceeded | Status::Flushed)
    };
    assert!(
        expected || status == Status::RemoteAborted,
        "{when}: {plan:?}: {opcode:?} {status:?}; {:?}",
        side.device.denials().last()
    );
    assert_eq!(qp.query().unwrap().state, QpState::Error, "{when}");
    // Further use returns an error and does not hang.
    let write = Work::Write {
        remote: remote.inbox(0),
        imm: None,
    };
    let late = side.finish(qp, write, &[side.sge(0, 1)]);
    assert_eq!(late.status, Status::Flushed, "{when}");
    assert!(side.cq.is_empty(), "{when}: something completed twice");
}

/// The victims' own directory for temporary files, because other programs use the common one.
fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("rkey-test-{}-victims", std::process::id()))
}

/// Checks that the victim has no open file that it could leave behind.
fn check_files(peer: &Peer) {
    for file in open_files(peer.pid()) {
        for place in ["/dev/shm", "/tmp", "/run", "/var"] {
            // Standard error may be a file of the tests' caller.
            let inherited = std::fs::read_link("/proc/self/fd/2").ok();
            assert!(
                !file.starts_with(place) || Some(&file) == inherited.as_ref(),
                "the victim has {}",
                file.display()
            );
        }
    }
}

/// Checks that the victim's names are free again.
fn check_names(place: SocketAddr, qpn: u32, when: &str) {
    let scope = Scope::of(Share::User);
    for name in [block_name(scope, block_of(qpn)), listen_name(scope, place)] {
        until(&format!("the name {name} to be released in {when}"), || {
            !name_is_taken(&name)
        });
    }
}

/// Kills a process two hundred times at a random moment of writes, reads, atomics, messages and window binds in
/// both directions. Everything that the survivor has outstanding completes, once and in order; it keeps no descriptor,
/// mapping, thread, name, file or memory of the victim. Another peer is not affected, the next peer is served, and data
/// arrives unchanged.
#[test]
fn a_peer_killed_during_traffic_leaks_nothing_at_the_survivor() {
    match role().as_deref() {
        Some("bystander") => return bystander(),
        None | Some("alone") => {}
        Some(role) => return victim(role),
    }
    if !alone(TEST) {
        return;
    }
    let kills = setting("RKEY_KILLS", 200);
    let mut random = Random::seeded(TEST);
    let side = Side::open(seed_of(1 << 41));
    let bystander = {
        let listener = side.listen();
        let peer = Peer::start(TEST, "bystander", listener.local_address());
        let cq = side.device.create_cq(64, None).unwrap();
        let qp = side.qp_on(&cq);
        let offer = side.offer();
        let remote = side.accept(&listener, &qp, &offer);
        side.withdraw(&offer);
        Bystander {
            qp,
            remote,
            cq,
            peer,
        }
    };
    side.verify(&bystander.qp, &bystander.remote, "at first");
    // The links go to ourselves, to the bystander, and from the bystander.
    let links = 3;
    until("the bystander's links", || {
        side.device.inspect().unwrap().links.len() == links
    });
    let holdings = Holdings::settled();
    std::fs::create_dir_all(folder()).unwrap();
    let shared_memory = Path::new("/dev/shm");
    let files = litter(shared_memory);
    let mut memory = 0;
    let mut slowest = Duration::ZERO;
    let started = Instant::now();
    for number in 0..kills {
        let when = format!("round {number}");
        slowest = slowest.max(round(&side, number, &mut random, &when));
        side.verify(&bystander.qp, &bystander.remote, &when);
        assert!(bystander.cq.is_empty());
        until("the victim's links to close", || {
            side.device.inspect().unwrap().links.len() == links
        });
        holdings.wait_for(&when);
        Warrants::settle(&side.device, &when);
        if number == WARM_UP {
            memory = resident().unwrap();
        }
    }
    let grown = resident().unwrap().saturating_sub(memory);
    if kills > WARM_UP {
        assert!(grown < GROWTH, "{grown} B more than after {WARM_UP} rounds");
    }
    let new: Vec<_> = litter(shared_memory).difference(&files).cloned().collect();
    assert!(new.is_empty(), "the victims left files behind: {new:?}");
    // Removing the directory succeeds only if it is empty.
    std::fs::remove_dir(folder()).expect("the victims leave no file behind");
    let snapshot = side.device.inspect().unwrap();
    assert_eq!((snapshot.regions, snapshot.qps.len()), (1, 1));
    eprintln!(
        "{TEST}: {kills} kills in {:.1?}; the last error at most {slowest:.1?} after a kill; \
         {} KiB grown",
        started.elapsed(),
        grown / 1024
    );
    bystander.peer.finish();
}

/// The peer's exit wakes a survivor that has sent one request and sleeps until it completes.
#[test]
fn a_kill_wakes_a_survivor_that_sleeps() {
    const TEST: &str = "a_kill_wakes_a_survivor_that_sleeps";
    if role().is_some() {
        let side = Side::open(1);
        let (offer, qp) = (side.offer(), side.qp());
        side.connect_to_test(&qp, &offer);
        return common::process::sleep_in_read();
    }
    let side = Side::open(2);
    let offer = side.offer();
    let listener = side.listen();
    for _ in 0..10 {
        let mut peer = Peer::start(TEST, "target", listener.local_address());
        let qp = side.qp();
        let remote = side.accept(&listener, &qp, &offer);
        peer.stop();
        let write = Work::Write {
            remote: remote.inbox(0),
            imm: None,
        };
        let killed = std::thread::scope(|scope| {
            let killer = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                let now = Instant::now();
                peer.signal(libc::SIGKILL);
                now
            });
            qp.post_send(&SendRequest::new(1, write, &[side.sge(0, 1)]))
                .unwrap();
            let done = side.next_within(LONG).expect("no completion arrived");
            assert_eq!((done.id, done.status), (1, Status::RetryExceeded));
            killer.join().unwrap()
        });
        eprintln!("woken {:.1?} after the kill", killed.elapsed());
        peer.wait();
    }
}

/// If a peer dies just when the connection is made, before a single request, posted requests still complete.
#[test]
fn requests_complete_if_the_peer_is_killed_before_the_links_are_up() {
    const TEST: &str = "requests_complete_if_the_peer_is_killed_before_the_links_are_up";
    if role().is_some() {
        let side = Side::open(1);
        let (offer, qp) = (side.offer(), side.qp());
        side.connect_to_test(&qp, &offer);
        // SAFETY: only ends the process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let side = Side::open(2);
    let offer = side.offer();
    let listener = side.listen();
    for round in 0..20 {
        let mut peer = Peer::start(TEST, "target", listener.local_address());
        let qp = side.qp();
        let remote = side.accept(&listener, &qp, &offer);
        let sges = [side.sge(common::side::RECEIVES, 8)];
        qp.post_recv(&RecvRequest { id: 1, sges: &sges }).unwrap();
        if round % 2 == 0 {
            let write = Work::Write {
                remote: remote.inbox(0),
                imm: None,
            };
            qp.post_send(&SendRequest::new(2, write, &[side.sge(0, 1)]))
                .unwrap();
        }
        let mut left: Vec<u64> = if round % 2 == 0 { vec![1, 2] } else { vec![1] };
        while let Some(last) = left.len().checked_sub(1) {
            let done = side
                .next_within(HANG)
                .unwrap_or_else(|| panic!("round {round}: {left:?} never completed"));
            // A write may have arrived before the end.
            assert!(done.status != Status::Success || done.id == 2, "{done:?}");
            let place = left.iter().position(|id| *id == done.id);
            left.swap_remove(place.unwrap_or_else(|| panic!("{done:?} after {last}")));
        }
        assert!(side.cq.is_empty());
        peer.wait();
    }
}

/// A queue pair that knows the name of its peer's device does not mistake another device, which has since claimed the
/// same numbers, for that peer: it reports that the peer has ended.
#[test]
fn another_device_with_the_same_numbers_is_not_taken_for_the_peer() {
    let (near, far) = (Side::open(1), Side::open(2));
    let (near_qp, far_qp) = (near.qp(), far.qp());
    let before = NodeId {
        nonce: far.device.node().nonce ^ 1,
        ..far.device.node()
    };
    let sges = [near.sge(common::side::RECEIVES, 8)];
    near_qp.connect(before, far_qp.address()).unwrap();
    near_qp
        .post_recv(&RecvRequest { id: 1, sges: &sges })
        .unwrap();
    let done = near.next_within(HANG).expect("no completion arrived");
    assert_eq!((done.id, done.status), (1, Status::Flushed));
    let late = Work::Send {
        imm: None,
        invalidate: None,
    };
    let done = near.finish(&near_qp, late, &[near.sge(0, 1)]);
    assert_eq!(done.status, Status::Flushed);
}
