//! Operations that were posted, and whose result no caller has taken yet.

use crate::connection::Connection;
use crate::error::Result;
use crate::memory::MemoryRegion;
use rkey_engine::Completion;
use std::marker::PhantomData;
use std::time::Duration;

/// An operation in flight. It borrows the connection and the local region, so that neither can be dropped while a
/// caller waits for the result.
///
/// Dropping it does not stop the operation; it only discards its result. That is safe at any moment: the device holds
/// the memory for one step at a time and checks again for the next, so deregistering fails the operation before the
/// memory is freed. The next call on the connection reports the failure of an operation whose `Pending` was dropped.
#[must_use = "the operation is only posted; call wait() to know that it is done"]
pub struct Pending<'a, T = ()> {
    connection: &'a Connection,
    number: u64,
    kind: Kind,
    result: fn(&Pending<'a, T>, &Completion) -> Result<T>,
    borrowed: PhantomData<&'a MemoryRegion>,
    done: bool,
}

/// The queue of an operation, and the slot of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Send, write, read.
    Plain,
    /// An atomic, whose old value arrives in this slot.
    Atomic(u32),
    /// A receive.
    Receive,
}

impl<'a> Pending<'a> {
    pub(crate) fn plain(connection: &'a Connection, number: u64) -> Self {
        Self::new(connection, number, Kind::Plain, |_, _| Ok(()))
    }
}

impl<'a> Pending<'a, u64> {
    pub(crate) fn atomic(connection: &'a Connection, number: u64, place: u32) -> Self {
        Self::new(
            connection,
            number,
            Kind::Atomic(place),
            |this, _| match this.kind {
                Kind::Atomic(place) => this.connection.results.value(place),
                _ => Ok(0),
            },
        )
    }
}

impl<'a> Pending<'a, usize> {
    pub(crate) fn receive(connection: &'a Connection, number: u64) -> Self {
        // The length of a message is a `u32`, so it fits.
        Self::new(connection, number, Kind::Receive, |_, completion| {
            Ok(completion.bytes as usize)
        })
    }
}

impl<'a, T> Pending<'a, T> {
    fn new(
        connection: &'a Connection,
        number: u64,
        kind: Kind,
        result: fn(&Self, &Completion) -> Result<T>,
    ) -> Self {
        Self {
            connection,
            number,
            kind,
            result,
            borrowed: PhantomData,
            done: false,
        }
    }

    /// Waits until the operation is done, up to the device's timeout.
    ///
    /// After `Ok`, a write has reached the peer's memory, a read or atomic has its data, a send has been received.
    ///
    /// # Errors
    /// [`Error::Denied`](crate::Error::Denied) with the reason if the access was denied,
    /// [`Error::PeerGone`](crate::Error::PeerGone), [`Error::Flushed`](crate::Error::Flushed) if an earlier operation
    /// failed, [`Error::Timeout`](crate::Error::Timeout): the operation may then still be executed.
    pub fn wait(self) -> Result<T> {
        let timeout = self.connection.timeout();
        self.wait_timeout(timeout)
    }

    /// Waits up to `timeout`.
    ///
    /// # Errors
    /// Same as [`Pending::wait`].
    pub fn wait_timeout(mut self, timeout: Duration) -> Result<T> {
        let flight = self.connection.flight(self.kind);
        let completion = flight.wait(self.number, timeout, "the operation")?;
        let result = (self.result)(&self, &completion);
        self.done = true;
        self.connection.finish(self.kind);
        result
    }

    /// Returns the result if the operation is done, or the operation if it is not.
    ///
    /// # Errors
    /// Same as [`Pending::wait`], in the inner result.
    pub fn try_wait(mut self) -> std::result::Result<Result<T>, Self> {
        match self.connection.flight(self.kind).outcome(self.number) {
            None => Err(self),
            Some(Err(error)) => Ok(Err(error)),
            Some(Ok(completion)) => {
                let result = (self.result)(&self, &completion);
                self.done = true;
                self.connection.finish(self.kind);
                Ok(result)
            }
        }
    }

    /// Whether the operation is finished, with or without an error.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.connection.flight(self.kind).is_finished(self.number)
    }
}

impl<T> Drop for Pending<'_, T> {
    fn drop(&mut self) {
        if !self.done {
            self.connection.abandon(self.kind, self.number);
        }
    }
}

impl<T> std::fmt::Debug for Pending<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending")
            .field("number", &self.number)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
