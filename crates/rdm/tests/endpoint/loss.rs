//! Peers that exit, stop, or violate the protocol.

use crate::host::Told;
use crate::world::{From, How, Node, World, address};
use rkey_engine::{Completion, CompletionOp, SendRequest, Work};
use rkey_rdm::draining::STUCK;
use rkey_rdm::endpoint::Service;
use rkey_rdm::error::Error;
use rkey_rdm::header::{Header, Kind, MAX_LEN};
use rkey_rdm::limits::EAGER_MAX;
use rkey_rdm::peers::REMEMBERED;

const LONG: usize = 3 * EAGER_MAX;

fn two() -> World {
    World::new(2, Service::ReliableDatagram)
}

fn any() -> From {
    From {
        node: None,
        tag: None,
        any_tag: true,
    }
}

/// Sends any bytes as a message over the first connection of node 0, as a hostile peer does.
fn forge(world: &mut World, header: Header, payload: &[u8]) {
    let mut head = [0; MAX_LEN];
    let len = header.encode(&mut head);
    let bytes = [&head[..len], payload].concat();
    let send = Work::Send {
        imm: None,
        invalidate: None,
    };
    let request = SendRequest {
        inline: Some(&bytes),
        ..SendRequest::new(u64::MAX, send, &[])
    };
    let qp = world.nodes[0].ep.connections()[0].qp.unwrap();
    world.net.borrow_mut().post(qp, &request).unwrap();
    while world.act(0) {}
}

#[test]
fn operations_fail_when_their_peer_exits() {
    let mut world = two();
    let confirm = How {
        confirm: true,
        ..How::default()
    };
    let ids = [
        world.send(0, 1, LONG, How::default()),
        world.send(0, 1, 8, confirm),
    ];
    world.settle();
    world.kill(1);
    world.settle();
    let told = ids.map(|id| Told::Done(id, Some(Error::ConnectionReset)));
    assert_eq!(world.told(0), told);
    let ep = &world.nodes[0].ep;
    assert_eq!((ep.outbox().operations(), ep.outbox().under_way()), (0, 0));
    assert_eq!(
        ep.connections().count(),
        0,
        "the lost connection keeps its slot"
    );
    assert_eq!(ep.routes().peers().find(address(1)), None);
}

#[test]
fn an_absent_peer_is_reported_once() {
    let mut world = two();
    world.kill(1);
    let send = |world: &mut World| world.try_send(0, 1, 8, How::default()).err();
    assert_eq!(send(&mut world), Some(Error::Again));
    world.settle();
    world.now -= REMEMBERED / 2;
    assert_eq!(send(&mut world), Some(Error::NotConnected));
    assert_eq!(
        send(&mut world),
        Some(Error::Again),
        "the send did not start another attempt"
    );
}

#[test]
fn short_messages_sent_before_a_peer_exits_can_be_received() {
    let mut world = two();
    let short = world.send(0, 1, 8, How::default());
    world.send(0, 1, LONG, How::default());
    world.settle();
    world.kill(0);
    world.settle();
    assert_eq!(
        world.nodes[1].ep.connections().count(),
        1,
        "unread messages keep the connection"
    );
    let receives = [0; 2].map(|_| world.receive(1, any(), LONG));
    world.settle();
    let results: Vec<_> = world
        .told(1)
        .into_iter()
        .map(|told| match told {
            Told::Received {
                receive, data, how, ..
            } => (receive, data, how.error),
            other => panic!("{other:?}"),
        })
        .collect();
    let reset = Some(Error::ConnectionReset);
    let (first, second) = (receives[0], receives[1]);
    assert_eq!(results, [(first, short as u64, None), (second, 1, reset)]);
    assert_eq!(world.nodes[1].ep.connections().count(), 0);
}

#[test]
fn a_bye_ends_the_connection_at_once() {
    let mut world = two();
    world.send(0, 1, 8, How::default());
    world.settle();
    let Node { ep, host, .. } = &mut world.nodes[0];
    ep.say_goodbye(host);
    world.receive(1, any(), 8);
    world.settle();
    assert_eq!(world.nodes[1].ep.connections().count(), 0);
    let remains = {
        let Node { ep, host, .. } = &mut world.nodes[0];
        ep.close(host)
    };
    assert_eq!(remains.qps.len(), 1);
    remains.withdraw(&world.nodes[0].host);
}

