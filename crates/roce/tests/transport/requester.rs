//! The requester alone: which packets it sends, and the effects of responses.

use crate::lone::{ACCESS, ACK, INVALID, Lone, SEQUENCE, Sent};
use crate::model::target;
use crate::world::{read, send, write};
use rkey_roce::packet::{
    Aeth, AtomicAckEth, AtomicEth, Credits, Ieth, ImmDt, Mtu, NakCode, Request, Response, Reth,
    RnrTimer, Syndrome, Tail,
};
use rkey_roce::transport::{
    Atomic, ConnectionType, Event, MESSAGE_MAX, Operation, Status, WorkRequest,
};

const AETH: Aeth = Aeth {
    syndrome: ACK,
    msn: 0,
};

fn requests(sent: &[Sent]) -> Vec<(u32, Request, usize)> {
    let sent = sent.iter();
    sent.map(|sent| (sent.psn(), sent.request(), sent.payload.len()))
        .collect()
}

fn fetch_add(id: u64) -> WorkRequest {
    let operation = Operation::Atomic {
        target: target(8),
        operation: Atomic::FetchAdd { add: 5 },
    };
    WorkRequest::new(id, operation, 8)
}

#[test]
fn messages_are_split_and_numbered_as_the_specification_says() {
    let mut lone = Lone::new(|config| config.mtu = Mtu::Bytes256);
    let bytes: Vec<u8> = (0..600).map(|i| i as u8).collect();
    lone.post(write(1, target(16), 600), bytes.clone());
    lone.post(read(2, target(32), 600), vec![0; 600]);
    lone.post(fetch_add(3), vec![0; 8]);
    lone.post(send(4, 0), Vec::new());
    let sent = lone.sent();
    let reth = |place: usize| Reth {
        address: target(place).address,
        rkey: target(place).rkey,
        length: 600,
    };
    let atomic = AtomicEth {
        address: target(8).address,
        rkey: target(8).rkey,
        swap_or_add: 5,
        compare: 0,
    };
    let expected = [
        (100, Request::WriteFirst(reth(16)), 256),
        (101, Request::WriteMiddle, 256),
        (102, Request::WriteLast(None), 88),
        (103, Request::Read(reth(32)), 0),
        (106, Request::FetchAdd(atomic), 0),
        (107, Request::SendOnly(Tail::None), 0),
    ];
    assert_eq!(requests(&sent), expected);
    let payload: Vec<u8> = sent.iter().flat_map(|sent| sent.payload.clone()).collect();
    assert_eq!(payload, bytes);
    let asking: Vec<_> = sent.iter().map(|sent| sent.headers.ack_request).collect();
    assert_eq!(asking, [false, false, false, false, false, true]);
    assert!(sent.iter().all(|sent| sent.headers.destination == 0xb));
}

#[test]
fn immediate_data_and_invalidation_are_in_the_last_packet() {
    let mut lone = Lone::new(|config| config.mtu = Mtu::Bytes256);
    let mut first = send(1, 300);
    first.operation = Operation::Send {
        immediate: Some(7),
        invalidate: None,
    };
    lone.post(first, vec![1; 300]);
    let mut second = send(2, 1);
    second.operation = Operation::Send {
        immediate: None,
        invalidate: Some(8),
    };
    lone.post(second, vec![1]);
    let (immediate, ieth) = (ImmDt { data: 7 }, Ieth { rkey: 8 });
    let expected = [
        (100, Request::SendFirst, 256),
        (101, Request::SendLast(Tail::Immediate(immediate)), 44),
        (102, Request::SendOnly(Tail::Invalidate(ieth)), 1),
    ];
    assert_eq!(requests(&lone.sent()), expected);
}

#[test]
fn only_the_last_packet_that_consumes_a_receive_is_solicited() {
    let mut lone = Lone::new(|config| config.mtu = Mtu::Bytes256);
    let write = |immediate| Operation::Write {
        target: target(0),
        immediate,
    };
    let atomic = Operation::Atomic {
        target: target(0),
        operation: Atomic::FetchAdd { add: 1 },
    };
    let read = Operation::Read { target: target(0) };
    let operations = [
        send(0, 0).operation,
        write(None),
        write(Some(1)),
        read,
        atomic,
    ];
    for (id, operation) in operations.into_iter().enumerate() {
        let mut request = send(id as u64, 300);
        (request.operation, request.solicited) = (operation, true);
        lone.post(request, vec![1; 300]);
    }
    let sent = lone.sent();
    let solicited = sent.iter().filter(|sent| sent.headers.solicited);
    assert_eq!(solicited.map(Sent::psn).collect::<Vec<_>>(), [101, 105]);
}

