//! Tests both ends of a ring in one thread, over ordinary memory.

use super::half::HeapHalf;
use super::*;
use crate::{Header, HeaderFlags, Op, Payload, ReceivedFragment, SendError};
use rkey_base::fault::Fault;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) const SMALL: Geometry = Geometry {
    slots: 16,
    payload: 4096,
    fragment_max: 2048,
};
const NORMAL: Geometry = Geometry {
    slots: 256,
    payload: 256 << 10,
    fragment_max: 16 << 10,
};

/// A requester and a responder, and the raw halves, which tests corrupt.
pub(super) struct Pair {
    pub(super) requester: End,
    pub(super) responder: End,
    pub(super) requests: Half,
    pub(super) responses: Half,
}

pub(super) fn pair(geometry: Geometry) -> Pair {
    let memory = Arc::new((HeapHalf::new(geometry), HeapHalf::new(geometry)));
    let keep = KeepMapped::new(Arc::<(HeapHalf, HeapHalf)>::clone(&memory));
    let (requests, responses) = (
        memory.0.half(geometry).unwrap(),
        memory.1.half(geometry).unwrap(),
    );
    Pair {
        requester: End::new(Role::Requester, requests, responses, keep.clone()),
        responder: End::new(Role::Responder, responses, requests, keep),
        requests,
        responses,
    }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (seed.wrapping_mul(0x9E37_79B9) ^ i.wrapping_mul(31)) as u8)
        .collect()
}

fn send(end: &mut End, header: &Header, bytes: &[u8]) -> Result<u64, SendError> {
    let header = Header {
        len: bytes.len() as u32,
        ..*header
    };
    end.send(&header, |mut into| {
        into.put(0, bytes);
        Ok(())
    })
}

fn bytes_of(incoming: &ReceivedFragment<'_>) -> Vec<u8> {
    let Payload::Bytes(bytes) = incoming.payload else {
        panic!("not bytes")
    };
    let mut out = vec![0; bytes.len()];
    bytes.get(0, &mut out);
    out
}

#[test]
fn payloads_of_all_in_slot_lengths_and_longer_ones_arrive_whole() {
    let mut p = pair(NORMAL);
    for len in (0..=300).chain([1000, 4096, 16383, 16384]) {
        let header = Header {
            op: Op::Write,
            flags: HeaderFlags::FIRST | HeaderFlags::ACK_NOW,
            dst_qp: 0x00ab_cdef,
            src_qp: len as u32,
            msn: u32::MAX - len as u32,
            len: 0,
            total: 77,
            addr: u64::MAX - 5,
            key: 1 << 63,
            imm: 0xdead_beef,
            operands: [0; 2],
        };
        let bytes = pattern(len as u64, len);
        let ticket = send(&mut p.requester, &header, &bytes).unwrap();
        let incoming = p.responder.next().unwrap().unwrap();
        assert_eq!(
            incoming.header,
            Header {
                len: len as u32,
                ..header
            }
        );
        assert_eq!(bytes_of(&incoming), bytes);
        p.responder.done();
        assert_eq!(p.requester.read_peer_ack(), Ok(ticket + 1));
        assert!(p.responder.next().unwrap().is_none());
    }
}

/// Where payloads are in the payload ring. Those of one list are sent before any of them is acknowledged.
fn places(bursts: &[&[usize]]) -> Vec<usize> {
    let mut p = pair(NORMAL);
    let begin = p.requests.payload_as_peer(0, 1).unwrap().as_ptr().addr();
    let header = Header {
        flags: HeaderFlags::ACK_NOW,
        ..Header::new(Op::Write)
    };
    let mut places = Vec::new();
    for burst in bursts {
        for &len in *burst {
            send(&mut p.requester, &header, &pattern(1, len)).unwrap();
        }
        for &len in *burst {
            let incoming = p.responder.next().unwrap().unwrap();
            assert_eq!(bytes_of(&incoming), pattern(1, len));
            let Payload::Bytes(bytes) = incoming.payload else {
                panic!("not bytes")
            };
            places.push(bytes.as_ptr().addr() - begin);
            p.responder.done();
        }
        assert_eq!(p.requester.read_peer_ack(), Ok(places.len() as u64));
    }
    places
}

