//! Many connections: memory is bounded by what is in use, and floods are bounded.

use crate::world::{A, B, PORT, Policy, SECOND, World, address, config, queue_pair};
use rkey_cm::address::{Gid, Guid, PortSpace, ServiceId};
use rkey_cm::manager::{Accept, Connect, Counters, Error, Event, Kind, ListenOn, Manager};
use rkey_cm::wire::{
    About, Ece, IpHeader, Mad, Message, PrivateData, Rej, RejectReason, Req, Transport,
};
use rkey_cm::{ConnectionId, State};
use std::net::IpAddr;

#[test]
fn ten_thousand_connects_and_disconnects_leave_nothing_behind() {
    let count = if cfg!(miri) { 50 } else { 10_000 };
    let mut world = World::new();
    world.listen(B, 1);
    let mut most = 0;
    for _ in 0..count {
        let a = world.connect(A, b"");
        world.run(0);
        world.hosts[A].manager.disconnect(world.now, a).unwrap();
        world.run(SECOND / 100);
        most = most.max(world.hosts[B].manager.remembered());
        for host in &mut world.hosts {
            host.events.clear();
        }
        world.sent.clear();
    }
    // 205 connections are in time wait at once, with at most four table entries and a timer each.
    assert!(most <= 206 * 6 + 1, "{most}");
    world.run_to_the_end();
    assert_eq!(world.hosts[A].manager.remembered(), 0);
    assert_eq!(world.hosts[B].manager.remembered(), 1, "the listener");
}

/// Connects these queue pairs; returns both connection ids.
fn connect_with(world: &mut World, qpns: [u32; 2]) -> [ConnectionId; 2] {
    let request = Connect {
        queue_pair: queue_pair(qpns[A]),
        ..world.request(A, b"")
    };
    world.hosts[B].policy = Policy::Keep;
    let now = world.now;
    let a = world.hosts[A].manager.connect(now, &request).unwrap();
    world.run(0);
    let b = world.requested(B);
    let accept = Accept {
        queue_pair: queue_pair(qpns[B]),
        ece: Ece::default(),
        data: PrivateData::default(),
    };
    // An error means that there was no new request.
    let _ = world.hosts[B].manager.accept(now, b, &accept);
    world.run(0);
    [a, b]
}

/// The numbers of destroyed queue pairs are reused while their connections are in time wait, on either side.
#[test]
fn the_queue_pair_of_an_ended_connection_can_reconnect() {
    for (which, next) in [("A", [0x11, 0x23]), ("B", [0x12, 0x22])] {
        for closes in [A, B] {
            let mut world = World::new();
            world.listen(B, 8);
            let first = connect_with(&mut world, [0x11, 0x22]);
            let now = world.now;
            world.hosts[closes]
                .manager
                .disconnect(now, first[closes])
                .unwrap();
            world.run(0);
            for side in [A, B] {
                assert_eq!(world.state(side, first[side]), Some(State::TimeWait));
            }
            let second = connect_with(&mut world, next);
            for side in [A, B] {
                let state = world.state(side, second[side]);
                assert_eq!(state, Some(State::Established), "{which}");
            }
            // The end of the first connection's time wait does not affect the second connection.
            world.run(3 * SECOND);
            assert_eq!(world.state(A, first[A]), None);
            let third = connect_with(&mut world, next);
            assert_eq!(world.hosts[A].history(third[A]), ["Rejected"], "{which}");
            assert_eq!(world.state(A, second[A]), Some(State::Established));
            assert_eq!(world.state(B, second[B]), Some(State::Established));
        }
    }
}

/// The program of the passive side has not confirmed the end yet.
#[test]
fn the_queue_pair_of_a_connection_that_the_peer_ended_can_reconnect() {
    let mut world = World::new();
    world.listen(B, 8);
    let first = connect_with(&mut world, [0x11, 0x22]);
    let dreq = |world: &mut World, a| {
        let now = world.now;
        world.hosts[A].manager.disconnect(now, a).unwrap();
        while let Some(it) = world.hosts[A].manager.next_transmit() {
            world.deliver(&it);
        }
    };
    dreq(&mut world, first[A]);
    assert_eq!(world.state(B, first[B]), Some(State::DreqReceived));
    let request = Connect {
        queue_pair: queue_pair(0x11),
        ..world.request(A, b"")
    };
    world.hosts[A].manager.connect(0, &request).unwrap();
    let req = world.hosts[A].manager.next_transmit().unwrap();
    let before = world.hosts[B].manager.connections().count();
    world.deliver(&req);
    assert_eq!(world.hosts[B].manager.connections().count(), before + 1);
}

