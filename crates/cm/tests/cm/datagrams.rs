//! Datagram queue pairs, which programs find by service id resolution (SIDR).

use crate::world::{A, B, Policy, SECOND, World, address, kind};
use rkey_cm::address::PortSpace;
use rkey_cm::manager::{DatagramAnswer, Error, Event, Kind, Resolve};
use rkey_cm::wire::{PrivateData, SidrRep, SidrStatus, Transport};
use rkey_cm::{ConnectionId, State};
use std::net::SocketAddr;

fn ask(world: &mut World) -> ConnectionId {
    let resolve = Resolve {
        from: SocketAddr::new(address(A), 40_000),
        to: SocketAddr::new(address(B), 7174),
        space: PortSpace::Tcp,
        data: PrivateData::new(b"who").unwrap(),
    };
    let now = world.now;
    world.hosts[A]
        .manager
        .resolve_datagram(now, &resolve)
        .unwrap()
}

fn answer(world: &mut World) -> Result<(), Error> {
    let id = world.requested(B);
    let with = DatagramAnswer {
        qpn: 0x42,
        qkey: 0x0123_4567,
        data: PrivateData::new(b"me").unwrap(),
    };
    let now = world.now;
    world.hosts[B].manager.accept_datagram(now, id, &with)
}

fn response(world: &World) -> SidrRep {
    match world.hosts[A].events.last() {
        Some(Event::DatagramResponse { rep, .. }) => **rep,
        other => panic!("{other:?}"),
    }
}

fn world() -> World {
    let mut world = World::new();
    world.hosts[B].policy = Policy::Keep;
    world.listen_with(B, 4, Kind::Datagram);
    world
}

#[test]
fn a_resolution_carries_the_queue_pair_q_key_and_private_data() {
    let mut world = world();
    let a = ask(&mut world);
    world.run(0);
    let Some(Event::DatagramRequest(request)) = world.hosts[B].events.last() else {
        panic!("{:?}", world.hosts[B].events)
    };
    assert_eq!(request.data.as_bytes()[..4], *b"who\0");
    assert_eq!(request.from, SocketAddr::new(address(A), 40_000));
    answer(&mut world).unwrap();
    world.run(0);
    let rep = response(&world);
    assert_eq!(
        (rep.checked_status(), rep.qpn, rep.qkey),
        (SidrStatus::VALID, 0x42, 0x0123_4567)
    );
    assert_eq!(rep.data.as_bytes()[..3], *b"me\0");
    assert_eq!(world.state(A, a), None);
    let b = world.requested(B);
    assert_eq!(
        answer(&mut world),
        Err(Error::WrongState(State::SidrAnswered))
    );
    assert_eq!(world.state(B, b), Some(State::SidrAnswered));
    world.run_to_the_end();
    assert_eq!(world.hosts[A].manager.remembered(), 0);
    assert_eq!(world.hosts[B].manager.remembered(), 1, "the listener");
}

#[test]
fn a_lost_answer_is_retransmitted_without_asking_the_program_again() {
    let mut world = world();
    ask(&mut world);
    world.run(0);
    world.drop_if = Some(|mad| kind(mad) == "SIDR_REP");
    answer(&mut world).unwrap();
    world.run(SECOND);
    world.drop_if = None;
    world.run(4 * SECOND);
    assert_eq!(response(&world).qpn, 0x42);
    assert_eq!(world.hosts[B].events.len(), 1);
    assert_eq!(
        world.kinds(),
        ["SIDR_REQ", "SIDR_REP", "SIDR_REQ", "SIDR_REP"]
    );
}

#[test]
fn requests_without_a_datagram_listener_are_refused() {
    let mut world = World::new();
    ask(&mut world);
    world.run(0);
    assert_eq!(response(&world).status, SidrStatus::UNSUPPORTED);
    world.listen_with(B, 1, Kind::Connected(Transport::Rc));
    ask(&mut world);
    world.run(0);
    assert_eq!(response(&world).status, SidrStatus::REJECT);
}

#[test]
fn a_closed_request_is_refused_and_a_silent_peer_is_unreachable() {
    let mut world = world();
    ask(&mut world);
    world.run(0);
    let b = world.requested(B);
    world.hosts[B].manager.close(world.now, b).unwrap();
    world.run(0);
    assert_eq!(response(&world).status, SidrStatus::REJECT);
    world.drop_if = Some(|_| true);
    let a = ask(&mut world);
    world.run_to_the_end();
    assert_eq!(world.hosts[A].history(a), ["Unreachable"]);
    assert_eq!(world.hosts[A].manager.remembered(), 0);
}

#[test]
fn an_answer_without_a_queue_pair_is_not_a_success() {
    let rep = SidrRep {
        status: SidrStatus::VALID,
        ..SidrRep::refusal(&sidr(), SidrStatus::VALID)
    };
    assert_eq!(rep.checked_status(), SidrStatus::NO_QUEUE_PAIR);
}

fn sidr() -> rkey_cm::wire::SidrReq {
    rkey_cm::wire::SidrReq {
        request: 1,
        pkey: 0xffff,
        service: rkey_cm::address::ServiceId(1),
        data: PrivateData::default(),
    }
}
