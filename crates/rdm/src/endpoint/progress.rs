//! Handles the device's completions, and does the work that no completion triggers ([`Endpoint::do_background_work`]).

use super::operation::{Operation, OperationKind};
use super::{Endpoint, Host, Service};
use crate::error::{Error, Result};
use crate::header::{self, Header, Kind};
use crate::operation_id::{Plain, UNTRACKED};
use rkey_core::LocalUse;
use rkey_engine::{Completion, CompletionOp, Status};
use std::time::Instant;

/// The number of an error, for a peer: 0 is success.
fn number_of<T>(result: &Result<T>) -> u64 {
    result
        .as_ref()
        .map_or_else(|error| error.number().into(), |_| 0)
}

impl<H: Host> Endpoint<H> {
    /// Handles a completed receive of the device: a peer's message, whose bytes are in one of the host's buffers, or
    /// the data of a peer's write. The host posts the buffer again afterwards.
    #[inline]
    pub fn receive_completed(&mut self, host: &H, completion: &Completion, bytes: &[u8]) {
        let Some(connection) = self.connections().find(completion.qpn) else {
            return;
        };
        if completion.status != Status::Success || !self.connections()[connection].state().hears() {
            return;
        }
        if completion.opcode == CompletionOp::RecvWriteImm {
            return self.write_arrived(host, connection, completion.bytes, completion.imm.into());
        }
        match Header::decode(bytes) {
            Some((header, payload)) => self.handle_message(host, connection, header, payload),
            None => self.cut_off(host, connection, "the peer sent an invalid message"),
        }
    }

    /// Handles a peer's write of `len` bytes with this data.
    fn write_arrived(&mut self, host: &H, connection: usize, len: u32, data: u64) {
        if !self.outbox.connection(connection).window.charge(0) {
            return self.exceeded(host, connection);
        }
        self.message_taken(host, connection, 0);
        self.delivery.written(host, len, data);
    }

    /// Handles a peer's message.
    #[inline]
    fn handle_message(&mut self, host: &H, connection: usize, header: Header, payload: &[u8]) {
        match header.kind {
            Kind::Message | Kind::Rts { .. } => {
                self.message_arrived(host, connection, header, payload)
            }
            Kind::Fin => {
                let error = Error::reported(header.data);
                let next = self.outbox.answered(connection, header.id, error);
                self.carry_out(host, header.id, next);
            }
            Kind::WriteData => self.write_arrived(host, connection, header.len, header.data),
            Kind::Credit => {
                let messages = u32::try_from(header.data).unwrap_or(u32::MAX);
                let credit = &mut self.outbox.connection(connection).credit;
                credit.add(messages, header.len);
            }
            Kind::Atomic(atomic) => {
                let done = host.execute(&self.connections()[connection], &atomic, payload);
                let answer = Header {
                    id: header.id,
                    data: number_of(&done),
                    ..Header::new(Kind::AtomicResult)
                };
                self.answer(host, connection, &answer, &done.unwrap_or_default());
            }
            Kind::AtomicResult => {
                let mut error = Error::reported(header.data);
                if let Some(operation) = self.outbox.operation(header.id)
                    && operation.connection == connection
                    && let OperationKind::AtomicFetch { result } = &operation.what
                    && error.is_none()
                {
                    let room: usize = result.iter().map(|sge| sge.len as usize).sum();
                    let stored = match room == payload.len() {
                        true => host.store(result, payload, LocalUse::AtomicResult),
                        false => Err(Error::Remote),
                    };
                    error = stored.err();
                }
                let next = self.outbox.answered(connection, header.id, error);
                self.carry_out(host, header.id, next);
            }
            Kind::Commit => {
                let done = host.commit(&self.connections()[connection], payload);
                let answer = Header {
                    id: header.id,
                    data: number_of(&done),
                    ..Header::new(Kind::Fin)
                };
                self.answer(host, connection, &answer, &[]);
            }
            Kind::Bye => self.lose(host, connection),
            Kind::Chunk { .. } | Kind::ChunkRts { .. } | Kind::Leave => {
                self.chunk_arrived(host, connection, &header, payload);
            }
        }
    }

    /// Handles the completion of our request.
    #[inline]
    pub fn request_completed(&mut self, host: &H, completion: &Completion) {
        let Some(connection) = self.connections().find(completion.qpn) else {
            return;
        };
        let waiting = self.outbox.connection(connection).request_completed();
        match Plain::of(completion.id) {
            Some(plain) if completion.status == Status::Success => host.completed_plain(plain),
            plain => self.tracked_completed(host, completion, connection, plain),
        }
        if waiting {
            self.catch_up(host, connection);
        }
    }

    /// Handles the completion of a request that failed or whose operation is more than its id.
    #[inline(never)]
    fn tracked_completed(
        &mut self,
        host: &H,
        completion: &Completion,
        connection: usize,
        plain: Option<Plain>,
    ) {
        let id = match plain {
            Some(plain) => {
                let attached = Some(H::of_plain(plain));
                let operation = Operation::new(connection, OperationKind::Transmit, attached);
                self.outbox.add(operation)
            }
            None => completion.id,
        };
        let failed = completion.status != Status::Success;
        if id != UNTRACKED {
            if failed {
                self.fail(host, completion, connection, id);
            }
            let next = self.outbox.part_done(id);
            self.carry_out(host, id, next);
        }
        if failed {
            self.check(host, connection);
        }
    }

    /// Posts requests that waited for room on a connection.
    #[cold]
    fn catch_up(&mut self, host: &H, connection: usize) {
        while let Some((id, next)) = self.outbox.post_waiting(host, connection) {
            self.carry_out(host, id, next);
        }
    }

    /// Records why a request failed. The peer does not answer a request that did not arrive, so the operation stops
    /// waiting for an answer.
    #[cold]
    fn fail(&mut self, host: &H, completion: &Completion, connection: usize, id: u64) {
        if completion.status == Status::LocalProtection && completion.opcode == CompletionOp::Send {
            // The memory of the message could not be read: the message was not sent and needs no credit.
            let len = completion.bytes.saturating_sub(header::LEN as u32);
            self.outbox.connection(connection).credit.add(1, len);
        }
        if let Some(of) = self.outbox.operation(id).map(|it| it.connection) {
            let why = host.why(completion, &self.connections()[of]);
            let next = self.outbox.fail_unanswered(id, why);
            self.carry_out(host, id, next);
        }
    }

    /// Whether [`Self::do_background_work`] would have nothing to do.
    #[inline]
    #[must_use]
    pub fn is_at_rest(&self, host: &H) -> bool {
        !self.outbox.is_draining()
            && !self.outbox.owes()
            && !self.outbox.awaits_teardown()
            && self.groups.as_ref().is_none_or(|it| it.is_idle())
            && !self.receives.is_offer_due(host)
    }

    /// Does the work that no completion triggers. Call it right after taking the device's completions. Returns whether
    /// the host must check for ended peers ([`Outbox::broken`](super::Outbox::broken)), because a group waits for its members.
    #[cold]
    pub fn do_background_work(&mut self, host: &H, now: Instant) -> bool {
        if self.outbox.is_draining() {
            for operation in self.outbox.take_released(host, now) {
                self.operation_over(host, operation);
            }
        }
        let mut look = false;
        if self.groups.as_ref().is_some_and(|it| !it.is_idle()) {
            look = self.carry_on_groups(host, now);
        }
        self.offer_to_shared_receives(host);
        self.send_owed(host);
        if self.outbox.awaits_teardown() && self.service != Service::Connected {
            for to in self.outbox.tear_down(host, now) {
                self.routes.forget(to);
            }
        }
        look
    }
}
