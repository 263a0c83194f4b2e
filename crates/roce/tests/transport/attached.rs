//! Acknowledgements inside requests.

use crate::lone::Lone;
use crate::world::send;
use rkey_roce::packet::{
    Aeth, Body, Credits, Headers, NakCode, Packet, Psn, Reliable, Request, Response, Reth, Service,
    Syndrome, Tail,
};
use rkey_roce::transport::{Event, Status, attach, early_mark};

const ACK: Syndrome = Syndrome::Ack(Credits::UNLIMITED);

/// A queue pair that has agreed to selective retransmission, and has sent request 1 (PSN 100).
fn asked() -> Lone {
    let mut lone = Lone::new(|config| config.selective = true);
    lone.marks.0 = true;
    lone.post(send(1, 4), vec![7; 4]);
    assert_eq!(lone.psns(), [100]);
    lone.program.receives.push_back((9, vec![0; 2000]));
    lone
}

/// A request of the peer.
fn request(psn: u32, request: Request, payload: &[u8]) -> Vec<u8> {
    let body = Body::Request(Service::Rc, request);
    let mut headers = Headers::new(0xa, Psn::new(psn), body);
    (headers.migrated, headers.reserved) = (true, early_mark(Psn::new(500)));
    encoded(headers, payload)
}

/// An answer of the peer.
fn answer(length: usize) -> Vec<u8> {
    request(500, Request::SendOnly(Tail::None), &vec![5; length])
}

/// An acknowledgement of PSN 100, with a change.
fn acknowledgement(syndrome: Syndrome, change: impl Fn(&mut Headers)) -> Vec<u8> {
    let body = Body::Response(
        Reliable::Rc,
        Response::Acknowledge(Aeth { syndrome, msn: 0 }),
    );
    let mut headers = Headers::new(0xa, Psn::new(100), body);
    (headers.migrated, headers.reserved) = (true, 1);
    change(&mut headers);
    encoded(headers, &[])
}

fn encoded(headers: Headers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Packet { headers, payload }.encode(&mut bytes).unwrap();
    bytes
}

fn receive(lone: &mut Lone, bytes: &[u8]) {
    let packet = Packet::decode(bytes).unwrap();
    lone.connection
        .receive(lone.now, &mut lone.program, &packet);
}

#[test]
fn the_request_ends_before_its_answer_arrives() {
    for length in [0, 1, 2, 3, 4, 1000, 1008] {
        let mut lone = asked();
        // Whatever is before the packet stays as it is.
        let mut bytes = [&[1, 2, 3][..], &answer(length)].concat();
        assert!(attach(&mut bytes, 3, &acknowledgement(ACK, |_| ())));
        assert_eq!(bytes[..3], [1, 2, 3]);
        receive(&mut lone, &bytes[3..]);
        let events = lone.events();
        let [
            Event::Completed { id: 1, status },
            Event::Received(received),
        ] = &events[..]
        else {
            panic!("{events:?}");
        };
        assert_eq!((*status, received.bytes), (Status::Success, length as u32));
        assert!(lone.program.taken[&9][..length].iter().all(|it| *it == 5));
    }
}

/// It is not kept: an attacker must not have two chances with one packet.
#[test]
fn an_answer_that_arrives_early_only_acknowledges() {
    let mut lone = asked();
    let mut early = request(501, Request::SendOnly(Tail::None), &[5; 3]);
    assert!(attach(&mut early, 0, &acknowledgement(ACK, |_| ())));
    receive(&mut lone, &early);
    assert_eq!(lone.completed(), [(1, Status::Success)]);
    assert_eq!(lone.connection.kept(), (0, 0));
    let answers = lone.answers();
    assert_eq!(answers[0].1, Syndrome::Nak(NakCode::PsnSequenceError));
    receive(&mut lone, &answer(2));
    assert!(matches!(&lone.events()[..], [Event::Received(it)] if it.bytes == 2));
    lone.program.receives.push_back((10, vec![0; 2000]));
    receive(&mut lone, &early);
    assert!(matches!(&lone.events()[..], [Event::Received(it)] if it.bytes == 3));
}

/// Damage to the bits that the checksum does not cover does not make the acknowledgement payload.
#[test]
fn an_attached_acknowledgement_is_found_by_bits_that_the_checksum_covers() {
    let mut whole = answer(8);
    assert!(attach(&mut whole, 0, &acknowledgement(ACK, |_| ())));
    for bit in 0..8 {
        let mut damaged = whole.clone();
        damaged[4] ^= 1 << bit;
        let mut lone = asked();
        receive(&mut lone, &damaged);
        let events = lone.events();
        let [Event::Completed { .. }, Event::Received(received)] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!(received.bytes, 8);
    }
}

