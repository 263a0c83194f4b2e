//! Selective retransmission: packets that arrive early are kept, and only what is missing is sent again.

use crate::lone::{ACK, Lone, SEQUENCE, Sent};
use crate::model::target;
use crate::network::{A, B, Buffer, Conditions, FAIR, Random};
use crate::program::{BASE, KEY};
use crate::world::{World, configs, read, send, write};
use rkey_roce::packet::{
    Aeth, AtomicAckEth, Body, Mtu, NakCode, Psn, Request, Response, Reth, RnrTimer, Syndrome, Tail,
};
use rkey_roce::transport::{Config, Counters, Event, KeepBudget, Status};
use std::cell::Cell;
use std::rc::Rc;

const MILLISECOND: u64 = 1_000_000;
/// A round trip of 50 ms.
const FAR: Conditions = Conditions {
    transit: 25 * MILLISECOND,
    ..FAIR
};
/// Half a megabyte more than fits into a few windows.
const LONG: usize = 10 << 20;
const REPORT: u8 = 0x7f;

/// The result of a transfer.
#[derive(Debug)]
struct Transfer {
    /// In nanoseconds.
    time: u64,
    /// How many packets the network has lost.
    lost: u64,
    /// How many reports were sent.
    reports: u64,
    requester: Counters,
}

/// Sends or reads 20 MiB over a network that loses so many of a thousand packets. `selective`: which sides have agreed.
fn transfer(selective: [bool; 2], conditions: Conditions, losses: u64, reads: bool) -> Transfer {
    let mut configs = configs(Psn::new(0xff_fff0), Psn::new(7));
    for (config, selective) in configs.iter_mut().zip(selective) {
        config.selective = selective;
    }
    let mut world = World::new(&configs, 1);
    world.network.conditions = conditions;
    let [lost, reports] = [(); 2].map(|()| Rc::new(Cell::new(0)));
    let (mut random, counters) = (Random::new(5), (lost.clone(), reports.clone()));
    world.network.drop_if = Some(Box::new(move |_, packet| {
        let (lost, reports) = &counters;
        reports.set(reports.get() + u64::from(is_report(&packet.headers.body)));
        let is_lost = random.below(1000) < losses;
        lost.set(lost.get() + u64::from(is_lost));
        is_lost
    }));
    let begun = world.now;
    let [from, to] = &mut world.sides;
    let length = if reads { LONG / 5 } else { LONG };
    let count = (2 * LONG / length) as u64;
    to.program.endless = true;
    to.program.exposed = vec![9; length];
    for id in 0..count {
        to.program.receives.push_back((id, Vec::new()));
        match reads {
            true => from.post(read(id, target(0), length), vec![0; length]),
            false => from.post(send(id, length), vec![7; length]),
        }
    }
    while (world.sides[A].completed.len() as u64) < count {
        world.run_until(world.now + MILLISECOND / 10);
    }
    assert_eq!(world.statuses(A), vec![Status::Success; count as usize]);
    let memory = world.sides[A].program.requests.values();
    assert!(!reads || memory.flatten().all(|byte| *byte == 9));
    Transfer {
        time: world.now - begun,
        lost: lost.get(),
        reports: reports.get(),
        requester: world.sides[A].connection.counters(),
    }
}

fn is_report(body: &Body) -> bool {
    matches!(body, Body::Response(_, Response::AtomicAcknowledge(aeth, _)) if aeth.syndrome.to_byte() == REPORT)
}

#[test]
#[cfg_attr(miri, ignore)]
fn on_a_long_path_with_losses_only_lost_packets_are_sent_again() {
    for reads in [false, true] {
        let fair = transfer([true; 2], FAR, 0, reads);
        assert_eq!(fair.reports, 0);
        let all = transfer([false; 2], FAR, 1, reads);
        let some = transfer([true; 2], FAR, 1, reads);
        let sent = some.requester.retransmitted;
        assert!(some.lost > 10 && sent <= some.lost + 5, "{some:?}");
        assert!(some.time < 2 * fair.time, "{some:?}, {fair:?}");
        assert!(some.time * 2 < all.time, "{some:?}, {all:?}");
        assert_eq!(some.requester.timeouts, 0);
    }
}

