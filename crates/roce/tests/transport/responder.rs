//! The responder alone: the effects of requests, and which responses it sends.

use crate::lone::{ACCESS, ACK, INVALID, Lone, SEQUENCE, Sent};
use crate::program::{BASE, EXPOSED, KEY};
use rkey_roce::packet::{
    Aeth, AtomicAckEth, AtomicEth, Ieth, ImmDt, Mtu, NakCode, Request, Response, Reth, RnrTimer,
    Syndrome, Tail,
};
use rkey_roce::transport::{Access, Event, MESSAGE_MAX, Received, Status};

pub(crate) const ONLY: Request = Request::SendOnly(Tail::None);
pub(crate) const LAST: Request = Request::SendLast(Tail::None);

pub(crate) fn reth(place: usize, length: u32) -> Reth {
    Reth {
        address: BASE + place as u64,
        rkey: KEY,
        length,
    }
}

pub(crate) fn fetch_add(place: u64) -> Request {
    Request::FetchAdd(AtomicEth {
        address: BASE + place,
        rkey: KEY,
        swap_or_add: 5,
        compare: 0,
    })
}

/// A queue pair with 4000-byte receives.
pub(crate) fn ready() -> Lone {
    let mut lone = Lone::new(|_| {});
    post_receives(&mut lone, 5);
    lone
}

fn post_receives(lone: &mut Lone, count: u64) {
    let receives = (0..count).map(|id| (id, vec![0; 4000]));
    lone.program.receives.extend(receives);
}

fn received(id: u64, bytes: u32) -> Event {
    Event::Received(Received {
        id,
        bytes,
        is_write: false,
        immediate: None,
        invalidated: None,
        solicited: false,
        source: None,
    })
}

#[test]
fn a_gap_is_reported_once_until_it_closes() {
    let mut lone = ready();
    lone.request(501, ONLY, &[2]);
    lone.request(502, ONLY, &[3]);
    assert_eq!(lone.answers(), [(500, SEQUENCE, 0)]);
    lone.request(501, ONLY, &[2]);
    assert_eq!(lone.answers(), []);
    assert_eq!(lone.events(), []);
    lone.request(500, ONLY, &[1]);
    assert_eq!(lone.answers(), [(500, ACK, 1)]);
    lone.request(502, ONLY, &[3]);
    assert_eq!(lone.answers(), [(501, SEQUENCE, 1)]);
    // The report has not been sent when the gap closes: the acknowledgement replaces it.
    lone.request(501, ONLY, &[2]);
    lone.request(503, ONLY, &[4]);
    lone.request(502, ONLY, &[3]);
    assert_eq!(lone.answers(), [(502, ACK, 3)]);
    let events = [received(0, 1), received(1, 1), received(2, 1)];
    assert_eq!(lone.events(), events);
    assert_eq!(lone.connection.counters().out_of_sequence, 5);
}

#[test]
fn a_batch_of_packets_gets_one_acknowledgement() {
    let mut lone = ready();
    for psn in 500..504 {
        lone.request(psn, ONLY, &[1]);
    }
    assert_eq!(lone.answers(), [(503, ACK, 4)]);
    // A duplicate gets an acknowledgement of everything so far, which does not replace a report.
    lone.request(500, ONLY, &[1]);
    assert_eq!(lone.answers(), [(503, ACK, 4)]);
    lone.request(505, ONLY, &[1]);
    lone.request(500, ONLY, &[1]);
    assert_eq!(lone.answers(), [(504, SEQUENCE, 4)]);
    assert_eq!(lone.events().len(), 4);
}

