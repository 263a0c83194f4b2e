//! The states of a connection, and the table of its transitions.
//!
//! ```text
//!   Connecting ──made──► Open ──lost──► Lost ──ended──► Draining ──released──► Free
//!       │  └───refused──► Refused ─lost──▲ └──────────released──────────────────▲
//!       └──lost──► Aborted ──made, given up, refused──┘
//! ```
//!
//! An event that does not fit a state changes nothing. A peer that violates the protocol loses its connection, and its
//! messages are ignored: the state records that until the slot is free.

use std::fmt;

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// A thread is making the connection. The peer may be ready before the endpoint learns that the connection is made,
    /// so its messages are handled and answered, but none of our operations begin.
    Connecting,
    /// Both sides are ready: operations may begin.
    Open,
    /// The connection could not be made, and its endpoint has no other (connected endpoints only).
    Refused,
    /// The connection is lost, but the thread that is making it has not been notified yet.
    Aborted,
    /// The connection failed, or the peer closed it or exited.
    Lost,
    /// The connection's queue pair is in the error state, and a peer may still touch memory through it.
    Draining,
    /// Nothing refers to the connection: its slot is free.
    Free,
}

/// The events of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Both sides are ready.
    Made,
    /// The connection could not be made.
    GivenUp,
    /// The connection could not be made, and the endpoint keeps it as a record of that.
    Refused,
    /// The connection failed, or the peer closed it or exited.
    Lost,
    /// The peer violated the protocol.
    Violated,
    /// The connection's queue pair was put into the error state.
    Ended,
    /// Nothing refers to the connection.
    Released,
    /// The connection's endpoint is closed.
    Closed,
}

impl Phase {
    /// All phases, in the order of normal use.
    pub const ALL: [Self; 7] = [
        Self::Connecting,
        Self::Open,
        Self::Refused,
        Self::Aborted,
        Self::Lost,
        Self::Draining,
        Self::Free,
    ];

    /// The table: the next phase after an event; `None` if the event does not fit.
    #[must_use]
    pub const fn after(self, event: Event) -> Option<Self> {
        Some(match (self, event) {
            (Self::Connecting, Event::Made) => Self::Open,
            (Self::Connecting, Event::Refused) => Self::Refused,
            (Self::Connecting, Event::Lost | Event::Violated | Event::Closed) => Self::Aborted,
            (Self::Connecting | Self::Aborted, Event::GivenUp) => Self::Lost,
            (Self::Aborted, Event::Made | Event::Refused) => Self::Lost,
            (Self::Open | Self::Refused, Event::Lost | Event::Violated | Event::Closed) => {
                Self::Lost
            }
            (Self::Aborted | Self::Lost | Self::Draining, Event::Violated) => self,
            (Self::Lost, Event::Ended) => Self::Draining,
            (Self::Lost | Self::Draining, Event::Released) => Self::Free,
            _ => return None,
        })
    }
}

impl Event {
    /// All events.
    pub const ALL: [Self; 8] = [
        Self::Made,
        Self::GivenUp,
        Self::Refused,
        Self::Lost,
        Self::Violated,
        Self::Ended,
        Self::Released,
        Self::Closed,
    ];
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    phase: Phase,
    /// The peer violated the protocol.
    cut: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            phase: Phase::Connecting,
            cut: false,
        }
    }
}

/// What an event changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    from: State,
    to: State,
}

impl Change {
    /// Whether the event lost the connection.
    #[inline]
    #[must_use]
    pub fn lost(self) -> bool {
        self.to.is_lost() && !self.from.is_lost()
    }

    /// Whether the peer's messages are ignored from now on, and were not before.
    #[inline]
    #[must_use]
    pub fn cut(self) -> bool {
        self.from.hears() && !self.to.hears()
    }

    /// Whether operations could use the connection before the event.
    #[inline]
    #[must_use]
    pub fn was_open(self) -> bool {
        self.from.is_open()
    }
}

impl State {
    /// Applies an event. An event that does not fit changes nothing.
    pub fn apply(&mut self, event: Event) -> Change {
        let from = *self;
        if let Some(phase) = from.phase.after(event) {
            self.phase = phase;
            self.cut |= event == Event::Violated;
        }
        Change { from, to: *self }
    }

    /// The current phase.
    #[must_use]
    pub fn phase(self) -> Phase {
        self.phase
    }

