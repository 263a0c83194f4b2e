//! The shared-memory link with both sides in one process: handshake, every mechanism for payload,
//! sleeping, and a peer that ends or violates the protocol.

mod common;

use common::{bytes_of, connect, listen, local, pair, pair_with, wait_readable};
use rkey_base::barrier;
use rkey_base::memory::Memory as _;
use rkey_link::shm::{
    Connector, Event, Greeting, HandshakeError, LinkConfig, OtherConnection, Policy, Step,
};
use rkey_link::{
    DownReason, Header, HeaderFlags, Link as _, NodeId, Op, Payload, PullError, SendError,
};
use std::os::fd::AsFd as _;

#[test]
fn both_sides_learn_the_node_and_capabilities_of_the_other() {
    let (requester, responder) = pair();
    assert_eq!(requester.node(), NodeId { pid: 2, nonce: 22 });
    assert_eq!(responder.node(), NodeId { pid: 1, nonce: 11 });
    assert!(requester.is_requester() && !responder.is_requester());
    assert_eq!(requester.credentials().pid, Some(std::process::id()));
    assert_eq!(requester.is_up(), Ok(()));
    assert_eq!(
        requester.capabilities().remote_iovec,
        responder.capabilities().remote_iovec
    );
    assert_eq!(requester.capabilities().fragment_max, 16 << 10);
}

#[test]
fn requests_and_responses_arrive() {
    let (mut requester, mut responder) = pair();
    for len in [0, 1, 8, 16, 17, 208, 209, 4096, 16 << 10] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        let header = Header {
            len: len as u32,
            total: len as u32,
            flags: HeaderFlags::FIRST | HeaderFlags::LAST | HeaderFlags::ACK_NOW,
            ..Header::new(Op::Send)
        };
        let ticket = requester
            .send_request(&header, |mut place| {
                place.put(0, &bytes);
                Ok(())
            })
            .unwrap();
        requester.end_burst();
        assert!(responder.pending());
        let incoming = responder.next_request().unwrap().unwrap();
        assert_eq!(incoming.header, header);
        assert_eq!(bytes_of(&incoming), bytes);
        assert!(responder.room_to_respond());
        let answer = Header {
            len: len as u32,
            ..Header::new(Op::ReadData)
        };
        responder
            .send_response(&answer, |mut place| {
                place.put(0, &bytes);
                Ok(())
            })
            .unwrap();
        responder.request_done();
        responder.end_burst();
        assert_eq!(
            requester.acknowledged(),
            Ok(ticket),
            "the response comes first"
        );
        assert_eq!(
            bytes_of(&requester.next_response().unwrap().unwrap()),
            bytes
        );
        requester.response_done();
        assert_eq!(requester.acknowledged(), Ok(ticket + 1));
        requester.end_burst();
        assert_eq!(responder.acknowledged(), Ok(0), "it has sent no request");
        assert!(requester.next_request().unwrap().is_none());
        assert!(responder.next_response().unwrap().is_none());
    }
}

/// Fragments are preferred while the ring has room, and again once it has room again.
#[test]
fn remote_iovecs_are_preferred_while_the_ring_is_full() {
    let config = LinkConfig {
        payload_ring: 64 << 10,
        ..LinkConfig::default()
    };
    let (mut requester, mut responder) = pair_with(config, config);
    assert!(requester.prefers_fragments_for_read(64 << 10));
    assert!(!requester.prefers_fragments_for_read((64 << 10) + 1));
    let header = Header {
        len: 16 << 10,
        total: 16 << 10,
        flags: HeaderFlags::FIRST | HeaderFlags::LAST | HeaderFlags::ACK_NOW,
        ..Header::new(Op::Send)
    };
    for round in 0..3 {
        let mut sent = 0;
        while requester.prefers_fragments() {
            requester.send_request(&header, |_| Ok(())).unwrap();
            sent += 1;
        }
        assert_eq!(sent, 4, "round {round}");
        assert_eq!(
            requester.send_request(&header, |_| Ok(())),
            Err(SendError::Full),
            "round {round}"
        );
        while responder.next_request().unwrap().is_some() {
            responder.request_done();
        }
        responder.publish();
    }
}

