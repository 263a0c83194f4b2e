//! What a peer on another host may not do: the owner refuses it and records the reason; the peer gets only the status.

use super::network::FAIR;
use super::*;
use rkey_core::{Access, Key, NamedKey, RKey, Reason};

/// The only denial among the events.
fn denial(events: &[Event]) -> &DenialReport {
    let all = denied(events);
    assert_eq!(all.len(), 1, "{events:?}");
    all[0]
}

/// Executes a request that is refused; returns the events of both sides.
fn refused(hosts: &mut Hosts, qps: &[Qp; 2], work: Work, sges: &[Sge]) -> [Vec<Event>; 2] {
    for node in &mut hosts.nodes {
        node.events();
    }
    hosts.send(0, &qps[0], &SendRequest::new(77, work, sges));
    hosts.send(0, &qps[0], &SendRequest::new(78, send_work(), &[]));
    assert!(hosts.run());
    let done = qps[0].poll();
    use Status::{Flushed, RemoteAccess};
    assert_eq!(statuses(&done), [(77, RemoteAccess), (78, Flushed)]);
    let events = hosts.nodes.each_mut().map(Node::events);
    let report = denial(&events[0]);
    assert_eq!((report.side, report.work_id), (Side::Initiator, Some(77)));
    assert_eq!(
        (report.id, report.host),
        (done[0].vendor, Some(path(0).remote))
    );
    for at in 0..2 {
        assert_eq!(hosts.nodes[at].state(&qps[at]), QpState::Error);
    }
    events
}

#[test]
fn every_operation_needs_its_right() {
    for operation in 0..4 {
        let mut hosts = Hosts::new(1, FAIR);
        let qps = hosts.connect(|_, _| {});
        let mine = hosts.nodes[0].register(0, 4096, ALL);
        let sge = [hosts.nodes[0].sge(&mine, 0, 8)];
        let missing = works(hosts.nodes[1].target(&mine, 0))[operation].1;
        let theirs = hosts.nodes[1].register(0, 4096, ALL.difference(missing));
        let (work, _) = works(hosts.nodes[1].target(&theirs, 8))[operation];
        hosts.nodes[1].fill(0, &[7; 64]);
        let events = refused(&mut hosts, &qps, work, &sge);
        let report = denial(&events[1]);
        assert_eq!(
            (report.side, report.host),
            (Side::Target, Some(path(1).remote))
        );
        assert!(
            matches!(report.denial.reason, Reason::Right { .. }),
            "{report}"
        );
        assert_eq!(
            (report.denial.addr, report.denial.len),
            (hosts.nodes[1].base() + 8, 8)
        );
        assert!(
            report.to_string().contains("requested by host 192.0.2.1"),
            "{report}"
        );
        let access = |event: &Event| matches!(event, Event::Async(AsyncEvent::AccessError { .. }));
        assert!(events[1].iter().any(access), "{events:?}");
        assert_eq!(hosts.nodes[1].bytes(0, 64), [7; 64]);
        // The initiator is not told why.
        assert!(
            matches!(denial(&events[0]).denial.reason, Reason::Withheld),
            "{events:?}"
        );
    }
}

/// A write of many packets is refused as a whole, before its first byte is stored.
#[test]
fn a_request_of_many_packets_is_refused_as_a_whole() {
    let far = Key(0x7777_7777);
    for (offset, length, guess) in [(3000, 2000, false), (4095, 2, false), (0, 8, true)] {
        for write in [true, false] {
            let mut hosts = Hosts::new(1, FAIR);
            let qps = hosts.connect_with(
                |_, _| {},
                |_, step| step.path_mtu = step.path_mtu.map(|_| 256),
            );
            let mine = hosts.nodes[0].register(0, 8192, ALL);
            let theirs = hosts.nodes[1].register(0, 4096, ALL);
            let sge = [hosts.nodes[0].sge(&mine, 0, length)];
            let mut remote = hosts.nodes[1].target(&theirs, offset);
            if guess {
                remote.key = RKey::Device(far);
            }
            let work = if write {
                Work::Write { remote, imm: None }
            } else {
                Work::Read { remote }
            };
            let events = refused(&mut hosts, &qps, work, &sge);
            let report = denial(&events[1]);
            assert_eq!(
                (report.denial.addr, report.denial.len),
                (remote.addr, length.into())
            );
            assert_eq!(hosts.nodes[1].bytes(3000, 2000), [0; 2000]);
        }
    }
}