#[test]
fn short_bursts_start_over_and_longer_ones_go_on() {
    assert_eq!(places(&[&[1000], &[2048], &[300]]), [0, 0, 0]);
    assert_eq!(
        places(&[&[4096], &[4096], &[300], &[300]]),
        [0, 4096, 8192, 0]
    );
    let three = places(&[&[1000, 1000, 1000], &[1000], &[1000]]);
    assert_eq!(three, [0, 1024, 2048, 3072, 0]);
}

#[test]
fn bursts_go_on_to_the_end_of_the_ring_and_are_never_split() {
    let lens = [&[12_000][..]; 50];
    let placed = places(&lens);
    // 188 lines each: 21 in each round.
    for (number, place) in placed.iter().enumerate() {
        assert_eq!(*place, number % 21 * 188 * 64, "{number}");
    }
}

#[test]
fn operands_and_remote_iovecs_arrive() {
    let mut p = pair(NORMAL);
    let header = Header {
        operands: [u64::MAX, 7],
        ..Header::new(Op::CompareSwap)
    };
    p.requester
        .send(&header, |_| panic!("nothing to fill"))
        .unwrap();
    assert_eq!(p.responder.next().unwrap().unwrap().header, header);
    p.responder.done();

    let remote_iovec: Vec<(u64, u64)> = (0..13).map(|i| (i << 12, i + 1)).collect();
    let header = Header {
        len: 91,
        ..Header::new(Op::Write)
    };
    p.requester
        .send_remote_iovec(&header, &remote_iovec)
        .unwrap();
    let incoming = p.responder.next().unwrap().unwrap();
    let Payload::RemoteIovec(list) = incoming.payload else {
        panic!("not a remote iovec")
    };
    assert_eq!(list.as_slice(), remote_iovec);
    assert!(incoming.header.flags.contains(HeaderFlags::REMOTE_IOVEC));

    let wrong = Header { len: 92, ..header };
    assert_eq!(
        p.requester.send_remote_iovec(&wrong, &remote_iovec),
        Err(SendError::Full)
    );
    assert_eq!(
        p.requester.send_remote_iovec(&header, &[]),
        Err(SendError::Full)
    );
    assert_eq!(
        p.requester.send_remote_iovec(&header, &[(0, 1); 14]),
        Err(SendError::Full)
    );
}

#[test]
fn a_fragment_whose_fill_faults_is_not_sent() {
    let mut p = pair(SMALL);
    for len in [8, 1000] {
        let header = Header {
            len,
            ..Header::new(Op::Write)
        };
        let fault = Fault { address: 0x1000 };
        assert_eq!(
            p.requester.send(&header, |_| Err(fault)),
            Err(SendError::Fault(fault))
        );
        assert!(p.responder.next().unwrap().is_none());
    }
    assert_eq!(
        send(&mut p.requester, &Header::new(Op::Write), b"later"),
        Ok(0)
    );
    assert_eq!(bytes_of(&p.responder.next().unwrap().unwrap()), b"later");
}

#[test]
fn the_window_is_half_of_the_ring() {
    let mut p = pair(NORMAL);
    let header = Header::new(Op::Probe);
    for ticket in 0..128 {
        assert_eq!(p.requester.send(&header, |_| Ok(())), Ok(ticket));
    }
    assert_eq!(p.requester.send(&header, |_| Ok(())), Err(SendError::Full));
    for _ in 0..16 {
        assert!(p.responder.next().unwrap().is_some());
        p.responder.done();
    }
    for ticket in 128..144 {
        assert_eq!(p.requester.send(&header, |_| Ok(())), Ok(ticket));
    }
    assert_eq!(p.requester.send(&header, |_| Ok(())), Err(SendError::Full));
}

