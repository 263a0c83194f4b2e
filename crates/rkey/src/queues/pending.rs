//! Operations that were posted, and whose result no caller has taken yet.

use crate::error::Result;
use crate::memory::memory_region::MemoryRegion;
use crate::queues::flight::Flight;
use crate::queues::results::ResultPlaces;
use rkey_engine::Completion;
use std::marker::PhantomData;
use std::time::Duration;

/// An operation in flight. It borrows the connection and the local region, so that neither can be dropped while a
/// caller waits for the result.
///
/// Dropping a `Pending` does not stop the operation, but only discards its result. Dropping is safe at any moment: the device holds
/// the memory for one step at a time and checks again for the next, so deregistering fails the operation before the
/// memory is freed. The next call on the connection reports the failure of an operation whose `Pending` was dropped.
#[must_use = "the operation is only posted; call wait() to wait for its result"]
pub struct Pending<'a, T = ()> {
    flight: &'a Flight,
    timeout: Duration,
    number: u64,
    kind: Kind<'a>,
    result: fn(&Pending<'a, T>, &Completion) -> Result<T>,
    borrowed: PhantomData<&'a MemoryRegion>,
    done: bool,
}

/// The result of an operation.
#[derive(Clone, Copy)]
enum Kind<'a> {
    /// Send, write, read.
    Plain,
    /// An atomic, whose old value arrives in this slot.
    Atomic(&'a ResultPlaces, u32),
    /// A receive, whose length is kept.
    Receive,
}

impl<'a> Pending<'a> {
    pub(crate) fn plain(flight: &'a Flight, timeout: Duration, number: u64) -> Self {
        Self::new(flight, timeout, number, Kind::Plain, |_, _| Ok(()))
    }
}

impl<'a> Pending<'a, u64> {
    pub(crate) fn atomic(
        flight: &'a Flight,
        timeout: Duration,
        number: u64,
        (places, place): (&'a ResultPlaces, u32),
    ) -> Self {
        let kind = Kind::Atomic(places, place);
        Self::new(flight, timeout, number, kind, |this, _| match this.kind {
            Kind::Atomic(places, place) => places.value(place),
            _ => Ok(0),
        })
    }
}

impl<'a> Pending<'a, usize> {
    pub(crate) fn receive(flight: &'a Flight, timeout: Duration, number: u64) -> Self {
        // The length of a message is a `u32`, so it fits.
        Self::new(flight, timeout, number, Kind::Receive, |_, completion| {
            Ok(completion.bytes as usize)
        })
    }
}

impl<'a, T> Pending<'a, T> {
    fn new(
        flight: &'a Flight,
        timeout: Duration,
        number: u64,
        kind: Kind<'a>,
        result: fn(&Self, &Completion) -> Result<T>,
    ) -> Self {
        Self {
            flight,
            timeout,
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
        let timeout = self.timeout;
        self.wait_timeout(timeout)
    }

    /// Waits up to `timeout`.
    ///
    /// # Errors
    /// Same as [`Pending::wait`].
    pub fn wait_timeout(mut self, timeout: Duration) -> Result<T> {
        let completion = self
            .flight
            .wait(self.number, timeout, "the operation to complete")?;
        self.finish(&completion)
    }

    /// Returns the result if the operation is done, or the operation if it is not.
    ///
    /// # Errors
    /// Same as [`Pending::wait`], in the inner result.
    pub fn try_wait(mut self) -> std::result::Result<Result<T>, Self> {
        match self.flight.outcome(self.number) {
            None => Err(self),
            Some(Err(error)) => Ok(Err(error)),
            Some(Ok(completion)) => Ok(self.finish(&completion)),
        }
    }

    /// Takes the result of the operation, which is done.
    fn finish(&mut self, completion: &Completion) -> Result<T> {
        let result = (self.result)(self, completion);
        self.done = true;
        if let Kind::Atomic(places, place) = self.kind {
            places.give_back(place);
        }
        result
    }

    /// Whether the operation is finished, with or without an error.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.flight.is_finished(self.number)
    }
}

impl<T> Drop for Pending<'_, T> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        match self.kind {
            Kind::Plain => {}
            Kind::Receive => self.flight.forget(self.number),
            Kind::Atomic(places, place) => places.abandon(self.number, place),
        }
    }
}

impl<T> std::fmt::Debug for Pending<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}
