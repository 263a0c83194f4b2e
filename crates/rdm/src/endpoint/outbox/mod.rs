//! What an endpoint posts: requests of its connections, and the operations that they belong to.
//!
//! The outbox owns the connections and the operations in flight. It never acts on the end of an operation or the loss of a
//! connection: it returns what follows, and the endpoint does that.
//!
//! | module | what it is |
//! | --- | --- |
//! | `answers` | what the endpoint posts by itself, which can wait for room |
//! | `owed` | credit and FINs, which peers get while the program reads its completions |
//! | `teardown` | connections that have ended |
//!
//! Messages and transfers of the program are in `send` and `transfer`, next to this directory.

mod answers;
mod owed;
mod teardown;

pub(super) use answers::Answer;
pub use teardown::Remains;

use super::in_flight::{InFlight, Next};
use super::operation::Operation;
use super::{Connection, Connections, Host, Service};
use crate::address::Destination;
use crate::backlog::Later;
use crate::connection::{Change, Event};
use crate::error::{Error, Result};
use crate::limits::OPERATIONS_MAX;
use crate::operation_id::{Plain, UNTRACKED};
use owed::Owed;
use rkey_engine::{SendRequest, Work};
use std::time::Instant;

/// The work request of a message.
pub(super) const SEND: Work = Work::Send {
    imm: None,
    invalidate: None,
};

/// A message whose bytes are copied when it is posted.
#[inline]
pub(super) fn copied(id: u64, bytes: &[u8]) -> SendRequest<'_> {
    SendRequest {
        inline: Some(bytes),
        ..SendRequest::new(id, SEND, &[])
    }
}

/// The connections of an endpoint, and the operations in flight over them.
pub struct Outbox<H: Host> {
    service: Service,
    connections: Connections<H>,
    operations: InFlight<H>,
    owed: Owed,
    /// Whether the host watches the requests that wait for room on connections.
    backlog_watched: bool,
}

impl<H: Host> Outbox<H> {
    /// An outbox without connections.
    pub(super) fn new(service: Service) -> Self {
        Self {
            service,
            connections: Connections::<H>::default(),
            operations: InFlight::new(service),
            owed: Owed::default(),
            backlog_watched: false,
        }
    }

    /// The connections.
    #[inline]
    #[must_use]
    pub fn connections(&self) -> &Connections<H> {
        &self.connections
    }

    /// Adds a connection that is being made, and returns its slot. No operation uses the connection until it is made,
    /// and then only operations for this destination.
    pub fn add_connection(
        &mut self,
        host: &H,
        qp: H::Qp,
        to: impl Into<Destination>,
        identity: H::Identity,
    ) -> usize {
        let qpn = host.qpn(&qp);
        self.connections
            .add(qpn, Connection::<H>::new(qp, to.into(), identity))
    }

    /// Records from its hello whether a peer's device chooses the keys of its regions.
    pub fn set_device_keys(&mut self, connection: usize, device_keys: bool) {
        self.connections[connection].device_keys = device_keys;
    }

    /// Records that a peer has made a connection only to send: it is no route to the peer's address.
    pub fn set_one_way(&mut self, connection: usize) {
        self.connections[connection].leads_to = None;
    }

    /// Records that the connection of a connected endpoint could not be made, and drops its queue pair.
    pub fn refuse(&mut self, connection: usize) {
        self.connections.apply(connection, Event::Refused);
        self.connections[connection].qp = None;
    }

    /// Drops all connections without notifying a peer. Call it only if no peer has learned of them.
    pub fn forget_connections(&mut self) {
        self.connections.clear();
    }

