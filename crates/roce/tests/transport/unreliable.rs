//! The responder of an unreliable connection: a message arrives whole or is dropped silently.

use crate::lone::Lone;
use crate::program::{BASE, KEY};
use rkey_roce::packet::{Body, Ieth, ImmDt, Request, Reth, Service, Tail};
use rkey_roce::transport::{ConnectionType, Event, Status};

const ONLY: Request = Request::SendOnly(Tail::None);
const LAST: Request = Request::SendLast(Tail::None);

fn ready() -> Lone {
    let mut lone = Lone::new(|config| config.connection = ConnectionType::Unreliable);
    for id in 0..4 {
        lone.program.receives.push_back((id, vec![0; 3000]));
    }
    lone
}

/// Receives requests with payloads of 1 or 1024 bytes, depending on their position.
fn give(lone: &mut Lone, packets: &[(u32, Request)]) {
    for &(psn, request) in packets {
        let length = if request.position().ends() { 1 } else { 1024 };
        let payload = vec![psn as u8; length];
        lone.give(psn, Body::Request(Service::Uc, request), true, &payload);
    }
}

/// The receives that were filled, with the length of each message.
fn messages(lone: &mut Lone) -> Vec<(u64, u32)> {
    assert!(lone.psns().is_empty(), "the responder must send nothing");
    let events = lone.events().into_iter();
    let messages = events.map(|event| match event {
        Event::Received(message) => (message.id, message.bytes),
        other => panic!("{other:?}"),
    });
    messages.collect()
}

#[test]
fn a_message_with_a_gap_is_dropped_and_its_receive_is_kept() {
    let mut lone = ready();
    give(
        &mut lone,
        &[
            (500, Request::SendFirst),
            (502, LAST),
            (503, Request::SendMiddle),
            (504, LAST),
            (505, Request::SendFirst),
            (506, LAST),
        ],
    );
    assert_eq!(messages(&mut lone), [(0, 1025)]);
    assert_eq!(lone.program.taken[&0][0], 249);
    // A message that starts before the previous one has ended replaces it.
    give(&mut lone, &[(507, Request::SendFirst), (508, ONLY)]);
    assert_eq!(messages(&mut lone), [(1, 1)]);
    assert_eq!(lone.connection.counters().dropped, 3);
}

#[test]
fn late_packets_are_dropped_and_distant_ones_restart_the_sequence() {
    let mut lone = ready();
    give(
        &mut lone,
        &[(500, ONLY), (500, ONLY), (510, ONLY), (505, ONLY)],
    );
    assert_eq!(messages(&mut lone), [(0, 1), (1, 1)]);
    // A duplicate of an old packet does not disturb the message in progress.
    give(
        &mut lone,
        &[(511, Request::SendFirst), (510, ONLY), (512, LAST)],
    );
    assert_eq!(messages(&mut lone), [(2, 1025)]);
    // Millions of packets were lost.
    give(&mut lone, &[(0xf0_0000, ONLY)]);
    assert_eq!(messages(&mut lone), [(3, 1)]);
    for psn in [0x80_0000, 0x10_0000, 0xa0_0000, 0x30_0000, 0xb0_0000] {
        lone.program.receives.push_back((9, vec![0; 8]));
        give(&mut lone, &[(psn, ONLY)]);
        assert_eq!(messages(&mut lone), [(9, 1)]);
    }
}

#[test]
fn messages_without_a_grant_or_receive_are_dropped() {
    let mut lone = ready();
    lone.program.receives.clear();
    let reth = |rkey, length| Reth {
        address: BASE,
        rkey,
        length,
    };
    let immediate = Some(ImmDt { data: 1 });
    give(
        &mut lone,
        &[
            (500, ONLY),
            (501, Request::WriteOnly(reth(KEY + 1, 1), None)),
            (502, Request::WriteOnly(reth(KEY, 1), immediate)),
            (503, Request::Read(reth(KEY, 1))),
            (504, Request::WriteOnly(reth(KEY, 2), None)),
            (505, Request::SendOnly(Tail::Invalidate(Ieth { rkey: 1 }))),
        ],
    );
    assert_eq!(messages(&mut lone), []);
    assert_eq!(
        (lone.program.accesses, lone.connection.counters().dropped),
        (0, 6)
    );
    give(&mut lone, &[(506, Request::WriteOnly(reth(KEY, 1), None))]);
    assert_eq!((messages(&mut lone), lone.program.accesses), (vec![], 1));
}

#[test]
fn unsupported_operations_consume_no_receive() {
    let mut lone = ready();
    let reth = Reth {
        address: BASE,
        rkey: KEY,
        length: 1,
    };
    let mut give = |psn, request, length| {
        let payload = vec![1; length];
        lone.give(psn, Body::Request(Service::Uc, request), false, &payload);
        lone.program.receives.len()
    };
    assert_eq!(give(500, Request::SendFirst, 1023), 4);
    assert_eq!(give(501, Request::Read(reth), 0), 4);
    let invalidate = Tail::Invalidate(Ieth { rkey: 1 });
    assert_eq!(give(502, Request::SendOnly(invalidate), 1), 4);
    assert_eq!(give(503, ONLY, 1025), 4);
    assert_eq!(give(504, ONLY, 1024), 3);
    assert_eq!(messages(&mut lone), [(0, 1024)]);
}

#[test]
fn a_message_that_is_too_long_ends_only_its_receive() {
    let mut lone = ready();
    give(
        &mut lone,
        &[
            (500, Request::SendFirst),
            (501, Request::SendMiddle),
            (502, Request::SendMiddle),
            (503, LAST),
            (504, ONLY),
        ],
    );
    let events = lone.events();
    let failed = Event::ReceiveFailed {
        id: 0,
        status: Status::LocalLength,
    };
    assert_eq!(events[0], failed);
    assert!(matches!(events[1..], [Event::Received(message)] if message.id == 1));
}

#[test]
fn a_request_ends_when_its_last_packet_is_sent() {
    let mut lone = ready();
    lone.post(crate::world::send(1, 2000), vec![3; 2000]);
    lone.post(crate::world::send(2, 0), vec![]);
    let sent = lone.sent();
    let psns: Vec<u32> = sent.iter().map(|sent| sent.psn()).collect();
    assert_eq!(psns, [100, 101, 102]);
    assert!(sent.iter().all(|sent| !sent.headers.ack_request));
    assert!(matches!(
        sent[0].headers.body,
        Body::Request(Service::Uc, Request::SendFirst)
    ));
    assert_eq!(
        lone.completed(),
        [(1, Status::Success), (2, Status::Success)]
    );
    assert_eq!(lone.connection.next_deadline(), None);
}

#[test]
fn a_flushed_queue_pair_receives_nothing() {
    let mut lone = ready();
    give(&mut lone, &[(500, Request::SendFirst)]);
    lone.connection.flush();
    give(&mut lone, &[(501, LAST), (502, ONLY)]);
    let flushed = Event::ReceiveFailed {
        id: 0,
        status: Status::Flushed,
    };
    assert_eq!(lone.events(), [flushed]);
    assert_eq!(lone.connection.counters().dropped, 2);
}