#[test]
fn a_message_without_a_receive_gets_an_rnr_nak_and_is_not_executed() {
    let mut lone = Lone::new(|config| config.min_rnr_timer = RnrTimer::new(5).unwrap());
    let nak = Syndrome::RnrNak(RnrTimer::new(5).unwrap());
    lone.request(500, ONLY, &[1]);
    lone.request(501, ONLY, &[2]);
    assert_eq!(lone.answers(), [(500, nak, 0)]);
    post_receives(&mut lone, 1);
    lone.request(501, ONLY, &[2]);
    assert_eq!(lone.answers(), []);
    lone.request(500, ONLY, &[1]);
    assert_eq!(lone.answers(), [(500, ACK, 1)]);
    // A write needs a receive only if its last packet has immediate data.
    lone.request(501, Request::WriteFirst(reth(0, 1025)), &[7; 1024]);
    let last = Request::WriteLast(Some(ImmDt { data: 9 }));
    lone.request(502, last, &[7]);
    assert_eq!(lone.answers(), [(502, nak, 1)]);
    assert_eq!(
        (lone.program.exposed[1023], lone.program.exposed[1024]),
        (7, 0)
    );
    post_receives(&mut lone, 1);
    lone.request(502, last, &[7]);
    assert_eq!(lone.answers(), [(502, ACK, 2)]);
    assert_eq!(lone.program.exposed[1024], 7);
    assert_eq!(lone.connection.counters().rnr_naks_sent, 2);
}

#[test]
fn messages_are_assembled_in_their_receive() {
    let mut lone = ready();
    lone.request(500, Request::SendFirst, &[1; 1024]);
    lone.request(501, Request::SendMiddle, &[2; 1024]);
    let ieth = Ieth { rkey: 0x99 };
    lone.request(502, Request::SendLast(Tail::Invalidate(ieth)), &[3; 52]);
    // The acknowledgement counts messages.
    assert_eq!(lone.answers(), [(502, ACK, 1)]);
    let Event::Received(message) = lone.events()[0] else {
        panic!("a message");
    };
    assert_eq!((message.bytes, message.invalidated), (2100, Some(0x99)));
    assert_eq!(lone.program.invalidated, [0x99]);
    let bytes = &lone.program.taken[&0];
    assert_eq!(
        (bytes[0], bytes[1024], bytes[2099], bytes[2100]),
        (1, 2, 3, 0)
    );
}

/// Requests with the lengths of their payloads. The last request is refused.
type Script = Vec<(Request, usize)>;

fn refused(script: &Script) -> (Lone, Vec<Event>, Syndrome) {
    let mut lone = Lone::new(|config| config.max_reads_in = 2);
    post_receives(&mut lone, 5);
    for (psn, (request, length)) in (500..).zip(script) {
        lone.request(psn, *request, &vec![5; *length]);
    }
    let events = lone.events();
    let sent = lone.sent();
    let Response::Acknowledge(aeth) = sent.last().expect("a NAK").response() else {
        panic!("{sent:?}")
    };
    assert_eq!(sent.last().unwrap().psn(), 499 + script.len() as u32);
    (lone, events, aeth.syndrome)
}

#[test]
fn invalid_packet_sequences_and_lengths_are_refused() {
    let first = (Request::SendFirst, 1024);
    let write_first = (Request::WriteFirst(reth(0, 1025)), 1024);
    let read = Request::Read(reth(0, 1));
    let cases: Vec<Script> = vec![
        vec![(Request::SendMiddle, 1024)],
        vec![(LAST, 1)],
        vec![(Request::WriteMiddle, 1024)],
        vec![first, first],
        vec![first, (ONLY, 1)],
        vec![first, (read, 0)],
        vec![first, (fetch_add(0), 0)],
        vec![first, (Request::WriteMiddle, 1024)],
        vec![write_first, (Request::SendMiddle, 1024)],
        vec![(Request::SendFirst, 1023)],
        vec![first, (Request::SendMiddle, 1000)],
        vec![first, (LAST, 0)],
        vec![first, (LAST, 1025)],
        vec![(ONLY, 1025)],
        vec![(Request::WriteOnly(reth(0, 2), None), 1)],
        vec![(Request::WriteOnly(reth(0, 2), None), 3)],
        vec![(Request::WriteFirst(reth(0, 1024)), 1024)],
        vec![write_first, (Request::WriteMiddle, 1024)],
        vec![write_first, (Request::WriteLast(None), 2)],
        // A message ends with its last packet.
        vec![
            (Request::WriteFirst(reth(0, 2048)), 1024),
            (Request::WriteMiddle, 1024),
        ],
        vec![(Request::WriteFirst(reth(0, (1 << 31) + 1)), 1024)],
        vec![(Request::Read(reth(0, (1 << 31) + 1)), 0)],
        vec![(fetch_add(4), 0)],
        // More reads than the peer may have outstanding.
        vec![(read, 0), (fetch_add(0), 0), (read, 0)],
    ];
    for script in cases {
        let (lone, events, syndrome) = refused(&script);
        assert_eq!(syndrome, INVALID, "{script:?}");
        let refusal = Event::Refused(NakCode::InvalidRequest);
        assert_eq!(events.last(), Some(&refusal), "{script:?}");
        let taken = script[0].0 == Request::SendFirst && script.len() > 1;
        let flushed = Event::ReceiveFailed {
            id: 0,
            status: Status::Flushed,
        };
        assert_eq!(events.contains(&flushed), taken, "{script:?}");
        assert_eq!(lone.connection.counters().refused, 1);
    }
}