/// If the acknowledgement makes the queue pair fail, the request is not executed.
#[test]
fn a_request_with_an_acknowledgement_that_ends_in_a_failure_is_dropped() {
    let mut lone = asked();
    // Its memory is not accessible, which counts once the first request has ended.
    lone.connection.post(send(2, 4));
    assert_eq!(lone.psns(), [100], "only the first is sent, once more");
    let mut bytes = answer(8);
    assert!(attach(&mut bytes, 0, &acknowledgement(ACK, |_| ())));
    receive(&mut lone, &bytes);
    let failed = [(1, Status::Success), (2, Status::LocalProtection)];
    assert_eq!(lone.completed(), failed);
    assert_eq!(lone.connection.counters().dropped, 1);
}

#[test]
fn only_plain_acknowledgements_of_the_same_queue_pair_are_attached() {
    let plain = acknowledgement(ACK, |_| ());
    let refuses = |request: &[u8], acknowledgement: &[u8]| {
        let mut bytes = request.to_vec();
        !attach(&mut bytes, 0, acknowledgement) && bytes == request
    };
    let not_agreed = acknowledgement(ACK, |it| it.reserved = 0);
    assert!(refuses(&answer(8), &not_agreed));
    let elsewhere = acknowledgement(ACK, |it| it.destination = 0xb);
    assert!(refuses(&answer(8), &elsewhere));
    let refusal = acknowledgement(Syndrome::Nak(NakCode::RemoteAccessError), |_| ());
    assert!(refuses(&answer(8), &refusal));
    assert!(refuses(&answer(8), &answer(8)) && refuses(&plain, &plain));
    let read = Request::Read(Reth {
        address: 0,
        rkey: 1,
        length: 1,
    });
    assert!(refuses(&request(500, read, &[]), &plain));
    assert!(refuses(&answer(4096), &plain), "longer than any packet");
    assert!(refuses(&answer(8)[..10], &plain) && refuses(&[], &plain));
    let mut standard = answer(8);
    standard[1] &= !0x40;
    assert!(refuses(&standard, &plain), "the sender has not agreed");
    assert!(!attach(&mut answer(8), 1000, &plain));
}

/// A forged packet of this kind does not change anything.
#[test]
fn what_is_attached_must_be_an_acknowledgement() {
    let mut whole = answer(8);
    assert!(attach(&mut whole, 0, &acknowledgement(ACK, |_| ())));
    let spoilt = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at] = value;
        bytes
    };
    let mut short = answer(12);
    short[8] = whole[8];
    // Its opcode, its destination, its syndrome.
    for bytes in [
        short,
        spoilt(20, 4),
        spoilt(20, 0xff),
        spoilt(27, 0xb),
        spoilt(32, 0x60),
    ] {
        let mut lone = asked();
        receive(&mut lone, &bytes);
        assert_eq!(
            (lone.events(), lone.connection.counters().dropped),
            (vec![], 1)
        );
        receive(&mut lone, &whole);
        assert_eq!(lone.events().len(), 2);
    }
    // One that has not agreed takes everything for the payload: it never gets such a packet.
    let mut lone = Lone::new(|_| ());
    lone.program.receives.push_back((9, vec![0; 100]));
    receive(&mut lone, &whole);
    assert!(matches!(&lone.events()[..], [Event::Received(it)] if it.bytes == 24));
}

/// The permission is in the acknowledgement.
#[test]
fn an_acknowledgement_may_be_attached_once_the_peer_has_shown_that_it_has_agreed() {
    let permission = |selective: bool, marks: bool, mark: u16| {
        let mut lone = Lone::new(|config| config.selective = selective);
        (lone.marks.0, lone.mark) = (marks, mark);
        lone.program.receives.push_back((9, vec![0; 8]));
        // Packets that are early or late say nothing: anyone could have sent them.
        for psn in [501, 499] {
            lone.request(psn, Request::SendOnly(Tail::None), &[5; 8]);
            assert!(lone.sent().iter().all(|it| it.headers.reserved == 0));
        }
        lone.request(500, Request::SendOnly(Tail::None), &[5; 8]);
        let sent = lone.sent();
        sent.last().is_some_and(|it| it.headers.reserved == 1)
    };
    let mark = early_mark(Psn::new(500));
    assert!(permission(true, true, mark));
    assert!(!permission(true, false, mark));
    assert!(!permission(true, true, mark ^ 2));
    assert!(!permission(false, true, mark));
}