#[test]
fn acknowledgements_are_delayed_but_not_lost() {
    let mut p = pair(NORMAL);
    p.requester
        .send(&Header::new(Op::Probe), |_| Ok(()))
        .unwrap();
    let view = p.responder.poll_view();
    assert!(view.pending());
    p.responder.next().unwrap().unwrap();
    p.responder.done();
    assert_eq!(p.requester.read_peer_ack(), Ok(0));
    let mut looks = 0;
    while p.requester.read_peer_ack() == Ok(0) {
        assert!(view.pending() && p.responder.pending());
        assert!(p.responder.next().unwrap().is_none());
        looks += 1;
        assert!(looks < 50);
    }
    assert!(!view.pending());
    assert_eq!(p.requester.read_peer_ack(), Ok(1));
    assert!(!p.requester.pending());
}

#[test]
fn done_has_no_effect_without_a_received_fragment() {
    let mut p = pair(SMALL);
    p.responder.done();
    p.requester
        .send(&Header::new(Op::Probe), |_| Ok(()))
        .unwrap();
    p.responder.done();
    assert!(p.responder.next().unwrap().is_some());
    assert!(
        p.responder.next().unwrap().is_some(),
        "the same fragment until it is done"
    );
    p.responder.done();
    p.responder.done();
    assert!(p.responder.next().unwrap().is_none());
}

#[test]
fn an_ack_waits_for_the_responses_that_precede_it() {
    let mut p = pair(SMALL);
    let ask = Header {
        flags: HeaderFlags::ACK_NOW,
        ..Header::new(Op::Read)
    };
    for round in 0..50 {
        p.requester.send(&ask, |_| Ok(())).unwrap();
        p.responder.next().unwrap().unwrap();
        for part in 0..2u8 {
            send(&mut p.responder, &Header::new(Op::ReadData), &[part; 300]).unwrap();
        }
        p.responder.done();
        for part in 0..2u8 {
            assert_eq!(p.requester.read_peer_ack(), Ok(round));
            let incoming = p.requester.next().unwrap().unwrap();
            assert_eq!(bytes_of(&incoming), [part; 300]);
            p.requester.done();
        }
        assert_eq!(p.requester.read_peer_ack(), Ok(round + 1));
    }
}

#[test]
fn an_older_ack_is_still_read_after_newer_ones_were_written() {
    let mut p = pair(NORMAL);
    let ask = Header {
        flags: HeaderFlags::ACK_NOW,
        ..Header::new(Op::FetchAdd)
    };
    let answer = |p: &mut Pair| {
        p.requester.send(&ask, |_| Ok(())).unwrap();
        p.responder.next().unwrap().unwrap();
        p.responder
            .send(&Header::new(Op::AtomicResult), |_| Ok(()))
            .unwrap();
        p.responder.done();
    };
    answer(&mut p);
    for round in 1..40 {
        assert_eq!(p.requester.read_peer_ack(), Ok(round - 1));
        answer(&mut p);
        assert_eq!(p.requester.read_peer_ack(), Ok(round - 1));
        assert!(p.requester.next().unwrap().is_some());
        p.requester.done();
        assert_eq!(p.requester.read_peer_ack(), Ok(round));
    }
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn a_long_stream_wraps_every_ring_and_every_counter() {
    for start in [0, u64::from(u32::MAX) - 200] {
        let mut p = pair(SMALL);
        p.requester.start_at(start);
        p.responder.start_at(start);
        let mut random = 0x1234_5678_9abc_def1_u64;
        let (mut sent, mut taken) = (0u64, 0u64);
        while taken < 3000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let burst = (random >> 60) % 5;
            for _ in 0..burst {
                let len = ((random >> 33) % 2049) as usize;
                let header = Header {
                    msn: sent as u32,
                    ..Header::new(Op::Send)
                };
                match send(&mut p.requester, &header, &pattern(sent, len)) {
                    Ok(ticket) => {
                        assert_eq!(ticket, start + sent);
                        sent += 1;
                    }
                    Err(e) => assert_eq!(e, SendError::Full),
                }
            }
            while let Some(incoming) = p.responder.next().unwrap() {
                assert_eq!(incoming.header.msn, taken as u32);
                let bytes = bytes_of(&incoming);
                assert_eq!(bytes, pattern(taken, bytes.len()));
                p.responder.done();
                taken += 1;
            }
            p.responder.end_step();
            let acked = p.requester.read_peer_ack().unwrap();
            assert!(acked <= start + taken);
        }
    }
}

