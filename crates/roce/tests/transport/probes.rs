//! The requester alone: probes, long before the timeout.

use crate::lone::{ACK, Lone, SEQUENCE};
use crate::world::send;
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
            lone.acknowledge(101, ACK);
            assert_eq!(lone.psns(), [102, 103, 104]);
        }
        lone.acknowledge(104, ACK);
        lone.post(send(3, 100_000), vec![0; 100_000]);
        assert_eq!(lone.psns().len(), if lost { 8 } else { 16 });
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

#[test]
fn no_probe_is_sent_before_a_round_trip_was_measured() {
    let mut lone = Lone::new(|config| config.probe_after = Some(INTERVAL));
    lone.post(send(1, 1), vec![0]);
    lone.sent();
    assert_eq!(lone.connection.next_deadline(), Some(lone.now + TIMEOUT));
}
