//! The context of one call of a queue pair.

use super::event::{Counters, Event, Received, Status};
use std::collections::VecDeque;

/// The time, the host, and the output.
pub(crate) struct Step<'a, H> {
    /// The time, in nanoseconds of any monotonic clock.
    pub(crate) now: u64,
    pub(crate) host: &'a mut H,
    pub(crate) out: &'a mut Output,
}

/// A queue pair's events and counters.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) events: VecDeque<Event>,
    pub(crate) counters: Counters,
}

impl Output {
    pub(crate) fn complete(&mut self, id: u64, status: Status) {
        self.events.push_back(Event::Completed { id, status });
    }

    pub(crate) fn receive(&mut self, received: Received) {
        self.events.push_back(Event::Received(received));
    }

    pub(crate) fn fail_receive(&mut self, id: u64, status: Status) {
        self.events.push_back(Event::ReceiveFailed { id, status });
    }
}