#[test]
fn each_window_quarter_and_the_last_packet_request_an_ack() {
    let mut lone = Lone::new(|config| config.window = 16);
    lone.post(send(1, 1024 * 30), vec![0; 1024 * 30]);
    let asking = |sent: Vec<Sent>| -> Vec<u32> {
        let asking = sent.iter().filter(|sent| sent.headers.ack_request);
        asking.map(Sent::psn).collect()
    };
    let sent = lone.sent();
    assert_eq!(sent.len(), 16);
    assert_eq!(asking(sent), [103, 107, 111, 115]);
    lone.acknowledge(103, ACK);
    let sent = lone.sent();
    assert_eq!(sent.len(), 4);
    assert_eq!(asking(sent), [119]);
    lone.acknowledge(119, ACK);
    assert_eq!(asking(lone.sent()), [123, 127, 129]);
}

#[test]
fn an_acknowledgement_completes_all_earlier_requests() {
    let mut lone = Lone::new(|_| {});
    for id in 0..5 {
        lone.post(send(id, 2000), vec![0; 2000]);
    }
    assert_eq!(lone.sent().len(), 10);
    lone.acknowledge(104, ACK);
    assert_eq!(
        lone.completed(),
        [(0, Status::Success), (1, Status::Success)]
    );
    lone.acknowledge(103, ACK);
    lone.acknowledge(110, ACK);
    lone.acknowledge(99, ACK);
    assert_eq!(lone.connection.counters().stale_responses, 3);
    assert_eq!(lone.completed(), []);
    // The credits of an acknowledgement are ignored, even if there are none.
    lone.acknowledge(109, Syndrome::Ack(Credits::at_most(0)));
    assert_eq!(lone.completed().len(), 3);
    assert_eq!(lone.connection.next_deadline(), None);
}

#[test]
fn a_sequence_error_makes_the_requester_go_back_once() {
    let mut lone = Lone::new(|_| {});
    lone.post(send(1, 5000), vec![0; 5000]);
    assert_eq!(lone.psns(), [100, 101, 102, 103, 104]);
    lone.acknowledge(102, SEQUENCE);
    lone.acknowledge(102, SEQUENCE);
    assert_eq!(lone.psns(), [102, 103, 104]);
    lone.now += 1000;
    lone.acknowledge(102, SEQUENCE);
    assert_eq!(lone.psns(), []);
    lone.acknowledge(104, SEQUENCE);
    assert_eq!(lone.psns(), [104]);
    assert_eq!(lone.connection.next_deadline(), Some(lone.now + 67_108_864));
    lone.acknowledge(104, ACK);
    assert_eq!(lone.completed(), [(1, Status::Success)]);
    let counters = lone.connection.counters();
    assert_eq!((counters.retransmitted, counters.timeouts), (4, 0));
}

#[test]
fn a_lost_response_is_detected_by_a_later_response() {
    for later in [103, 104] {
        let mut lone = Lone::new(|_| {});
        lone.post(send(1, 1), vec![0]);
        lone.post(read(2, target(0), 2000), vec![0; 2000]);
        lone.post(send(3, 2000), vec![0; 2000]);
        assert_eq!(lone.psns(), [100, 101, 103, 104]);
        lone.acknowledge(later, ACK);
        assert_eq!(lone.completed(), [(1, Status::Success)]);
        assert_eq!(lone.psns(), [101, 103, 104]);
        lone.acknowledge(later, ACK);
        assert_eq!(lone.psns(), []);
        assert_eq!(lone.connection.counters().implied_naks, 2);
        lone.response(101, Response::ReadFirst(AETH), &[1; 1024]);
        lone.response(102, Response::ReadLast(AETH), &[2; 976]);
        lone.acknowledge(104, ACK);
        assert_eq!(
            lone.completed(),
            [(2, Status::Success), (3, Status::Success)]
        );
        let data = &lone.program.requests[&2];
        assert_eq!((data[1023], data[1024], data[1999]), (1, 2, 2));
    }
}

