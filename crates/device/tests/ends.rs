//! Peers that are killed or stopped, or that close their device, and what they leave behind.

mod common;

use std::time::{Duration, Instant};

use common::{LONG, Peer, Side, WORDS, role, sleep_in_read, until};
use rkey_device::{AsyncEvent, Config, Qp, QpOptions};
use rkey_engine::{QpState, SendRequest, Sge, Status, Work};

fn target() {
    let side = Side::open();
    let (_qp, _) = side.connect();
    sleep_in_read();
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .filter(|l| l.contains("rkey"))
        .count()
}

/// A killed peer leaves nothing behind: outstanding requests to it fail long before a timeout, even if the program sleeps, and
/// descriptors and mappings are released.
#[test]
fn a_killed_peer_fails_requests_at_once_and_leaks_nothing() {
    match role().as_deref() {
        Some("target") => target(),
        Some(_) => survive(),
        // The test runs in its own process, so that other tests do not change the counts.
        None => Peer::start(
            "a_killed_peer_fails_requests_at_once_and_leaks_nothing",
            "alone",
            "127.0.0.1:1".parse().unwrap(),
        )
        .finish(),
    }
}

fn survive() {
    let side = Side::open();
    let listener = side.listen();
    let mut before = None;
    for round in 0..6 {
        let mut peer = Peer::start(
            "a_killed_peer_fails_requests_at_once_and_leaks_nothing",
            "target",
            listener.local_address(),
        );
        let (qp, remote) = side.accept(&listener);
        let write = Work::Write {
            remote: remote.at(0),
            imm: None,
        };
        side.run(&qp, write, &[side.sge(0, 8)]);
        for id in 0..10 {
            side.receive(&qp, id, 0, 8);
        }
        // Stop the peer first, so that requests are outstanding when it dies.
        peer.stop();
        for id in 100..110 {
            qp.post_send(&SendRequest::new(id, write, &[side.sge(0, 8)]))
                .unwrap();
        }
        peer.kill();
        for id in 100..110 {
            let done = if round % 2 == 0 {
                side.next()
            } else {
                side.next_asleep()
            };
            assert_eq!(done.id, id);
            let expected = if id == 100 {
                Status::RetryExceeded
            } else {
                Status::Flushed
            };
            assert_eq!(done.status, expected, "{id}");
        }
        for id in 0..10 {
            let done = side.next();
            assert_eq!((done.id, done.status), (id, Status::Flushed));
        }
        assert_eq!(qp.query().unwrap().state, QpState::Error);
        drop(qp);
        until("the end of the links", || {
            side.device.inspect().unwrap().links.len() == 1
        });
        // The rest of a link is released when its peer is known to be dead, shortly after the link broke.
        match before {
            None => {
                std::thread::sleep(Duration::from_millis(500));
                before = Some((descriptors(), mappings()));
            }
            Some((fds, maps)) => until("the end of what a killed peer left behind", || {
                descriptors() <= fds && mappings() <= maps
            }),
        }
    }
}

/// Waits for the event that a queue pair's peer has ended; other events may precede it.
fn hears_that_the_peer_is_gone(side: &Side, qp: &Qp) {
    loop {
        let event = side.device.next_event(Some(LONG)).unwrap();
        match event.expect("no event came") {
            AsyncEvent::PeerGone { qpn, .. } if qpn == qp.qpn() => break,
            _ => {}
        }
    }
}

/// Without outstanding requests, the program gets an event, and its receives are flushed unless the options forbid it.
#[test]
fn a_killed_peer_causes_an_event_even_without_outstanding_requests() {
    if role().is_some() {
        return target();
    }
    let side = Side::open();
    let listener = side.listen();
    for fail_with_peer in [true, false] {
        let mut peer = Peer::start(
            "a_killed_peer_causes_an_event_even_without_outstanding_requests",
            "target",
            listener.local_address(),
        );
        let options = QpOptions {
            fail_with_peer,
            ..QpOptions::new(side.domain, &side.cq)
        };
        let qp = side.device.create_qp(&options).unwrap();
        let incoming = listener.accept(Some(LONG)).unwrap();
        let remote = common::Remote::from(&incoming.peer().private_data[..]);
        incoming.accept(&[&qp], &side.invitation()).unwrap();
        let write = Work::Write {
            remote: remote.at(0),
            imm: None,
        };
        side.run(&qp, write, &[side.sge(0, 8)]);
        side.receive(&qp, 5, 0, 8);
        peer.kill();
        hears_that_the_peer_is_gone(&side, &qp);
        if fail_with_peer {
            let done = side.next_asleep();
            assert_eq!((done.id, done.status), (5, Status::Flushed));
        }
        // Posts to the peer fail and do not hang.
        qp.post_send(&SendRequest::new(1, write, &[side.sge(0, 8)]))
            .unwrap();
        let done = side.next_asleep();
        let expected = if fail_with_peer {
            Status::Flushed
        } else {
            Status::RetryExceeded
        };
        assert_eq!((done.id, done.status), (1, expected));
        while side.next_within(Duration::from_millis(20)).is_some() {}
    }
}