#[test]
fn accesses_that_are_not_granted_are_refused_and_have_no_effect() {
    let end = EXPOSED - 1;
    let other_key = |mut reth: Reth| {
        reth.rkey += 1;
        reth
    };
    let ieth = Ieth { rkey: KEY };
    let cases: Vec<Script> = vec![
        vec![(Request::WriteOnly(reth(end, 2), None), 2)],
        vec![(Request::WriteOnly(other_key(reth(0, 2)), None), 2)],
        // The whole message is checked before its first byte is stored.
        vec![(Request::WriteFirst(reth(end - 1024, 1026)), 1024)],
        vec![(Request::Read(reth(end, 2)), 0)],
        vec![(Request::Read(other_key(reth(0, 1))), 0)],
        vec![(Request::Read(reth(0, MESSAGE_MAX)), 0)],
        vec![(Request::WriteFirst(reth(0, MESSAGE_MAX)), 1024)],
        vec![(fetch_add(EXPOSED as u64), 0)],
        vec![(
            Request::Read(Reth {
                address: u64::MAX,
                rkey: KEY,
                length: 9,
            }),
            0,
        )],
        vec![(Request::SendOnly(Tail::Invalidate(ieth)), 1)],
    ];
    for script in cases {
        let (lone, events, syndrome) = refused(&script);
        assert_eq!(syndrome, ACCESS, "{script:?}");
        let refusal = Event::Refused(NakCode::RemoteAccessError);
        assert_eq!(events.last(), Some(&refusal));
        assert_eq!(
            (lone.program.accesses, &lone.program.invalidated[..]),
            (0, &[][..])
        );
    }
    // An empty range needs no key.
    let mut lone = ready();
    lone.request(500, Request::WriteOnly(other_key(reth(0, 0)), None), &[]);
    assert_eq!(lone.answers(), [(500, ACK, 1)]);
    lone.request(501, Request::Read(other_key(reth(0, 0))), &[]);
    let sent = lone.sent();
    assert!(matches!(sent[0].response(), Response::ReadOnly(aeth) if aeth.msn == 2));
}

/// The network duplicates a read, and the second copy arrives after the answer and after the end of the region.
#[test]
fn a_duplicate_of_an_answered_read_does_not_end_the_connection() {
    let mut lone = Lone::new(|config| config.max_reads_in = 2);
    post_receives(&mut lone, 5);
    lone.request(500, Request::Read(reth(0, 8)), &[]);
    assert!(matches!(lone.sent()[0].response(), Response::ReadOnly(_)));
    lone.program.rights.clear();
    lone.request(500, Request::Read(reth(0, 8)), &[]);
    assert!(lone.sent().is_empty());
    lone.request(501, ONLY, &[2]);
    assert_eq!(lone.answers(), [(501, ACK, 2)]);
    assert_eq!(lone.events(), [received(0, 1)]);
    // A read that has not been answered is refused.
    lone.request(502, Request::Read(reth(0, 8)), &[]);
    assert_eq!(lone.answers(), [(502, ACCESS, 2)]);
    assert_eq!(lone.events(), [Event::Refused(NakCode::RemoteAccessError)]);
}

