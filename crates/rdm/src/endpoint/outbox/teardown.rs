//! The end of connections: which have failed, and when their queue pairs are destroyed and their slots freed.

use super::super::Host;
use super::super::in_flight::Next;
use super::super::operation::{Operation, Retained};
use super::Outbox;
use crate::address::Destination;
use crate::backlog::Backlog;
use crate::connection::{Event, Teardown};
use crate::error::Error;
use std::time::Instant;

/// What a closed endpoint leaves behind. Peers may use the memory of its operations until the queue pairs are quiet.
#[must_use]
pub struct Remains<H: Host> {
    /// The queue pairs.
    pub qps: Vec<H::Qp>,
    operations: Vec<Operation<H>>,
}

impl<H: Host> Remains<H> {
    /// Revokes the keys of messages that peers never fetched. Called once the queue pairs are quiet.
    pub fn withdraw(self, host: &H) {
        for operation in self.operations {
            if let Retained::Exposed(exposed) = &operation.retained {
                host.withdraw(exposed);
            }
        }
    }
}

impl<H: Host> Outbox<H> {
    /// Whether the queue pair of a connection has failed.
    pub(in crate::endpoint) fn is_broken(&self, host: &H, connection: usize) -> bool {
        let qp = self.connections[connection].qp.as_ref();
        qp.is_some_and(|qp| host.is_broken(qp))
    }

    /// The connections whose queue pair has failed without a message from the peer. The peer's last messages are in the
    /// completion queue by now, perhaps unread. So take completions before calling
    /// [`Endpoint::lose`](super::super::Endpoint::lose) for each connection. A connection that is being made is checked
    /// once it is made.
    #[cold]
    #[must_use]
    pub fn broken(&self, host: &H) -> Vec<usize> {
        let is_over = |&connection: &usize| {
            let state = self.connections[connection].state();
            !state.is_lost() && !state.is_connecting() && self.is_broken(host, connection)
        };
        (0..self.connections.slots()).filter(is_over).collect()
    }

    /// An open connection to a destination, if there is one.
    #[cold]
    pub(in crate::endpoint) fn open_to(&self, host: &H, to: Destination) -> Option<usize> {
        self.connections.open_to(to, |qp| host.is_ready(qp))
    }

    /// Whether a message can be sent over a connection, which may still be in the making.
    pub(in crate::endpoint) fn can_send(&self, host: &H, connection: usize) -> bool {
        let it = &self.connections[connection];
        let is_ready = it.qp.as_ref().is_some_and(|qp| host.is_ready(qp));
        !it.state().is_lost() && is_ready
    }

    /// How many operations use a connection.
    pub(in crate::endpoint) fn operations_of(&self, connection: usize) -> usize {
        self.operations.of_connection(connection).len()
    }

    /// Drops the requests that wait for room on a lost connection.
    pub(in crate::endpoint) fn take_backlog(&mut self, connection: usize) -> Backlog {
        std::mem::take(&mut self.connections[connection].backlog)
    }

    /// Fails the operation of a request that was dropped.
    pub(in crate::endpoint) fn fail_dropped(&mut self, id: u64) -> Next<H> {
        self.operations.fail(id, Error::ConnectionReset)
    }

    /// The numbers of a connection's operations that wait for the peer's answer.
    pub(in crate::endpoint) fn unanswered_of(&self, connection: usize) -> Vec<u64> {
        self.operations.unanswered_of(connection)
    }

    /// Makes the next scan for ended connections due at once.
    pub fn hurry_teardown(&mut self) {
        self.connections.hurry_teardown();
    }

    /// Whether any ended connection still has its slot.
    #[inline]
    pub(in crate::endpoint) fn awaits_teardown(&self) -> bool {
        self.connections.awaits_teardown()
    }

    /// Tears down ended connections to which no posted request, no waiting answer and no operation refers. Call it right
    /// after taking the completions, so that destroying a queue pair loses none. Returns the destinations of the
    /// connections whose slots are free now.
    #[cold]
    pub(in crate::endpoint) fn tear_down(&mut self, host: &H, now: Instant) -> Vec<Destination> {
        let mut freed = Vec::new();
        if !self.connections.is_teardown_due(now) {
            return freed;
        }
        for index in 0..self.connections.slots() {
            if self.connections[index].teardown(false) == Teardown::Wait {
                continue;
            }
            let referred = self.operations.uses(index);
            let it = &self.connections[index];
            match (it.teardown(referred), &it.qp) {
                (Teardown::Wait, _) => {}
                (Teardown::End, qp) => {
                    if let Some(qp) = qp {
                        host.end(qp);
                    }
                    self.connections.apply(index, Event::Ended);
                }
                (Teardown::Release, Some(qp)) if !host.is_quiet(qp) => {}
                (Teardown::Release, qp) => {
                    if let Some(qpn) = qp.as_ref().map(|qp| host.qpn(qp)) {
                        drop(self.connections.take_qp(index, qpn));
                    }
                    freed.extend(self.connections.release(index));
                }
            }
        }
        freed
    }

    /// Ends all connections and operations at once; nothing is reported to the program.
    pub(in crate::endpoint) fn close(&mut self) -> Remains<H> {
        let mut qps = Vec::new();
        for connection in 0..self.connections.slots() {
            self.connections.apply(connection, Event::Closed);
            qps.extend(self.connections[connection].qp.take());
        }
        Remains {
            qps,
            operations: self.operations.take_all(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::operation::OperationKind;
    use super::super::super::test_host::{TestHost, outbox};
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_lost_connection_is_torn_down_when_nothing_refers_to_it() {
        let host = TestHost::default();
        let mut outbox = outbox(&host);
        let mut now = Instant::now();
        let mut scan = |outbox: &mut Outbox<TestHost>| {
            now += Duration::from_secs(1);
            outbox.tear_down(&host, now)
        };
        let id = outbox.begin(Operation::new(0, OperationKind::Transmit, None).awaiting_answer());
        assert!(scan(&mut outbox).is_empty() && !outbox.awaits_teardown());
        assert!(outbox.apply(0, Event::Lost).lost());
        assert!(!outbox.can_send(&host, 0) && outbox.awaits_teardown());
        assert!(scan(&mut outbox).is_empty(), "an operation refers to it");
        assert_eq!(outbox.unanswered_of(0), [id]);
        drop(outbox.forget(id));
        assert!(scan(&mut outbox).is_empty() && host.take() == ["end 7"]);
        host.busy.set(true);
        assert!(scan(&mut outbox).is_empty(), "the peer uses our memory");
        host.busy.set(false);
        assert_eq!(scan(&mut outbox).len(), 1);
        assert_eq!(outbox.connections().count(), 0);
        assert!(!outbox.awaits_teardown());
    }

    #[test]
    fn a_closed_endpoint_leaves_its_queue_pairs_and_the_memory_of_its_messages() {
        let host = TestHost::default();
        let mut outbox = outbox(&host);
        let mut operation = Operation::new(0, OperationKind::Transmit, Some(1));
        operation.retained = Retained::Exposed(Box::new(40));
        outbox.begin(operation);
        let remains = outbox.close();
        assert_eq!(remains.qps, [7]);
        assert!(host.take().is_empty());
        remains.withdraw(&host);
        assert_eq!(host.take(), ["withdraw 40"]);
        assert_eq!(outbox.operations(), 0);
    }
}
