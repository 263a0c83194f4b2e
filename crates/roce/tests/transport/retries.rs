//! The requester alone: retries, their timers, and the window.

use crate::lone::{ACK, Lone, SEQUENCE};
use crate::world::send;
use rkey_roce::packet::{RnrTimer, Syndrome};
use rkey_roce::transport::Status;

#[test]
fn a_sequence_error_is_handled_again_after_a_timeout() {
    let mut lone = Lone::new(|config| config.retry_count = 2);
    lone.post(send(1, 3000), vec![0; 3000]);
    assert_eq!(lone.psns(), [100, 101, 102]);
    lone.acknowledge(100, SEQUENCE);
    assert_eq!(lone.psns(), [100, 101, 102]);
    lone.wait();
    // The NAK refers to a packet of an earlier attempt, and uses up no retry.
    lone.acknowledge(100, SEQUENCE);
    assert_eq!(lone.psns(), [100, 101, 102]);
    lone.acknowledge(101, SEQUENCE);
    assert_eq!(lone.psns(), [101, 102]);
    lone.wait();
    assert_eq!(lone.psns(), [101, 102]);
    assert_eq!(lone.completed(), []);
    lone.acknowledge(101, SEQUENCE);
    assert_eq!(lone.completed(), [(1, Status::RetryExceeded)]);
    // The first loss after a timeout can also be reported at once.
    let mut lone = Lone::new(|_| {});
    lone.post(send(1, 2000), vec![0; 2000]);
    lone.sent();
    lone.now += 1000;
    lone.acknowledge(100, SEQUENCE);
    assert_eq!(lone.psns(), [100, 101]);
    assert_eq!(lone.connection.next_deadline(), Some(lone.now + 67_108_864));
    lone.wait();
    assert_eq!(lone.psns(), [100, 101]);
    lone.acknowledge(100, SEQUENCE);
    assert_eq!(lone.psns(), [100, 101]);
}

#[test]
fn the_timeout_doubles_up_to_four_times_until_there_is_progress() {
    let timeout = 67_108_864;
    let mut lone = Lone::new(|_| {});
    lone.post(send(1, 1000), vec![0; 1000]);
    lone.post(send(2, 1000), vec![0; 1000]);
    lone.sent();
    for times in [1, 2, 4, 4] {
        let before = lone.now;
        lone.wait();
        assert_eq!(lone.now - before, times * timeout);
        assert_eq!(lone.psns(), [100, 101]);
    }
    lone.acknowledge(100, ACK);
    let deadline = lone.connection.next_deadline();
    assert_eq!(deadline, Some(lone.now + timeout));
}

/// A process that was stopped has not received the answers that arrived in the meantime.
#[test]
fn a_timer_that_runs_late_is_forgiven_once_without_progress() {
    let timeout = 67_108_864;
    let mut lone = Lone::new(|config| config.retry_count = 0);
    for id in 1..=3 {
        lone.post(send(id, 1000), vec![0; 1000]);
    }
    assert_eq!(lone.psns(), [100, 101, 102]);
    for acknowledged in [100, 101] {
        lone.now += 2 * timeout;
        lone.connection.advance(lone.now);
        lone.acknowledge(acknowledged, ACK);
    }
    lone.sent();
    assert_eq!(lone.completed(), [1, 2].map(|id| (id, Status::Success)));
    lone.now += 2 * timeout;
    lone.connection.advance(lone.now);
    assert_eq!(lone.psns(), [102]);
    lone.now += 2 * timeout;
    lone.connection.advance(lone.now);
    assert_eq!(lone.completed(), [(3, Status::RetryExceeded)]);
    // One that runs in time is not.
    let mut lone = Lone::new(|config| config.retry_count = 0);
    lone.post(send(1, 1000), vec![0; 1000]);
    lone.sent();
    lone.now += timeout + timeout / 2;
    lone.connection.advance(lone.now);
    assert_eq!(lone.completed(), [(1, Status::RetryExceeded)]);
}