#[test]
fn a_message_too_long_for_its_receive_ends_the_connection() {
    let mut lone = ready();
    for psn in 500..503 {
        let request = if psn == 500 {
            Request::SendFirst
        } else {
            Request::SendMiddle
        };
        lone.request(psn, request, &[1; 1024]);
    }
    lone.request(503, LAST, &[1; 929]);
    assert_eq!(lone.answers(), [(503, INVALID, 0)]);
    let failed = Event::ReceiveFailed {
        id: 0,
        status: Status::LocalLength,
    };
    assert_eq!(
        lone.events(),
        [failed, Event::Refused(NakCode::InvalidRequest)]
    );
}

/// Takes too long under Miri.
#[cfg(not(miri))]
#[test]
fn a_message_longer_than_the_limit_is_refused() {
    let mut lone = Lone::new(|config| config.mtu = Mtu::Bytes4096);
    lone.program.endless = true;
    post_receives(&mut lone, 1);
    let payload = [0; 4096];
    let most = 500 + MESSAGE_MAX / 4096;
    lone.request(500, Request::SendFirst, &payload);
    for psn in 501..most {
        lone.request(psn, Request::SendMiddle, &payload);
    }
    assert_eq!(lone.events(), []);
    lone.request(most, LAST, &[0]);
    let failed = Event::ReceiveFailed {
        id: 0,
        status: Status::Flushed,
    };
    assert_eq!(
        lone.events(),
        [failed, Event::Refused(NakCode::InvalidRequest)]
    );
}

#[test]
fn inaccessible_memory_is_an_operational_error() {
    let operational = Syndrome::Nak(NakCode::RemoteOperationalError);
    let refusal = Event::Refused(NakCode::RemoteOperationalError);
    let mut lone = ready();
    lone.request(500, Request::SendFirst, &[1; 1024]);
    lone.program.unmapped = true;
    lone.request(501, LAST, &[1]);
    let failed = Event::ReceiveFailed {
        id: 0,
        status: Status::LocalProtection,
    };
    assert_eq!(lone.answers(), [(501, operational, 0)]);
    assert_eq!(lone.events(), [failed, refusal]);
    let mut lone = ready();
    lone.program.unmapped = true;
    let immediate = Some(ImmDt { data: 1 });
    lone.request(500, Request::WriteOnly(reth(0, 1), immediate), &[1]);
    let failed = Event::ReceiveFailed {
        id: 0,
        status: Status::LocalAccess,
    };
    assert_eq!(lone.answers(), [(500, operational, 0)]);
    assert_eq!(lone.events(), [failed, refusal]);
}

#[test]
fn all_packets_have_the_configured_partition_key() {
    let mut lone = Lone::new(|config| config.pkey = 0x8001);
    post_receives(&mut lone, 1);
    lone.post(crate::world::send(1, 1), vec![0]);
    lone.request(500, ONLY, &[1]);
    lone.request(501, Request::Read(reth(0, 1)), &[]);
    lone.request(502, fetch_add(0), &[]);
    let keys: Vec<u16> = lone.sent().iter().map(|sent| sent.headers.pkey).collect();
    assert_eq!(keys, [0x8001; 4]);
}

