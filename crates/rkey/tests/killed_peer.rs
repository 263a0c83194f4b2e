//! A peer that is killed in the middle of traffic causes errors, and leaves nothing behind.

mod common;

use common::{ALL, LONG, device, pattern};
use rkey::{Device, Error, RemoteKey};
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Set in the process that will be killed.
const ADDRESS: &str = "RKEY_TEST_VICTIM_OF";
/// Set in the process whose endpoint will be killed.
const ENDPOINT: &str = "RKEY_TEST_ENDPOINT_VICTIM_OF";
/// This is more than a ring holds, so that a part is sent as a remote iovec.
const LEN: usize = 4 << 20;

/// This is not a separate test but the other process of the tests below.
#[test]
fn peer_that_is_killed() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let device = device();
    let region = device
        .domain()
        .unwrap()
        .register(vec![0u8; LEN], ALL)
        .unwrap();
    let peer = device.connect(address.as_str()).unwrap();
    peer.send(&region.key(..).unwrap()).unwrap();
    let theirs: RemoteKey = peer.receive().unwrap();
    region.write(0, &pattern(1, LEN)).unwrap();
    loop {
        peer.write(&region, .., &theirs, 0).unwrap().wait().unwrap();
        peer.read(&region, .., &theirs, 0).unwrap().wait().unwrap();
    }
}

/// This is not a separate test but the other process of the test about endpoints.
#[test]
fn endpoint_that_is_killed() {
    let Ok(address) = std::env::var(ENDPOINT) else {
        return;
    };
    let (endpoint, to) = (device().endpoint().unwrap(), address.parse().unwrap());
    for tag in 0.. {
        // Every second message is too long to travel with its header.
        let len = if tag % 2 == 0 { 8 } else { LEN };
        let sending = endpoint.send_tagged(to, tag, pattern(tag as u8, len));
        sending.unwrap().wait().unwrap();
    }
}

#[test]
fn operations_with_a_killed_endpoint_fail_and_others_continue() {
    let endpoint = device().endpoint().unwrap();
    let address = endpoint.address().to_string();
    for round in 0..2u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "endpoint_that_is_killed", "--quiet"])
            .env(ENDPOINT, &address)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let receive = |tag| {
            let buffer = vec![0; LEN];
            let received = endpoint.receive_tagged(tag, None, buffer).unwrap();
            received.wait_timeout(LONG)
        };
        let peer = receive(0).unwrap().from;
        for tag in 1..10 + round {
            let len = if tag % 2 == 0 { 8 } else { LEN };
            let message = receive(tag).unwrap();
            assert!(message.bytes == pattern(tag as u8, len) && message.from == peer);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // Of the message that the killed process was sending, only the header may have arrived.
        let rest = endpoint.receive_tagged(rkey::endpoint::Tag::ANY, peer, vec![0; LEN]);
        match rest.unwrap().wait_timeout(Duration::from_millis(100)) {
            Ok(message) => assert_eq!(message.from, peer),
            Err(error) => assert!(
                error.is_peer_gone() || matches!(error, Error::Timeout { .. }),
                "{error}"
            ),
        }
        let error = endpoint.send_tagged(peer, 1, vec![0; LEN]);
        let error = error.and_then(rkey::endpoint::Sending::wait).unwrap_err();
        assert!(
            error.is_peer_gone() || matches!(error, Error::Unreachable { .. }),
            "{error}"
        );
    }
}

fn start(device: &Device) -> (Child, rkey::Connection) {
    let listener = device.listen("127.0.0.1:0").unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "peer_that_is_killed", "--quiet"])
        .env(ADDRESS, listener.address().to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    (child, listener.accept_timeout(LONG).unwrap())
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn the_survivor_of_a_killed_peer_gets_an_error_and_leaks_nothing() {
    let device = device();
    let domain = device.domain().unwrap();
    let ours = domain.register(vec![0u8; LEN], ALL).unwrap();
    let local = domain
        .register(vec![0u8; LEN], rkey::Access::empty())
        .unwrap();
    let mut before = 0;
    for round in 0..8u64 {
        let (mut child, peer) = start(&device);
        let theirs: RemoteKey = peer.receive().unwrap();
        peer.send(&ours.key(..).unwrap()).unwrap();
        let pid = child.id();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5 + round * 7));
            child.kill().unwrap();
            child.wait().unwrap();
        });
        let error = loop {
            if let Err(error) = peer
                .write(&local, .., &theirs, 0)
                .and_then(rkey::Pending::wait)
            {
                break error;
            }
            if let Err(error) = peer
                .read(&local, .., &theirs, 0)
                .and_then(rkey::Pending::wait)
            {
                break error;
            }
        };
        killer.join().unwrap();
        // The error is not a timeout.
        assert!(error.is_peer_gone(), "pid {pid}: {error}");
        let gone = peer.receive_timeout::<u8>(LONG).unwrap_err();
        assert!(gone.is_peer_gone(), "{gone}");
        drop(peer);
        // The device closes what belonged to the link some time later.
        let settled = Instant::now() + LONG;
        while round > 0 && descriptors() > before && Instant::now() < settled {
            std::thread::sleep(Duration::from_millis(5));
        }
        if round == 0 {
            std::thread::sleep(Duration::from_millis(200));
            before = descriptors();
        }
        assert!(
            descriptors() <= before,
            "{} descriptors, {before} before",
            descriptors()
        );
    }
    // The memory that killed peers used can be used again.
    drop(ours.deregister().unwrap());
    drop(local.deregister().unwrap());
    let inspection = device.inspect().unwrap();
    assert_eq!((inspection.regions, inspection.qps.len()), (0, 0));
}