#[test]
fn a_lost_response_takes_precedence_over_later_errors() {
    let rnr = Syndrome::RnrNak(RnrTimer::new(1).unwrap());
    for later in [ACK, SEQUENCE, ACCESS, rnr] {
        let mut lone = Lone::new(|_| {});
        lone.post(read(1, target(0), 1), vec![0]);
        lone.post(send(2, 1), vec![0]);
        lone.post(send(3, 1), vec![0]);
        lone.sent();
        lone.acknowledge(101, later);
        assert_eq!(lone.psns(), [100, 101, 102], "{later:?}");
        assert_eq!(lone.completed(), []);
        let counters = lone.connection.counters();
        assert_eq!((counters.implied_naks, counters.rnr_naks), (1, 0));
    }
}

#[test]
fn a_read_resumes_at_its_first_missing_byte() {
    let mut lone = Lone::new(|_| {});
    lone.post(read(1, target(0), 5000), vec![0; 5000]);
    lone.sent();
    lone.response(100, Response::ReadFirst(AETH), &[1; 1024]);
    lone.response(102, Response::ReadMiddle, &[3; 1024]);
    let rest = Reth {
        address: target(1024).address,
        rkey: target(0).rkey,
        length: 5000 - 1024,
    };
    assert_eq!(requests(&lone.sent()), [(101, Request::Read(rest), 0)]);
    lone.response(103, Response::ReadMiddle, &[3; 1024]);
    assert_eq!(lone.psns(), []);
    lone.response(101, Response::ReadFirst(AETH), &[2; 1024]);
    lone.response(101, Response::ReadFirst(AETH), &[9; 1024]);
    lone.response(102, Response::ReadMiddle, &[3; 1024]);
    lone.response(103, Response::ReadMiddle, &[4; 1024]);
    lone.response(104, Response::ReadLast(AETH), &[5; 904]);
    assert_eq!(lone.completed(), [(1, Status::Success)]);
    let data = &lone.program.requests[&1];
    let starts: Vec<u8> = data.iter().step_by(1024).copied().collect();
    assert_eq!(starts, [1, 2, 3, 4, 5]);
}

#[test]
fn refusals_end_the_request_with_their_status_and_flush_the_rest() {
    let cases = [
        (INVALID, Status::RemoteInvalidRequest),
        (ACCESS, Status::RemoteAccess),
        (
            Syndrome::Nak(NakCode::RemoteOperationalError),
            Status::RemoteOperation,
        ),
        (
            Syndrome::Nak(NakCode::InvalidRdRequest),
            Status::RemoteInvalidRequest,
        ),
        (Syndrome::from_byte(0x65), Status::BadResponse),
    ];
    for (syndrome, status) in cases {
        let mut lone = Lone::new(|_| {});
        for id in 1..4 {
            lone.post(send(id, 1), vec![0]);
        }
        lone.sent();
        lone.acknowledge(100, ACK);
        lone.acknowledge(101, syndrome);
        let events = [
            completed(1, Status::Success),
            completed(2, status),
            completed(3, Status::Flushed),
            Event::Failed,
        ];
        assert_eq!(lone.events(), events);
        lone.acknowledge(102, ACK);
        lone.post(send(4, 1), vec![0]);
        assert_eq!(lone.events(), [completed(4, Status::Flushed)]);
        assert_eq!(
            (lone.psns(), lone.connection.next_deadline()),
            (vec![], None)
        );
    }
    // A refusal acknowledges everything before it.
    let mut lone = Lone::new(|_| {});
    lone.post(send(1, 1), vec![0]);
    lone.post(send(2, 1), vec![0]);
    lone.sent();
    lone.acknowledge(101, ACCESS);
    let ends = [(1, Status::Success), (2, Status::RemoteAccess)];
    assert_eq!(lone.completed(), ends);
}

fn completed(id: u64, status: Status) -> Event {
    Event::Completed { id, status }
}