/// The endpoint that is closing does not know yet that the peer uses the connection.
#[test]
fn a_peer_that_has_just_connected_gets_the_bye() {
    let mut world = two();
    assert_eq!(world.try_send(0, 1, 8, How::default()), Err(Error::Again));
    assert!(world.act(0), "no connection was requested");
    let Node { ep, host, .. } = &mut world.nodes[1];
    assert!(ep.connections()[0].state().is_connecting());
    ep.say_goodbye(host);
    world.settle();
    assert_eq!(world.nodes[0].ep.connections().count(), 0);
}

#[test]
fn an_endpoint_that_is_closed_leaves_no_valid_key() {
    let mut world = two();
    world.send(0, 1, LONG, How::default());
    world.settle();
    assert_eq!(world.net.borrow().exposed(), 1);
    let Node { ep, host, .. } = &mut world.nodes[0];
    ep.close(host).withdraw(host);
    assert_eq!(world.net.borrow().exposed(), 0);
}

#[test]
fn receives_are_canceled_when_a_connected_peer_exits() {
    let mut world = World::new(2, Service::Connected);
    world.send(0, 1, 8, How::default());
    world.settle();
    world.receive(1, any(), 8);
    let waiting = world.receive(1, any(), 8);
    world.told(1);
    world.kill(0);
    world.settle();
    assert_eq!(world.told(1), [Told::Canceled(waiting), Told::Shut]);
    let late = world.receive(1, any(), 8);
    assert_eq!(world.told(1), [Told::Canceled(late)]);
}

#[test]
fn a_send_completes_only_after_a_lost_peer_has_stopped_reading() {
    let mut world = two();
    let id = world.send(0, 1, LONG, How::default());
    world.settle();
    world.nodes[0].host.held.set(true);
    world.kill(1);
    while world.act(0) {}
    world.look(0);
    assert_eq!(world.told(0), [], "the peer may still read it");
    assert!(world.nodes[0].ep.needs_looks());
    world.now += STUCK + STUCK;
    world.look(0);
    let cut = world.told(0);
    assert!(matches!(cut.as_slice(), [Told::Cut(_)]), "{cut:?}");
    world.tick();
    assert_eq!(world.told(0), [], "the link is cut only once");
    world.nodes[0].host.held.set(false);
    world.settle();
    let told = [Told::Done(id, Some(Error::ConnectionReset))];
    assert_eq!(world.told(0), told);
    assert_eq!(world.nodes[0].ep.connections().count(), 0);
}

#[test]
fn a_peer_that_exceeds_its_credit_is_ignored() {
    let mut world = two();
    world.send(0, 1, 8, How::default());
    world.settle();
    let header = Header {
        len: 400,
        ..Header::new(Kind::Message)
    };
    for _ in 0..5000 {
        if world.nodes[0].ep.connections()[0].state().is_lost() {
            break;
        }
        forge(&mut world, header, &[0; 400]);
    }
    assert_eq!(
        world.told(1),
        [Told::Violation],
        "the violation is reported once"
    );
    let kept = world.nodes[1].ep.receives().matching(false).unexpected();
    assert_eq!(kept, 4096, "as many messages as credit");
}

#[test]
fn a_peer_that_violates_the_protocol_is_ignored() {
    let cases: [&[u8]; 3] = [&[], &[0; 100], &[255; 31]];
    for bytes in cases {
        let mut world = two();
        world.send(0, 1, 8, How::default());
        world.settle();
        let qpn = world.nodes[1].ep.connections()[0].qp.unwrap() as u32;
        let completion = Completion {
            opcode: CompletionOp::Recv,
            bytes: bytes.len() as u32,
            qpn,
            ..Completion::default()
        };
        let Node { ep, host, .. } = &mut world.nodes[1];
        ep.receive_completed(host, &completion, bytes);
        ep.receive_completed(host, &completion, bytes);
        assert_eq!(world.told(1), [Told::Violation]);
    }
}

#[test]
fn unexpected_answers_are_ignored() {
    let mut world = two();
    world.send(0, 1, 8, How::default());
    let id = world.send(1, 0, LONG, How::default());
    world.settle();
    world.told(1);
    for forged in [0, 1 << 32, u64::MAX, 7] {
        let header = Header {
            id: forged,
            ..Header::new(Kind::AtomicResult)
        };
        let by_another = forged == 7;
        forge(&mut world, header, &[1; 8]);
        let told = world.told(1);
        assert!(told.is_empty() || !by_another && told == [Told::Done(id, None)]);
    }
}