#[test]
fn a_ring_has_room_only_if_a_whole_fragment_fits() {
    let mut p = pair(SMALL);
    let mut sent = 0;
    while p.responder.has_room() {
        send(&mut p.responder, &Header::new(Op::ReadData), &[1; 2048]).unwrap();
        sent += 1;
    }
    assert_eq!(sent, 2, "2 x 2048 bytes are in a ring of 4096");
    for _ in 0..2 {
        p.requester.next().unwrap().unwrap();
        p.requester.done();
    }
    assert!(p.responder.has_room(), "much payload is acknowledged early");
    assert_eq!(
        send(&mut p.responder, &Header::new(Op::ReadData), &[1; 2049]),
        Err(SendError::Full)
    );
}

#[test]
fn an_invalid_slot_breaks_the_link_permanently() {
    let p = pair(SMALL);
    // Sequence number 1, operation 200.
    p.requests
        .slot_word(0)
        .store(1 | 200 << 32, Ordering::Release);
    let malformed = p.responder.next().unwrap_err();
    assert_eq!(malformed.reason, "unknown operation");
    p.requests
        .slot_word(0)
        .store(1 | (Op::Probe as u64) << 32, Ordering::Release);
    assert_eq!(p.responder.next().unwrap_err(), malformed);
    assert_eq!(p.responder.broken(), Some(malformed));
}

#[test]
fn impossible_acknowledgements_are_refused() {
    // (requests sent, word, what is wrong)
    let cases = [
        (0, 1, "it acknowledges fragments that were never sent"),
        (3, 4, "it acknowledges fragments that were never sent"),
        (
            3,
            u64::from(u32::MAX),
            "it acknowledges fragments that were never sent",
        ),
        (3, 1 << 32, "it announces a response that was not sent"),
        (
            3,
            17 << 32,
            "it announces more responses than the ring can hold",
        ),
        (
            3,
            u64::MAX << 32,
            "it announces more responses than the ring can hold",
        ),
    ];
    for (sent, word, reason) in cases {
        let mut p = pair(SMALL);
        for _ in 0..sent {
            p.requester
                .send(&Header::new(Op::Probe), |_| Ok(()))
                .unwrap();
        }
        p.responses.ack().store(word, Ordering::Release);
        assert_eq!(
            p.requester.read_peer_ack().unwrap_err().reason,
            reason,
            "{word:#x}"
        );
        assert!(
            p.requester
                .send(&Header::new(Op::Probe), |_| Ok(()))
                .is_err()
        );
    }
    // An acknowledgement that goes backwards.
    let mut p = pair(SMALL);
    for _ in 0..3 {
        p.requester
            .send(&Header::new(Op::Probe), |_| Ok(()))
            .unwrap();
    }
    p.responses.ack().store(2, Ordering::Release);
    assert_eq!(p.requester.read_peer_ack(), Ok(2));
    p.responses.ack().store(1, Ordering::Release);
    assert!(p.requester.read_peer_ack().is_err());
    // A requester that claims to have sent responses.
    let p = pair(SMALL);
    p.requests.ack().store(1 << 32, Ordering::Release);
    assert!(p.responder.read_peer_ack().is_err());
}

#[test]
fn each_sleep_and_each_wake_increments_the_epoch_once() {
    let p = pair(SMALL);
    let view = p.responder.poll_view();
    for round in 0..5 {
        assert_eq!(p.requester.peer_epoch(), 2 * round);
        view.announce_sleep();
        view.announce_sleep();
        assert_eq!(p.requester.peer_epoch(), 2 * round + 1);
        view.awake();
        view.awake();
    }
}

