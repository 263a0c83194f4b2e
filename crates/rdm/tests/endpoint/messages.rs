//! Messages and receives: short, long, unexpected, shared, in order.

use crate::host::{Shared, Told};
use crate::world::{From, How, World, address, content, pattern};
use rkey_rdm::endpoint::{ReceiveOutcome, Service};
use rkey_rdm::error::Error;
use rkey_rdm::limits::{DATAGRAMS_MAX, EAGER_MAX};

const LONG: usize = 3 * EAGER_MAX;

fn two() -> World {
    World::new(2, Service::ReliableDatagram)
}

fn tagged(tag: u64) -> How {
    How {
        tag: Some(tag),
        ..How::default()
    }
}

fn any() -> From {
    From {
        tag: Some(0),
        any_tag: true,
        node: None,
    }
}

fn whole(len: usize) -> ReceiveOutcome {
    ReceiveOutcome {
        len,
        overflow: 0,
        error: None,
        last: false,
    }
}

fn received(receive: usize, from: usize, message: usize, how: ReceiveOutcome) -> Told {
    Told::Received {
        receive,
        source: address(from),
        data: message as u64,
        how,
    }
}

#[test]
fn a_message_matches_the_receive_with_its_tag() {
    for len in [0, 8, EAGER_MAX, EAGER_MAX + 1, LONG] {
        for inject in [false, true] {
            let mut world = two();
            let from = |tag| From {
                tag: Some(tag),
                ..From::default()
            };
            let other = world.receive(1, from(6), len);
            let receive = world.receive(1, from(7), len);
            let how = How {
                inject,
                ..tagged(7)
            };
            let id = world.send(0, 1, len, how);
            world.settle();
            assert_eq!(world.told(0), [Told::Done(id, None)]);
            assert_eq!(world.told(1), [received(receive, 0, id, whole(len))]);
            assert_eq!(world.received(receive), content(id, len));
            assert_ne!(other, receive);
            assert_eq!(world.net.borrow().exposed(), 0, "a key is still valid");
        }
    }
}

/// Messages to the address of a peer that only sends go over a separate connection.
#[test]
fn messages_to_a_peer_that_only_sends_use_a_separate_connection() {
    let mut world = two();
    world.nodes[0].only_sends = true;
    let receive = world.receive(1, any(), 8);
    let there = world.send(0, 1, 8, tagged(0));
    world.settle();
    assert_eq!(world.told(1), [received(receive, 0, there, whole(8))]);
    assert_eq!(world.nodes[1].ep.routes().peers().find(address(0)), None);
    let receive = world.receive(0, any(), 8);
    let back = world.send(1, 0, 8, tagged(0));
    world.settle();
    assert!(
        world
            .told(0)
            .contains(&received(receive, 1, back, whole(8)))
    );
    assert_eq!(world.nodes[1].ep.connections().count(), 2);
}

#[test]
fn unexpected_messages_match_receives_in_order() {
    let mut world = two();
    let ids = [8, LONG, 16].map(|len| world.send(0, 1, len, tagged(1)));
    world.settle();
    assert_eq!(world.nodes[1].ep.receives().matching(true).unexpected(), 3);
    let receives = [0; 3].map(|_| world.receive(1, any(), LONG));
    world.settle();
    let matched = world.nodes[1].host.matched.take();
    let order: Vec<_> = matched.iter().map(|it| it.2 as usize).collect();
    assert_eq!(order, ids);
    for (receive, (id, len)) in receives.into_iter().zip(ids.into_iter().zip([8, LONG, 16])) {
        assert_eq!(world.received(receive)[..len], content(id, len));
    }
    assert_eq!(world.nodes[0].ep.outbox().operations(), 0);
}

#[test]
fn a_long_message_is_truncated_to_its_receive() {
    let mut world = two();
    for (len, room) in [(100, 60), (LONG, 60), (LONG, 0)] {
        let receive = world.receive(1, any(), room);
        let id = world.send(0, 1, len, tagged(1));
        world.settle();
        let how = ReceiveOutcome {
            len: room,
            overflow: len - room,
            error: Some(Error::Truncated),
            last: false,
        };
        assert_eq!(world.told(1), [received(receive, 0, id, how)]);
        assert_eq!(world.received(receive), content(id, len)[..room]);
        assert_eq!(
            world.told(0),
            [Told::Done(id, None)],
            "the send did not complete"
        );
    }
}

