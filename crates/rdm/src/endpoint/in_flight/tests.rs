//! Tests of the operations in flight: when each ends, and in which order.

use super::super::test_host::TestHost;
use super::*;
use crate::draining::STUCK;
use std::time::Duration;

type Table = InFlight<TestHost>;

fn transmit(number: u32) -> Operation<TestHost> {
    Operation::new(0, OperationKind::Transmit, Some(number))
}

/// Ends an operation, and reports it.
fn end(all: &mut Table, host: &TestHost, id: u64, next: Next<TestHost>) {
    assert!(matches!(next, Next::End), "the operation goes on");
    let released = all.release(host, id, |_| Some(&7));
    all.report(host, released.unwrap());
}

#[test]
fn a_plain_operation_is_in_its_number_only() {
    let mut all = Table::new(Service::ReliableDatagram);
    let id = all.begin(transmit(5));
    assert_eq!(Plain::of(id).map(|it| it.context), Some(5));
    assert_eq!(all.len(), 0);
    assert!(matches!(all.part_done(id), Next::Wait));
}

#[test]
fn an_operation_ends_with_its_completion_and_its_answer() {
    let (host, mut all) = (TestHost::default(), Table::new(Service::ReliableDatagram));
    let id = all.begin(transmit(5).awaiting_answer());
    assert_eq!(
        (all.len(), all.awaited(), all.unanswered(2)),
        (1, 1, vec![1, 0])
    );
    assert!(
        matches!(all.answered(1, id, None), Next::Wait),
        "another peer"
    );
    assert!(matches!(all.part_done(id), Next::Wait));
    assert!(all.uses(0) && !all.uses(1));
    let next = all.answered(0, id, Some(Error::Truncated));
    end(&mut all, &host, id, next);
    assert_eq!(host.take(), ["completed 5: Truncated"]);
    assert!(!all.uses(0));
    assert!(
        matches!(all.answered(0, id, None), Next::Wait),
        "it is over"
    );
}

#[test]
fn the_data_of_a_write_is_sent_after_its_bytes_unless_it_failed() {
    for fails in [false, true] {
        let mut all = Table::new(Service::ReliableDatagram);
        let what = OperationKind::Write { data: 77, len: 9 };
        let id = all.begin(Operation::new(3, what, Some(1)));
        if fails {
            assert!(matches!(all.fail(id, Error::Denied), Next::End));
            continue;
        }
        let Next::Send(3, header) = all.part_done(id) else {
            panic!("no message");
        };
        assert_eq!(
            (header.kind, header.data, header.len),
            (Kind::WriteData, 77, 9)
        );
        assert!(matches!(all.part_done(id), Next::End));
    }
}

#[test]
fn a_connected_endpoint_reports_in_order() {
    let (host, mut all) = (TestHost::default(), Table::new(Service::Connected));
    let [first, second, third] = [1, 2, 3].map(|number| {
        let operation = transmit(number);
        all.begin(match number {
            1 => operation.awaiting_answer(),
            _ => operation,
        })
    });
    let next = all.part_done(second);
    end(&mut all, &host, second, next);
    assert!(host.take().is_empty(), "the first one has not ended");
    drop(all.forget(third));
    assert!(matches!(all.part_done(first), Next::Wait));
    let next = all.answered(0, first, None);
    end(&mut all, &host, first, next);
    assert_eq!(host.take(), ["completed 1", "completed 2"]);
    assert_eq!(all.len(), 0);
}

#[test]
fn an_unanswered_operation_fails_without_waiting_for_the_answer() {
    let mut all = Table::new(Service::ReliableDatagram);
    let id = all.begin(transmit(5).awaiting_answer());
    assert_eq!(all.unanswered_of(0), [id]);
    assert!(matches!(
        all.fail_unanswered(id, Error::ConnectionReset),
        Next::Wait
    ));
    assert!(all.unanswered_of(0).is_empty() && all.of_connection(0) == [id]);
    assert!(matches!(all.fail_unanswered(id, Error::Remote), Next::Wait));
    let next = all.part_done(id);
    assert!(matches!(next, Next::End), "it waits for the answer");
    let failure = all.get(id).and_then(|it| it.failure.as_ref());
    let error = failure.map(|it| it.error);
    assert_eq!(
        error,
        Some(Error::ConnectionReset),
        "the first reason counts"
    );
}

#[test]
fn memory_that_a_peer_accesses_delays_the_end() {
    let (host, mut all) = (TestHost::default(), Table::new(Service::ReliableDatagram));
    let mut operation = transmit(5);
    operation.retained = Retained::Exposed(Box::new(40));
    let id = all.begin(operation);
    host.busy.set(true);
    let next = all.part_done(id);
    assert!(matches!(next, Next::End), "the operation goes on");
    assert!(all.release(&host, id, |_| Some(&7)).is_none());
    assert!(all.is_draining() && all.uses(0));
    let (now, pause) = (Instant::now(), Duration::from_millis(10));
    assert!(all.take_released(&host, now).is_empty());
    assert!(all.take_released(&host, now + STUCK + pause).is_empty());
    assert_eq!(host.take(), ["cut off 7"]);
    host.busy.set(false);
    let released = all.take_released(&host, now + STUCK + 2 * pause);
    assert_eq!(
        (released.len(), host.take()),
        (1, vec!["withdraw 40".to_owned()])
    );
    assert!(!all.is_draining() && all.take_all().is_empty());
}