#[test]
fn responses_that_do_not_match_their_request_fail_the_request() {
    let atomic = Response::AtomicAcknowledge(AETH, AtomicAckEth { original: 1 });
    let cases = [
        (Response::ReadOnly(AETH), 1024),
        (Response::ReadFirst(AETH), 1023),
        (Response::ReadMiddle, 1025),
        (Response::ReadLast(AETH), 976),
        (Response::ReadFirst(AETH), 0),
        (atomic, 0),
    ];
    for (response, length) in cases {
        let mut lone = Lone::new(|_| {});
        lone.post(read(1, target(0), 2000), vec![7; 2000]);
        lone.sent();
        lone.response(100, response, &vec![0; length]);
        assert_eq!(lone.completed(), [(1, Status::BadResponse)], "{response:?}");
        assert_eq!(lone.program.requests[&1], [7; 2000]);
    }
    let mut lone = Lone::new(|_| {});
    lone.post(fetch_add(1), vec![7; 8]);
    lone.sent();
    lone.response(100, Response::ReadOnly(AETH), &[0; 8]);
    assert_eq!(lone.completed(), [(1, Status::BadResponse)]);
    // A send has no response data; a response that claims to be some is dropped.
    let mut lone = Lone::new(|_| {});
    lone.post(send(1, 8), vec![7; 8]);
    lone.sent();
    lone.response(100, Response::ReadOnly(AETH), &[0; 8]);
    assert_eq!((lone.completed(), lone.connection.held().0), (vec![], 1));
    assert_eq!(lone.connection.counters().stale_responses, 1);
}

#[test]
fn reads_wait_at_the_limit_and_fences_wait_for_all_reads() {
    let mut lone = Lone::new(|config| config.max_reads_out = 2);
    for id in 0..3 {
        lone.post(read(id, target(0), 1), vec![0]);
    }
    let mut fenced = send(3, 1);
    fenced.fence = true;
    lone.post(fenced, vec![0]);
    assert_eq!(lone.psns(), [100, 101]);
    lone.response(100, Response::ReadOnly(AETH), &[1]);
    assert_eq!(lone.psns(), [102]);
    lone.response(101, Response::ReadOnly(AETH), &[1]);
    assert_eq!(lone.psns(), []);
    lone.response(102, Response::ReadOnly(AETH), &[1]);
    assert_eq!(lone.psns(), [103]);
}

#[test]
fn a_long_read_is_requested_in_parts() {
    let part = |psn: u32, packets: u32| {
        let reth = Reth {
            address: target(0).address + 1024 * u64::from(psn - 100),
            rkey: target(0).rkey,
            length: 1024 * packets,
        };
        (psn, Request::Read(reth), 0)
    };
    let mut lone = Lone::new(|config| config.window = 4);
    lone.post(read(1, target(0), 5 * 1024 + 1), vec![0; 5 * 1024 + 1]);
    lone.post(send(2, 1), vec![0]);
    let parts = [part(100, 2), part(102, 2)];
    assert_eq!(requests(&lone.sent()), parts);
    lone.response(100, Response::ReadFirst(AETH), &[1; 1024]);
    let (_, Request::Read(mut last), _) = part(104, 2) else {
        unreachable!()
    };
    last.length = 1025;
    assert_eq!(requests(&lone.sent()), [(104, Request::Read(last), 0)]);
    // The rest of a part is requested again, and the parts after it, as far as the lowered window permits.
    lone.response(102, Response::ReadFirst(AETH), &[3; 1024]);
    let again = [part(101, 1), part(102, 2)];
    assert_eq!(requests(&lone.sent()), again);
    lone.response(101, Response::ReadOnly(AETH), &[2; 1024]);
    lone.response(102, Response::ReadFirst(AETH), &[3; 1024]);
    lone.response(103, Response::ReadLast(AETH), &[3; 1024]);
    lone.sent();
    lone.response(104, Response::ReadFirst(AETH), &[3; 1024]);
    lone.sent();
    lone.response(105, Response::ReadLast(AETH), &[4]);
    lone.acknowledge(106, ACK);
    assert_eq!(
        lone.completed(),
        [(1, Status::Success), (2, Status::Success)]
    );
    // Each part is a read that the peer must remember.
    let mut lone = Lone::new(|config| (config.window, config.max_reads_out) = (8, 1));
    lone.post(read(1, target(0), 5 * 1024), vec![0; 5 * 1024]);
    assert_eq!(lone.psns(), [100]);
    for psn in [100, 101, 102] {
        lone.response(
            psn,
            if psn == 100 {
                Response::ReadFirst(AETH)
            } else {
                Response::ReadMiddle
            },
            &[1; 1024],
        );
        assert_eq!(lone.psns(), []);
    }
    lone.response(103, Response::ReadLast(AETH), &[1; 1024]);
    assert_eq!(lone.psns(), [104]);
}