#[test]
fn payload_by_remote_iovec_is_pulled_and_pushed() {
    let (mut requester, mut responder) = pair();
    if !responder.capabilities().remote_iovec {
        eprintln!("SKIP: the kernel does not permit process_vm_readv here");
        return;
    }
    // The test deliberately has no unsafe code: its memory is an arena at made-up addresses, accessed through a buffer;
    // only the requester side uses real process memory.
    let source: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    let sink = vec![0u8; 5000];
    let target = rkey_base::memory::ArenaMemory::new(0x10_0000, 200_000);
    let address = source.as_ptr() as u64;
    let remote_iovec = [(address, 60_000), (address + 60_000, 40_000)];
    let header = Header {
        len: 100_000,
        total: 100_000,
        ..Header::new(Op::Write)
    };
    requester.send_remote_iovec(&header, &remote_iovec).unwrap();
    let incoming = responder.next_request().unwrap().unwrap();
    let Payload::RemoteIovec(list) = incoming.payload else {
        panic!("not a remote iovec")
    };
    let mut at = 0x10_0000;
    for &(va, len) in list.as_slice() {
        responder.pull(&target, at, va, len).unwrap();
        at += len;
    }
    responder.request_done();
    assert_eq!(target.read(0x10_0000, 100_000), source);

    responder
        .push(&target, sink.as_ptr() as u64, 0x10_0000 + 17, 5000)
        .unwrap();
    let mut seen = vec![0; 5000];
    // The kernel wrote the sink without the compiler's knowledge, so read it the way the kernel wrote it.
    for (i, byte) in seen.iter_mut().enumerate() {
        *byte = std::hint::black_box(&sink)[i];
    }
    assert_eq!(seen, source[17..5017]);

    // Unmapped memory on either side is an error.
    assert!(matches!(
        responder.pull(&target, 0x10_0000, 8, 64),
        Err(PullError::Remote(_))
    ));
    assert!(matches!(
        responder.pull(&target, 0, address, 64),
        Err(PullError::Local(_))
    ));
    assert!(matches!(
        responder.push(&target, 8, 0x10_0000, 64),
        Err(PullError::Remote(_))
    ));
    assert!(responder.pull(&target, u64::MAX, address, 64).is_err());
    // Only the responder may pull.
    assert_eq!(
        requester.pull(&target, 0x10_0000, address, 64),
        Err(PullError::Refused)
    );
    let mut byte = [0];
    target.load_bytes(&mut byte, 0x10_0000).unwrap();
}

#[test]
fn memory_of_a_requester_that_gave_up_is_no_longer_accessed() {
    for how in 0..3 {
        let (mut requester, responder) = pair();
        let source = vec![1u8; 1000];
        let target = rkey_base::memory::ArenaMemory::new(0x1000, 1000);
        if !responder.capabilities().remote_iovec {
            eprintln!("SKIP: the kernel does not permit process_vm_readv here");
            return;
        }
        let address = source.as_ptr() as u64;
        responder.pull(&target, 0x1000, address, 1000).unwrap();
        let access = requester.peer_access().unwrap();
        assert!(responder.peer_access().is_none());
        match how {
            0 => access.revoke(),
            1 => requester.go_down(DownReason::Closed),
            _ => drop(requester),
        }
        assert!(access.is_at_rest(std::time::Instant::now() + common::LONG));
        assert_eq!(
            responder.pull(&target, 0x1000, address, 1000),
            Err(PullError::Gone)
        );
        assert_eq!(
            responder.push(&target, address, 0x1000, 1000),
            Err(PullError::Gone)
        );
        assert_eq!(source, vec![1u8; 1000]);
    }
}

