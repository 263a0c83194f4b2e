//! What each side can report about a connection that was not established.

use crate::world::{A, B, PORT, Policy, SECOND, World, address};
use rkey_cm::ConnectionId;
use rkey_cm::address::PortSpace;
use rkey_cm::manager::{Event, Kind, NotAccepted, Refused, Resolve};
use rkey_cm::wire::{Detail, PrivateData, RejectReason, SidrStatus, Transport};
use std::net::SocketAddr;

/// What a side reports. Checks the addresses.
fn told(world: &mut World, side: usize) -> Vec<NotAccepted> {
    let mut all = Vec::new();
    while let Some(it) = world.hosts[side].manager.next_refused() {
        let port = |of: usize| if of == A { 40_000 } else { PORT };
        let at = |of: usize| SocketAddr::new(address(of), port(of));
        assert_eq!((it.local, it.peer), (at(side), at(1 - side)), "{it:?}");
        assert_eq!(it.is_active, side == A);
        all.push(it.why);
    }
    all
}

/// Requests a datagram queue pair.
fn resolve(world: &mut World) -> ConnectionId {
    let resolve = Resolve {
        from: SocketAddr::new(address(A), 40_000),
        to: SocketAddr::new(address(B), PORT),
        space: PortSpace::Tcp,
        data: PrivateData::default(),
    };
    let now = world.now;
    let asked = world.hosts[A].manager.resolve_datagram(now, &resolve);
    asked.unwrap()
}

#[test]
fn both_sides_report_that_the_program_refused() {
    let mut world = World::new();
    world.hosts[B].policy = Policy::Reject;
    world.listen(B, 1);
    world.connect(A, b"");
    world.run(0);
    let reason = RejectReason::CONSUMER;
    assert_eq!(told(&mut world, A), [NotAccepted::Peer(reason, None)]);
    assert_eq!(told(&mut world, B), [NotAccepted::Program(reason)]);
}

#[test]
fn both_sides_report_that_nothing_listens() {
    let mut world = World::new();
    world.connect(A, b"");
    world.run(0);
    let reason = RejectReason::SERVICE_ID;
    assert_eq!(told(&mut world, A), [NotAccepted::Peer(reason, None)]);
    assert_eq!(told(&mut world, B), [NotAccepted::Here(reason)]);
}

#[test]
fn both_sides_report_that_the_queue_pair_types_differ() {
    let mut world = World::new();
    let (asked, offered) = (
        Kind::Connected(Transport::Rc),
        Kind::Connected(Transport::Uc),
    );
    world.listen_with(B, 1, offered);
    world.connect(A, b"");
    world.run(0);
    let detail = Some(Detail::QueuePairType);
    let peer = NotAccepted::Peer(RejectReason::CONSUMER, detail);
    assert_eq!(told(&mut world, A), [peer]);
    assert_eq!(
        told(&mut world, B),
        [NotAccepted::Transport { asked, offered }]
    );
    // The same for a datagram queue pair.
    resolve(&mut world);
    world.run(0);
    let peer = NotAccepted::PeerDatagram(SidrStatus::REJECT, detail);
    assert_eq!(told(&mut world, A), [peer]);
    let asked = Kind::Datagram;
    assert_eq!(
        told(&mut world, B),
        [NotAccepted::Transport { asked, offered }]
    );
}

#[test]
fn a_full_backlog_is_reported_on_the_passive_side_only() {
    let mut world = World::new();
    world.hosts[B].policy = Policy::Ignore;
    world.listen(B, 1);
    world.connect(A, b"");
    world.connect(A, b"");
    world.run(0);
    assert_eq!(told(&mut world, B), [NotAccepted::Backlog { backlog: 1 }]);
    assert_eq!(told(&mut world, A), []);
    // The first request waits longer: its retransmissions get an MRA.
    world.run(110 * SECOND);
    assert_eq!(told(&mut world, A), [NotAccepted::NoAnswer]);
}

#[test]
fn the_active_side_can_tell_an_ended_peer_from_a_refusal() {
    let mut world = World::new();
    world.hosts[B].policy = Policy::Keep;
    world.listen(B, 1);
    let a = world.connect(A, b"");
    world.run(0);
    let now = world.now;
    world.hosts[A].manager.peer_ended(now, a).unwrap();
    world.run(0);
    let ended = NotAccepted::Peer(RejectReason::CONSUMER, Some(Detail::PeerEnded));
    assert_eq!(told(&mut world, A), [ended]);
}

#[test]
fn a_host_without_a_device_refuses_like_a_port_without_a_listener() {
    let mut world = World::new();
    world.listen(B, 1);
    let a = world.connect(A, b"");
    let now = world.now;
    let manager = &mut world.hosts[A].manager;
    assert!(manager.device_absent(now, a).is_ok());
    let absent = Some(Detail::NoDevice);
    let told_program = manager.next_event();
    let Some(Event::Rejected { rej, .. }) = &told_program else {
        panic!("{told_program:?}")
    };
    assert_eq!(
        (rej.reason, rej.detail()),
        (RejectReason::SERVICE_ID, absent)
    );
    assert_eq!(manager.state(a), None);
    assert_eq!(
        told(&mut world, A),
        [NotAccepted::Peer(RejectReason::SERVICE_ID, absent)]
    );
    let a = resolve(&mut world);
    let manager = &mut world.hosts[A].manager;
    assert!(manager.device_absent(now, a).is_ok());
    let told_program = manager.next_event();
    let Some(Event::DatagramResponse { rep, .. }) = &told_program else {
        panic!("{told_program:?}")
    };
    assert_eq!(rep.status, SidrStatus::UNSUPPORTED);
    assert_eq!(manager.state(a), None);
    assert_eq!(
        told(&mut world, A),
        [NotAccepted::PeerDatagram(SidrStatus::UNSUPPORTED, absent)]
    );
}

/// A third party can cause any number of refusals.
#[test]
fn only_the_most_recent_refusals_are_kept_for_the_host() {
    let mut world = World::new();
    for _ in 0..1000 {
        world.connect(A, b"");
    }
    world.run(0);
    assert_eq!(told(&mut world, B).len(), 64);
    let manager = &mut world.hosts[A].manager;
    let mut last: Option<Refused> = None;
    while let Some(it) = manager.next_refused() {
        assert!(last.is_none_or(|last| last.connection < it.connection));
        last = Some(it);
    }
    assert!(last.is_some());
}