#[test]
fn reads_can_be_retransmitted_from_any_packet() {
    let mut lone = ready();
    for (place, byte) in lone.program.exposed.iter_mut().enumerate() {
        *byte = (place / 1024) as u8;
    }
    lone.request(500, Request::Read(reth(0, 3000)), &[]);
    lone.request(503, ONLY, &[1]);
    let sent = lone.sent();
    let psns: Vec<u32> = sent.iter().map(Sent::psn).collect();
    assert_eq!(psns, [500, 501, 502, 503]);
    let aeth = |msn| Aeth { syndrome: ACK, msn };
    assert_eq!(sent[0].response(), Response::ReadFirst(aeth(1)));
    assert_eq!(sent[1].response(), Response::ReadMiddle);
    assert_eq!(sent[2].response(), Response::ReadLast(aeth(1)));
    assert_eq!(sent[3].response(), Response::Acknowledge(aeth(2)));
    assert_eq!(sent[2].payload, [2; 952]);
    lone.request(501, Request::Read(reth(1024, 3000 - 1024)), &[]);
    let sent = lone.sent();
    let psns: Vec<u32> = sent.iter().map(Sent::psn).collect();
    assert_eq!(psns, [501, 502]);
    assert_eq!(sent[0].response(), Response::ReadFirst(aeth(1)));
    assert_eq!(sent[0].payload, [1; 1024]);
    // Data that was not part of the read is not returned.
    let others = [
        (501, reth(0, 3000)),
        (501, reth(1024, 1)),
        (501, reth(1024, 3000)),
        (500, reth(1, 3000)),
        (503, reth(3072, 1)),
        (499, reth(0, 3000)),
    ];
    for (psn, reth) in others {
        lone.request(psn, Request::Read(reth), &[]);
        assert_eq!(lone.psns(), [], "{psn} {reth:?}");
    }
    assert_eq!(lone.events(), [received(0, 1)]);
    // A request for zero bytes after the last packet of a read is not answered either.
    lone.request(504, Request::Read(reth(0, 1024)), &[]);
    lone.request(505, ONLY, &[1]);
    assert_eq!(lone.psns(), [504, 505]);
    lone.request(505, Request::Read(reth(1024, 0)), &[]);
    assert_eq!(lone.psns(), []);
}

#[test]
fn a_retransmitted_atomic_gets_its_first_result() {
    let mut lone = ready();
    for psn in [500, 501, 500, 500] {
        lone.request(psn, fetch_add(8), &[]);
    }
    let result = |sent: &Sent| match sent.response() {
        Response::AtomicAcknowledge(aeth, AtomicAckEth { original }) => {
            (sent.psn(), aeth.msn, original)
        }
        other => panic!("{other:?}"),
    };
    let sent: Vec<_> = lone.sent().iter().map(result).collect();
    assert_eq!(sent, [(500, 1, 0), (501, 2, 5)]);
    lone.request(500, fetch_add(8), &[]);
    lone.request(501, fetch_add(16), &[]);
    let sent: Vec<_> = lone.sent().iter().map(result).collect();
    assert_eq!(sent, [(500, 1, 0)]);
    assert_eq!(lone.program.exposed[8], 10);
}

/// The peer has room for a few packets, and takes one each 50 µs. It loses the others, and requests the rest again when a later
/// packet arrives, or after a timeout.
#[test]
fn a_slow_peer_gets_a_long_read_in_few_more_packets_than_it_has() {
    const PACKETS: u32 = 8192;
    const ROOM: u64 = 100;
    const EACH: u64 = 50_000;
    let mut lone = ready();
    let length = PACKETS * 1024;
    lone.program.exposed = vec![3; length as usize];
    lone.request(500, Request::Read(reth(0, length)), &[]);
    // The peer is busy until `busy` with the packets that it has taken.
    let (mut taken, mut sent, mut busy) = (0, 0, 0);
    while taken < PACKETS {
        let rest = reth(taken as usize * 1024, (PACKETS - taken) * 1024);
        let Some(packet) = lone.sent_one() else {
            let before = lone.now;
            match lone.connection.next_deadline() {
                Some(_) => lone.wait(),
                None => {
                    lone.now += 100_000_000;
                    lone.request(500 + taken, Request::Read(rest), &[]);
                }
            }
            assert!(lone.now > before, "the responder waits for nothing");
            continue;
        };
        sent += 1;
        let has_room = busy < lone.now + ROOM * EACH;
        let position = packet.psn() - 500;
        if has_room && position == taken {
            taken += 1;
            busy = busy.max(lone.now) + EACH;
        } else if has_room && position > taken {
            lone.request(500 + taken, Request::Read(rest), &[]);
        }
    }
    assert!(sent < 2 * PACKETS, "{sent} packets for {PACKETS}");
    assert_eq!(lone.connection.next_deadline(), None);
}

