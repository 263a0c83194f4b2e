//! Hostile messages: from a third address, with wrong ids, with arbitrary bytes.

use crate::world::{A, B, PORT, Policy, World, address, kind};
use proptest::prelude::*;
use rkey_cm::State;
use rkey_cm::address::{Gid, Guid, PortSpace};
use rkey_cm::manager::{Event, Kind, Resolve, Transmit};
use rkey_cm::wire::{About, Dreq, Mad, Message, PrivateData, Rej, RejectReason, Rep, Req, Rtu};
use std::net::{IpAddr, SocketAddr};

const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 66));

/// The messages of a whole connection, in both directions, with the addresses.
fn exchange() -> Vec<Mad> {
    let mut world = World::new();
    let (a, _) = world.pair();
    world.hosts[A].manager.disconnect(world.now, a).unwrap();
    world.run(0);
    world.sent.iter().map(|(_, mad)| *mad).collect()
}

/// The ids of an established connection, as an observer would know them.
struct Known {
    world: World,
    a: rkey_cm::ConnectionId,
    tid: u64,
    ids: (u32, u32),
    qpn: u32,
}

fn known() -> Known {
    let mut world = World::new();
    let (a, _) = world.pair();
    let (_, rep) = world.sent[1];
    let Message::Rep(it) = rep.message else {
        panic!("{rep:?}")
    };
    let (_, req) = world.sent[0];
    let Message::Req(asked) = req.message else {
        panic!("{req:?}")
    };
    Known {
        world,
        a,
        tid: rep.tid,
        ids: (it.remote, it.local),
        qpn: asked.qpn,
    }
}

fn endings(it: &Known, tid: u64) -> [Mad; 2] {
    let (ours, theirs) = it.ids;
    let dreq = Dreq {
        local: theirs,
        remote: ours,
        remote_qpn: it.qpn,
        data: PrivateData::default(),
    };
    let rej = Rej::bare(theirs, ours, About::Other, RejectReason::CONSUMER);
    [
        Mad::new(tid, Message::Dreq(dreq)),
        Mad::new(tid, Message::Rej(rej)),
    ]
}

fn state_after(it: &mut Known, from: IpAddr, mad: &Mad) -> Option<State> {
    let bytes = mad.encode();
    it.world.hosts[A]
        .manager
        .receive(0, from, address(A), &bytes);
    it.world.state(A, it.a)
}

#[test]
fn only_the_peer_can_end_a_connection() {
    for index in 0..2 {
        let mut it = known();
        let mad = endings(&it, it.tid)[index];
        assert_eq!(
            state_after(&mut it, STRANGER, &mad),
            Some(State::Established)
        );
        // The messages are valid: the peer itself may send them.
        let ended = [State::DreqReceived, State::TimeWait][index];
        assert_eq!(state_after(&mut it, address(B), &mad), Some(ended));
    }
}

/// For example if the network repeats the REQ, and another process answers it because the listener has ended.
#[test]
fn a_refusal_of_the_request_does_not_end_a_connection_that_was_accepted() {
    let mut it = known();
    let (ours, _) = it.ids;
    let rej = Rej::bare(0, ours, About::Req, RejectReason::SERVICE_ID);
    let mad = Mad::new(it.tid, Message::Rej(rej));
    let state = state_after(&mut it, address(B), &mad);
    assert_eq!(state, Some(State::Established));
}

#[test]
fn a_message_with_a_wrong_id_or_queue_pair_number_is_ignored() {
    let established = Some(State::Established);
    let mut it = known();
    let [dreq, rej] = endings(&it, it.tid);
    let wrong_tid = Mad {
        tid: it.tid + 1,
        ..rej
    };
    assert_eq!(state_after(&mut it, address(B), &wrong_tid), established);
    let Message::Dreq(good) = dreq.message else {
        panic!("{dreq:?}")
    };
    for bad in [
        Dreq {
            remote_qpn: good.remote_qpn + 1,
            ..good
        },
        Dreq {
            local: good.local + 1,
            ..good
        },
        Dreq {
            remote: good.remote + 1,
            ..good
        },
    ] {
        let mad = Mad::new(1, Message::Dreq(bad));
        assert_eq!(state_after(&mut it, address(B), &mad), established);
    }
}

#[test]
fn a_dreq_for_an_unknown_connection_is_answered_but_an_rtu_is_not() {
    let mut it = known();
    let data = PrivateData::default();
    let dreq = Dreq {
        local: 7,
        remote: 8,
        remote_qpn: 9,
        data,
    };
    state_after(&mut it, STRANGER, &Mad::new(5, Message::Dreq(dreq)));
    let answer = it.world.hosts[A].manager.next_transmit().unwrap();
    let Ok(Mad {
        tid: 5,
        message: Message::Drep(drep),
        ..
    }) = Mad::decode(&answer.mad)
    else {
        panic!("{answer:?}")
    };
    assert_eq!((drep.local, drep.remote, answer.to), (8, 7, STRANGER));
    let rtu = Rtu {
        local: 7,
        remote: 8,
        data: PrivateData::default(),
    };
    state_after(&mut it, STRANGER, &Mad::new(5, Message::Rtu(rtu)));
    assert!(it.world.hosts[A].manager.next_transmit().is_none());
}

