//! The shared-memory link between two real processes: this test binary runs itself again as the other
//! side. An environment variable selects the child's role.

mod common;

use common::{LONG, bytes_of, local, unique_name, wait_readable};
use rkey_base::barrier;
use rkey_base::segment::{Arena, Sharing};
use rkey_link::direct::{DirectError, LeaseOffer};
use rkey_link::shm::{Connector, Event, LinkConfig, Listener, ShmLink, Step};
use rkey_link::{DownReason, Header, HeaderFlags, Link as _, Op, Payload, SendError};
use std::os::fd::AsFd as _;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const ROLE: &str = "RKEY_LINK_TEST_ROLE";
const NAME: &str = "RKEY_LINK_TEST_NAME";

/// Starts this binary again, to run only `code_of_the_child_process` in the given role.
fn start(role: &str, name: &[u8]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "code_of_the_child_process",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ROLE, role)
        .env(NAME, std::str::from_utf8(name).unwrap())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// The other process's code; does nothing when the suite runs it as a test.
#[test]
fn code_of_the_child_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let name = std::env::var(NAME).unwrap();
    let mut connector = Connector::start(
        name.as_bytes(),
        &local(1, LinkConfig::default()),
        role.as_bytes(),
    )
    .unwrap();
    let link = loop {
        wait_readable(connector.socket().unwrap());
        if let Step::Done(link) = connector.advance().unwrap() {
            break link;
        }
    };
    match role.as_str() {
        "ask" => child_asks(link),
        "gaps" => child_sends_with_gaps(link),
        "stream" => child_streams(link),
        "direct" => child_writes_directly(link),
        other => panic!("no such role: {other}"),
    }
}

/// Starts a child in this role, and accepts its link as the responder.
fn with_child(role: &str) -> (ShmLink, Child) {
    let name = unique_name();
    let listener = Listener::bind(&name).unwrap();
    let mut child = start(role, &name);
    if !wait_readable(listener.as_fd()) {
        let _ = child.kill();
        panic!("the child did not connect");
    }
    let node = local(2, LinkConfig::default());
    let mut acceptor = listener.accept(&node).unwrap().unwrap();
    assert!(wait_readable(acceptor.socket().unwrap()));
    let Step::Done(rkey_link::shm::Greeting::Link(request)) = acceptor.advance().unwrap() else {
        panic!("no hello")
    };
    assert_eq!(request.credentials().pid, Some(child.id()));
    assert_eq!(request.purpose(), role.as_bytes());
    (request.accept().unwrap(), child)
}

fn finish(mut child: Child) {
    assert!(child.wait().unwrap().success());
}

/// The bytes of the `n`-th message; lengths vary so that every mechanism is used.
fn message(n: u32) -> Vec<u8> {
    let len = match n % 5 {
        0 => n % 17,
        1 => n % 209,
        2 => 209 + n % 3000,
        3 => 16384 - n % 3,
        _ => 8,
    };
    (0..len).map(|i| (i ^ n.wrapping_mul(167)) as u8).collect()
}

const MESSAGES: u32 = 20_000;

fn child_asks(mut link: ShmLink) {
    let (mut sent, mut answered) = (0, 0);
    let (mut last, mut since) = ((0, 0), Instant::now());
    while answered < MESSAGES {
        if last != (sent, answered) {
            (last, since) = ((sent, answered), Instant::now());
        }
        assert!(since.elapsed() < LONG, "stuck after {sent} and {answered}");
        if sent < MESSAGES {
            let bytes = message(sent);
            let header = Header {
                len: bytes.len() as u32,
                msn: sent,
                ..Header::new(Op::Send)
            };
            let filled = link.send_request(&header, |mut place| {
                place.put(0, &bytes);
                Ok(())
            });
            match filled {
                Ok(ticket) => {
                    assert_eq!(ticket, u64::from(sent));
                    sent += 1;
                }
                Err(SendError::Full) => std::thread::yield_now(),
                Err(e) => panic!("{e}"),
            }
        }
        while let Some(incoming) = link.next_response().unwrap() {
            // Every third message is echoed.
            assert_eq!(incoming.header.msn, answered);
            assert_eq!(bytes_of(&incoming), message(answered));
            answered += 3;
            link.response_done();
        }
        let acked = link.acknowledged().unwrap();
        assert!(
            acked <= u64::from(answered),
            "an acknowledgement overtook an answer"
        );
        link.end_burst();
    }
    let since = Instant::now();
    while link.acknowledged().unwrap() < u64::from(MESSAGES) {
        link.end_burst();
        std::thread::yield_now();
        assert!(since.elapsed() < LONG);
    }
}

