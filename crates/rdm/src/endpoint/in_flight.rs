//! The operations in flight: their numbers, what each still waits for, and the order in which a connected endpoint reports
//! them. An ended operation is kept until no peer can access its memory.

use super::operation::{Operation, OperationKind, Retained};
use super::{Host, Service};
use crate::draining::Draining;
use crate::error::{Error, Failure};
use crate::header::{Header, Kind};
use crate::operation_id::{Operations, Plain};
use crate::order::InOrder;
use std::time::Instant;

/// The result of an operation, for the program.
struct Outcome<H: Host> {
    attached: Option<H::Operation>,
    failure: Option<Box<Failure>>,
}

/// What follows when a part of an operation is done.
#[must_use]
pub(super) enum Next<H: Host> {
    /// Other parts are missing, or there is no such operation.
    Wait,
    /// All bytes are written: this message must be sent over this connection.
    Send(usize, Header),
    /// The operation has ended.
    End(Operation<H>),
}

/// The operations in flight.
pub(super) struct InFlight<H: Host> {
    service: Service,
    by_number: Operations<Operation<H>>,
    /// Results of a connected endpoint's operations that wait for their turn.
    turns: InOrder<Outcome<H>>,
    draining: Draining<Operation<H>, H::Qp>,
}

impl<H: Host> InFlight<H> {
    /// No operation is in flight.
    pub(super) fn new(service: Service) -> Self {
        Self {
            service,
            by_number: Operations::default(),
            turns: InOrder::default(),
            draining: Draining::default(),
        }
    }

    /// Assigns an operation its number, and its turn if completions are ordered. All its fields must be set by then,
    /// because it may turn out to be a plain operation.
    #[inline]
    pub(super) fn begin(&mut self, mut operation: Operation<H>) -> u64 {
        if self.service.is_ordered() {
            // Operations that wait only for the device complete in order anyway.
            let waits =
                operation.awaits_answer || matches!(operation.what, OperationKind::Write { .. });
            if waits || !self.turns.is_empty() {
                operation.turn = Some(self.turns.enter());
            }
        }
        let plain = operation.plain().and_then(Plain::number);
        plain.unwrap_or_else(|| self.by_number.add(operation))
    }

    /// The id for an operation that waits only for the device, if such an operation can be plain now.
    #[inline]
    pub(super) fn plain_id(&self, what: Plain) -> Option<u64> {
        let in_order = !self.service.is_ordered() || self.turns.is_empty();
        what.number().filter(|_| in_order)
    }

    /// Assigns a number to an operation that needs no turn.
    pub(super) fn add(&mut self, operation: Operation<H>) -> u64 {
        self.by_number.add(operation)
    }

    /// The operation with this number.
    #[inline]
    pub(super) fn get(&mut self, id: u64) -> Option<&mut Operation<H>> {
        self.by_number.get(id)
    }

    /// Removes an operation that could not begin. Reports nothing to the program.
    pub(super) fn forget(&mut self, id: u64) -> Option<Operation<H>> {
        let operation = self.by_number.take(id)?;
        if let Some(turn) = operation.turn {
            self.turns.abandon(turn);
        }
        Some(operation)
    }

    /// Records that one of the completions and answers that an operation waits for has arrived.
    #[inline]
    pub(super) fn part_done(&mut self, id: u64) -> Next<H> {
        let Some(operation) = self.by_number.get(id) else {
            return Next::Wait;
        };
        operation.left = operation.left.saturating_sub(1);
        if operation.left > 0 {
            return Next::Wait;
        }
        if let (OperationKind::Write { data, len }, None) = (&operation.what, &operation.failure) {
            let header = Header {
                data: *data,
                len: *len,
                ..Header::new(Kind::WriteData)
            };
            operation.what = OperationKind::Transmit;
            operation.left = 1;
            return Next::Send(operation.connection, header);
        }
        match self.by_number.take(id) {
            Some(operation) => Next::End(operation),
            None => Next::Wait,
        }
    }

    /// Fails an operation, if it exists, and stops waiting for the one part that will not arrive.
    #[cold]
    pub(super) fn fail(&mut self, id: u64, error: Error) -> Next<H> {
        match self.by_number.get(id) {
            Some(operation) => operation.fail(error),
            None => return Next::Wait,
        }
        self.part_done(id)
    }

    /// Fails an operation; if it waits for the peer's answer, that will not arrive.
    #[cold]
    pub(super) fn fail_unanswered(&mut self, id: u64, why: impl Into<Failure>) -> Next<H> {
        let Some(operation) = self.by_number.get(id) else {
            return Next::Wait;
        };
        operation.fail(why);
        match std::mem::take(&mut operation.awaits_answer) {
            true => self.part_done(id),
            false => Next::Wait,
        }
    }

    /// Handles the peer's answer to an operation; ignores an answer that no operation of this connection waits for.
    pub(super) fn answered(&mut self, connection: usize, id: u64, error: Option<Error>) -> Next<H> {
        let Some(operation) = self.by_number.get(id) else {
            return Next::Wait;
        };
        if operation.connection != connection || !operation.awaits_answer {
            return Next::Wait;
        }
        operation.awaits_answer = false;
        if let Some(error) = error {
            operation.fail(error);
        }
        self.part_done(id)
    }

    /// The numbers of all operations of a connection.
    pub(super) fn of_connection(&self, connection: usize) -> Vec<u64> {
        self.by_number
            .all(|operation| operation.connection == connection)
    }