/// A refused request leaves no entry that hides the next one of the same queue pair.
#[test]
fn the_queue_pair_of_a_refused_request_has_at_most_one_connection() {
    let mut world = World::new();
    world.listen(B, 8);
    world.hosts[B].policy = Policy::Reject;
    let request = world.request(A, b"");
    world.hosts[A].manager.connect(0, &request).unwrap();
    world.run(0);
    assert_eq!(
        world.state(B, world.requested(B)),
        Some(State::Refused),
        "the answer is kept"
    );
    let qpn = request.queue_pair.qpn;
    let second = connect_with(&mut world, [qpn, 0x22]);
    assert_eq!(world.state(B, second[B]), Some(State::Established));
    let third = connect_with(&mut world, [qpn, 0x23]);
    assert_eq!(world.hosts[A].history(third[A]), ["Rejected"]);
    assert_eq!(world.state(B, second[B]), Some(State::Established));
}

/// A REQ of a third party with its own address and number.
fn stranger(template: &Mad, from: IpAddr, number: u32) -> [u8; 256] {
    let Message::Req(req) = template.message else {
        panic!("{template:?}")
    };
    let header = IpHeader {
        source_port: 1,
        source: from,
        destination: address(B),
    };
    let mut path = req.path;
    path.local = Gid::from(from);
    let req = Req {
        local: number,
        guid: Guid([9; 8]),
        qpn: number & 0xf_ffff | 0x10_0000,
        path,
        data: Req::with_header(&header, &PrivateData::default()),
        ..req
    };
    Mad::new(u64::from(number), Message::Req(req)).encode()
}

fn template() -> Mad {
    let mut world = World::new();
    world.connect(A, b"");
    world.run(0);
    world.sent[0].1
}

fn spoofed(number: u32) -> IpAddr {
    let [_, high, middle, low] = number.to_be_bytes();
    [11, high, middle, low].into()
}

const FLOOD: u32 = if cfg!(miri) { 300 } else { 50_000 };

#[test]
fn a_flood_of_requests_fills_only_the_backlog() {
    let template = template();
    for one_source in [true, false] {
        let mut world = World::new();
        world.listen(B, 16);
        let manager = &mut world.hosts[B].manager;
        for number in 1..=FLOOD {
            let from = spoofed(if one_source { 1 } else { number });
            manager.receive(0, from, address(B), &stranger(&template, from, number));
        }
        assert_eq!(manager.connections().count(), 16);
        assert_eq!(manager.counters().overload, u64::from(FLOOD) - 16);
        assert!(
            manager.next_transmit().is_none(),
            "the flood is not answered"
        );
        let sources = if one_source { 1 } else { 16 };
        // Connections, events and backlog entries; four table entries each; a count for each source; the listener.
        assert_eq!(manager.remembered(), 16 * 3 + 16 * 4 + sources + 1);
    }
}

/// The REJ that withdraws a third party's REQ: it contains the sender's id and GUID, since the sender knows none of
/// ours.
fn withdrawal(number: u32) -> [u8; 256] {
    let rej = Rej::bare(number, 0, About::Other, RejectReason::TIMEOUT);
    let rej = rej.with_info(&[9; 8]);
    Mad::new(u64::from(number), Message::Rej(rej)).encode()
}

#[test]
fn a_flood_of_withdrawn_requests_leaves_no_events() {
    let template = template();
    let mut world = World::new();
    world.listen(B, 4);
    let manager = &mut world.hosts[B].manager;
    let from = spoofed(1);
    for number in 1..=FLOOD {
        manager.receive(0, from, address(B), &stranger(&template, from, number));
        assert_eq!(manager.connections().count(), 1);
        manager.receive(0, from, address(B), &withdrawal(number));
        assert_eq!(manager.connections().count(), 0);
    }
    assert_eq!(manager.counters().ignored + manager.counters().overload, 0);
    assert_eq!(manager.remembered(), 1, "the listener");
    assert!(manager.next_event().is_none());
}

#[test]
fn withdrawn_requests_stay_in_the_backlog_until_the_program_takes_them() {
    let template = template();
    let mut world = World::new();
    let listener = world.listen(B, 4);
    let manager = &mut world.hosts[B].manager;
    let from = spoofed(1);
    let mut requests = Vec::new();
    let mut fetch = |manager: &mut Manager, number| {
        manager.receive(0, from, address(B), &stranger(&template, from, number));
        let Some(Event::ConnectRequest(request)) = manager.next_event() else {
            return false;
        };
        requests.push(request.connection);
        manager.receive(0, from, address(B), &withdrawal(number));
        assert!(matches!(manager.next_event(), Some(Event::Rejected { .. })));
        true
    };
    let fetched = (1..100).filter(|number| fetch(manager, *number)).count();
    assert_eq!(fetched, 4);
    assert_eq!(manager.connections().count(), 0);
    // Taking and closing both free a backlog entry.
    let taken = requests[0];
    let closed = requests[1];
    assert_eq!(manager.take_request(taken), Err(Error::Unknown));
    assert_eq!(manager.close(0, closed), Err(Error::Unknown));
    for number in 100..110 {
        manager.receive(0, from, address(B), &stranger(&template, from, number));
    }
    assert_eq!(manager.connections().count(), 2);
    manager.unlisten(0, listener).unwrap();
    world.run_to_the_end();
    assert_eq!(world.hosts[B].manager.remembered(), 0);
}