/// If nothing is posted, nothing completes, but an armed queue is notified, unless the queue pair stays in service.
#[test]
fn an_armed_completion_queue_is_notified_of_a_killed_peer() {
    if role().is_some() {
        return target();
    }
    let side = Side::open();
    let listener = side.listen();
    for fail_with_peer in [true, false] {
        let mut peer = Peer::start(
            "an_armed_completion_queue_is_notified_of_a_killed_peer",
            "target",
            listener.local_address(),
        );
        let channel = side.device.create_channel().unwrap();
        let cq = side.device.create_cq(16, Some(&channel)).unwrap();
        let options = QpOptions {
            fail_with_peer,
            ..QpOptions::new(side.domain, &cq)
        };
        let qp = side.device.create_qp(&options).unwrap();
        let incoming = listener.accept(Some(LONG)).unwrap();
        incoming.accept(&[&qp], &side.invitation()).unwrap();
        cq.req_notify(true).unwrap();
        assert_eq!(cq.ended_peers(), 0);
        peer.kill();
        if fail_with_peer {
            let event = channel.next_event(Some(LONG)).unwrap();
            assert_eq!((event, cq.ended_peers()), (Some(cq.id()), 1));
            assert_eq!(qp.query().unwrap().state, QpState::Error);
        }
        hears_that_the_peer_is_gone(&side, &qp);
        assert_eq!(channel.try_next_event().unwrap(), None);
        assert_eq!(cq.ended_peers(), u32::from(fail_with_peer));
        assert!(cq.is_empty());
    }
}

/// A stopped peer does not respond: the timeout of the queue pair decides.
#[test]
fn requests_to_a_stopped_peer_time_out() {
    if role().is_some() {
        return target();
    }
    let side = Side::hasty();
    let listener = side.listen();
    for asleep in [false, true] {
        let peer = Peer::start(
            "requests_to_a_stopped_peer_time_out",
            "target",
            listener.local_address(),
        );
        let (qp, remote) = side.accept(&listener);
        let write = Work::Write {
            remote: remote.at(0),
            imm: None,
        };
        side.run(&qp, write, &[side.sge(0, 8)]);
        peer.stop();
        // Give the device enough time to fall asleep.
        std::thread::sleep(Duration::from_millis(50));
        let started = Instant::now();
        qp.post_send(&SendRequest::new(1, write, &[side.sge(0, 8)]))
            .unwrap();
        let done = if asleep {
            side.next_asleep()
        } else {
            side.next()
        };
        assert_eq!((done.id, done.status), (1, Status::RetryExceeded));
        let waited = started.elapsed();
        assert!(
            waited > Duration::from_millis(300),
            "gave up early: {waited:?}"
        );
        peer.signal(libc::SIGCONT);
    }
}

/// A program that makes no calls gets the event on the channel's descriptor.
#[test]
fn a_timeout_is_reported_on_the_descriptor_of_the_channel() {
    if role().is_some() {
        return target();
    }
    let side = Side::hasty();
    let channel = side.device.create_channel().unwrap();
    let cq = side.device.create_cq(16, Some(&channel)).unwrap();
    let listener = side.listen();
    let peer = Peer::start(
        "a_timeout_is_reported_on_the_descriptor_of_the_channel",
        "target",
        listener.local_address(),
    );
    let qp = side
        .device
        .create_qp(&QpOptions::new(side.domain, &cq))
        .unwrap();
    let incoming = listener.accept(Some(LONG)).unwrap();
    let remote = common::Remote::from(&incoming.peer().private_data[..]);
    incoming.accept(&[&qp], &side.invitation()).unwrap();
    let write = Work::Write {
        remote: remote.at(0),
        imm: None,
    };
    let wait = |expected: Status| {
        cq.req_notify(false).unwrap();
        qp.post_send(&SendRequest::new(1, write, &[side.sge(0, 8)]))
            .unwrap();
        let mut set = [rustix::event::PollFd::from_borrowed_fd(
            channel.fd(),
            rustix::event::PollFlags::IN,
        )];
        let limit = rustix::event::Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        assert_eq!(rustix::event::poll(&mut set, Some(&limit)).unwrap(), 1);
        assert_eq!(channel.try_next_event().unwrap(), Some(cq.id()));
        let mut one = [rkey_engine::Completion::default()];
        assert_eq!(cq.poll(&mut one).unwrap(), 1);
        assert_eq!(one[0].status, expected);
    };
    for _ in 0..20 {
        wait(Status::Success);
    }
    peer.stop();
    wait(Status::RetryExceeded);
    peer.signal(libc::SIGCONT);
}

