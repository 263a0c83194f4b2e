//! The requester alone: probes, long before the timeout.

use crate::lone::{ACK, Lone, SEQUENCE, Sent};
use crate::model::target;
use crate::world::{read, send};
use rkey_roce::packet::{Aeth, Request, Response};
use rkey_roce::transport::Status;

const TIMEOUT: u64 = 67_108_864;
const INTERVAL: u64 = 1_000_000;

/// A queue pair that has measured a round trip of 200 µs with PSN 100, and has four packets outstanding, from PSN 101.
fn measured(window: u32) -> Lone {
    let mut lone = Lone::new(|config| {
        config.probe_after = Some(INTERVAL);
        config.retry_count = 0;
        config.window = window;
    });
    lone.post(send(1, 1), vec![0]);
    assert_eq!(lone.psns(), [100]);
    lone.now += 200_000;
    lone.acknowledge(100, ACK);
    lone.post(send(2, 4000), vec![0; 4000]);
    assert_eq!(lone.psns(), [101, 102, 103, 104]);
    assert_eq!(lone.completed(), [(1, Status::Success)]);
    lone
}

#[test]
fn a_late_response_sends_the_oldest_packet_again_without_a_retry() {
    let mut lone = measured(16);
    let before = lone.now;
    lone.wait();
    assert_eq!(lone.now - before, INTERVAL);
    let sent = lone.sent();
    assert_eq!(sent.len(), 1);
    assert!(sent[0].psn() == 101 && sent[0].headers.ack_request);
    // Reports of the first attempt say nothing new.
    lone.acknowledge(101, SEQUENCE);
    assert_eq!(lone.psns(), []);
    // The first packet was lost, and the peer has dropped the others.
    lone.now += 200_000;
    lone.acknowledge(101, ACK);
    assert_eq!(lone.psns(), [102, 103, 104]);
    lone.acknowledge(104, ACK);
    assert_eq!(lone.completed(), [(2, Status::Success)]);
    let counters = lone.connection.counters();
    assert_eq!((counters.probes, counters.timeouts), (1, 0));
}

#[test]
fn a_superfluous_probe_costs_one_packet_and_keeps_the_window() {
    for lost in [false, true] {
        let mut lone = measured(16);
        lone.wait();
        assert_eq!(lone.psns(), [101]);
        if lost {
            lone.now += 200_000;
            lone.acknowledge(101, ACK);
            assert_eq!(lone.psns(), [102, 103, 104]);
        }
        lone.acknowledge(104, ACK);
        lone.post(send(3, 100_000), vec![0; 100_000]);
        assert_eq!(lone.psns().len(), if lost { 8 } else { 16 });
    }
}

/// A response that comes too soon after the probe was only late: the packets after its own are not sent again.
#[test]
fn a_response_sooner_than_a_round_trip_does_not_answer_the_probe() {
    let mut lone = measured(16);
    lone.wait();
    assert_eq!(lone.psns(), [101]);
    lone.now += 199_999;
    lone.acknowledge(101, ACK);
    assert_eq!(lone.psns(), []);
    lone.acknowledge(104, ACK);
    assert_eq!(lone.completed(), [(2, Status::Success)]);
    assert_eq!(lone.connection.counters().retransmitted, 1);
}

/// The probe requests what is missing of a part. If its response was only late, nothing else is requested again.
#[test]
fn a_probe_of_a_read_requests_the_rest_of_a_part() {
    for late in [false, true] {
        let mut lone = measured(16);
        lone.now += 200_000;
        lone.acknowledge(104, ACK);
        lone.post(read(3, target(0), 16 * 1024), vec![0; 16 * 1024]);
        // Parts of eight packets.
        assert_eq!(lone.psns(), [105, 113]);
        let aeth = Aeth {
            syndrome: ACK,
            msn: 0,
        };
        lone.now += 200_000;
        lone.response(105, Response::ReadFirst(aeth), &[1; 1024]);
        lone.wait();
        let sent = lone.sent();
        let again: Vec<u32> = sent.iter().map(Sent::psn).collect();
        assert_eq!(again, [106]);
        assert!(matches!(sent[0].request(), Request::Read(reth) if reth.length == 7 * 1024));
        lone.now += if late { 100_000 } else { 200_000 };
        let response = match late {
            true => Response::ReadMiddle,
            false => Response::ReadFirst(aeth),
        };
        lone.response(106, response, &[1; 1024]);
        // The window is lowered: the next part has to wait.
        let expected = if late { &[][..] } else { &[107] };
        assert_eq!(lone.psns(), expected);
    }
}