#[test]
fn remote_iovecs_can_be_switched_off() {
    let config = LinkConfig {
        remote_iovec: false,
        ..LinkConfig::default()
    };
    for (a, b) in [
        (config, LinkConfig::default()),
        (LinkConfig::default(), config),
    ] {
        let (requester, responder) = pair_with(a, b);
        assert!(!requester.capabilities().remote_iovec);
        assert!(!responder.capabilities().remote_iovec);
    }
}

#[test]
fn a_sleeping_responder_is_woken_once() {
    let (mut requester, responder) = pair();
    let view = responder.poll_view();
    let probe = Header::new(Op::Probe);
    // Awake: no doorbell.
    requester.send_request(&probe, |_| Ok(())).unwrap();
    requester.end_burst();
    assert!(responder.line().next_event().is_none());
    // The peer is asleep: the first flush rings, the second does not.
    view.announce_sleep();
    barrier::heavy();
    requester.send_request(&probe, |_| Ok(())).unwrap();
    requester.end_burst();
    requester.send_request(&probe, |_| Ok(())).unwrap();
    requester.end_burst();
    assert!(view.pending());
    assert!(wait_readable(responder.line().as_fd()));
    assert!(matches!(responder.line().next_event(), Some(Event::Wake)));
    assert!(responder.line().next_event().is_none());
    // The next sleep gets its own doorbell.
    view.awake();
    view.announce_sleep();
    requester.send_request(&probe, |_| Ok(())).unwrap();
    requester.end_burst();
    assert!(matches!(responder.line().next_event(), Some(Event::Wake)));
    requester.kick();
    assert!(matches!(responder.line().next_event(), Some(Event::Wake)));
}

#[test]
fn a_sleeping_requester_is_woken_by_its_acknowledgement() {
    let (mut requester, mut responder) = pair();
    requester
        .send_request(&Header::new(Op::Probe), |_| Ok(()))
        .unwrap();
    requester.end_burst();
    let view = requester.poll_view();
    view.announce_sleep();
    responder.next_request().unwrap().unwrap();
    responder.request_done();
    for _ in 0..50 {
        let _ = responder.next_request().unwrap();
        responder.end_burst();
    }
    assert!(matches!(requester.line().next_event(), Some(Event::Wake)));
    assert!(view.pending());
    view.awake();
    assert_eq!(requester.acknowledged(), Ok(1));
    assert!(!requester.has_unacked());
}