#[test]
fn the_targets_queue_pair_must_also_allow_the_operation() {
    let mut hosts = Hosts::new(1, FAIR);
    let qps = hosts.connect_with(
        |_, _| {},
        |_, step| step.access = step.access.map(|_| Access::REMOTE_READ),
    );
    let regions = hosts.regions();
    let sge = [hosts.nodes[0].sge(&regions[0], 0, 8)];
    let remote = hosts.nodes[1].target(&regions[1], 0);
    hosts.send(
        0,
        &qps[0],
        &SendRequest::new(1, Work::Read { remote }, &sge),
    );
    assert!(hosts.run());
    assert_eq!(statuses(&qps[0].poll()), [(1, Status::Success)]);
    let events = refused(&mut hosts, &qps, Work::Write { remote, imm: None }, &sge);
    let reason = &denial(&events[1]).denial.reason;
    assert!(matches!(reason, Reason::QueuePair { .. }), "{reason:?}");
}

/// A region that is deregistered in the middle of a write ends the write there.
#[test]
fn deregistering_ends_a_write_between_two_packets() {
    let mut hosts = Hosts::new(1, FAIR);
    let qps = hosts.connect_with(
        |_, _| {},
        |_, step| step.path_mtu = step.path_mtu.map(|_| 256),
    );
    let regions = hosts.regions();
    let sge = [hosts.nodes[0].sge(&regions[0], 0, 5 * 256)];
    let remote = hosts.nodes[1].target(&regions[1], 0);
    hosts.nodes[1].fill(0, &[7; 4096]);
    hosts.send(
        0,
        &qps[0],
        &SendRequest::new(77, Work::Write { remote, imm: None }, &sge),
    );
    let mut place: Box<PacketBuffer> = Box::new([0; _]);
    for packet in 0.. {
        let Some((_, length)) = hosts.nodes[0].engine.wire_transmit(1, &mut place) else {
            assert_eq!(packet, 5);
            break;
        };
        if packet == 2 {
            assert!(hosts.nodes[1].close(&regions[1]));
        }
        hosts.deliver(1, path(1), &place[..length]);
    }
    assert!(hosts.run());
    assert_eq!(statuses(&qps[0].poll()), [(77, Status::RemoteAccess)]);
    assert!(hosts.nodes[1].bytes(0, 512) == hosts.nodes[0].bytes(0, 512));
    assert_eq!(hosts.nodes[1].bytes(512, 512), [7; 512]);
    let events = hosts.nodes[1].events();
    let report = denial(&events);
    assert_eq!(
        (report.denial.addr, report.denial.len),
        (remote.addr, 5 * 256)
    );
}

#[test]
fn an_unaligned_atomic_is_an_invalid_request() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect(|_, _| {});
    let regions = hosts.regions();
    let sge = [hosts.nodes[0].sge(&regions[0], 0, 8)];
    let remote = hosts.nodes[1].target(&regions[1], 4);
    hosts.send(
        0,
        &a,
        &SendRequest::new(1, Work::FetchAdd { remote, add: 1 }, &sge),
    );
    assert!(hosts.run());
    assert_eq!(statuses(&a.poll()), [(1, Status::RemoteInvalidRequest)]);
    let events = hosts.nodes[1].events();
    let invalid = |event: &Event| matches!(event, Event::Async(AsyncEvent::RequestError { .. }));
    assert!(events.iter().any(invalid), "{events:?}");
    assert_eq!(hosts.nodes[1].state(&b), QpState::Error);
}