#[test]
fn probes_become_rarer_until_the_timeout_ends_them() {
    let mut lone = measured(16);
    let start = lone.now;
    for elapsed in [1, 3, 7, 15, 31, 63] {
        lone.wait();
        assert_eq!(lone.now - start, elapsed * INTERVAL);
        assert_eq!(lone.psns(), [101]);
    }
    lone.wait();
    assert_eq!(lone.now - start, TIMEOUT);
    assert_eq!(lone.completed(), [(2, Status::RetryExceeded)]);
}

/// If the timeout is shorter, it comes first.
#[test]
fn before_a_round_trip_was_measured_the_first_probe_comes_after_20_ms() {
    let mut lone = Lone::new(|config| config.probe_after = Some(INTERVAL));
    lone.post(send(1, 3000), vec![0; 3000]);
    assert_eq!(lone.psns(), [100, 101, 102]);
    let start = lone.now;
    for elapsed in [20_000_000, 60_000_000, TIMEOUT] {
        lone.wait();
        assert_eq!(lone.now - start, elapsed);
        let sent = lone.psns();
        assert_eq!(sent[0], 100);
    }
    assert_eq!(lone.connection.counters().probes, 2);
    let mut lone = Lone::new(|config| (config.probe_after, config.timeout) = (Some(INTERVAL), 10));
    lone.post(send(1, 1), vec![0]);
    lone.sent();
    assert_eq!(lone.connection.next_deadline(), Some(lone.now + 4_194_304));
}

/// The first packets are lost again and again, so no round trip can be measured; but the first response shows how long one can be.
#[test]
fn after_the_first_response_probes_follow_its_time_although_nothing_was_measured() {
    let mut lone = Lone::new(|config| {
        config.probe_after = Some(INTERVAL);
        config.window = 16;
    });
    lone.post(send(1, 16 * 1024), vec![0; 16 * 1024]);
    assert_eq!(lone.psns().len(), 16);
    lone.now += 400_000;
    lone.acknowledge(103, SEQUENCE);
    assert_eq!(lone.psns()[0], 103);
    let before = lone.now;
    lone.wait();
    // 400 µs and four times its half.
    assert_eq!(lone.now - before, 1_200_000);
    assert_eq!(lone.psns(), [103]);
    assert_eq!(lone.connection.counters().timeouts, 0);
}

/// If each of them waited for a probe of its own, several reads or atomics would take seconds: before anything is measured, the next
/// probe may be a second away.
#[test]
fn the_answer_to_the_first_probe_sends_all_later_reads_again() {
    let mut lone = Lone::new(|config| config.probe_after = Some(INTERVAL));
    for id in 0..4 {
        lone.post(read(id, target(0), 8), vec![0; 8]);
    }
    assert_eq!(lone.psns(), [100, 101, 102, 103]);
    lone.wait();
    assert_eq!(lone.psns(), [100]);
    lone.now += 200_000;
    let answer = Response::ReadOnly(Aeth {
        syndrome: ACK,
        msn: 1,
    });
    lone.response(100, answer, &[7; 8]);
    assert_eq!(lone.psns(), [101, 102, 103]);
    for psn in 101..104 {
        lone.response(psn, answer, &[7; 8]);
    }
    assert_eq!(lone.completed().len(), 4);
    assert_eq!(lone.connection.counters().timeouts, 0);
}
