//! The operations in flight: their numbers, what each still waits for, and the order in which a connected endpoint reports
//! them. An ended operation is kept until no peer can access its memory.

#[cfg(test)]
mod tests;

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
    /// The operation has ended: [`InFlight::release`] takes it.
    End,
    /// The operation has ended, and no peer has ever been able to access its memory.
    Over(Operation<H>),
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
        Next::End
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

    /// Takes an ended operation, and returns it if no peer can access its memory; keeps it otherwise. `qp_of` returns the
    /// queue pair of a connection.
    #[inline]
    pub(super) fn release<'a>(
        &mut self,
        host: &H,
        id: u64,
        qp_of: impl FnOnce(usize) -> Option<&'a H::Qp>,
    ) -> Option<Operation<H>>
    where
        H::Qp: 'a,
    {
        let operation = self.by_number.get(id)?;
        let qp = qp_of(operation.connection);
        let is_free = is_free(host, operation, qp);
        let operation = self.by_number.take(id)?;
        if is_free {
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