#[test]
fn devices_can_exchange_control_messages() {
    let (requester, mut responder) = pair();
    requester
        .send_control(b"a lease, please", &[requester.line().as_fd()])
        .unwrap();
    requester.send_control(&[], &[]).unwrap();
    match responder.on_socket() {
        Some(Event::Control(control)) => {
            assert_eq!(control.bytes, b"a lease, please");
            assert_eq!(control.fds.len(), 1);
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(responder.on_socket(), Some(Event::Control(c)) if c.bytes.is_empty()));
    assert!(responder.on_socket().is_none());
}

#[test]
fn the_last_fragments_of_a_peer_that_has_ended_are_received() {
    let (mut requester, mut responder) = pair();
    requester
        .send_request(&Header::new(Op::Probe), |_| Ok(()))
        .unwrap();
    drop(requester);
    assert!(wait_readable(responder.line().as_fd()));
    assert!(matches!(responder.on_socket(), Some(Event::Gone)));
    assert_eq!(responder.is_up(), Err(DownReason::PeerGone));
    assert!(responder.next_request().unwrap().is_some());
    responder.request_done();
    let sent = responder.send_response(&Header::new(Op::Nak), |_| Ok(()));
    assert_eq!(sent, Err(SendError::Down));
    responder.end_burst();
}

#[test]
fn the_last_acknowledgements_of_a_closed_link_arrive() {
    for drops in [true, false] {
        let (mut requester, mut responder) = pair();
        for _ in 0..3 {
            requester
                .send_request(&Header::new(Op::Probe), |_| Ok(()))
                .unwrap();
            assert!(responder.next_request().unwrap().is_some());
            responder.request_done();
        }
        assert_eq!(
            requester.acknowledged(),
            Ok(0),
            "too few to be acknowledged yet"
        );
        if drops {
            drop(responder);
        } else {
            responder.go_down(DownReason::Closed);
        }
        assert_eq!(requester.acknowledged(), Ok(3));
    }
}

#[test]
fn refusals_carry_their_reason() {
    let (listener, name) = listen();
    let mut connector = Connector::start(&name, &local(1, LinkConfig::default()), b"").unwrap();
    let request = common::accept_link(&listener, &local(2, LinkConfig::default()));
    request.refuse("no more links today");
    match connector.advance() {
        Err(HandshakeError::Refused(why)) => assert_eq!(why, "no more links today"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        Connector::start(b"rkey-test-unused", &local(1, LinkConfig::default()), b""),
        Err(HandshakeError::Io(e)) if e.kind() == std::io::ErrorKind::ConnectionRefused
    ));
}

#[test]
fn the_listener_learns_the_purpose_and_the_node_of_a_request() {
    let (listener, name) = listen();
    let _connector = connect(&name, 1, b"queue pair 17");
    let request = common::accept_link(&listener, &local(2, LinkConfig::default()));
    assert_eq!(request.purpose(), b"queue pair 17");
    assert_eq!(request.node(), NodeId { pid: 1, nonce: 11 });
}

#[test]
fn a_listener_name_can_be_bound_only_once() {
    let (_listener, name) = listen();
    let again = rkey_link::shm::Listener::bind(&name).unwrap_err();
    assert_eq!(again.kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn a_connection_can_request_something_other_than_a_link() {
    let (listener, name) = listen();
    let node = local(1, LinkConfig::default());
    let asking = OtherConnection::connect(&name, &node, b"who are you?").unwrap();
    let mut acceptor = listener.accept(&node).unwrap().unwrap();
    let Ok(Step::Done(Greeting::Other(asked))) = acceptor.advance() else {
        panic!()
    };
    assert_eq!(asked.first(), b"who are you?");
    asked.send(b"a test", &[]).unwrap();
    assert!(matches!(asking.receive(), Ok(Step::Done(got)) if got.bytes == b"a test"));
    assert!(matches!(asking.receive(), Ok(Step::Pending)));
    drop(asked);
    assert!(matches!(asking.receive(), Err(HandshakeError::Closed)));
}

#[test]
fn a_listener_open_to_all_users_accepts_connections() {
    // The uid cannot be changed here; the test can only show that the policy is applied.
    let (listener, name) = listen();
    let open = LinkConfig {
        policy: Policy::Any,
        ..LinkConfig::default()
    };
    let _connector = Connector::start(&name, &local(1, open), b"").unwrap();
    assert!(listener.accept(&local(2, open)).unwrap().is_some());
}

#[test]
fn a_thousand_links_leave_nothing_behind() {
    fn counts() -> (usize, usize) {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        (
            fds,
            maps.lines()
                .filter(|line| line.contains("rkey-link"))
                .count(),
        )
    }
    // Other tests of this binary make links at the same time, so this one runs in its own process.
    if std::env::var_os("RKEY_TEST_ALONE").is_none() {
        let me = std::env::current_exe().unwrap();
        let output = std::process::Command::new(me)
            .args([
                "--exact",
                "a_thousand_links_leave_nothing_behind",
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
    drop(pair());
    let before = counts();
    assert_eq!(before.1, 0);
    for _ in 0..1000 {
        let (mut requester, responder) = pair();
        requester
            .send_request(&Header::new(Op::Probe), |_| Ok(()))
            .unwrap();
        assert!(responder.next_request().unwrap().is_some());
    }
    assert_eq!(counts(), before);
}