#[test]
fn a_confirmed_message_completes_when_it_is_received() {
    let mut world = two();
    let how = How {
        confirm: true,
        ..tagged(1)
    };
    let id = world.send(0, 1, 8, how);
    world.settle();
    assert_eq!(world.told(0), []);
    world.receive(1, any(), 8);
    world.settle();
    assert_eq!(world.told(0), [Told::Done(id, None)]);
}

#[test]
fn a_sender_without_credit_switches_to_rendezvous() {
    let mut world = two();
    let count = 5000;
    for _ in 0..count {
        world.send(0, 1, 8, tagged(1));
    }
    world.settle();
    let kept = world.nodes[1].ep.receives().matching(true).unexpected();
    assert_eq!(kept, count);
    assert!(
        world.nodes[0].ep.outbox().operations() > 0,
        "no send waits for a receive"
    );
    for _ in 0..count {
        world.receive(1, any(), 8);
        world.act(0);
    }
    world.settle();
    let matched = world.nodes[1].host.matched.take();
    assert!(
        matched.iter().map(|it| it.2).eq(0..count as u64),
        "messages matched out of order"
    );
    let told = world.told(1);
    assert_eq!(told.len(), count);
    assert!(!told.contains(&Told::Violation));
    assert_eq!(world.told(0).len(), count);
    assert_eq!(world.nodes[0].ep.outbox().operations(), 0);
}

#[test]
fn answers_wait_while_the_program_does_not_read_its_completions() {
    let mut world = two();
    world.nodes[1].host.full.set(true);
    world.receive(1, any(), LONG);
    let id = world.send(0, 1, LONG, tagged(1));
    world.settle();
    assert_eq!((world.told(0), world.told(1).len()), (vec![], 1));
    world.nodes[1].host.full.set(false);
    world.settle();
    assert_eq!(world.told(0), [Told::Done(id, None)]);
}

#[test]
fn answers_that_do_not_fit_the_queue_pair_are_posted_later() {
    let mut world = two();
    let count = 1500;
    for _ in 0..count {
        world.send(0, 1, LONG, tagged(1));
    }
    world.settle();
    // All reads and all answers are posted at once, which is more than one queue pair can hold.
    for _ in 0..count {
        world.receive(1, any(), LONG);
    }
    assert!(world.nodes[1].ep.outbox().under_way() >= count);
    world.settle();
    assert_eq!(world.told(0).len(), count);
    assert_eq!(world.told(1).len(), count);
    assert!(!world.nodes[1].ep.outbox_mut().still_waits());
    assert_eq!(world.nodes[1].ep.outbox().under_way(), 0);
}

#[test]
fn the_last_message_in_a_multi_receive_buffer_is_marked() {
    let mut world = two();
    let (id, receive) = world.receive_of(200, true);
    let crate::world::Node { ep, host, .. } = &mut world.nodes[1];
    ep.receive(host, false, pattern(From::default()), receive);
    let sent = [50, 50, 50].map(|len| world.send(0, 1, len, How::default()));
    world.settle();
    let last = |last| ReceiveOutcome { last, ..whole(50) };
    let told = [
        received(id, 0, sent[0], last(false)),
        received(id, 0, sent[1], last(false)),
        received(id, 0, sent[2], last(true)),
    ];
    assert_eq!(world.told(1), told);
    let expected: Vec<u8> = sent.into_iter().flat_map(|id| content(id, 50)).collect();
    assert_eq!(world.received(id)[..150], expected);
}

#[test]
fn a_canceled_receive_gets_no_message() {
    let mut world = two();
    let receive = world.receive(1, any(), 8);
    let crate::world::Node { ep, host, .. } = &mut world.nodes[1];
    assert!(ep.receives_mut().cancel(host, |it| *it == receive));
    assert!(!ep.receives_mut().cancel(host, |it| *it == receive));
    world.send(0, 1, 8, tagged(1));
    world.settle();
    assert_eq!(world.told(1), [Told::Canceled(receive)]);
}