#[test]
fn a_mapping_of_a_dead_owner_returns_an_error() {
    let Ok(address) = std::env::var("RKEY_TEST_LENDER_OF") else {
        let device = device();
        let listener = device.listen("127.0.0.1:0").unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "a_mapping_of_a_dead_owner_returns_an_error",
                "--quiet",
            ])
            .env("RKEY_TEST_LENDER_OF", listener.address().to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let peer = listener.accept_timeout(LONG).unwrap();
        let key: RemoteKey = peer.receive().unwrap();
        let mut direct = peer.map(&key).unwrap();
        direct.write(0, b"alive").unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let deadline = Instant::now() + LONG;
        let error = loop {
            match direct.write(0, b"dead") {
                Ok(()) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                outcome => break outcome,
            }
        };
        assert!(
            matches!(error, Err(Error::PeerGone { .. } | Error::Revoked)),
            "{error:?}"
        );
        return;
    };
    let device = device();
    let memory = device.allocate(4096).unwrap();
    let region = device.domain().unwrap().register(memory, ALL).unwrap();
    let peer = device.connect(address.as_str()).unwrap();
    peer.send(&region.key(..).unwrap()).unwrap();
    std::thread::sleep(2 * LONG);
}

/// This is not a separate test but the other process of the test below.
#[test]
fn peer_that_sleeps() {
    let Ok(address) = std::env::var("RKEY_TEST_SLEEPER_OF") else {
        return;
    };
    let device = device();
    let domain = device.domain().unwrap();
    let region = domain.register(vec![1u8; LEN], ALL).unwrap();
    let peer = device.connect(address.as_str()).unwrap();
    peer.send(&region.key(..).unwrap()).unwrap();
    std::thread::sleep(2 * LONG);
}

/// A child that does not outlive its test.
struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A peer that is stopped before it has stored read data in our memory does not store it after the queue pair was shut
/// down and the memory was reused.
#[test]
fn no_peer_writes_after_a_queue_pair_was_shut_down() {
    let device = device();
    let listener = device.listen("127.0.0.1:0").unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "peer_that_sleeps", "--quiet"])
        .env("RKEY_TEST_SLEEPER_OF", listener.address().to_string())
        .env("RKEY_RING_BYTES", "64k")
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let child = Sleeper(child);
    let pid = child.0.id();
    let signal = |signal| kill_process(Pid::from_child(&child.0), signal).unwrap();
    let peer = listener.accept_timeout(LONG).unwrap();
    let theirs: RemoteKey = peer.receive().unwrap();
    let local = peer
        .domain()
        .register(vec![0u8; LEN], rkey::Access::empty())
        .unwrap();
    peer.read(&local, 0..8, &theirs, 0).unwrap().wait().unwrap();
    signal(Signal::STOP);
    let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        let state = stat.rsplit(')').next().unwrap().trim_start();
        state.starts_with('T')
    };
    let limit = Instant::now() + LONG;
    while !std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .all(is_stopped)
    {
        assert!(Instant::now() < limit, "the peer does not stop");
    }
    drop(peer.read(&local, .., &theirs, 0).unwrap());
    peer.queue_pair().shut_down().unwrap();
    local.write(0, &vec![7; LEN]).unwrap();
    signal(Signal::CONT);
    // Gives the peer time to write if it is going to; the test passes with a correct peer however long this is.
    std::thread::sleep(Duration::from_millis(300));
    assert!(local.read_vec(..).unwrap().iter().all(|byte| *byte == 7));
}