#[test]
fn messages_of_all_lengths_arrive_in_both_directions() {
    let (mut link, child) = with_child("ask");
    let mut taken = 0;
    let mut since = Instant::now();
    while taken < MESSAGES {
        assert!(since.elapsed() < LONG, "stuck after {taken}");
        if !link.room_to_respond() {
            link.end_burst();
            std::thread::yield_now();
            continue;
        }
        let Some(incoming) = link.next_request().unwrap() else {
            link.end_burst();
            std::thread::yield_now();
            continue;
        };
        assert_eq!(incoming.header.msn, taken);
        let bytes = bytes_of(&incoming);
        assert_eq!(bytes, message(taken));
        if taken.is_multiple_of(3) {
            let header = Header {
                len: bytes.len() as u32,
                msn: taken,
                ..Header::new(Op::ReadData)
            };
            link.send_response(&header, |mut place| {
                place.put(0, &bytes);
                Ok(())
            })
            .unwrap();
        }
        link.request_done();
        link.end_burst();
        taken += 1;
        since = Instant::now();
    }
    // Keeps responding until the child has all acknowledgements.
    while link
        .on_socket()
        .is_none_or(|event| !matches!(event, Event::Gone))
    {
        let _ = link.next_request();
        link.end_burst();
        std::thread::yield_now();
    }
    finish(child);
}

const GAPS: u32 = 3_000;

fn child_sends_with_gaps(mut link: ShmLink) {
    let mut random = 1u64;
    for msn in 0..GAPS {
        let header = Header {
            msn,
            flags: HeaderFlags::ACK_NOW,
            ..Header::new(Op::Probe)
        };
        link.send_request(&header, |_| Ok(())).unwrap();
        link.end_burst();
        // One message at a time, so that no later message hides a lost wake-up.
        let start = Instant::now();
        while link.acknowledged().unwrap() <= u64::from(msn) {
            assert!(start.elapsed() < LONG, "message {msn} was not noticed");
            std::hint::spin_loop();
        }
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        for _ in 0..(random >> 54) {
            std::hint::spin_loop();
        }
    }
}

/// The responder sleeps whenever there is nothing to do, however short the gap; no wake-up is lost.
#[test]
fn every_message_wakes_a_sleeping_responder() {
    let (mut link, child) = with_child("gaps");
    let view = link.poll_view();
    let mut taken = 0;
    let mut slept = 0;
    loop {
        while let Some(incoming) = link.next_request().unwrap() {
            assert_eq!(incoming.header.msn, taken);
            link.request_done();
            taken += 1;
        }
        link.end_burst();
        view.announce_sleep();
        barrier::heavy();
        if !view.pending() {
            assert!(
                wait_readable(link.line().as_fd()),
                "no doorbell after {taken}"
            );
            slept += 1;
        }
        view.awake();
        let mut gone = false;
        while let Some(event) = link.on_socket() {
            match event {
                Event::Wake => {}
                Event::Gone => {
                    gone = true;
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        if gone {
            break;
        }
    }
    assert_eq!(taken, GAPS);
    eprintln!("slept {slept} times for {GAPS} messages");
    finish(child);
}

fn child_streams(mut link: ShmLink) {
    // Sends payload of all kinds until the parent kills us.
    let source = vec![5u8; 100_000];
    let list = [(source.as_ptr() as u64, source.len() as u64)];
    let remote_iovec = link.capabilities().remote_iovec;
    for n in 0u32.. {
        let bytes = message(n);
        let header = Header {
            len: bytes.len() as u32,
            ..Header::new(Op::Send)
        };
        let _ = link.send_request(&header, |mut place| {
            place.put(0, &bytes);
            Ok(())
        });
        if remote_iovec && n.is_multiple_of(7) {
            let header = Header {
                len: source.len() as u32,
                ..Header::new(Op::Write)
            };
            let _ = link.send_remote_iovec(&header, &list);
        }
        while link.next_response().unwrap().is_some() {
            link.response_done();
        }
        let _ = link.acknowledged().unwrap();
        link.end_burst();
    }
}

#[test]
fn a_killed_peer_is_detected_and_leaves_nothing_behind() {
    let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // Other tests of this binary open files at the same time, so this one runs in its own process.
    if std::env::var_os("RKEY_TEST_ALONE").is_none() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "a_killed_peer_is_detected_and_leaves_nothing_behind",
                "--nocapture",
            ])
            .env("RKEY_TEST_ALONE", "1")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    }
    let memory = rkey_base::memory::ArenaMemory::new(0x1000, 1 << 17);
    let mut before = None;
    for round in 0..20u64 {
        let (mut link, mut child) = with_child("stream");
        let start = Instant::now();
        let until = Duration::from_micros(300 + round * 1700);
        let mut killed = false;
        loop {
            if !killed && start.elapsed() > until {
                child.kill().unwrap();
                killed = true;
            }
            assert!(start.elapsed() < LONG);
            if link.room_to_respond()
                && let Some(incoming) = link.next_request().unwrap()
            {
                if let Payload::RemoteIovec(list) = incoming.payload {
                    for &(va, len) in list.as_slice() {
                        let pulled = link.pull(&memory, 0x1000, va, len);
                        assert!(pulled.is_ok() || killed, "{pulled:?}");
                    }
                }
                let _ = link.send_response(&Header::new(Op::Nak), |_| Ok(()));
                link.request_done();
            }
            link.end_burst();
            if let Some(Event::Gone) = link.on_socket() {
                break;
            }
        }
        assert_eq!(link.is_up(), Err(DownReason::PeerGone));
        assert_eq!(
            link.send_response(&Header::new(Op::Nak), |_| Ok(())),
            Err(SendError::Down)
        );
        drop(link);
        child.wait().unwrap();
        let now = fds();
        assert_eq!(*before.get_or_insert(now), now);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("rkey-link"), "a mapping was left");
    }
}