    /// The numbers of a connection's operations that wait for the peer's answer.
    pub(super) fn unanswered_of(&self, connection: usize) -> Vec<u64> {
        self.by_number
            .all(|it| it.connection == connection && it.awaits_answer)
    }

    /// The numbers of the unanswered chunks of a collective operation.
    pub(super) fn chunks_of(&self, number: u64) -> Vec<u64> {
        self.by_number.all(|it| {
            it.awaits_answer && matches!(it.what, OperationKind::Chunk { run, .. } if run == number)
        })
    }

    /// Returns an ended operation if no peer can access its memory, and keeps it otherwise. `qp` is that of its connection.
    #[inline]
    pub(super) fn release(
        &mut self,
        host: &H,
        mut operation: Operation<H>,
        qp: Option<&H::Qp>,
    ) -> Option<Operation<H>> {
        if is_free(host, &mut operation, qp) {
            return Some(operation);
        }
        self.draining.push(operation, qp.cloned());
        None
    }

    /// The kept operations whose memory peers have released by now. The links of peers that take too long are cut.
    #[cold]
    pub(super) fn take_released(&mut self, host: &H, now: Instant) -> Vec<Operation<H>> {
        let mut released = Vec::new();
        for mut ended in self.draining.take_due(now) {
            if is_free(host, &mut ended.operation, ended.qp.as_ref()) {
                released.push(ended.operation);
                continue;
            }
            if let Some(qp) = ended.cut_off(now) {
                host.cut_off(qp);
            }
            self.draining.put_back(ended);
        }
        released
    }

    /// Reports an ended operation to the program when its turn comes: the program owns its memory again.
    pub(super) fn report(&mut self, host: &H, operation: Operation<H>) {
        let outcome = Outcome {
            attached: operation.attached,
            failure: operation.failure,
        };
        let Some(turn) = operation.turn else {
            return outcome.report(host);
        };
        self.turns.finish(turn, outcome);
        while let Some(outcome) = self.turns.pop() {
            outcome.report(host);
        }
    }

    /// How many operations have not ended.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether peers may still access the memory of ended operations.
    #[inline]
    pub(super) fn is_draining(&self) -> bool {
        !self.draining.is_empty()
    }

    /// Whether an operation uses a connection, or has used it and is kept.
    pub(super) fn uses(&self, connection: usize) -> bool {
        let mut all = self.by_number.iter().chain(self.draining.iter());
        all.any(|operation| operation.connection == connection)
    }

    /// How many completions of requests the operations wait for.
    pub(super) fn awaited(&self) -> usize {
        let awaited =
            |it: &Operation<H>| (it.left as usize).saturating_sub(it.awaits_answer.into());
        self.by_number.iter().map(awaited).sum()
    }

    /// How many operations wait for an answer from their peer, for this many connections.
    pub(super) fn unanswered(&self, connections: usize) -> Vec<usize> {
        let mut unanswered = vec![0; connections];
        for operation in self.by_number.iter().filter(|it| it.awaits_answer) {
            if let Some(count) = unanswered.get_mut(operation.connection) {
                *count += 1;
            }
        }
        unanswered
    }

    /// Takes all operations, for the end of the endpoint; nothing is reported.
    pub(super) fn take_all(&mut self) -> Vec<Operation<H>> {
        let mut operations = self.by_number.drain();
        operations.extend(self.draining.drain());
        operations
    }
}

impl<H: Host> Outcome<H> {
    /// Reports to the program that an operation is complete.
    #[inline]
    fn report(self, host: &H) {
        if let Some(attached) = self.attached {
            host.completed(attached, self.failure);
        }
    }
}

/// Whether no peer can access the memory of an ended operation. Never waits.
#[inline]
fn is_free<H: Host>(host: &H, operation: &mut Operation<H>, qp: Option<&H::Qp>) -> bool {
    if operation.failure.is_some() && !qp.is_none_or(|qp| host.is_quiet(qp)) {
        return false;
    }
    if let Retained::Exposed(exposed) = &operation.retained {
        if !host.try_withdraw(exposed) {
            return false;
        }
        operation.retained = Retained::Nothing;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::test_host::TestHost;
    use super::*;
    use crate::draining::STUCK;
    use std::time::Duration;

    type Table = InFlight<TestHost>;

    fn transmit(number: u32) -> Operation<TestHost> {
        Operation::new(0, OperationKind::Transmit, Some(number))
    }

    /// Ends an operation, and reports it.
    fn end(all: &mut Table, host: &TestHost, next: Next<TestHost>) {
        let Next::End(operation) = next else {
            panic!("the operation goes on");
        };
        let released = all.release(host, operation, Some(&7));
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
        end(&mut all, &host, next);
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
                assert!(matches!(all.fail(id, Error::Denied), Next::End(_)));
                continue;
            }
            let Next::Send(3, header) = all.part_done(id) else {
                panic!("no message");
            };
            assert_eq!(
                (header.kind, header.data, header.len),
                (Kind::WriteData, 77, 9)
            );
            assert!(matches!(all.part_done(id), Next::End(_)));
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
        end(&mut all, &host, next);
        assert!(host.take().is_empty(), "the first one has not ended");
        drop(all.forget(third));
        assert!(matches!(all.part_done(first), Next::Wait));
        let next = all.answered(0, first, None);
        end(&mut all, &host, next);
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
        let Next::End(operation) = all.part_done(id) else {
            panic!("it waits for the answer");
        };
        let error = operation.failure.map(|it| it.error);
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
        let Next::End(operation) = all.part_done(id) else {
            panic!("the operation goes on");
        };
        assert!(all.release(&host, operation, Some(&7)).is_none());
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
}
