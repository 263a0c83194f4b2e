//! A hostile peer: any packet, in any order. Nothing panics, memory is accessed only as granted (which the program checks), and
//! remembered state is bounded.

use crate::lone::Lone;
use crate::model::{Model, target};
use crate::network::Random;
use crate::program::{BASE, EXPOSED, KEY};
use crate::seeds::{Named, count, seeds};
use rkey_roce::packet::{
    Aeth, AtomicAckEth, AtomicEth, Body, Ieth, ImmDt, Mtu, Reliable, Request, Response, Reth,
    Service, Syndrome, Tail,
};
use rkey_roce::transport::{ConnectionType, Event};

const PACKETS: u64 = if cfg!(miri) { 30 } else { 300 };
const ROUNDS: u32 = if cfg!(miri) { 30 } else { 10_000 };
const READS: u8 = 4;

fn reth(random: &mut Random) -> Reth {
    let place = random.below(EXPOSED as u64 + 10);
    let length = match random.below(6) {
        0 => random.next() as u32,
        1 => 0,
        _ => random.below(3000) as u32,
    };
    Reth {
        address: if random.happens(5) {
            random.next()
        } else {
            BASE + place
        },
        rkey: if random.happens(5) { 1 } else { KEY },
        length,
    }
}

fn tail(random: &mut Random) -> Tail {
    let value = random.next() as u32;
    match random.below(3) {
        0 => Tail::None,
        1 => Tail::Immediate(ImmDt { data: value }),
        _ => Tail::Invalidate(Ieth {
            rkey: if random.happens(5) {
                KEY
            } else {
                value | 1 << 31
            },
        }),
    }
}

fn request(random: &mut Random) -> Request {
    let immediate = random.happens(50).then_some(ImmDt { data: 7 });
    let atomic = AtomicEth {
        address: BASE + 8 * random.below(4) + u64::from(random.happens(3)),
        rkey: KEY,
        swap_or_add: random.next(),
        compare: 0,
    };
    match random.below(11) {
        0 => Request::SendFirst,
        1 => Request::SendMiddle,
        2 => Request::SendLast(tail(random)),
        3 => Request::SendOnly(tail(random)),
        4 => Request::WriteFirst(reth(random)),
        5 => Request::WriteMiddle,
        6 => Request::WriteLast(immediate),
        7 => Request::WriteOnly(reth(random), immediate),
        8 => Request::Read(reth(random)),
        9 => Request::CompareSwap(atomic),
        _ => Request::FetchAdd(atomic),
    }
}

fn response(random: &mut Random) -> Response {
    let syndrome = match random.below(4) {
        0 => random.next() as u8,
        1 => 0x60,
        _ => 0x1f,
    };
    let aeth = Aeth {
        syndrome: Syndrome::from_byte(syndrome),
        msn: random.next() as u32 & 0xff_ffff,
    };
    if random.happens(20) {
        // A report of random gaps, most of them near.
        let syndrome = Syndrome::from_byte(0x7f);
        let original = random.next() & [u64::MAX, 0x1f_ffff, 0xfff][random.below(3) as usize];
        let kept = random.below(20) as u32;
        return Response::AtomicAcknowledge(
            Aeth {
                syndrome,
                msn: kept,
            },
            AtomicAckEth { original },
        );
    }
    match random.below(8) {
        0 => Response::ReadFirst(aeth),
        1 => Response::ReadMiddle,
        2 => Response::ReadLast(aeth),
        3 => Response::ReadOnly(aeth),
        4 => Response::AtomicAcknowledge(aeth, AtomicAckEth { original: 3 }),
        _ => Response::Acknowledge(aeth),
    }
}

fn body(random: &mut Random, uc: bool) -> Body {
    let service = if uc { Service::Uc } else { Service::Rc };
    match random.below(20) {
        0 => Body::Congestion,
        1 => Body::Request(if uc { Service::Rc } else { Service::Uc }, request(random)),
        2..6 => Body::Response(Reliable::Rc, response(random)),
        _ => Body::Request(service, request(random)),
    }
}

/// A payload whose length is mostly valid, so that some messages are executed.
fn payload(random: &mut Random, body: &Body) -> Vec<u8> {
    if !body.has_payload() {
        return Vec::new();
    }
    let lengths = body.lengths(Mtu::Bytes256);
    let length = match (random.below(10), body) {
        (0, _) => random.below(300),
        (1..8, Body::Request(_, Request::WriteOnly(reth, _))) => reth.length.min(256).into(),
        _ => {
            let (least, most) = (*lengths.start() as u64, *lengths.end() as u64);
            least + random.below(most - least + 1)
        }
    };
    random.bytes(length as usize)
}