#[test]
fn as_many_reads_are_remembered_as_the_peer_may_have_outstanding() {
    let mut lone = Lone::new(|config| config.max_reads_in = 2);
    let read = |place| Request::Read(reth(place, 1));
    for psn in 500..503 {
        lone.request(psn, read(psn as usize), &[]);
        assert_eq!(lone.psns(), [psn]);
    }
    for (psn, again) in [(500, false), (501, true), (502, true)] {
        lone.request(psn, read(psn as usize), &[]);
        assert_eq!(!lone.psns().is_empty(), again);
    }
    // A new request cancels a pending answer to a late duplicate.
    lone.request(501, read(501), &[]);
    lone.request(503, read(503), &[]);
    assert_eq!(lone.psns(), [503]);
    assert_eq!(lone.events(), []);
}

#[test]
fn deregistering_memory_during_a_read_ends_the_connection() {
    let mut lone = ready();
    lone.request(500, Request::Read(reth(0, 1024)), &[]);
    lone.request(501, Request::Read(reth(0, 3000)), &[]);
    lone.request(504, ONLY, &[1]);
    lone.program.rights = vec![Access::Write];
    let sent = lone.sent();
    let aeth = Aeth {
        syndrome: ACCESS,
        msn: 3,
    };
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(
        (sent[0].psn(), sent[0].response()),
        (500, Response::Acknowledge(aeth))
    );
    let refusal = Event::Refused(NakCode::RemoteAccessError);
    assert_eq!(lone.events(), [received(0, 1), refusal]);
}

#[test]
fn a_refusal_is_retransmitted_and_nothing_else_is_executed() {
    let mut lone = ready();
    lone.post(crate::world::send(1, 1), vec![0]);
    lone.request(500, Request::Read(reth(0, 1)), &[]);
    lone.request(501, Request::WriteOnly(reth(EXPOSED, 1), None), &[1]);
    let events = lone.events();
    let flushed = Event::Completed {
        id: 1,
        status: Status::Flushed,
    };
    assert_eq!(
        events,
        [Event::Refused(NakCode::RemoteAccessError), flushed]
    );
    lone.connection.flush();
    let sent = lone.sent();
    assert_eq!(sent.len(), 2);
    assert!(matches!(sent[0].response(), Response::ReadOnly(_)));
    assert_eq!(sent[1].psn(), 501);
    let before = lone.program.accesses;
    for psn in [499, 500, 502] {
        lone.request(psn, ONLY, &[1]);
        assert_eq!(lone.psns(), []);
    }
    lone.request(501, Request::WriteOnly(reth(EXPOSED, 1), None), &[1]);
    assert_eq!(lone.answers().len(), 1);
    assert_eq!((lone.program.accesses, lone.events()), (before, vec![]));
}

#[test]
fn a_flushed_queue_pair_sends_nothing() {
    let mut lone = ready();
    lone.request(500, Request::SendFirst, &[1; 1024]);
    lone.request(501, Request::SendMiddle, &[1; 1024]);
    lone.post(crate::world::send(1, 1), vec![0]);
    lone.connection.flush();
    assert_eq!(lone.psns(), []);
    lone.request(502, LAST, &[1]);
    lone.request(500, Request::SendFirst, &[1; 1024]);
    assert_eq!(lone.psns(), []);
    let flushed = Event::ReceiveFailed {
        id: 0,
        status: Status::Flushed,
    };
    let ended = Event::Completed {
        id: 1,
        status: Status::Flushed,
    };
    assert_eq!(lone.events(), [ended, flushed]);
}
