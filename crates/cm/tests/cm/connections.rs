//! Single connections: how they begin, are refused and end, which messages that takes, and when.

use crate::world::{A, B, Policy, SECOND, World, address, config, kind, queue_pair};
use rkey_cm::State;
use rkey_cm::address::{PortSpace, ServiceId};
use rkey_cm::manager::{Accept, Connect, Error, Event, Kind, ListenOn, Manager};
use rkey_cm::wire::{Ece, Mad, Message, PrivateData, RejectReason, Transport};
use std::net::SocketAddr;

fn last(world: &World, side: usize) -> &Event {
    world.hosts[side].events.last().expect("an event")
}

fn reason(event: &Event) -> RejectReason {
    match event {
        Event::Rejected { rej, .. } => rej.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_connection_takes_three_messages_and_carries_both_programs_data() {
    let mut world = World::new();
    world.listen(B, 1);
    let a = world.connect(A, b"hello");
    world.run(0);
    assert_eq!(world.kinds(), ["REQ", "REP", "RTU"]);
    let Event::ConnectRequest(request) = &world.hosts[B].events[0] else {
        panic!("{:?}", world.hosts[B].events)
    };
    assert_eq!(request.data.as_bytes()[..6], *b"hello\0");
    assert_eq!(request.from, SocketAddr::new(address(A), 40_000));
    assert_eq!(request.to, SocketAddr::new(address(B), 7174));
    assert_eq!(request.req.starting_psn, 0x12_3456);
    assert_eq!(
        (request.req.responder_resources, request.req.initiator_depth),
        (3, 2)
    );
    assert_eq!((request.req.retry_count, request.req.rnr_retry), (7, 6));
    let Event::ConnectResponse { rep, .. } = &world.hosts[A].events[0] else {
        panic!("{:?}", world.hosts[A].events)
    };
    assert_eq!(rep.data.as_bytes()[..8], *b"welcome\0");
    assert_eq!(world.hosts[A].history(a), ["ConnectResponse"]);
    let b = world.requested(B);
    assert_eq!(world.hosts[B].history(b), ["ConnectRequest", "Established"]);
}

#[test]
fn a_disconnect_ends_both_sides_and_leaves_nothing_behind() {
    for first in [A, B] {
        let mut world = World::new();
        let ids = <[_; 2]>::from(world.pair());
        let now = world.now;
        world.hosts[first]
            .manager
            .disconnect(now, ids[first])
            .unwrap();
        world.run(0);
        assert_eq!(world.kinds()[3..], ["DREQ", "DREP"]);
        for side in [A, B] {
            assert_eq!(world.state(side, ids[side]), Some(State::TimeWait));
        }
        world.run(3 * SECOND);
        for side in [A, B] {
            let history = world.hosts[side].history(ids[side]);
            assert!(history.ends_with(&["Disconnected".into(), "TimeWaitExit".into()]));
            assert_eq!(world.hosts[side].manager.remembered(), side);
        }
    }
}

#[test]
fn crossing_disconnects_are_reported_once_to_each_program() {
    let mut world = World::new();
    let (a, b) = world.pair();
    world.conditions.delay = SECOND;
    world.hosts[A].manager.disconnect(world.now, a).unwrap();
    world.hosts[B].manager.disconnect(world.now, b).unwrap();
    world.run_to_the_end();
    let ends = |history: Vec<String>| history.iter().filter(|it| *it == "Disconnected").count();
    assert_eq!(ends(world.hosts[A].history(a)), 1);
    assert_eq!(ends(world.hosts[B].history(b)), 1);
    assert_eq!(world.kinds()[3..], ["DREQ", "DREQ", "DREP", "DREP"]);
}

#[test]
fn a_refusal_carries_its_reason_and_data() {
    let mut world = World::new();
    world.listen(B, 1);
    world.hosts[B].policy = Policy::Reject;
    let a = world.connect(A, b"");
    world.run(0);
    let Event::Rejected { rej, .. } = last(&world, A) else {
        panic!("{:?}", last(&world, A))
    };
    assert_eq!(rej.reason, RejectReason::CONSUMER);
    assert_eq!(rej.data.as_bytes()[..8], *b"go away\0");
    assert_eq!(world.state(A, a), None);
    let b = world.requested(B);
    assert_eq!(world.hosts[B].history(b), ["ConnectRequest"]);
    world.run_to_the_end();
    assert_eq!(world.hosts[B].manager.remembered(), 1, "the listener");
}

#[test]
fn a_refused_peer_may_retry_with_the_same_queue_pair() {
    let mut world = World::new();
    world.listen(B, 1);
    world.hosts[B].policy = Policy::Reject;
    let request = world.request(A, b"");
    for _ in 0..3 {
        let now = world.now;
        world.hosts[A].manager.connect(now, &request).unwrap();
        world.run(0);
        assert_eq!(reason(last(&world, A)), RejectReason::CONSUMER);
    }
    world.run_to_the_end();
    assert_eq!(world.hosts[B].manager.remembered(), 1, "the listener");
}

#[test]
fn a_lost_refusal_is_retransmitted_without_a_second_request() {
    let mut world = World::new();
    world.listen(B, 1);
    world.hosts[B].policy = Policy::Reject;
    world.connect(A, b"");
    world.drop_if = Some(|mad| kind(mad) == "REJ");
    world.run(SECOND);
    world.drop_if = None;
    world.run(7 * SECOND);
    assert_eq!(reason(last(&world, A)), RejectReason::CONSUMER);
    assert_eq!(world.hosts[B].events.len(), 1);
}

#[test]
fn requests_without_a_listener_get_the_same_refusal_as_on_linux() {
    let mut world = World::new();
    world.connect(A, b"");
    world.run(0);
    assert_eq!(reason(last(&world, A)), RejectReason::SERVICE_ID);
    world.listen_with(B, 1, Kind::Connected(Transport::Uc));
    world.connect(A, b"");
    world.run(0);
    assert_eq!(reason(last(&world, A)), RejectReason::CONSUMER);
    assert!(world.hosts[B].events.is_empty());
}

#[test]
fn a_silent_peer_is_unreachable_after_sixteen_requests_in_98_seconds() {
    let mut world = World::new();
    world.drop_if = Some(|_| true);
    let a = world.connect(A, b"");
    world.run_to_the_end();
    let requests = world.sent.iter().filter(|(_, mad)| kind(mad) == "REQ");
    let times: Vec<u64> = requests.map(|(at, _)| at / 1_000_000).collect();
    assert_eq!(times, (0..16).map(|n| n * 6144).collect::<Vec<u64>>());
    let (at, mad) = world.sent.last().unwrap();
    assert_eq!((at / 1_000_000, kind(mad)), (98_304, "REJ"));
    assert_eq!(world.hosts[A].history(a), ["Unreachable"]);
    assert_eq!(world.hosts[A].manager.remembered(), 0);
    assert_eq!(world.hosts[A].manager.counters().repeated, 15);
}

#[test]
fn a_rep_is_retransmitted_if_it_or_the_rtu_is_lost() {
    let mut world = World::new();
    world.listen(B, 1);
    world.connect(A, b"");
    world.drop_if = Some(|mad| kind(mad) == "REP");
    world.run(SECOND);
    world.drop_if = Some(|mad| kind(mad) == "RTU");
    world.run(4 * SECOND);
    world.drop_if = None;
    world.run(4 * SECOND);
    let times: Vec<(u64, &str)> = world
        .sent
        .iter()
        .map(|(at, mad)| (at / 1_000_000, kind(mad)))
        .collect();
    let wanted = [
        (0, "REQ"),
        (0, "REP"),
        (4096, "REP"),
        (4096, "RTU"),
        (8192, "REP"),
        (8192, "RTU"),
    ];
    assert_eq!(times, wanted);
    let b = world.requested(B);
    assert_eq!(world.state(B, b), Some(State::Established));
}

#[test]
fn the_first_data_establishes_the_connection_if_the_rtu_is_lost() {
    let mut world = World::new();
    world.listen(B, 1);
    world.drop_if = Some(|mad| kind(mad) == "RTU");
    world.connect(A, b"");
    world.run(0);
    let b = world.requested(B);
    assert_eq!(world.state(B, b), Some(State::RepSent));
    world.hosts[B]
        .manager
        .communication_established(world.now, b)
        .unwrap();
    world.run(60 * SECOND);
    assert_eq!(world.hosts[B].history(b), ["ConnectRequest", "Established"]);
    assert_eq!(world.kinds(), ["REQ", "REP", "RTU"]);
    let again = world.hosts[B]
        .manager
        .communication_established(world.now, b);
    assert_eq!(again, Err(Error::WrongState(State::Established)));
}

#[test]
fn a_request_to_a_slow_program_gets_an_mra_and_waits_longer() {
    let mut world = World::new();
    world.listen(B, 1);
    world.hosts[B].policy = Policy::Keep;
    let a = world.connect(A, b"");
    world.run(7 * SECOND);
    assert_eq!(world.kinds(), ["REQ", "REQ", "MRA"]);
    assert_eq!(world.state(A, a), Some(State::ReqDelayed));
    world.run(65 * SECOND);
    assert_eq!(world.kinds().len(), 3, "the active side waits");
    world.run(8 * SECOND);
    assert_eq!(world.kinds()[3..], ["REQ", "MRA"]);
    let b = world.requested(B);
    let queue_pair = world.hosts[B].queue_pair();
    let accept = Accept {
        queue_pair,
        ece: Ece {
            vendor: 0x12_3456,
            options: 7,
        },
        data: PrivateData::default(),
    };
    world.hosts[B]
        .manager
        .accept(world.now, b, &accept)
        .unwrap();
    world.run(0);
    let Event::ConnectResponse { ece, .. } = last(&world, A) else {
        panic!("{:?}", last(&world, A))
    };
    assert_eq!(*ece, accept.ece);
    assert_eq!(world.state(B, b), Some(State::Established));
}

#[test]
fn a_retransmitted_rep_to_a_slow_active_program_gets_an_mra() {
    let mut world = World::new();
    world.listen(B, 1);
    world.hosts[A].establishes = false;
    let a = world.connect(A, b"");
    world.run(5 * SECOND);
    assert_eq!(world.kinds(), ["REQ", "REP", "REP", "MRA"]);
    world.hosts[A].manager.establish(world.now, a).unwrap();
    world.run(0);
    assert_eq!(world.state(B, world.requested(B)), Some(State::Established));
}

#[test]
fn a_side_that_closes_notifies_the_other_side_in_every_state() {
    // A closes after this many messages of the exchange, which puts it into each state.
    for kept in 0..4 {
        let mut world = World::new();
        world.listen(B, 1);
        world.hosts[A].establishes = kept == 3;
        world.hosts[B].policy = if kept == 1 {
            Policy::Keep
        } else {
            Policy::Accept
        };
        world.drop_if = (kept == 0).then_some(|mad: &Mad| kind(mad) == "REQ");
        let a = world.connect(A, b"");
        world.run(0);
        world.hosts[A].manager.close(world.now, a).unwrap();
        world.run_to_the_end();
        assert_eq!(
            world.hosts[A].manager.remembered(),
            0,
            "after {kept} messages"
        );
        assert_eq!(
            world.hosts[B].manager.remembered(),
            1,
            "after {kept} messages"
        );
        if kept > 0 {
            let history = world.hosts[B].history(world.requested(B));
            let told = ["Rejected", "Disconnected"]
                .iter()
                .any(|it| history.contains(&(*it).to_owned()));
            assert!(told, "after {kept} messages: {history:?}");
        }
    }
}

#[test]
fn closing_notifies_the_active_side_even_if_the_rej_is_lost() {
    let mut world = World::new();
    world.listen(B, 1);
    world.drop_if = Some(|mad| matches!(kind(mad), "RTU" | "REJ"));
    let a = world.connect(A, b"");
    world.run(0);
    let b = world.requested(B);
    assert_eq!(world.state(B, b), Some(State::RepSent));
    world.hosts[B].manager.close(world.now, b).unwrap();
    world.run_to_the_end();
    assert!(
        world.hosts[A]
            .history(a)
            .contains(&"Disconnected".to_owned())
    );
    assert_eq!(world.hosts[A].manager.remembered(), 0);
}

/// The DREQ overtakes the REP, and the refusal sent with it is lost. A DREP would end the passive side, and the late
/// REP would then establish the active one.
#[test]
fn a_dreq_that_overtakes_the_rep_ends_both_sides() {
    let mut world = World::new();
    world.listen(B, 1);
    world.drop_if = Some(|mad| matches!(kind(mad), "REP" | "REJ"));
    let a = world.connect(A, b"");
    world.run(0);
    let (_, late) = *world.sent.last().unwrap();
    let b = world.requested(B);
    world.hosts[B].manager.close(world.now, b).unwrap();
    world.run(0);
    assert_eq!(world.kinds(), ["REQ", "REP", "REJ", "DREQ"]);
    let bytes = late.encode();
    world.hosts[A]
        .manager
        .receive(world.now, address(B), address(A), &bytes);
    world.run_to_the_end();
    assert!(
        world.hosts[A]
            .history(a)
            .contains(&"Disconnected".to_owned())
    );
    for side in [A, B] {
        assert_eq!(world.hosts[side].manager.remembered(), side);
    }
}

/// The REP never arrives: the retransmitted REQ is refused.
#[test]
fn a_retransmitted_req_is_refused_after_the_passive_side_closed() {
    let mut world = World::new();
    world.listen(B, 1);
    world.drop_if = Some(|mad| matches!(kind(mad), "REP" | "REJ"));
    let a = world.connect(A, b"");
    world.run(0);
    world.hosts[B]
        .manager
        .close(world.now, world.requested(B))
        .unwrap();
    world.run(SECOND);
    world.drop_if = None;
    world.run(6 * SECOND);
    assert_eq!(reason(last(&world, A)), RejectReason::STALE);
    assert_eq!(world.state(A, a), Some(State::TimeWait));
    world.run_to_the_end();
    assert_eq!(world.hosts[B].manager.remembered(), 1, "the listener");
}

/// After a crash: a new manager with the same GUID uses the same queue pair number.
#[test]
fn a_restarted_peer_can_reuse_the_queue_pair_of_a_stale_connection() {
    let mut world = World::new();
    let (_, old) = world.pair();
    let Message::Req(first) = world.sent[0].1.message else {
        panic!("a REQ")
    };
    let mut restarted = config(A);
    restarted.secret = 5;
    world.hosts[A].manager = Manager::new(restarted);
    let request = Connect {
        queue_pair: queue_pair(first.qpn),
        ..world.request(A, b"")
    };
    let new = world.hosts[A].manager.connect(world.now, &request).unwrap();
    world.run(0);
    assert_eq!(world.state(A, new), Some(State::Established));
    // The old connection remains until B's program ends it. A answers the DREQ.
    assert_eq!(world.state(B, old), Some(State::Established));
    world.hosts[B].manager.disconnect(world.now, old).unwrap();
    world.run(0);
    assert_eq!(world.state(B, old), Some(State::TimeWait));
    assert_eq!(world.state(A, new), Some(State::Established));
}

#[test]
fn every_transport_connects_with_queue_pair_numbers_as_on_linux() {
    for transport in [Transport::Rc, Transport::Uc, Transport::Xrc] {
        let mut world = World::new();
        world.listen_with(B, 1, Kind::Connected(transport));
        let request = Connect {
            transport,
            ..world.request(A, b"")
        };
        let a = world.hosts[A].manager.connect(0, &request).unwrap();
        world.run(0);
        assert_eq!(world.state(A, a), Some(State::Established), "{transport:?}");
        let Event::ConnectResponse { rep, .. } = &world.hosts[A].events[0] else {
            panic!("{:?}", world.hosts[A].events)
        };
        let (named, other) = match transport {
            Transport::Xrc => (rep.eecn, rep.qpn),
            _ => (rep.qpn, rep.eecn),
        };
        assert_eq!((named, other, rep.queue_pair(transport)), (named, 0, named));
        let b = world.requested(B);
        world.hosts[B].manager.disconnect(0, b).unwrap();
        world.run(0);
        assert_eq!(world.state(A, a), Some(State::TimeWait), "{transport:?}");
    }
}

#[test]
fn a_manager_can_connect_to_itself() {
    let mut world = World::new();
    world.listen(A, 1);
    let request = Connect {
        to: SocketAddr::new(address(A), 7174),
        ..world.request(A, b"")
    };
    let a = world.hosts[A].manager.connect(0, &request).unwrap();
    world.run(0);
    let b = world.requested(A);
    assert_eq!(world.state(A, a), Some(State::Established));
    assert_eq!(world.state(A, b), Some(State::Established));
    world.hosts[A].manager.disconnect(world.now, b).unwrap();
    world.run_to_the_end();
    assert_eq!(world.hosts[A].manager.remembered(), 1, "the listener");
}

#[test]
fn invalid_calls_are_refused_and_change_nothing() {
    let mut world = World::new();
    let (a, b) = world.pair();
    let manager = &mut world.hosts[B].manager;
    let accept = Accept {
        queue_pair: queue_pair(9),
        ece: Ece::default(),
        data: PrivateData::default(),
    };
    let wrong = Err(Error::WrongState(State::Established));
    assert_eq!(manager.accept(0, b, &accept), wrong);
    assert_eq!(manager.establish(0, b), wrong);
    let reject = manager.reject(0, b, RejectReason::CONSUMER, PrivateData::default(), 0);
    assert_eq!(reject, wrong);
    let status = rkey_cm::wire::SidrStatus::REJECT;
    let datagram = manager.reject_datagram(0, b, status, PrivateData::default());
    assert_eq!(datagram, Err(Error::WrongKind));
    let bad = Accept {
        queue_pair: queue_pair(1),
        ..accept
    };
    assert_eq!(manager.accept(0, b, &bad), Err(Error::QueuePair(1)));
    let service = ServiceId::new(PortSpace::Tcp, 7174);
    let kind = Kind::Connected(Transport::Rc);
    let on = ListenOn::Address(address(B));
    assert_eq!(manager.listen(on, service, kind, 1), Err(Error::InUse));
    assert_eq!(
        manager.listen(on, ServiceId(1), kind, 0),
        Err(Error::NoBacklog)
    );
    let mut request = world.request(A, b"");
    request.to = "[::1]:1".parse().unwrap();
    let refused = world.hosts[A].manager.connect(0, &request);
    assert_eq!(refused, Err(Error::Addresses(address(A), request.to.ip())));
    request.to = "239.0.0.1:1".parse().unwrap();
    assert!(world.hosts[A].manager.connect(0, &request).is_err());
    assert_eq!(world.state(A, a), Some(State::Established));
    world.hosts[A].manager.close(0, a).unwrap();
    world.run_to_the_end();
    assert_eq!(
        world.hosts[A].manager.close(world.now, a),
        Err(Error::Unknown)
    );
}

#[test]
fn listeners_on_different_addresses_can_share_a_port() {
    let mut world = World::new();
    let service = ServiceId::new(PortSpace::Tcp, 7174);
    let kind = Kind::Connected(Transport::Rc);
    let manager = &mut world.hosts[B].manager;
    let own = manager
        .listen(ListenOn::Address(address(B)), service, kind, 1)
        .unwrap();
    manager
        .listen(ListenOn::Address(address(A)), service, kind, 1)
        .unwrap();
    manager.listen(ListenOn::AnyV6, service, kind, 1).unwrap();
    assert_eq!(
        manager.listen(ListenOn::AnyV4, service, kind, 1),
        Err(Error::InUse)
    );
    let other = ServiceId::new(PortSpace::Udp, 7174);
    manager
        .listen(ListenOn::AnyV4, other, Kind::Datagram, 1)
        .unwrap();
    world.connect(A, b"");
    world.run(0);
    let Event::ConnectRequest(request) = &world.hosts[B].events[0] else {
        panic!("{:?}", world.hosts[B].events)
    };
    assert_eq!(request.listener, own);
    world.hosts[B].manager.unlisten(world.now, own).unwrap();
    world.connect(A, b"");
    world.run(0);
    assert_eq!(reason(last(&world, A)), RejectReason::SERVICE_ID);
}

#[test]
fn ending_a_listener_refuses_its_untaken_requests() {
    let mut world = World::new();
    world.hosts[B].policy = Policy::Ignore;
    let listener = world.listen(B, 8);
    for _ in 0..3 {
        world.connect(A, b"");
    }
    world.run(0);
    assert_eq!(world.hosts[B].events.len(), 3);
    let taken = world.requested(B);
    world.hosts[B].manager.take_request(taken).unwrap();
    world.hosts[B]
        .manager
        .unlisten(world.now, listener)
        .unwrap();
    world.run(0);
    assert_eq!(world.hosts[A].events.len(), 2);
    assert_eq!(reason(last(&world, A)), RejectReason::CONSUMER);
    assert_eq!(world.state(B, taken), Some(State::ReqReceived));
    let again = world.hosts[B].manager.unlisten(world.now, listener);
    assert_eq!(again, Err(Error::Unknown));
}
