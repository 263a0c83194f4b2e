//! Which completions of an endpoint are told in the order of its transfers: those of a connected one.

use super::operation::{Operation, What};
use super::{Endpoint, Landing, Live, State};
use crate::cq::Entry;
use crate::errno::FiError;
use crate::sys::FI_EP_MSG;
use rkey_rdm::operation::Plain;

/// What a program is told about something that arrived.
pub(crate) enum Arrival {
    /// A message is in its receive, or why not.
    Message(Landing, Option<FiError>),
    /// The completion of a write that came with data.
    Data(Entry),
}

impl Endpoint {
    /// Numbers an operation of the program's, and gives it its place in the order of completions where it needs one.
    /// What it holds is known by then: it may be a plain one.
    #[inline]
    pub(super) fn begin(&self, state: &mut State, mut operation: Operation) -> u64 {
        if self.ep_type == FI_EP_MSG {
            // What waits only for the device completes in order by itself.
            let waits = operation.answered || matches!(operation.what, What::Write { .. });
            if waits || !state.sends.is_empty() {
                operation.turn = Some(state.sends.enter());
            }
        }
        let plain = operation.plain().and_then(Plain::number);
        plain.unwrap_or_else(|| state.operations.add(operation))
    }

    /// The place of something that arrived in the order of completions: none where it can be told at once.
    #[inline]
    pub(super) fn turn(&self, state: &mut State, takes_time: bool) -> Option<u64> {
        let waits = takes_time || !state.arrivals.is_empty();
        (self.ep_type == FI_EP_MSG && waits).then(|| state.arrivals.enter())
    }

    /// Tells the program what arrived, and what waited for that to be told.
    pub(super) fn in_turn(live: &Live, state: &mut State, turn: Option<u64>, arrival: Arrival) {
        let tell = |arrival| match arrival {
            Arrival::Message(landing, error) => Self::complete(live, landing, error),
            Arrival::Data(entry) => {
                if let Some(rx) = &live.rx {
                    rx.cq.push(entry);
                }
            }
        };
        let Some(turn) = turn else {
            return tell(arrival);
        };
        state.arrivals.finish(turn, arrival);
        while let Some(arrival) = state.arrivals.pop() {
            tell(arrival);
        }
    }
}