#[test]
fn at_most_half_of_all_psns_are_in_use() {
    let mut lone = Lone::new(|config| {
        config.mtu = Mtu::Bytes256;
        config.window = u32::MAX;
    });
    lone.post(read(1, target(0), MESSAGE_MAX as usize), vec![0; 256]);
    lone.post(send(2, 1), vec![0]);
    assert_eq!(lone.psns(), [100]);
    lone.response(100, Response::ReadFirst(AETH), &[1; 256]);
    assert_eq!(lone.psns(), [100 + (1 << 23)]);
    // The responder lost the second request: everything is sent again, from the second data packet
    // on.
    lone.acknowledge(100 + (1 << 23), SEQUENCE);
    assert_eq!(lone.psns(), [101, 100 + (1 << 23)]);
}

#[test]
fn impossible_requests_end_without_a_packet() {
    let too_long = send(1, MESSAGE_MAX as usize + 1);
    let mut both = send(1, 1);
    both.operation = Operation::Send {
        immediate: Some(1),
        invalidate: Some(1),
    };
    let mut invalidating = both;
    invalidating.operation = Operation::Send {
        immediate: None,
        invalidate: Some(1),
    };
    let (rc, uc) = (ConnectionType::Reliable, ConnectionType::Unreliable);
    let cases = [
        (rc, 1, too_long, Status::LocalLength),
        (rc, 1, both, Status::LocalQpOperation),
        (rc, 0, read(1, target(0), 1), Status::LocalQpOperation),
        (rc, 0, fetch_add(1), Status::LocalQpOperation),
        (uc, 1, read(1, target(0), 1), Status::LocalQpOperation),
        (uc, 1, invalidating, Status::LocalQpOperation),
    ];
    for (connection, reads, request, status) in cases {
        let mut lone = Lone::new(|config| {
            (config.connection, config.max_reads_out) = (connection, reads);
        });
        lone.post(request, vec![0; 8]);
        assert_eq!(lone.completed(), [(1, status)], "{request:?}");
        assert_eq!(lone.psns(), []);
    }
}

#[test]
fn a_request_with_inaccessible_memory_ends_after_earlier_requests() {
    let mut lone = Lone::new(|_| {});
    lone.post(send(1, 1), vec![0]);
    lone.connection.post(send(2, 1));
    lone.post(send(3, 1), vec![0]);
    let sent = lone.sent();
    // The first packet is sent again, because nothing has requested its acknowledgement.
    assert_eq!(sent.last().map(Sent::psn), Some(100));
    assert!(sent.last().is_some_and(|sent| sent.headers.ack_request));
    assert_eq!(lone.completed(), []);
    lone.acknowledge(100, ACK);
    let ends = [
        (1, Status::Success),
        (2, Status::LocalProtection),
        (3, Status::Flushed),
    ];
    assert_eq!(lone.completed(), ends);
}

#[test]
fn a_request_with_inaccessible_memory_ends_at_once_if_it_is_the_oldest() {
    let mut lone = Lone::new(|_| {});
    lone.connection.post(send(1, 1));
    lone.post(send(2, 1), vec![0]);
    assert_eq!(lone.psns(), []);
    let ends = [(1, Status::LocalProtection), (2, Status::Flushed)];
    assert_eq!(lone.completed(), ends);
}

#[test]
fn data_that_cannot_be_stored_ends_the_read() {
    let mut lone = Lone::new(|_| {});
    lone.connection.post(read(1, target(0), 1));
    lone.sent();
    lone.response(100, Response::ReadOnly(AETH), &[1]);
    assert_eq!(lone.completed(), [(1, Status::LocalProtection)]);
}