/// The payload ring is full and the peer's ack word is invalid, so nothing more is sent.
#[test]
fn an_invalid_ack_word_found_while_waiting_for_room_stops_sending() {
    let mut p = pair(SMALL);
    let long = Header::new(Op::Send);
    let full = (0..100).find(|_| send(&mut p.requester, &long, &[7; 2048]).is_err());
    assert!(full.is_some_and(|sent| sent > 0));
    p.responses.ack().store(77, Ordering::Release);
    for len in [2048, 8] {
        let sent = send(&mut p.requester, &long, &vec![7; len]);
        assert!(matches!(sent, Err(SendError::Full)), "{sent:?}");
    }
    assert!(p.requester.broken().is_some());
}

/// A peer that writes random words to its whole half while we read it.
#[test]
#[cfg_attr(miri, ignore = "long")]
fn a_peer_that_writes_garbage_does_no_harm() {
    use std::sync::atomic::{AtomicBool, AtomicU64};
    struct Scribble<'a>(&'a Half);
    /// Stops the other thread, even if this one panics.
    struct Stops<'a>(&'a AtomicBool);
    impl Drop for Stops<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let scribbled = pair(SMALL);
    let stop = AtomicBool::new(false);
    let words = SMALL.bytes() / 8;
    let word = |half: &Scribble<'_>, at: usize, value: u64| {
        assert!(at < words);
        // SAFETY: a word of memory that both ends of this test keep alive, used as an atomic.
        unsafe {
            (*half.0.slot(0).sub(20480).cast::<AtomicU64>().add(at)).store(value, Ordering::Relaxed)
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 88_172_645_463_325_252_u64;
            while !stop.load(Ordering::Relaxed) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let at = random as usize % words;
                let ops = [1, 2, 3, 4, 5, 6, 64, 65, 66, 200];
                // Most words look like the beginning of a slot, or like small numbers.
                let value = match random >> 61 {
                    0..3 => {
                        let op: u64 = ops[(random >> 20) as usize % ops.len()];
                        (random & 15) | op << 32 | (random >> 30 & 0xff) << 40 | (random >> 5) << 48
                    }
                    3 => random % 3000,
                    4 => (random % 3000) | (((random >> 40) % 20) << 32),
                    _ => random,
                };
                word(&Scribble(&scribbled.requests), at, value);
                word(&Scribble(&scribbled.responses), at, value.rotate_left(3));
            }
        });
        let _stops = Stops(&stop);
        let (mut taken, mut broken) = (0u64, 0u64);
        while taken < 2_000 || broken < 2_000 {
            // Each end reads a half that the other thread writes. The ends also write to those halves, which adds
            // disorder.
            let keep = KeepMapped::new(Arc::new(()));
            let (a, b) = (scribbled.requests, scribbled.responses);
            let mut requester = End::new(Role::Requester, a, b, keep.clone());
            let mut responder = End::new(Role::Responder, b, a, keep);
            for _ in 0..50 {
                let _ = send(&mut requester, &Header::new(Op::Send), &[7; 300]);
                for end in [&mut requester, &mut responder] {
                    match end.next() {
                        Ok(Some(incoming)) => {
                            taken += 1;
                            match incoming.payload {
                                Payload::Bytes(bytes) => {
                                    assert_eq!(bytes.len(), incoming.header.len as usize);
                                    assert!(bytes.len() <= 2048);
                                    let mut copy = vec![0; bytes.len()];
                                    bytes.get(0, &mut copy);
                                }
                                Payload::RemoteIovec(list) => assert!(list.as_slice().len() <= 13),
                            }
                        }
                        Ok(None) => {}
                        Err(_) => broken += 1,
                    }
                    end.done();
                    if end.read_peer_ack().is_ok_and(|acked| acked > 100) {
                        panic!("more acknowledged than was ever sent");
                    }
                    let _ = (end.pending(), end.has_room(), end.peer_epoch());
                }
            }
        }
    });
}
