//! What a host with several managers needs: the addressee of a message, and the end of connections to a process that has ended.

use crate::world::{A, B, PORT, Policy, World};
use rkey_cm::State;
use rkey_cm::address::{PortSpace, ServiceId};
use rkey_cm::ids::IdSpace;
use rkey_cm::manager::{Error, Event};
use rkey_cm::wire::{Addressee, Mad, Message, RejectReason};

/// The host knows that the peer's process has ended: the connection ends as if the peer had sent a DREQ.
#[test]
fn the_end_of_the_peer_process_ends_the_connection() {
    let mut world = World::new();
    let (a, b) = world.pair();
    let now = world.now;
    assert_eq!(world.hosts[B].manager.connections_to(IdSpace::ALL), [b]);
    let manager = &mut world.hosts[B].manager;
    assert!(manager.peer_ended(now, b).is_ok());
    let told = manager.next_event();
    assert!(matches!(told, Some(Event::Disconnected { .. })), "{told:?}");
    assert_eq!(manager.state(b), Some(State::DreqReceived));
    assert!(manager.disconnect(now, b).is_ok());
    // A program that has sent a DREQ does not wait for the answer of a peer that has ended.
    assert!(world.hosts[A].manager.disconnect(now, a).is_ok());
    assert!(world.hosts[A].manager.peer_ended(now, a).is_ok());
    assert_eq!(world.state(A, a), Some(State::TimeWait));
    assert!(world.hosts[A].manager.peer_ended(now, a).is_ok());
    world.run_to_the_end();
    let ended = world.hosts[A].manager.peer_ended(now, a);
    assert_eq!(ended, Err(Error::Unknown));
}

#[test]
fn a_peer_that_ends_before_it_answers_counts_as_a_refusal() {
    let mut world = World::new();
    world.listen(B, 1);
    world.hosts[B].policy = Policy::Keep;
    let a = world.connect(A, b"");
    world.run(0);
    let now = world.now;
    assert_eq!(world.hosts[A].manager.connections_to(IdSpace::ALL), []);
    assert!(world.hosts[A].manager.peer_ended(now, a).is_ok());
    world.run(0);
    let told = world.hosts[A].events.last();
    let Some(Event::Rejected { rej, .. }) = told else {
        panic!("{told:?}")
    };
    assert_eq!(rej.reason, RejectReason::CONSUMER);
    let b = world.requested(B);
    assert!(world.hosts[B].manager.peer_ended(now, b).is_ok());
    assert_eq!(world.state(B, b), None);
}

/// The peer itself has not said anything, so only connections end that wait for an answer and get none.
#[test]
fn the_absence_of_a_device_ends_only_connections_that_end_or_begin() {
    let mut world = World::new();
    let (a, b) = world.pair();
    let now = world.now;
    for (side, id) in [(A, a), (B, b)] {
        let manager = &mut world.hosts[side].manager;
        assert!(manager.device_absent(now, id).is_ok());
        assert_eq!(manager.state(id), Some(State::Established));
        assert_eq!(manager.next_event(), None);
    }
    let manager = &mut world.hosts[A].manager;
    assert!(manager.disconnect(now, a).is_ok());
    assert!(manager.device_absent(now, a).is_ok());
    let told = manager.next_event();
    assert!(matches!(told, Some(Event::Disconnected { .. })), "{told:?}");
    assert_eq!(manager.state(a), Some(State::TimeWait));
    world.hosts[B].policy = Policy::Keep;
    let a = world.connect(A, b"");
    world.run(0);
    let b = world.requested(B);
    let now = world.now;
    assert!(world.hosts[B].manager.device_absent(now, b).is_ok());
    assert_eq!(world.state(B, b), Some(State::ReqReceived));
    assert_eq!(world.state(A, a), Some(State::ReqSent));
}

/// Only the messages of calls: a message gets one answer at most.
#[test]
fn a_dreq_or_drep_that_a_call_sends_is_marked_as_parting() {
    let mut world = World::new();
    let (a, b) = world.pair();
    let now = world.now;
    let all = |manager: &mut rkey_cm::Manager| -> Vec<_> {
        std::iter::from_fn(|| manager.next_transmit()).collect()
    };
    let [client, server] = &mut world.hosts;
    let (client, server) = (&mut client.manager, &mut server.manager);
    client.disconnect(now, a).unwrap();
    let dreq = all(client).pop().unwrap();
    assert!(dreq.is_parting);
    server.receive(now, dreq.from, dreq.to, &dreq.mad);
    server.disconnect(now, b).unwrap();
    let drep = all(server).pop().unwrap();
    assert!(drep.is_parting);
    server.receive(now, dreq.from, dreq.to, &dreq.mad);
    let again = all(server).pop().unwrap();
    assert_eq!((again.mad, again.is_parting), (drep.mad, false));
    client.advance(client.next_deadline().unwrap());
    let again = all(client).pop().unwrap();
    assert_eq!((again.mad, again.is_parting), (dreq.mad, false));
}

/// On a host with several managers, the ids in a message determine its manager.
#[test]
fn messages_name_their_addressee_and_their_connection() {
    let mut world = World::new();
    let listener = Addressee::Service(ServiceId::new(PortSpace::Tcp, PORT));
    let request = world.request(A, b"");
    let id = world.hosts[A].manager.connect(0, &request).unwrap();
    let sent = world.hosts[A].manager.next_transmit().unwrap();
    assert_eq!(sent.of.map(|(id, _)| id), Some(id));
    let mad = Mad::decode(&sent.mad).unwrap();
    assert_eq!(mad.message.addressee(), listener);
    let Message::Req(req) = mad.message else {
        panic!("{mad:?}")
    };
    // Without a listener, the answer belongs to no connection. It names the communication id of the active side.
    world.hosts[B]
        .manager
        .receive(0, sent.from, sent.to, &sent.mad);
    let answer = world.hosts[B].manager.next_transmit().unwrap();
    assert_eq!(answer.of, None);
    let mad = Mad::decode(&answer.mad).unwrap();
    assert_eq!(mad.message.addressee(), Addressee::Communication(req.local));
}
