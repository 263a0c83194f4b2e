//! What each side can tell a person about a connection that was not made.

use crate::world::{A, B, PORT, Policy, SECOND, World, address};
use rkey_cm::address::PortSpace;
use rkey_cm::manager::{Kind, NotAccepted, Refused, Resolve};
use rkey_cm::wire::{Detail, PrivateData, RejectReason, SidrStatus, Transport};
use std::net::SocketAddr;

/// What a side tells, with the addresses checked.
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

#[test]
fn both_sides_tell_that_the_program_refused() {
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
fn both_sides_tell_that_nothing_listens() {
    let mut world = World::new();
    world.connect(A, b"");
    world.run(0);
    let reason = RejectReason::SERVICE_ID;
    assert_eq!(told(&mut world, A), [NotAccepted::Peer(reason, None)]);
    assert_eq!(told(&mut world, B), [NotAccepted::Here(reason)]);
}

#[test]
fn both_sides_tell_that_the_queue_pairs_have_other_types() {
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
    let resolve = Resolve {
        from: SocketAddr::new(address(A), 40_000),
        to: SocketAddr::new(address(B), PORT),
        space: PortSpace::Tcp,
        data: PrivateData::default(),
    };
    let now = world.now;
    let asked = world.hosts[A].manager.resolve_datagram(now, &resolve);
    asked.unwrap();
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
fn a_full_backlog_is_told_by_the_side_that_has_it_and_the_other_gets_no_answer() {
    let mut world = World::new();
    world.hosts[B].policy = Policy::Ignore;
    world.listen(B, 1);
    world.connect(A, b"");
    world.connect(A, b"");
    world.run(0);
    assert_eq!(told(&mut world, B), [NotAccepted::Backlog { backlog: 1 }]);
    assert_eq!(told(&mut world, A), []);
    // The first request waits longer: its repetitions are answered by an MRA.
    world.run(110 * SECOND);
    assert_eq!(told(&mut world, A), [NotAccepted::NoAnswer]);
}

#[test]
fn a_peer_that_has_ended_is_told_apart_from_one_that_refuses() {
    let mut world = World::new();
    world.hosts[B].policy = Policy::Keep;
    world.listen(B, 1);
    let a = world.connect(A, b"");
    world.run(0);
    let now = world.now;
    world.hosts[A].manager.peer_is_gone(now, a).unwrap();
    world.run(0);
    let gone = NotAccepted::Peer(RejectReason::CONSUMER, Some(Detail::Gone));
    assert_eq!(told(&mut world, A), [gone]);
}

/// A stranger can cause any number of refusals.
#[test]
fn only_the_last_refusals_wait_for_the_host() {
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