#[test]
fn a_peer_without_a_receive_is_retried_after_its_delay() {
    let mut lone = Lone::new(|config| config.rnr_retry = 2);
    lone.post(send(1, 1), vec![0]);
    lone.post(send(2, 1), vec![0]);
    let nak = Syndrome::RnrNak(RnrTimer::new(12).unwrap());
    for _ in 0..2 {
        assert_eq!(lone.psns(), [100, 101]);
        let before = lone.now;
        lone.acknowledge(100, nak);
        lone.acknowledge(100, nak);
        assert_eq!(lone.psns(), []);
        lone.wait();
        assert_eq!(lone.now - before, 640_000);
        assert_eq!(lone.connection.next_deadline(), None);
        // The NAK refers to the previous attempt.
        lone.acknowledge(100, nak);
    }
    assert_eq!(lone.psns(), [100, 101]);
    assert_eq!(lone.completed(), []);
    lone.acknowledge(100, nak);
    let ends = [(1, Status::RnrRetryExceeded), (2, Status::Flushed)];
    assert_eq!(lone.completed(), ends);
}

#[test]
fn no_timeout_runs_while_the_peer_has_no_receive() {
    let nak = Syndrome::RnrNak(RnrTimer::new(0).unwrap());
    let mut lone = Lone::new(|_| {});
    lone.post(send(1, 1), vec![0]);
    lone.post(send(2, 1), vec![0]);
    lone.sent();
    let start = lone.now;
    lone.acknowledge(100, nak);
    // Ten times the timeout.
    let deadline = lone.connection.next_deadline();
    assert_eq!(deadline, Some(start + 655_360_000));
    // A packet sent before the timers run restarts the timeout.
    lone.now = start + 655_360_000;
    assert_eq!(lone.psns(), [100, 101]);
    let deadline = lone.connection.next_deadline();
    assert_eq!(deadline, Some(lone.now + 67_108_864));
    // A duplicate found a receive after all.
    lone.acknowledge(100, nak);
    assert_eq!(lone.psns(), []);
    lone.acknowledge(100, ACK);
    assert_eq!(lone.psns(), [101]);
    assert_eq!(lone.connection.counters().timeouts, 0);
}

#[test]
fn each_message_has_its_own_rnr_retries_and_seven_means_no_limit() {
    let nak = Syndrome::RnrNak(RnrTimer::new(1).unwrap());
    let mut lone = Lone::new(|config| config.rnr_retry = 1);
    for id in 0..5 {
        lone.post(send(id, 1), vec![0]);
    }
    for psn in 100..105 {
        lone.sent();
        lone.acknowledge(psn, nak);
        lone.wait();
    }
    assert_eq!(lone.completed().len(), 4);
    let mut lone = Lone::new(|config| config.rnr_retry = 7);
    lone.post(send(1, 1), vec![0]);
    for _ in 0..100 {
        assert_eq!(lone.psns(), [100]);
        lone.acknowledge(100, nak);
        lone.wait();
    }
    assert_eq!(lone.completed(), []);
}

#[test]
fn progress_restores_all_retries() {
    let mut lone = Lone::new(|config| config.retry_count = 1);
    lone.post(send(1, 5000), vec![0; 5000]);
    for psn in 100..105 {
        lone.sent();
        lone.wait();
        assert_eq!(lone.psns()[0], psn);
        lone.acknowledge(psn, ACK);
    }
    assert_eq!(lone.completed(), [(1, Status::Success)]);
    assert_eq!(lone.connection.counters().timeouts, 5);
}

#[test]
fn loss_halves_the_window_and_progress_widens_it() {
    let mut lone = Lone::new(|config| config.window = 16);
    lone.post(send(1, 1024 * 200), vec![0; 1024 * 200]);
    assert_eq!(lone.sent().len(), 16);
    lone.acknowledge(100, SEQUENCE);
    assert_eq!(lone.sent().len(), 8);
    lone.wait();
    assert_eq!(lone.sent().len(), 4);
    lone.wait();
    lone.wait();
    assert_eq!(lone.sent().len(), 2);
    let mut next = 100;
    let mut sizes = Vec::new();
    while next < 280 {
        next += 2;
        lone.acknowledge(next - 1, ACK);
        sizes.extend(lone.psns().last().map(|last| last + 1 - next));
    }
    assert!(sizes.is_sorted(), "{sizes:?}");
    assert_eq!(sizes[..5], [3, 3, 4, 4, 5]);
    assert_eq!(*sizes.last().unwrap(), 16);
}
