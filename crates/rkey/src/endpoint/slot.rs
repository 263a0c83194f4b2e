//! The result of one operation: filled by the endpoint, awaited by the program.

use super::message::Message;
use crate::address::Address;
use crate::memory::owned::Lent;
use parking_lot::Mutex;
use rkey_rdm::endpoint::ReceiveOutcome;
use rkey_rdm::error::{Error, Failure};

/// What an operation has in flight, and its result.
pub(super) struct Slot(Mutex<State>);

enum State {
    /// The endpoint has the operation and its buffer.
    InFlight(Lent),
    Ended(Outcome),
    /// The program has taken the result.
    Taken,
}

pub(super) enum Outcome {
    /// The message was sent; contains its buffer.
    Sent(Vec<u8>),
    /// A message arrived.
    Received(Message),
    /// The message was too long for the buffer.
    Truncated { len: usize, room: usize },
    /// The operation failed.
    Failed(Failure),
}

impl Slot {
    pub(super) fn new(buffer: Lent) -> Self {
        Self(Mutex::new(State::InFlight(buffer)))
    }

    pub(super) fn is_ended(&self) -> bool {
        !matches!(*self.0.lock(), State::InFlight(_))
    }

    /// Uses the buffer of an operation that has not ended.
    pub(super) fn with_buffer<T>(&self, body: impl FnOnce(&Lent) -> Option<T>) -> Option<T> {
        match &*self.0.lock() {
            State::InFlight(buffer) => body(buffer),
            State::Ended(_) | State::Taken => None,
        }
    }

    /// Takes the result, once.
    pub(super) fn take(&self) -> Option<Outcome> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Ended(outcome) => Some(outcome),
            other => {
                *state = other;
                None
            }
        }
    }

    fn end(&self, outcome: impl FnOnce(Lent) -> Outcome) {
        let mut state = self.0.lock();
        *state = match std::mem::replace(&mut *state, State::Taken) {
            State::InFlight(buffer) => State::Ended(outcome(buffer)),
            other => other,
        };
    }

    /// Ends an operation that receives no message: a send or transfer, or any operation that
    /// failed.
    pub(super) fn complete(&self, failure: Option<Failure>) {
        self.end(|buffer| match failure {
            None => {
                let len = buffer.len();
                Outcome::Sent(buffer.take(len))
            }
            Some(failure) => Outcome::Failed(failure),
        });
    }

    /// Ends a receive: a message has arrived in the buffer, or failed to.
    pub(super) fn receive(&self, from: Address, tag: u64, how: &ReceiveOutcome) {
        self.end(|buffer| {
            let room = buffer.len();
            match how.error {
                None => Outcome::Received(Message {
                    bytes: buffer.take(how.len),
                    from,
                    tag,
                }),
                Some(Error::Truncated) => Outcome::Truncated {
                    len: how.len + how.overflow,
                    room,
                },
                Some(error) => Outcome::Failed(error.into()),
            }
        });
    }
}