fn child_writes_directly(mut link: ShmLink) {
    let client = link.lease_client().unwrap();
    loop {
        assert!(wait_readable(link.line().as_fd()));
        match link.on_socket() {
            Some(Event::Control(control)) => {
                let grant = LeaseOffer::from_bytes(&control.bytes).unwrap();
                let fd = control.fds.into_iter().next().unwrap();
                let mut map = client.open(&grant, fd).unwrap();
                let bytes = vec![0xee; 64 << 10];
                let start = Instant::now();
                let why = loop {
                    assert!(start.elapsed() < LONG);
                    let size = if grant.id.index().is_multiple_of(2) {
                        8
                    } else {
                        bytes.len()
                    };
                    if let Err(e) = map.write(0, &bytes[..size]) {
                        break e;
                    }
                };
                assert!(matches!(why, DirectError::Revoked), "{why}");
            }
            Some(Event::Gone) => return,
            _ => {}
        }
    }
}

/// The owner revokes leases of another process that writes as fast as it can: nothing is written
/// after `revoke` has returned.
#[test]
fn leases_of_another_process_can_be_revoked() {
    let (link, child) = with_child("direct");
    let board = link.lease_board().unwrap();
    // The owner's own view of the memory, without unsafe code: a second link to ourselves.
    let (mine, theirs) = common::pair();
    let own_board = theirs.lease_board().unwrap();
    let arena = Arena::create("rkey-test", 64 << 10, Sharing::ReadWrite).unwrap();
    let own = own_board.grant(0, 64 << 10, true).unwrap();
    let mut view = mine
        .lease_client()
        .unwrap()
        .open(&own, arena.duplicate_fd().unwrap())
        .unwrap();
    let mut seen = vec![0; 64 << 10];
    for round in 0..100 {
        let grant = board.grant(0, 64 << 10, true).unwrap();
        link.send_control(&grant.to_bytes(), &[arena.fd()]).unwrap();
        let start = Instant::now();
        while seen[0] == 0 {
            assert!(
                start.elapsed() < LONG,
                "nothing was written in round {round}"
            );
            view.read(0, &mut seen).unwrap();
            std::thread::yield_now();
        }
        common::revoke(&board, &[grant.id], LONG).unwrap();
        view.write(0, &vec![0; 64 << 10]).unwrap();
        for _ in 0..50 {
            std::hint::spin_loop();
        }
        view.read(0, &mut seen).unwrap();
        assert!(
            seen.iter().all(|&byte| byte == 0),
            "a late write in round {round}"
        );
    }
    drop(link);
    finish(child);
}

/// A peer that is killed in the middle of a direct copy loses its lease.
#[test]
fn a_dead_peer_loses_its_leases() {
    let (link, mut child) = with_child("direct");
    let board = link.lease_board().unwrap();
    let arena = Arena::create("rkey-test", 64 << 10, Sharing::ReadWrite).unwrap();
    let grants: Vec<LeaseOffer> = (0..2)
        .map(|_| board.grant(0, 64 << 10, true).unwrap())
        .collect();
    // The second lease, so that the copies are long.
    link.send_control(&grants[1].to_bytes(), &[arena.fd()])
        .unwrap();
    std::thread::sleep(Duration::from_millis(50));
    // The signal most likely stops the child in the middle of a copy. If so, revoking reaches its time limit.
    let stop = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(stop, rustix::process::Signal::STOP).unwrap();
    let stopped = common::revoke(&board, &[grants[1].id], Duration::from_millis(50));
    eprintln!("while the peer is stopped: {stopped:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    common::revoke(&board, &[grants[0].id, grants[1].id], LONG).unwrap();
    assert_eq!(board.out(), 0);
}
