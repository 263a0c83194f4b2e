//! Many connections: only what is in use takes memory, and floods are bounded.

use crate::world::{A, B, Policy, SECOND, World, address, config};
use rkey_cm::address::{Gid, Guid};
use rkey_cm::manager::{Counters, Error, Event, Manager};
use rkey_cm::wire::{About, IpHeader, Mad, Message, PrivateData, Rej, RejectReason, Req};
use std::net::IpAddr;

#[test]
fn ten_thousand_connects_and_disconnects_leave_nothing() {
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
    assert!(most <= 206 * 5 + 1, "{most}");
    world.run_to_the_end();
    assert_eq!(world.hosts[A].manager.remembered(), 0);
    assert_eq!(world.hosts[B].manager.remembered(), 1, "the listener");
}

/// A REQ of a stranger with its own address and number.
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
fn a_flood_of_requests_fills_the_backlog_and_nothing_else() {
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
        // Connections, events and places in the backlog; three table entries each; a count for each source; the listener.
        assert_eq!(manager.remembered(), 16 * 3 + 16 * 3 + sources + 1);
    }
}

/// The REJ by which the stranger withdraws its REQ: it names its own id and GUID, since it knows none of ours.
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
    // Taking and closing both free a place.
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
fn one_address_cannot_take_the_whole_backlog_when_its_share_is_limited() {
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

#[test]
fn a_flood_that_the_program_accepts_ends_at_the_limit_and_is_forgotten() {
    let template = template();
    let mut limited = config(B);
    limited.limits.connections = 100;
    let mut world = World::with(config(A), limited);
    world.listen(B, 8);
    world.censor = Some(|_| true);
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
fn answers_to_strangers_wait_in_a_bounded_queue() {
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
    world.censor = Some(|_| true);
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