/// Deregistering a region cuts off the peer that knows its addresses and does not respond, and no other: requests to
/// another, slow peer arrive.
#[test]
fn deregistering_cuts_off_only_peers_that_got_the_address() {
    const TEST: &str = "deregistering_cuts_off_only_peers_that_got_the_address";
    if role().is_some() {
        return target();
    }
    let mut config = Config::from_env().unwrap();
    config.timeout = 21;
    // The ring is so small that a long write uses a remote iovec.
    config.ring_bytes = 64 << 10;
    let side = Side::with(config);
    let listener = side.listen();
    let [told, other] = [(); 2].map(|()| {
        let peer = Peer::start(TEST, "target", listener.local_address());
        let (qp, remote) = side.accept(&listener);
        let remote = remote.at(0);
        let write = Work::Write { remote, imm: None };
        side.run(&qp, write, &[side.sge(0, 8)]);
        peer.stop();
        (peer, qp, write)
    });
    let region = side.another_region();
    let all = Sge {
        key: region.local_key,
        ..side.sge(0, WORDS as u32 * 8)
    };
    told.1
        .post_send(&SendRequest::new(1, told.2, &[all]))
        .unwrap();
    let few = [side.sge(0, 8)];
    other
        .1
        .post_send(&SendRequest::new(2, other.2, &few))
        .unwrap();
    side.device.deregister(region).unwrap();
    let done = side.next();
    assert_eq!((done.id, done.status), (1, Status::RetryExceeded));
    other.0.signal(libc::SIGCONT);
    let done = side.next();
    assert_eq!((done.id, done.status), (2, Status::Success));
}

/// Peers notice at once that a device is closed.
#[test]
fn peers_notice_at_once_that_a_device_is_closed() {
    let near = Side::open();
    let far = Side::open();
    let listener = far.listen();
    let (near_qp, far_qp) = (near.qp(), far.qp());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let incoming = listener.accept(Some(LONG)).unwrap();
            incoming.accept(&[&far_qp], &[]).unwrap();
        });
        near.device
            .connect(listener.local_address(), &[&near_qp], &[], LONG)
            .unwrap();
    });
    let remote = common::Remote::from(&far.invitation()[..]);
    near.set(0, 4711);
    near.run(
        &near_qp,
        Work::Write {
            remote: remote.at(3),
            imm: None,
        },
        &[near.sge(0, 8)],
    );
    assert_eq!(far.word(3), 4711);
    drop((far_qp, listener));
    drop(far);
    let event = near.device.next_event(Some(LONG)).unwrap();
    assert!(
        matches!(event, Some(AsyncEvent::PeerGone { .. })),
        "{event:?}"
    );
    until("the end of the links", || {
        near.device.inspect().unwrap().links.len() == 1
    });
}

/// Opening and closing leaves nothing behind.
#[test]
fn closing_a_device_leaks_nothing() {
    if role().is_none() {
        let nowhere = "127.0.0.1:1".parse().unwrap();
        return Peer::start("closing_a_device_leaks_nothing", "alone", nowhere).finish();
    }
    drop(Side::open());
    let before = (descriptors(), mappings());
    for _ in 0..20 {
        let side = Side::open();
        let _qp = side.qp();
    }
    assert_eq!((descriptors(), mappings()), before);
    // A joined thread stays in the list a little longer.
    until("the end of the engines' threads", || {
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
        };
        let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().map(name);
        !tasks.any(|name| name.starts_with("rkey-engine"))
    });
}