#[test]
#[cfg_attr(miri, ignore)]
fn packets_that_are_only_late_are_rarely_sent_again() {
    let late = |conditions, delay| Conditions {
        late: 5,
        delay,
        ..conditions
    };
    for (conditions, delay) in [(FAIR, 40_000), (FAR, MILLISECOND)] {
        for reads in [false, true] {
            let fair = transfer([true; 2], conditions, 0, reads);
            let all = transfer([false; 2], late(conditions, delay), 0, reads);
            let some = transfer([true; 2], late(conditions, delay), 0, reads);
            assert!(some.requester.retransmitted < 20, "{some:?}");
            assert!(all.requester.retransmitted > 200, "{all:?}");
            assert!(some.time < all.time, "{some:?}, {all:?}");
            // Each window waits for its last packet.
            let most = 2 * fair.time + fair.time / (2 * conditions.transit) * delay;
            assert!(some.time < most, "{some:?}, {fair:?}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore)]
fn one_side_alone_uses_the_standard() {
    for selective in [[true, false], [false, true]] {
        for reads in [false, true] {
            let one = transfer(selective, FAIR, 10, reads);
            assert_eq!(one.reports, 0);
            let none = transfer([false; 2], FAIR, 10, reads);
            assert_eq!(one.requester, none.requester);
        }
    }
}

/// The bottleneck passes 10 packets in a millisecond, and its queue holds a tenth of a round trip.
#[test]
#[cfg_attr(miri, ignore)]
fn a_bottleneck_whose_short_queue_overflows_is_used() {
    let mut world = World::with(|config| config.selective = true);
    world.network.conditions = FAR;
    world.network.buffer = Some(Buffer::new(MILLISECOND / 10, 150));
    world.sides[B].program.endless = true;
    for id in 0..4 {
        world.sides[B].program.receives.push_back((id, Vec::new()));
        world.sides[A].post(send(id, LONG), vec![7; LONG]);
    }
    let until = |world: &mut World, count| {
        while world.sides[A].completed.len() < count {
            world.run_until(world.now + MILLISECOND);
        }
        (world.now, world.network.buffer.unwrap().overflowed)
    };
    let (begun, lost_before) = until(&mut world, 1);
    let (ended, lost) = until(&mut world, 4);
    let least = 3 * (LONG as u64 / 1024) * MILLISECOND / 10;
    let used = least as f64 / (ended - begun) as f64;
    assert!(used > 0.8, "{used}");
    // At most one packet in fifty.
    let packets = 3 * LONG as u64 / 1024;
    assert!((lost - lost_before) * 50 < packets, "{lost} {lost_before}");
}

/// A queue pair whose peer has agreed.
fn agreed(change: impl Fn(&mut Config)) -> Lone {
    let mut lone = Lone::new(|config| {
        config.selective = true;
        change(config);
    });
    lone.marks = (true, false);
    for id in 0..20 {
        lone.program.receives.push_back((id, vec![0; 2048]));
    }
    lone
}

const ONLY: Request = Request::SendOnly(Tail::None);

/// A report: the PSN, how many packets were kept, and the gaps.
type Report = (u32, u32, Vec<(u32, u32)>);

fn report(sent: &Sent) -> Report {
    let Response::AtomicAcknowledge(aeth, result) = sent.response() else {
        panic!("{sent:?}");
    };
    assert_eq!(aeth.syndrome.to_byte(), REPORT);
    let bits = (0..3).map(|at| (result.original >> (21 * at)) as u32);
    let gaps = bits.map(|bits| (bits >> 7 & 0x3fff, bits & 0x7f));
    (
        sent.psn(),
        aeth.msn,
        gaps.filter(|(_, length)| *length > 0).collect(),
    )
}

fn reports(lone: &mut Lone) -> Vec<Report> {
    lone.sent().iter().map(report).collect()
}

fn received(lone: &mut Lone) -> Vec<u64> {
    let events = lone.events().into_iter();
    let ids = events.map(|event| match event {
        Event::Received(received) => received.id,
        other => panic!("{other:?}"),
    });
    ids.collect()
}

#[test]
fn early_packets_are_kept_and_executed_in_order() {
    let mut lone = agreed(|_| {});
    lone.request(501, ONLY, &[1]);
    lone.request(504, ONLY, &[4]);
    assert_eq!(
        reports(&mut lone),
        [(500, 1, vec![(0, 1)]), (500, 2, vec![(2, 2)])]
    );
    assert_eq!(
        (received(&mut lone), lone.connection.kept()),
        (vec![], (2, 0))
    );
    lone.marks.1 = true;
    lone.request(500, ONLY, &[0]);
    assert_eq!(reports(&mut lone), [(502, 1, vec![])]);
    lone.request(503, ONLY, &[3]);
    lone.request(502, ONLY, &[2]);
    assert_eq!(lone.answers(), [(504, ACK, 5)]);
    assert_eq!(received(&mut lone), [0, 1, 2, 3, 4]);
    assert_eq!(lone.connection.kept(), (0, 0));
    let first = |id| lone.program.taken[&id][0];
    assert_eq!([0, 1, 2, 3, 4].map(first), [0, 1, 2, 3, 4]);
}

#[test]
fn packets_without_the_mark_are_not_kept() {
    let mut lone = agreed(|_| {});
    lone.marks.0 = false;
    lone.request(501, ONLY, &[]);
    assert_eq!(lone.answers(), [(500, SEQUENCE, 0)]);
    assert_eq!(lone.connection.kept(), (0, 0));
}

#[test]
fn after_a_late_packet_gaps_are_reported_later() {
    let mut lone = agreed(|_| {});
    lone.request(501, ONLY, &[]);
    lone.request(500, ONLY, &[]);
    lone.sent();
    // It was reported, but the original arrived: only time counts.
    for psn in 503..510 {
        lone.give(
            psn,
            Body::Request(rkey_roce::packet::Service::Rc, ONLY),
            false,
            &[],
        );
        assert_eq!(reports(&mut lone), []);
    }
    let before = lone.now;
    lone.wait();
    assert_eq!(lone.now - before, 200_000);
    assert_eq!(reports(&mut lone), [(502, 7, vec![(0, 1)])]);
}

#[test]
fn a_report_is_repeated_a_few_times() {
    let mut lone = agreed(|_| {});
    lone.request(501, ONLY, &[]);
    let mut count = reports(&mut lone).len();
    let mut waits = Vec::new();
    while lone.connection.kept().0 > 0 {
        let before = lone.now;
        lone.wait();
        waits.push((lone.now - before) / MILLISECOND);
        count += reports(&mut lone).len();
    }
    assert_eq!(count, 8);
    // At last, the packet is forgotten.
    assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1280, 2560]);
    assert_eq!(lone.connection.next_deadline(), None);
}

#[test]
fn kept_packets_that_cannot_be_executed_are_dropped() {
    // No receive.
    let mut lone = agreed(|config| config.min_rnr_timer = RnrTimer::new(1).unwrap());
    lone.program.receives.truncate(2);
    for psn in [501, 502, 503, 500] {
        lone.request(psn, ONLY, &[]);
    }
    let rnr = Syndrome::RnrNak(RnrTimer::new(1).unwrap());
    let last = lone.sent().pop().unwrap();
    let aeth = Aeth {
        syndrome: rnr,
        msn: 2,
    };
    assert_eq!(
        (last.psn(), last.response()),
        (502, Response::Acknowledge(aeth))
    );
    assert_eq!(
        (received(&mut lone), lone.connection.kept()),
        (vec![0, 1], (0, 0))
    );
    // What is still under way is not kept: the peer sends everything again.
    lone.request(503, ONLY, &[]);
    assert_eq!((lone.psns(), lone.connection.kept()), (vec![], (0, 0)));
    // A refused key.
    let mut lone = agreed(|_| {});
    let reth = Reth {
        address: BASE,
        rkey: KEY + 1,
        length: 0,
    };
    lone.request(
        501,
        Request::WriteOnly(Reth { length: 1, ..reth }, None),
        &[1],
    );
    lone.request(502, Request::WriteOnly(reth, None), &[]);
    lone.request(500, Request::WriteOnly(reth, None), &[]);
    let last = lone.sent().pop().unwrap();
    assert_eq!(last.psn(), 501);
    assert_eq!(lone.events(), [Event::Refused(NakCode::RemoteAccessError)]);
    assert_eq!(lone.connection.kept(), (0, 0));
}

/// The longest packets, as far ahead as possible, and further.
#[test]
fn a_peer_cannot_make_this_side_keep_more_than_eight_megabytes() {
    for mtu in [Mtu::Bytes4096, Mtu::Bytes256] {
        let mut lone = agreed(|config| config.mtu = mtu);
        let most = (8192).min((8 << 20) / mtu.bytes());
        let payload = vec![1; mtu.bytes()];
        for psn in 501..501 + 20_000 {
            lone.request(psn, Request::WriteMiddle, &payload);
        }
        assert_eq!(lone.connection.kept(), (most - 1, 0));
        // Alternating gaps: the number of gaps is limited.
        let mut lone = agreed(|config| config.mtu = mtu);
        for psn in (501..501 + 20_000).step_by(2) {
            lone.request(psn, Request::WriteMiddle, &payload);
        }
        assert_eq!(lone.connection.kept(), (256, 0));
        // A long read takes many positions, and a packet of a wrong length would be refused.
        let reth = Reth {
            address: BASE,
            rkey: KEY,
            length: 1 << 31,
        };
        let mut lone = agreed(|config| config.mtu = mtu);
        lone.request(501, Request::Read(reth), &[]);
        lone.request(501, Request::WriteMiddle, &[1; 8]);
        assert_eq!(lone.connection.kept(), (0, 0));
        assert_eq!(lone.program.accesses, 0);
    }
}

#[test]
fn connections_share_a_budget_for_what_they_keep() {
    let budget = KeepBudget::new(10_000);
    let [mut one, mut other] = [(); 2].map(|()| {
        let mut lone = agreed(|config| config.mtu = Mtu::Bytes1024);
        lone.connection.limit_kept(budget.clone());
        lone
    });
    for psn in 501..601 {
        one.request(psn, Request::WriteMiddle, &[1; 1024]);
    }
    let (kept, _) = one.connection.kept();
    assert!((5..10).contains(&kept), "{kept} packets");
    other.request(501, Request::WriteMiddle, &[1; 1024]);
    assert_eq!(other.connection.kept(), (0, 0));
    // As without the agreement.
    assert_eq!(other.answers(), [(500, SEQUENCE, 0)]);
    drop(one);
    assert_eq!(budget.left(), 10_000);
}

/// A requester with eight packets outstanding, from PSN 100.
fn outstanding(retries: u8) -> Lone {
    let mut lone = agreed(|config| {
        config.retry_count = retries;
        config.probe_after = Some(MILLISECOND);
    });
    lone.post(write(1, target(0), 8000), vec![3; 8000]);
    assert_eq!(lone.psns(), (100..108).collect::<Vec<u32>>());
    lone
}

/// Receives a report.
fn give_report(lone: &mut Lone, (psn, kept, gaps): Report) {
    let mut original = 0;
    for (distance, length) in gaps.iter().rev() {
        original = original << 21 | u64::from(distance << 7 | length);
    }
    let aeth = Aeth {
        syndrome: Syndrome::from_byte(REPORT),
        msn: kept,
    };
    let response = Response::AtomicAcknowledge(aeth, AtomicAckEth { original });
    lone.response(psn, response, &[]);
}

#[test]
fn only_reported_packets_are_sent_again_and_only_once_in_a_round_trip() {
    let mut lone = outstanding(7);
    lone.now += 100_000;
    give_report(&mut lone, (101, 4, vec![(0, 1), (2, 2), (6, 1)]));
    let sent = lone.sent();
    let psns: Vec<u32> = sent.iter().map(Sent::psn).collect();
    assert_eq!(psns, [101, 103, 104, 107]);
    assert!(
        sent.iter()
            .all(|it| it.headers.ack_request && it.headers.becn && it.headers.migrated)
    );
    assert_eq!(sent[0].payload, vec![3; 1024]);
    give_report(&mut lone, (101, 4, vec![(0, 1), (2, 2)]));
    assert_eq!(lone.psns(), []);
    // 101 and 103 have arrived, and 104 was lost again.
    lone.now += 600_000;
    give_report(&mut lone, (104, 3, vec![(0, 1)]));
    assert_eq!(lone.psns(), [104]);
    lone.acknowledge(107, ACK);
    assert_eq!(lone.completed(), [(1, Status::Success)]);
    let counters = lone.connection.counters();
    assert_eq!((counters.retransmitted, counters.sequence_naks), (5, 3));
    assert_eq!(lone.connection.kept(), (0, 0));
}

#[test]
fn reports_about_packets_that_were_not_sent_change_nothing() {
    let mut lone = outstanding(7);
    for gaps in [vec![(8, 127)], vec![(16383, 127)], vec![]] {
        give_report(&mut lone, (100, 0xff_ffff, gaps));
    }
    give_report(&mut lone, (99, 1, vec![(0, 1)]));
    give_report(&mut lone, (108, 1, vec![(0, 1)]));
    assert_eq!((lone.psns(), lone.connection.kept()), (vec![], (0, 0)));
    lone.acknowledge(107, ACK);
    assert_eq!(lone.completed(), [(1, Status::Success)]);
}

/// A network may lose everything in one direction for longer than a few reports take.
#[test]
fn only_timeouts_use_up_retries() {
    let mut lone = outstanding(2);
    for _ in 0..6 {
        lone.now += 10 * MILLISECOND;
        give_report(&mut lone, (100, 7, vec![(0, 1)]));
        assert!(lone.psns().iter().all(|psn| *psn == 100));
    }
    assert_eq!(lone.completed(), []);
    let ended = loop {
        lone.wait();
        give_report(&mut lone, (100, 7, vec![(0, 1)]));
        lone.sent();
        if let Some(ended) = lone.completed().pop() {
            break ended;
        }
        assert!(lone.now < 2_000 * MILLISECOND);
    };
    assert_eq!(ended, (1, Status::RetryExceeded));
}

#[test]
fn early_data_is_stored_and_only_what_is_missing_is_requested_again() {
    let mut lone = agreed(|_| {});
    lone.post(read(1, target(0), 6000), vec![0; 6000]);
    assert_eq!(lone.psns(), [100]);
    let aeth = Aeth {
        syndrome: ACK,
        msn: 1,
    };
    let data = |at: u8| vec![at; if at == 5 { 6000 - 5 * 1024 } else { 1024 }];
    lone.response(100, Response::ReadFirst(aeth), &data(0));
    lone.response(104, Response::ReadMiddle, &data(4));
    lone.response(102, Response::ReadMiddle, &data(2));
    lone.response(105, Response::ReadLast(aeth), &data(5));
    let sent = lone.sent();
    let requests: Vec<(u32, u32)> = (sent.iter())
        .map(|sent| match sent.request() {
            Request::Read(reth) => (sent.psn(), reth.length),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(requests, [(101, 1024), (103, 1024)]);
    lone.response(101, Response::ReadOnly(aeth), &data(1));
    assert_eq!(lone.completed(), []);
    lone.response(103, Response::ReadOnly(aeth), &data(3));
    assert_eq!(lone.completed(), [(1, Status::Success)]);
    let memory = &lone.program.requests[&1];
    assert!(
        memory
            .chunks(1024)
            .zip(0..)
            .all(|(bytes, at)| bytes == data(at))
    );
    assert_eq!(lone.connection.kept(), (0, 0));
}