/// The answer to a modified REQ from this address; `None` if there is no answer.
fn answer_to_changed(from: IpAddr, change: fn(&mut rkey_cm::wire::Req)) -> Option<Rej> {
    let mut world = World::new();
    world.listen(B, 8);
    let Message::Req(mut req) = exchange()[0].message else {
        panic!("a REQ")
    };
    change(&mut req);
    let mad = Mad::new(1, Message::Req(req)).encode();
    let manager = &mut world.hosts[B].manager;
    manager.receive(0, from, address(B), &mad);
    assert!(manager.next_event().is_none());
    let answer = manager.next_transmit()?;
    match Mad::decode(&answer.mad).unwrap().message {
        Message::Rej(rej) => Some(rej),
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_with_false_addresses_are_dropped_or_refused() {
    assert_eq!(answer_to_changed(STRANGER, |_| {}), None, "another source");
    let multicast = IpAddr::from([239, 1, 2, 3]);
    let from_group = answer_to_changed(multicast, |req| {
        req.path.local = Gid::from(IpAddr::from([239, 1, 2, 3]));
    });
    assert_eq!(from_group, None);
    let reason = |change: fn(&mut rkey_cm::wire::Req)| {
        answer_to_changed(address(A), change).map(|rej| rej.reason)
    };
    let other_host = answer_to_changed(address(A), |req| req.path.remote = Gid([1; 16])).unwrap();
    assert_eq!(other_host.reason, RejectReason::GID);
    assert_eq!(other_host.info.as_bytes()[..16], Gid::from(address(B)).0);
    let no_header = reason(|req| req.data = PrivateData::default());
    assert_eq!(no_header, Some(RejectReason::CONSUMER));
    let other_source = reason(|req| {
        let mut field = *req.data.as_bytes();
        field[19] += 1;
        req.data = PrivateData::new(&field).unwrap();
    });
    assert_eq!(other_source, Some(RejectReason::CONSUMER));
    assert_eq!(reason(|req| req.mtu = 0), Some(RejectReason::MTU));
    assert_eq!(reason(|req| req.mtu = 6), Some(RejectReason::MTU));
    assert_eq!(
        reason(|req| req.transport = (2, 0)),
        Some(RejectReason::TRANSPORT)
    );
    assert_eq!(
        reason(|req| req.has_alternate_path = true),
        Some(RejectReason::ALTERNATE_GID)
    );
    let unsupported = Some(RejectReason::UNSUPPORTED);
    assert_eq!(reason(|req| req.qpn = 0), unsupported);
    assert_eq!(reason(|req| req.qpn = 0xff_ffff), unsupported);
}

/// Another process at the peer's address, or a host that claims the address, knows the GUID and the number of the peer's
/// queue pair, but none of the ids.
#[test]
fn naming_the_queue_pair_of_a_connection_does_not_end_it() {
    let mut world = World::new();
    let (a, b) = world.pair();
    let (Message::Req(req), Message::Rep(rep)) = (world.sent[0].1.message, world.sent[1].1.message)
    else {
        panic!("{:?}", world.kinds())
    };
    let forged = Req { local: 5, ..req };
    let bytes = Mad::new(1, Message::Req(forged)).encode();
    world.hosts[B]
        .manager
        .receive(0, address(A), address(B), &bytes);
    let before = world.sent.len();
    world.run(0);
    assert_eq!(world.kinds()[before..], ["REJ"]);
    let Message::Rej(refusal) = world.sent[before].1.message else {
        panic!("a REJ")
    };
    assert_eq!((refusal.reason, refusal.remote), (RejectReason::STALE, 5));
    // The peer names the queue pair of the first connection in its answer for another connection.
    world.drop_if = Some(|_| true);
    let other = world.connect(A, b"");
    world.run(0);
    let (_, asked) = *world.sent.last().unwrap();
    let Message::Req(second) = asked.message else {
        panic!("{asked:?}")
    };
    let forged = Rep {
        local: 6,
        remote: second.local,
        ..rep
    };
    let bytes = Mad::new(asked.tid, Message::Rep(forged)).encode();
    world.hosts[A]
        .manager
        .receive(0, address(B), address(A), &bytes);
    world.run(0);
    assert_eq!(world.hosts[A].history(other), ["Rejected"]);
    assert_eq!(world.state(A, a), Some(State::Established));
    assert_eq!(world.state(B, b), Some(State::Established));
}

fn reason(event: &Event) -> RejectReason {
    match event {
        Event::Rejected { rej, .. } => rej.reason,
        other => panic!("{other:?}"),
    }
}

/// A REP from an unrelated exchange.
fn a_rep() -> Rep {
    let mut world = World::new();
    world.pair();
    let reps = world.sent.iter().find(|(_, mad)| kind(mad) == "REP");
    let Message::Rep(rep) = reps.expect("a REP").1.message else {
        panic!("a REP")
    };
    rep
}

#[test]
fn a_rep_with_an_impossible_queue_pair_is_refused_and_reported() {
    let mut world = World::new();
    world.drop_if = Some(|_| true);
    let a = world.connect(A, b"");
    world.run(0);
    let (_, request) = world.sent[0];
    let Message::Req(req) = request.message else {
        panic!("{request:?}")
    };
    let bad = Rep {
        remote: req.local,
        qpn: 1,
        ..a_rep()
    };
    let mad = Mad::new(request.tid, Message::Rep(bad)).encode();
    world.hosts[A]
        .manager
        .receive(world.now, address(B), address(A), &mad);
    world.run(0);
    assert_eq!(
        reason(world.hosts[A].events.last().expect("an event")),
        RejectReason::UNSUPPORTED
    );
    assert_eq!(world.state(A, a), None);
    let Message::Rej(rej) = world.sent.last().unwrap().1.message else {
        panic!("{:?}", world.kinds())
    };
    assert_eq!((rej.local, rej.remote), (req.local, bad.local));
}

/// The impossible REP names the request of another exchange with the same peer.
#[test]
fn a_refused_rep_leaves_the_peers_datagram_request_alone() {
    let mut world = World::new();
    world.hosts[A].policy = Policy::Keep;
    world.listen_with(A, 4, Kind::Datagram);
    let (to, from) = (address(A), address(B));
    let resolve = Resolve {
        from: SocketAddr::new(from, 40_000),
        to: SocketAddr::new(to, PORT),
        space: PortSpace::Tcp,
        data: PrivateData::default(),
    };
    world.hosts[B]
        .manager
        .resolve_datagram(0, &resolve)
        .unwrap();
    world.run(0);
    let (_, asked) = world.sent[0];
    let Message::SidrReq(sidr) = asked.message else {
        panic!("{asked:?}")
    };
    assert_eq!(world.hosts[A].events.len(), 1);
    world.drop_if = Some(|_| true);
    world.connect(A, b"");
    world.run(0);
    let (_, request) = *world.sent.last().unwrap();
    let Message::Req(req) = request.message else {
        panic!("{request:?}")
    };
    let bad = Rep {
        local: sidr.request,
        remote: req.local,
        qpn: 1,
        ..a_rep()
    };
    let bytes = Mad::new(request.tid, Message::Rep(bad)).encode();
    world.hosts[A].manager.receive(0, from, to, &bytes);
    world.hosts[A].manager.receive(0, from, to, &asked.encode());
    world.run(0);
    let history: Vec<_> = world.hosts[A].events.iter().collect();
    assert_eq!(history.len(), 2, "one datagram request: {history:?}");
    assert_eq!(reason(history[1]), RejectReason::UNSUPPORTED);
}

#[test]
fn equal_ids_from_two_devices_make_two_connections() {
    let mut world = World::new();
    world.hosts[B].policy = Policy::Keep;
    world.listen(B, 8);
    let Message::Req(req) = exchange()[0].message else {
        panic!("a REQ")
    };
    for guid in [Guid([1; 8]), Guid([2; 8])] {
        let same = rkey_cm::wire::Req { guid, ..req };
        let mad = Mad::new(1, Message::Req(same)).encode();
        world.hosts[B]
            .manager
            .receive(0, address(A), address(B), &mad);
    }
    assert_eq!(world.hosts[B].manager.connections().count(), 2);
}

proptest! {
    /// Real messages with modified bytes, from the peer and from a third party, in any order, at various times.
    #[test]
    fn modified_messages_get_at_most_one_answer_and_leave_nothing_behind(
        script in proptest::collection::vec(
            (any::<u8>(), any::<bool>(), proptest::collection::vec((16_usize..200, any::<u8>()), 0..4), 0..9_u64),
            1..60,
        ),
    ) {
        let messages = exchange();
        prop_assert_eq!(kind(&messages[0]), "REQ");
        let mut world = World::new();
        let listener = world.listen(B, 4);
        for (which, is_peer, changes, seconds) in script {
            let mut mad = messages[usize::from(which) % messages.len()].encode();
            for (at, value) in changes {
                mad[at] = value;
            }
            let from = if is_peer { address(A) } else { STRANGER };
            let manager = &mut world.hosts[B].manager;
            let before = manager.remembered();
            manager.receive(world.now, from, address(B), &mad);
            let mut answers = 0;
            while let Some(Transmit { to, .. }) = manager.next_transmit() {
                prop_assert_eq!(to, from);
                answers += 1;
            }
            prop_assert!(answers <= 1);
            prop_assert!(manager.remembered() <= before + 8);
            world.run(seconds * crate::world::SECOND);
        }
        let ids: Vec<_> = world.hosts[B].manager.connections().map(|(id, ..)| id).collect();
        for id in ids {
            world.hosts[B].manager.close(world.now, id).unwrap();
        }
        world.hosts[B].manager.unlisten(world.now, listener).unwrap();
        world.run_to_the_end();
        prop_assert_eq!(world.hosts[B].manager.remembered(), 0);
    }
}