/// Local memory that may not be used, at the sender and in a receive.
#[test]
fn sends_and_receives_outside_their_local_region_fail() {
    let mut hosts = Hosts::new(1, FAIR);
    let [a, b] = hosts.connect(|_, _| {});
    let regions = hosts.regions();
    hosts.recv(1, &b, 50, &[]);
    hosts.send(0, &a, &SendRequest::new(1, send_work(), &[]));
    let beyond = [hosts.nodes[0].sge(&regions[0], (1 << 16) - 4, 8)];
    hosts.send(0, &a, &SendRequest::new(2, send_work(), &beyond));
    hosts.send(0, &a, &SendRequest::new(3, send_work(), &[]));
    assert!(hosts.run());
    let done = a.poll();
    use Status::{Flushed, LocalProtection, RemoteOperation, Success};
    assert_eq!(
        statuses(&done),
        [(1, Success), (2, LocalProtection), (3, Flushed)]
    );
    let events = hosts.nodes[0].events();
    let report = denial(&events);
    assert_eq!((report.side, report.id), (Side::Local, done[1].vendor));
    assert_eq!(hosts.nodes[0].state(&a), QpState::Error);

    let [a, b] = hosts.connect(|_, _| {});
    let beyond = [hosts.nodes[1].sge(&regions[1], (1 << 16) - 4, 8)];
    let from = [hosts.nodes[0].sge(&regions[0], 0, 8)];
    hosts.nodes[1].events();
    hosts.recv(1, &b, 60, &beyond);
    hosts.send(0, &a, &SendRequest::new(4, send_work(), &from));
    assert!(hosts.run());
    assert_eq!(statuses(&a.poll()), [(4, RemoteOperation)]);
    let got = b.poll();
    assert_eq!(statuses(&got), [(60, LocalProtection)]);
    let events = hosts.nodes[1].events();
    assert_eq!(denial(&events).id, got[0].vendor);
}

/// A front end refuses what a host requests in messages. The keys count as if packets had named them.
#[test]
fn a_host_that_guesses_keys_in_messages_is_paused() {
    let mut hosts = Hosts::new(1, FAIR);
    let mine = hosts.nodes[0].register(0, 64, ALL);
    let sge = [hosts.nodes[0].sge(&mine, 0, 8)];
    let qps = hosts.connect(|_, _| {});
    let key = |number: u32| RKey::Device(Key(0x1234_0000 + number * 256));
    let remote = Target {
        addr: 0,
        key: key(0),
    };
    let write = Work::Write { remote, imm: None };
    let events = refused(&mut hosts, &qps, write, &sge);
    let mut denial = denial(&events[1]).denial.clone();
    let qps = hosts.connect(|_, _| {});
    for number in 1..500 {
        denial.key = NamedKey::Remote(key(number));
        let engine = &mut hosts.nodes[1].engine;
        let host = engine.count_denied_of_host(qps[1].id, &denial, hosts.now);
        assert_eq!(host, Some(path(1).remote));
    }
    hosts.send(0, &qps[0], &SendRequest::new(1, write, &sge));
    assert!(hosts.run());
    assert!(hosts.nodes[1].engine.wire_drops().paused > 0);
}

/// A host that guesses keys must wait, regardless of the queue pair that it uses.
#[test]
fn a_host_that_guesses_keys_is_paused() {
    let mut hosts = Hosts::new(1, FAIR);
    let mine = hosts.nodes[0].register(0, 64, ALL);
    let sge = [hosts.nodes[0].sge(&mine, 0, 8)];
    let mut rounds = 0;
    while hosts.nodes[1].engine.wire_drops().paused == 0 {
        rounds += 1;
        assert!(rounds < 500, "{:?}", hosts.nodes[1].engine.guessers());
        let [a, _] = hosts.connect(|_, _| {});
        let remote = Target {
            addr: 0,
            key: RKey::Device(Key(0x1234_0000 + rounds * 256)),
        };
        hosts.send(
            0,
            &a,
            &SendRequest::new(1, Work::Write { remote, imm: None }, &sge),
        );
        assert!(hosts.run());
        // The packet is dropped while the host is paused, and is retransmitted.
        assert_eq!(statuses(&a.poll()), [(1, Status::RemoteAccess)]);
    }
    let guessers = hosts.nodes[1].engine.guessers();
    assert_eq!(guessers.len(), 1);
    assert_eq!(guessers[0].process.host, Some(path(1).remote));
    assert!(
        guessers[0]
            .to_string()
            .starts_with("host 192.0.2.1 has tried")
    );
}