#[test]
fn unexpected_messages_can_be_peeked_claimed_and_discarded() {
    let mut world = two();
    let first = world.send(0, 1, 8, tagged(1));
    let second = world.send(0, 1, LONG, tagged(1));
    world.settle();
    world.told(0);
    let crate::world::Node { ep, host, .. } = &mut world.nodes[1];
    let pattern = pattern(any());
    let (source, header) = ep.receives().peek(true, &pattern).unwrap();
    assert_eq!((source, header.data), (address(0), first as u64));
    let found = ep.receives_mut().find(host, true, &pattern).unwrap();
    ep.claims().add(9, found);
    let found = ep.receives_mut().find(host, true, &pattern).unwrap();
    assert_eq!(found.header().data, second as u64);
    ep.discard(host, &found);
    assert!(ep.receives_mut().find(host, true, &pattern).is_none());
    let (receive, it) = world.receive_of(8, false);
    let crate::world::Node { ep, host, .. } = &mut world.nodes[1];
    assert!(ep.claims().take(8).is_none());
    let found = ep.claims().take(9).unwrap();
    ep.receive_found(host, it, found);
    world.settle();
    assert_eq!(world.told(1), [received(receive, 0, first, whole(8))]);
    assert_eq!(
        world.told(0),
        [Told::Done(second, None)],
        "the sender of a discarded message waits"
    );
}

#[test]
fn shared_receives_match_the_messages_of_all_their_endpoints() {
    let shared = Shared::default();
    let mut world = World::with(3, Service::ReliableDatagram, Some(shared.clone()));
    // Nodes 0 and 1 take receives from the pool; 2 sends.
    let to = [
        world.send(2, 0, 8, tagged(1)),
        world.send(2, 1, LONG, tagged(2)),
    ];
    world.settle();
    let mut receives = Vec::new();
    for tag in [2, 1, 1] {
        let (id, receive) = world.receive_of(LONG, false);
        let from = From {
            tag: Some(tag),
            ..From::default()
        };
        let waits = shared.0.borrow_mut().post(true, pattern(from), receive);
        shared.1.set(shared.1.get() + 1);
        assert!(waits || receives.len() == 2);
        for node in &mut world.nodes {
            node.ep.offer_to_shared_receives(&node.host);
        }
        receives.push(id);
    }
    world.settle();
    assert_eq!(world.told(0), [received(receives[1], 2, to[0], whole(8))]);
    assert_eq!(
        world.told(1),
        [received(receives[0], 2, to[1], whole(LONG))]
    );
    let late = world.send(2, 1, 4, tagged(1));
    world.settle();
    assert_eq!(world.told(1), [received(receives[2], 2, late, whole(4))]);
}

#[test]
fn a_connected_endpoint_completes_its_transfers_in_order() {
    let mut world = World::new(2, Service::Connected);
    let long = world.send(0, 1, LONG, tagged(1));
    let short = world.send(0, 1, 8, tagged(1));
    world.settle();
    assert_eq!(world.told(0), [], "the short message overtook the long one");
    let receives = [0; 2].map(|_| world.receive(1, any(), LONG));
    world.settle();
    let told = [Told::Done(long, None), Told::Done(short, None)];
    assert_eq!(world.told(0), told);
    let told = [
        received(receives[0], 0, long, whole(LONG)),
        received(receives[1], 0, short, whole(8)),
    ];
    assert_eq!(world.told(1), told);
}

#[test]
fn a_slow_receiver_loses_datagrams() {
    let mut world = World::new(2, Service::Datagram);
    for _ in 0..DATAGRAMS_MAX + 10 {
        world.send(0, 1, 8, How::default());
    }
    world.settle();
    let kept = world.nodes[1].ep.receives().matching(false).unexpected();
    assert_eq!(kept, DATAGRAMS_MAX);
    assert!(!world.told(1).contains(&Told::Violation));
}
