//! Operations in flight: what each still waits for, and what it holds until then.

use super::in_flight::Next;
use super::receive::Landing;
use super::{Endpoint, Host};
use crate::error::Failure;
use crate::header::Header;
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

    /// Whether the operation has spent credit for data that its peer gets with the last part, or after it.
    pub(super) fn carries_data(&self) -> bool {
        matches!(
            self.what,
            OperationKind::Write { .. } | OperationKind::WriteWithImmediate
        )
    }
}

impl<H: Host> Endpoint<H> {
    /// Does what follows for an operation of which a part is done.
    #[inline]
    pub(super) fn carry_out(&mut self, host: &H, id: u64, next: Next<H>) {
        match next {
            Next::Wait => {}
            Next::Send(connection, header) => self.send_data(host, connection, &header, id),
            Next::End => {
                if let Some(operation) = self.outbox.release(host, id) {
                    self.operation_over(host, operation);
                }
            }
            Next::Over(operation) => self.operation_over(host, operation),
        }
    }

    /// Sends the message that follows the bytes of a write.
    #[cold]
    fn send_data(&mut self, host: &H, connection: usize, header: &Header, id: u64) {
        let (answer, next) = self.outbox.send_data(host, connection, header, id);
        self.carry_out(host, id, next);
        self.after_answer(host, connection, answer);
    }

    /// Acts on the end of an operation whose memory peers can no longer access.
    pub(super) fn operation_over(&mut self, host: &H, operation: Operation<H>) {
        match operation.what {
            OperationKind::Fetch { landing, id, .. } => {
                let error = operation.failure.map(|failure| failure.error);
                self.fetch_over(host, operation.connection, id, *landing, error);
            }
            OperationKind::Chunk { .. } => self.chunk_over(host, operation),
            _ => self.outbox.report(host, operation),
        }
    }
}