    /// Whether our operations may begin.
    #[inline]
    #[must_use]
    pub fn is_open(self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether the peer's messages are handled.
    #[inline]
    #[must_use]
    pub fn hears(self) -> bool {
        !self.cut
    }

    /// Whether the connection has ended: nothing more can be sent.
    #[inline]
    #[must_use]
    pub fn is_lost(self) -> bool {
        matches!(
            self.phase,
            Phase::Aborted | Phase::Lost | Phase::Draining | Phase::Free
        )
    }

    /// Whether a thread is still making the connection.
    #[inline]
    #[must_use]
    pub fn is_connecting(self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Aborted)
    }

    /// Whether the connection has ended and still has its slot.
    #[inline]
    #[must_use]
    pub fn awaits_teardown(self) -> bool {
        matches!(self.phase, Phase::Lost | Phase::Draining)
    }

    /// Whether the connection's queue pair is in the error state for teardown.
    #[inline]
    #[must_use]
    pub fn is_draining(self) -> bool {
        self.phase == Phase::Draining
    }

    /// Whether the connection's slot is free.
    #[inline]
    #[must_use]
    pub fn is_free(self) -> bool {
        self.phase == Phase::Free
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Connecting => "connecting",
            Self::Open => "open",
            Self::Refused => "refused",
            Self::Aborted => "aborted",
            Self::Lost => "lost",
            Self::Draining => "draining",
            Self::Free => "free",
        })
    }
}

/// The whole table as text, for readers and for the snapshot in the tests.
#[must_use]
pub fn table_text() -> String {
    let mut text = String::new();
    for from in Phase::ALL {
        for event in Event::ALL {
            if let Some(to) = from.after(event) {
                let event = format!("{event:?}");
                text.push_str(&format!("{from:<10} {event:<8} -> {to}\n"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(events: &[Event]) -> State {
        let mut state = State::default();
        for &event in events {
            state.apply(event);
        }
        state
    }

    /// Compares the whole table with a snapshot, so changing a rule takes two edits.
    #[test]
    fn the_table_matches_its_snapshot() {
        let recorded = include_str!("state.snapshot.txt");
        assert_eq!(
            table_text(),
            recorded,
            "if the change is intended, update state.snapshot.txt:\n{}",
            table_text()
        );
    }

    #[test]
    fn the_loss_of_a_connection_is_reported_only_once() {
        let mut state = after(&[Event::Made]);
        assert!(state.is_open() && !state.is_connecting());
        let change = state.apply(Event::Lost);
        assert!(change.lost() && change.was_open() && !change.cut());
        for event in Event::ALL {
            let mut again = state;
            assert!(!again.apply(event).lost(), "{event:?}");
        }
    }

    #[test]
    fn a_peer_that_violates_the_protocol_is_cut_once_and_then_ignored() {
        for before in [&[][..], &[Event::Made], &[Event::Made, Event::Lost]] {
            let mut state = after(before);
            assert!(state.hears());
            let change = state.apply(Event::Violated);
            assert!(change.cut() && state.is_lost());
            assert!(!state.apply(Event::Violated).cut());
            for event in Event::ALL {
                let mut later = state;
                later.apply(event);
                assert!(!later.hears(), "{event:?}");
            }
        }
    }

    /// The thread that makes a connection uses its slot until it has reported the result.
    #[test]
    fn a_connection_is_not_torn_down_while_it_is_being_made() {
        let mut state = after(&[Event::Lost]);
        assert!(state.is_connecting() && state.is_lost() && !state.awaits_teardown());
        for event in [Event::Ended, Event::Released] {
            assert_eq!(state.apply(event).to, after(&[Event::Lost]));
        }
        for told in [Event::Made, Event::GivenUp, Event::Refused] {
            let mut state = state;
            assert!(!state.apply(told).lost(), "the connection was lost before");
            assert!(state.awaits_teardown() && !state.is_connecting());
        }
    }

    #[test]
    fn every_lost_connection_can_become_free() {
        for from in Phase::ALL {
            let mut state = State {
                phase: from,
                cut: false,
            };
            for event in [Event::Lost, Event::GivenUp, Event::Ended, Event::Released] {
                state.apply(event);
            }
            assert!(state.is_free(), "{from}");
        }
        assert!(
            Event::ALL
                .into_iter()
                .all(|event| Phase::Free.after(event).is_none())
        );
    }
}