fn attacked(seed: u64, connection: ConnectionType, selective: bool) -> u64 {
    let uc = connection == ConnectionType::Unreliable;
    let mut random = Random::new(seed);
    let mut lone = Lone::new(|config| {
        config.connection = connection;
        config.mtu = Mtu::Bytes256;
        config.max_reads_in = READS;
        config.selective = selective;
    });
    let mut model = Model::new();
    for _ in 0..10 {
        model.add(&mut random, !uc);
    }
    for (request, (memory, _)) in model.requests.iter().zip(&model.memory) {
        lone.post(*request, memory.clone());
    }
    let (mut expected, mut next_receive) = (500_u32, 0);
    let mut ended = false;
    for _ in 0..PACKETS {
        let body = body(&mut random, uc);
        let payload = payload(&mut random, &body);
        let base = if matches!(body, Body::Response(..)) {
            100
        } else {
            expected
        };
        let psn = match random.below(8) {
            0 => random.next() as u32,
            1 => base.wrapping_sub(random.below(20) as u32),
            2 => base.wrapping_add(random.below(20) as u32),
            _ => base,
        };
        if selective {
            lone.marks = (random.happens(90), random.happens(20));
        }
        let before = lone.program.accesses;
        lone.give(psn, body, random.happens(50), &payload);
        expected +=
            u32::from(psn == expected && (lone.program.accesses > before || random.happens(30)));
        if random.happens(20) {
            lone.program
                .receives
                .push_back((1000 + next_receive, vec![0; 500]));
            next_receive += 1;
        }
        if random.happens(5) && lone.connection.next_deadline().is_some() {
            lone.wait();
        }
        let (own, peers) = lone.connection.held();
        let most = 3 * usize::from(READS) + if selective { 10 } else { 2 };
        assert!(own <= model.requests.len() && peers <= most, "{peers}");
        let (kept, remembered) = lone.connection.kept();
        assert!(kept <= 8192 && remembered <= 2048);
        assert!(selective || (kept, remembered) == (0, 0));
        if random.happens(60) {
            let mut left = 0;
            while left < 200 && lone.sent_one().is_some() {
                left += 1;
            }
        }
        let events = lone.events();
        ended |= events
            .iter()
            .any(|event| matches!(event, Event::Refused(_) | Event::Failed));
        if ended && random.happens(50) {
            lone.connection.flush();
        }
    }
    lone.program.accesses
}

#[test]
fn no_packets_of_a_peer_cause_a_panic() {
    let mut accesses = 0;
    for seed in seeds() {
        let _named = Named(seed);
        accesses += attacked(seed, ConnectionType::Reliable, false);
        accesses += attacked(seed, ConnectionType::Reliable, true);
        accesses += attacked(seed, ConnectionType::Unreliable, false);
    }
    // Some of the packets were executed.
    assert!(accesses > count() || count() < 1500, "{accesses}");
}

#[test]
fn a_peer_that_ignores_responses_cannot_exhaust_memory() {
    for selective in [false, true] {
        ignores_responses(selective);
    }
}

fn ignores_responses(selective: bool) {
    let mut lone = Lone::new(|config| {
        config.max_reads_in = READS;
        config.selective = selective;
    });
    lone.marks.0 = selective;
    let most = 3 * usize::from(READS) + 2 + if selective { 8 } else { 0 };
    let read = |psn: u32| {
        Request::Read(Reth {
            address: target(psn as usize % 1000).address,
            rkey: KEY,
            length: 1,
        })
    };
    let mut psn = 500;
    for round in 0..ROUNDS {
        // Requests that are executed once, interleaved with their duplicates.
        if round < 4 {
            lone.request(psn, read(psn), &[]);
            psn += 1;
        }
        lone.request(500 + round % 4, read(500 + round % 4), &[]);
        let write = Reth {
            address: BASE,
            rkey: KEY,
            length: 0,
        };
        lone.request(psn, Request::WriteOnly(write, None), &[]);
        psn += 1;
        lone.request(psn + 5, Request::WriteOnly(write, None), &[]);
        lone.request(501, Request::WriteOnly(write, None), &[]);
        let (_, peers) = lone.connection.held();
        assert!(peers <= most, "{peers}");
    }
    assert!(lone.sent().len() <= most);
}

/// An attacker who knows everything but the sequence numbers: it forges the peer's packets (attack A1 of ReDMArk). Requests ahead
/// of the expected one are reported to the peer, once.
#[test]
fn packets_with_wrong_sequence_numbers_are_not_executed() {
    for selective in [false, true] {
        guess_sequence_numbers(selective);
    }
}

/// `selective`: the connection keeps packets that arrive early, and the attacker knows that, but not where the connection began.
fn guess_sequence_numbers(selective: bool) {
    let mut lone = Lone::new(|config| config.selective = selective);
    lone.marks.0 = selective;
    lone.mark = 0x1234;
    let [mut random, mut requests, mut answers] = [Random::new(7), Random::new(8), Random::new(9)];
    let mut model = Model::new();
    model.add(&mut requests, true);
    for (request, (memory, _)) in model.requests.iter().zip(&model.memory) {
        lone.post(*request, memory.clone());
    }
    let outstanding: Vec<u32> = lone.psns();
    let target = Reth {
        address: BASE,
        rkey: KEY,
        length: 4,
    };
    let write = Request::WriteOnly(target, None);
    let mut sent = 0;
    for _ in 0..ROUNDS {
        let psn = random.next() as u32 & 0xff_ffff;
        if psn != 500 {
            lone.request(psn, write, &[0xff; 4]);
        }
        if !outstanding.contains(&psn) {
            let body = Body::Response(Reliable::Rc, response(&mut answers));
            let payload = payload(&mut answers, &body);
            lone.give(psn, body, false, &payload);
        }
        let replies = lone.sent();
        assert!(replies.len() <= 1, "{replies:?}");
        sent += replies.len();
        assert_eq!(lone.events(), []);
    }
    assert_eq!(lone.program.accesses, 0);
    // Each answer is an acknowledgement, which is shorter than the packet that it answers.
    assert!(sent > 0 && sent < ROUNDS as usize);
    assert_eq!(lone.connection.kept().0, 0);
    // The connection still serves the real peer.
    lone.request(500, write, &[1; 4]);
    assert_eq!(lone.program.accesses, 1);
}