    /// How many operations are in flight, excluding plain ones.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.operations.len()
    }

    /// How many operations wait for an answer from their peer, by connection slot.
    #[must_use]
    pub fn unanswered(&self) -> Vec<usize> {
        self.operations.unanswered(self.connections.slots())
    }

    /// Whether a connection has room for this many more requests of the program.
    #[inline]
    #[must_use]
    pub fn has_room(&self, connection: usize, requests: u32) -> bool {
        self.operations.len() < OPERATIONS_MAX && self.connections[connection].has_room(requests)
    }

    /// How many operations and other requests are in flight.
    #[must_use]
    pub fn under_way(&self) -> usize {
        // Operations wait for completions of requests that are posted or will be.
        let awaited = self.operations.awaited();
        let of_operation = |later: &&Later| later.operation() != UNTRACKED;
        let requests: usize = self
            .connections
            .iter()
            .map(|it| it.outstanding as usize + it.backlog.iter().filter(of_operation).count())
            .sum();
        // The other requests are plain operations, which are recorded nowhere else, and answers.
        self.operations.len() + requests.saturating_sub(awaited)
    }

    /// Whether a connection that is not lost has a posted request that has not completed, or a waiting answer.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.connections.iter().any(|it| it.is_busy())
    }

    /// The service of the endpoint.
    #[inline]
    pub(super) fn service(&self) -> Service {
        self.service
    }

    /// Whether senders need credit.
    #[inline]
    pub(super) fn needs_credit(&self) -> bool {
        self.service.needs_credit()
    }

    /// Whether completions are reported in the order of the operations.
    #[inline]
    pub(super) fn is_ordered(&self) -> bool {
        self.service.is_ordered()
    }

    /// The connection in a slot.
    #[inline]
    pub(super) fn connection(&mut self, connection: usize) -> &mut Connection<H> {
        &mut self.connections[connection]
    }

    /// Applies an event to a connection.
    pub(super) fn apply(&mut self, connection: usize, event: Event) -> Change {
        self.connections.apply(connection, event)
    }

    /// Posts a request; its id is the number of the operation that its completion belongs to.
    #[inline]
    pub(super) fn post(
        &mut self,
        host: &H,
        connection: usize,
        request: &SendRequest<'_>,
    ) -> Result<()> {
        let connection = &mut self.connections[connection];
        let qp = connection.qp.as_ref().ok_or(Error::NotConnected)?;
        host.post(qp, request)?;
        connection.outstanding += 1;
        Ok(())
    }

    /// The id for an operation that waits only for the device, if such an operation can be plain now. Otherwise
    /// [`Endpoint::transfer`](super::Endpoint::transfer) begins it.
    #[inline]
    #[must_use]
    pub fn plain_id(&self, what: Plain) -> Option<u64> {
        self.operations.plain_id(what)
    }

    /// Begins an operation, which must be complete by then; returns its number.
    #[inline]
    pub(super) fn begin(&mut self, operation: Operation<H>) -> u64 {
        self.operations.begin(operation)
    }

    /// Adds an operation that is not reported in turn; returns its number.
    pub(super) fn add(&mut self, operation: Operation<H>) -> u64 {
        self.operations.add(operation)
    }

    /// The operation with this number.
    #[inline]
    pub(super) fn operation(&mut self, id: u64) -> Option<&mut Operation<H>> {
        self.operations.get(id)
    }

    /// Removes an operation that could not begin. Reports nothing to the program.
    pub(super) fn forget(&mut self, id: u64) -> Option<Operation<H>> {
        self.operations.forget(id)
    }

    /// Records that one of the completions and answers that an operation waits for has arrived.
    #[inline]
    pub(super) fn part_done(&mut self, id: u64) -> Next<H> {
        self.operations.part_done(id)
    }

    /// Handles a peer's answer to an operation.
    pub(super) fn answered(&mut self, connection: usize, id: u64, error: Option<Error>) -> Next<H> {
        self.operations.answered(connection, id, error)
    }

    /// Fails an operation whose request failed, or whose answer will not arrive.
    #[cold]
    pub(super) fn fail_unanswered(
        &mut self,
        id: u64,
        why: impl Into<crate::error::Failure>,
    ) -> Next<H> {
        self.operations.fail_unanswered(id, why)
    }

    /// The numbers of the unanswered chunks of a collective operation.
    pub(super) fn chunks_of(&self, run: u64) -> Vec<u64> {
        self.operations.chunks_of(run)
    }

    /// Takes an ended operation if no peer can access its memory. Otherwise, [`Self::take_released`] returns it later.
    #[inline]
    pub(super) fn release(&mut self, host: &H, id: u64) -> Option<Operation<H>> {
        let connections = &self.connections;
        self.operations
            .release(host, id, |connection| connections[connection].qp.as_ref())
    }

    /// Whether peers may still access the memory of ended operations.
    #[inline]
    pub(super) fn is_draining(&self) -> bool {
        self.operations.is_draining()
    }

    /// The ended operations whose memory peers have released by now.
    #[cold]
    pub(super) fn take_released(&mut self, host: &H, now: Instant) -> Vec<Operation<H>> {
        self.operations.take_released(host, now)
    }

    /// Reports an ended operation to the program when its turn comes.
    pub(super) fn report(&mut self, host: &H, operation: Operation<H>) {
        if operation.failure.is_some() {
            self.refund(&operation);
        }
        self.operations.report(host, operation);
    }

    /// Refunds the credit for a write's data that was never sent.
    pub(super) fn refund(&mut self, operation: &Operation<H>) {
        if operation.carries_data() {
            self.connections[operation.connection].credit.add(1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::operation::OperationKind;
    use super::super::test_host::{TestHost, outbox};
    use super::*;

    #[test]
    fn posted_requests_count_until_they_complete() {
        let host = TestHost::default();
        let mut outbox = outbox(&host);
        assert!(!outbox.is_busy() && outbox.has_room(0, 1));
        outbox.post(&host, 0, &copied(5, &[1, 2])).unwrap();
        assert_eq!(host.take(), ["post 7: 0x5"]);
        assert!(outbox.is_busy());
        assert_eq!(outbox.under_way(), 1, "a plain operation");
        host.refuses.set(Some(Error::NoMemory));
        let refused = outbox.post(&host, 0, &copied(6, &[]));
        assert_eq!(refused, Err(Error::NoMemory));
        assert!(!outbox.connection(0).request_completed());
        assert!(!outbox.is_busy() && outbox.under_way() == 0);
        outbox.refuse(0);
        let gone = outbox.post(&host, 0, &copied(7, &[]));
        assert_eq!(gone, Err(Error::NotConnected));
    }

    #[test]
    fn a_failed_write_returns_the_credit_of_its_data() {
        let host = TestHost::default();
        let mut outbox = outbox(&host);
        let all = outbox.connections()[0].credit.left();
        for (what, left) in [
            (OperationKind::WriteWithImmediate, all),
            (OperationKind::Transmit, (all.0 - 1, all.1)),
        ] {
            assert!(outbox.connection(0).credit.spend(0));
            let mut operation = Operation::new(0, what, Some(1));
            operation.fail(Error::Remote);
            outbox.report(&host, operation);
            assert_eq!(outbox.connections()[0].credit.left(), left);
        }
        assert_eq!(host.take(), ["completed 1: Remote"; 2]);
    }
}
