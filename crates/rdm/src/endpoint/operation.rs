//! Operations in flight: what each still waits for, and what it holds until then.

use super::receive::Landing;
use super::{Endpoint, Host};
use crate::error::{Error, Failure};
use crate::header::{Header, Kind};
use crate::operation_id::Plain;
use crate::sges::Sges;

/// An operation.
pub(super) struct Operation<H: Host> {
    /// How many completions and answers are still missing.
    pub(super) left: u32,
    /// The first error.
    pub(super) failure: Option<Box<Failure>>,
    pub(super) what: OperationKind<H>,
    /// The host's data for the report to the program; without it, nothing is reported.
    pub(super) attached: Option<H::Operation>,
    /// The connection that the operation uses.
    pub(super) connection: usize,
    /// Whether one of the missing parts is an answer from the peer.
    pub(super) awaits_answer: bool,
    /// The operation's turn, if reports to the program are ordered.
    pub(super) turn: Option<u64>,
    pub(super) retained: Retained<H>,
}

/// The kind of an operation.
pub(super) enum OperationKind<H: Host> {
    /// A transmission.
    Transmit,
    /// The read of a payload into a receive under this key; at its end, the peer's operation `id` is answered.
    Fetch {
        landing: Box<Landing<H>>,
        id: u64,
        key: u32,
    },
    /// A write of `len` bytes. When it is complete, a message carries `data` to the peer.
    Write { data: u64, len: u32 },
    /// A write whose immediate data is its completion data.
    WriteWithImmediate,
    /// An atomic with a result.
    AtomicFetch { result: Sges },
    /// A chunk of a collective operation, sent or read; at its end, the peer's operation `taken` is answered.
    Chunk { run: u64, taken: Option<u64> },
}

/// What an operation keeps until it is complete.
pub(super) enum Retained<H: Host> {
    Nothing,
    /// Bytes that are being sent or read.
    Bytes(Box<[u8]>),
    /// Memory that the peer reads.
    Exposed(Box<H::Exposed>),
}

/// The result of an operation, for the program.
pub(super) struct Outcome<H: Host> {
    attached: Option<H::Operation>,
    failure: Option<Box<Failure>>,
}

impl<H: Host> Operation<H> {
    /// An operation that waits for one completion.
    #[inline]
    pub(super) fn new(
        connection: usize,
        what: OperationKind<H>,
        attached: Option<H::Operation>,
    ) -> Self {
        Self {
            left: 1,
            failure: None,
            what,
            attached,
            connection,
            awaits_answer: false,
            turn: None,
            retained: Retained::Nothing,
        }
    }

    /// Makes the operation also wait for the peer's answer.
    pub(super) fn awaiting_answer(self) -> Self {
        Self {
            left: self.left + 1,
            awaits_answer: true,
            ..self
        }
    }

    /// Records why the operation fails. Only the first reason counts.
    #[cold]
    pub(super) fn fail(&mut self, why: impl Into<Failure>) {
        self.failure.get_or_insert_with(|| Box::new(why.into()));
    }

    /// The equivalent plain operation, if there is one.
    #[inline]
    pub(super) fn plain(&self) -> Option<Plain> {
        let one = self.left == 1 && !self.awaits_answer && self.turn.is_none();
        let what = matches!(self.what, OperationKind::Transmit)
            && matches!(self.retained, Retained::Nothing);
        let attached = self.attached.as_ref().filter(|_| one && what)?;
        H::plain(attached)
    }
}

impl<H: Host> Endpoint<H> {
    /// Assigns an operation its number, and its turn if completions are ordered. All its fields must be set by then,
    /// because it may turn out to be a plain operation.
    #[inline]
    pub(super) fn begin(&mut self, mut operation: Operation<H>) -> u64 {
        if self.is_ordered() {
            // Operations that wait only for the device complete in order anyway.
            let waits =
                operation.awaits_answer || matches!(operation.what, OperationKind::Write { .. });
            if waits || !self.sends.is_empty() {
                operation.turn = Some(self.sends.enter());
            }
        }
        let plain = operation.plain().and_then(Plain::number);
        plain.unwrap_or_else(|| self.operations.add(operation))
    }

    /// Removes an operation that could not begin. Reports nothing to the program.
    pub(super) fn forget(&mut self, id: u64) -> Option<Operation<H>> {
        let operation = self.operations.take(id)?;
        if let Some(turn) = operation.turn {
            self.sends.abandon(turn);
        }
        Some(operation)
    }