#[test]
fn one_address_cannot_fill_the_backlog_when_its_share_is_limited() {
    let template = template();
    let mut limited = config(B);
    limited.limits.undecided_per_peer = 4;
    let mut world = World::with(config(A), limited);
    world.listen(B, 16);
    for number in 1..100 {
        let mad = stranger(&template, spoofed(1), number);
        world.hosts[B]
            .manager
            .receive(0, spoofed(1), address(B), &mad);
    }
    assert_eq!(world.hosts[B].manager.connections().count(), 4);
    world.hosts[B].policy = Policy::Keep;
    world.connect(A, b"");
    world.run(0);
    assert_eq!(world.hosts[B].manager.connections().count(), 5);
}

/// Processes of one host share its address.
#[test]
fn requests_of_one_party_do_not_count_against_others_at_its_address() {
    const BACKLOG: usize = 1024;
    let template = template();
    let mut world = World::new();
    world.listen(B, BACKLOG);
    let other = ServiceId::new(PortSpace::Udp, PORT);
    let manager = &mut world.hosts[B].manager;
    let kind = Kind::Connected(Transport::Rc);
    manager.listen(ListenOn::Any, other, kind, 4).unwrap();
    let from = spoofed(1);
    let mut ask = |party, number, service| {
        let Message::Req(mut req) = Mad::decode(&stranger(&template, from, number))
            .unwrap()
            .message
        else {
            panic!("a REQ")
        };
        req.service = service;
        let mad = Mad::new(u64::from(number), Message::Req(req)).encode();
        manager.receive_from_party(0, (from, party), address(B), &mad);
        manager.connections().count()
    };
    let template_service = ServiceId::new(PortSpace::Tcp, PORT);
    for number in 1..=BACKLOG as u32 + 10 {
        ask(1, number, template_service);
    }
    assert_eq!(ask(1, 5000, other), BACKLOG, "the share of this party");
    assert_eq!(ask(2, 5001, other), BACKLOG + 1);
    assert_eq!(
        ask(2, 5002, template_service),
        BACKLOG + 1,
        "a full backlog"
    );
}

#[test]
fn accepted_connections_of_a_flood_are_limited_and_forgotten() {
    let template = template();
    let mut limited = config(B);
    limited.limits.connections = 100;
    let mut world = World::with(config(A), limited);
    world.listen(B, 8);
    world.drop_if = Some(|_| true);
    for number in 1..=500 {
        let from = spoofed(number);
        let mad = stranger(&template, from, number);
        world.hosts[B]
            .manager
            .receive(world.now, from, address(B), &mad);
        world.run(0);
    }
    assert_eq!(world.hosts[B].manager.connections().count(), 100);
    let Message::Rej(rej) = world.sent.last().unwrap().1.message else {
        panic!("{:?}", world.sent.last())
    };
    assert_eq!(rej.reason, RejectReason::NO_RESOURCES);
    let request = world.request(B, b"");
    let full = world.hosts[B].manager.connect(0, &request);
    assert_eq!(full, Err(Error::Full(100)));
    world.run_to_the_end();
    assert_eq!(world.hosts[B].manager.remembered(), 1, "the listener");
    let unreachable = world.hosts[B].events.iter();
    let unreachable = unreachable.filter(|event| matches!(event, Event::Unreachable { .. }));
    assert_eq!(unreachable.count(), 100);
}

#[test]
fn answers_to_unknown_peers_wait_in_a_bounded_queue() {
    let template = template();
    let mut manager = Manager::new(config(B));
    for number in 1..=FLOOD {
        let from = spoofed(number);
        manager.receive(0, from, address(B), &stranger(&template, from, number));
    }
    let answers = manager.remembered();
    let wanted = answers.min(1024);
    assert_eq!(answers, wanted);
    let Counters {
        received,
        unanswered,
        ..
    } = manager.counters();
    assert_eq!(
        (received, unanswered),
        (u64::from(FLOOD), u64::from(FLOOD) - wanted as u64)
    );
    let answer = manager.next_transmit().unwrap();
    assert_eq!((answer.from, answer.to), (address(B), spoofed(1)));
    let Ok(Mad {
        message: Message::Rej(rej),
        ..
    }) = Mad::decode(&answer.mad)
    else {
        panic!("a REJ")
    };
    assert_eq!((rej.reason, rej.remote), (RejectReason::SERVICE_ID, 1));
}

#[test]
fn refused_requests_are_kept_within_a_limit() {
    let template = template();
    let mut limited = config(B);
    limited.limits.lingering = 10;
    let mut world = World::with(config(A), limited);
    world.listen(B, 8);
    world.hosts[B].policy = Policy::Reject;
    world.drop_if = Some(|_| true);
    for number in 1..=200 {
        let from = spoofed(number);
        let mad = stranger(&template, from, number);
        world.hosts[B]
            .manager
            .receive(world.now, from, address(B), &mad);
        world.run(1);
    }
    assert_eq!(world.hosts[B].manager.connections().count(), 10);
    world.run_to_the_end();
    assert_eq!(world.hosts[B].manager.remembered(), 1, "the listener");
}