    /// The numbers of all operations of a connection.
    pub(super) fn operations_of(&self, connection: usize) -> Vec<u64> {
        self.operations
            .all(|operation| operation.connection == connection)
    }

    /// Records that one of the completions and answers that an operation waits for has arrived. After the last one, the
    /// operation ends.
    #[inline]
    pub(super) fn part_done(&mut self, host: &H, id: u64) {
        let Some(operation) = self.operations.get(id) else {
            return;
        };
        operation.left = operation.left.saturating_sub(1);
        if operation.left > 0 {
            return;
        }
        if let (OperationKind::Write { data, len }, None) = (&operation.what, &operation.failure) {
            let (data, len, connection) = (*data, *len, operation.connection);
            let header = Header {
                data,
                len,
                ..Header::new(Kind::WriteData)
            };
            operation.what = OperationKind::Transmit;
            operation.left = 1;
            return self.send_control_for(host, connection, &header, &[], id);
        }
        if let Some(operation) = self.operations.take(id) {
            self.finish_when_released(host, operation);
        }
    }

    /// Fails an operation, if it exists, and stops waiting for the one part that will not arrive.
    #[cold]
    pub(super) fn fail_with(&mut self, host: &H, id: u64, error: Error) {
        if let Some(operation) = self.operations.get(id) {
            operation.fail(error);
            self.part_done(host, id);
        }
    }

    /// Handles the peer's answer to our operation; ignores an answer that no operation of this connection waits for.
    pub(super) fn answer_arrived(
        &mut self,
        host: &H,
        connection: usize,
        id: u64,
        error: Option<Error>,
    ) {
        let Some(operation) = self.operations.get(id) else {
            return;
        };
        if operation.connection != connection || !operation.awaits_answer {
            return;
        }
        operation.awaits_answer = false;
        if let Some(error) = error {
            operation.fail(error);
        }
        self.part_done(host, id);
    }

    /// Whether no peer can access the memory of an ended operation. Never waits.
    #[inline]
    fn is_free(host: &H, operation: &mut Operation<H>, qp: Option<&H::Qp>) -> bool {
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

    /// Finishes an ended operation as soon as no peer can access its memory.
    #[inline]
    fn finish_when_released(&mut self, host: &H, mut operation: Operation<H>) {
        let qp = self.connections[operation.connection].qp.as_ref();
        if Self::is_free(host, &mut operation, qp) {
            return self.operation_over(host, operation);
        }
        let qp = qp.cloned();
        self.draining.push(operation, qp);
    }

    /// Finishes the ended operations whose memory peers have released.
    #[cold]
    pub(super) fn drain(&mut self, host: &H, now: std::time::Instant) {
        for mut ended in self.draining.take_due(now) {
            if Self::is_free(host, &mut ended.operation, ended.qp.as_ref()) {
                self.operation_over(host, ended.operation);
                continue;
            }
            if let Some(qp) = ended.cut_off(now) {
                host.cut_off(qp);
            }
            self.draining.put_back(ended);
        }
    }

    /// Acts on the end of an operation whose memory peers can no longer access.
    pub(super) fn operation_over(&mut self, host: &H, operation: Operation<H>) {
        match operation.what {
            OperationKind::Fetch { landing, id, .. } => {
                let error = operation.failure.map(|failure| failure.error);
                self.fetch_over(host, operation.connection, id, *landing, error);
            }
            OperationKind::Chunk { .. } => self.chunk_over(host, operation),
            _ => self.report_in_turn(host, operation),
        }
    }

    /// Reports an ended operation to the program when its turn comes: the program owns its memory again.
    fn report_in_turn(&mut self, host: &H, operation: Operation<H>) {
        if operation.failure.is_some() {
            self.refund(&operation);
        }
        let outcome = Outcome {
            attached: operation.attached,
            failure: operation.failure,
        };
        let Some(turn) = operation.turn else {
            return Self::report(host, outcome);
        };
        self.sends.finish(turn, outcome);
        while let Some(outcome) = self.sends.pop() {
            Self::report(host, outcome);
        }
    }

    /// Reports to the program that an operation is complete.
    #[inline]
    fn report(host: &H, outcome: Outcome<H>) {
        if let Some(attached) = outcome.attached {
            host.completed(attached, outcome.failure);
        }
    }

    /// Refunds the credit for a write's data that was never sent.
    pub(super) fn refund(&mut self, operation: &Operation<H>) {
        if matches!(
            operation.what,
            OperationKind::Write { .. } | OperationKind::WriteWithImmediate
        ) {
            self.connections[operation.connection].credit.add(1, 0);
        }
    }
}
