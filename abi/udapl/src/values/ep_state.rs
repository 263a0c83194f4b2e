//! The states of an EP, and the table of the steps between them (uDAPL 2.0, 6.6.1; numbers of dat.h).

use crate::sys::consts::*;

/// The state of an EP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum State {
    /// New or reset.
    Unconnected = EP_STATE_UNCONNECTED,
    /// New, without the objects needed for a connection.
    Unconfigured = EP_STATE_UNCONFIGURED_UNCONNECTED,
    /// Belongs to an RSP.
    Reserved = EP_STATE_RESERVED,
    /// A connection request waits for the program's answer.
    PassivePending = EP_STATE_PASSIVE_CONNECTION_PENDING,
    /// Like [`State::PassivePending`], made by a PSP; the program has not yet assigned its objects.
    UnconfiguredPassive = EP_STATE_UNCONFIGURED_PASSIVE,
    /// The EP's connection request waits for the peer's answer.
    ActivePending = EP_STATE_ACTIVE_CONNECTION_PENDING,
    /// Connected.
    Connected = EP_STATE_CONNECTED,
    /// A graceful disconnect waits for its requests.
    DisconnectPending = EP_STATE_DISCONNECT_PENDING,
    /// The connection has ended, or could not be established.
    Disconnected = EP_STATE_DISCONNECTED,
    /// The program has accepted; the peer has not confirmed yet.
    CompletionPending = EP_STATE_COMPLETION_PENDING,
}

impl State {
    /// The name of the state in dat.h, in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unconnected => "unconnected",
            Self::Unconfigured => "unconfigured, unconnected",
            Self::Reserved => "reserved",
            Self::PassivePending => "passive connection pending",
            Self::UnconfiguredPassive => "unconfigured, passive connection pending",
            Self::ActivePending => "active connection pending",
            Self::Connected => "connected",
            Self::DisconnectPending => "disconnect pending",
            Self::Disconnected => "disconnected",
            Self::CompletionPending => "completion pending",
        }
    }
}

/// A step that changes the state of an EP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The program requests a connection.
    Connect,
    /// The connection is ready on both sides.
    Establish,
    /// The connection cannot be established.
    Fail,
    /// An RSP takes the EP.
    Reserve,
    /// The RSP is freed.
    Release,
    /// A peer requests a connection to the EP's RSP.
    Request,
    /// The program assigns an EP of a PSP its objects.
    Configure,
    /// The program accepts a connection request.
    Accept,
    /// The program rejects a connection request.
    Reject,
    /// The program disconnects after its requests.
    DisconnectGracefully,
    /// The requests that a graceful disconnect waits for are complete.
    Drain,
    /// The program disconnects at once.
    DisconnectAbruptly,
    /// The peer has disconnected.
    PeerDisconnect,
    /// The connection broke.
    Break,
    /// The program resets the EP.
    Reset,
    /// Two datagram EPs have each other's address.
    Resolve,
}

use State::*;
use Step::*;

/// All possible steps.
const TABLE: &[(State, Step, State)] = &[
    (Unconnected, Connect, ActivePending),
    (Unconnected, Reserve, Reserved),
    (Unconnected, Accept, CompletionPending),
    (Unconnected, Reset, Unconnected),
    (Unconfigured, Configure, Unconnected),
    (Reserved, Release, Unconnected),
    (Reserved, Request, PassivePending),
    (PassivePending, Accept, CompletionPending),
    (PassivePending, Reject, Unconnected),
    (UnconfiguredPassive, Configure, PassivePending),
    (UnconfiguredPassive, Reject, Unconfigured),
    (ActivePending, Establish, Connected),
    (ActivePending, Fail, Disconnected),
    (ActivePending, DisconnectGracefully, Disconnected),
    (ActivePending, DisconnectAbruptly, Disconnected),
    (CompletionPending, Establish, Connected),
    (CompletionPending, Fail, Disconnected),
    (CompletionPending, DisconnectGracefully, Disconnected),
    (CompletionPending, DisconnectAbruptly, Disconnected),
    (CompletionPending, PeerDisconnect, Disconnected),
    (CompletionPending, Break, Disconnected),
    (Connected, DisconnectGracefully, DisconnectPending),
    (Connected, DisconnectAbruptly, Disconnected),
    (Connected, PeerDisconnect, Disconnected),
    (Connected, Break, Disconnected),
    (DisconnectPending, Drain, Disconnected),
    (DisconnectPending, DisconnectAbruptly, Disconnected),
    (DisconnectPending, PeerDisconnect, Disconnected),
    (DisconnectPending, Break, Disconnected),
    (Disconnected, Reset, Unconnected),
    (Unconnected, Resolve, Connected),
    (PassivePending, Resolve, Connected),
    (Connected, Resolve, Connected),
];

impl State {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Unconnected,
        Unconfigured,
        Reserved,
        PassivePending,
        UnconfiguredPassive,
        ActivePending,
        Connected,
        DisconnectPending,
        Disconnected,
        CompletionPending,
    ];

    /// The state after a step; `None`: the step cannot be taken in this state.
    #[must_use]
    pub fn after(self, step: Step) -> Option<Self> {
        let row = TABLE.iter().find(|row| (row.0, row.1) == (self, step));
        row.map(|row| row.2)
    }

    /// The state with this number.
    #[must_use]
    pub fn from_number(number: dat_ep_state) -> Self {
        let found = Self::ALL.into_iter().find(|it| *it as i32 == number);
        found.unwrap_or(Disconnected)
    }

    /// The subtype that a call returns with `DAT_INVALID_STATE` if this state does not allow it.
    #[must_use]
    pub const fn subtype(self) -> dat_return_subtype {
        match self {
            Unconnected => INVALID_STATE_EP_UNCONNECTED,
            Unconfigured => INVALID_STATE_EP_UNCONFIGURED,
            Reserved => INVALID_STATE_EP_RESERVED,
            PassivePending => INVALID_STATE_EP_PASSCONNPENDING,
            UnconfiguredPassive => INVALID_STATE_EP_UNCONFPASSIVE,
            ActivePending => INVALID_STATE_EP_ACTCONNPENDING,
            Connected => INVALID_STATE_EP_CONNECTED,
            DisconnectPending => INVALID_STATE_EP_DISCPENDING,
            Disconnected => INVALID_STATE_EP_DISCONNECTED,
            CompletionPending => INVALID_STATE_EP_COMPLPENDING,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table_text() -> String {
        let line = |row: &(State, Step, State)| {
            let from = format!("{:?}", row.0);
            let step = format!("{:?}", row.1);
            format!("{from:<19} {step:<20} -> {:?}\n", row.2)
        };
        TABLE.iter().map(line).collect()
    }

    /// A snapshot of the whole table: changing a rule takes two edits.
    #[test]
    fn the_ep_state_table_matches_the_snapshot() {
        let recorded = include_str!("ep_state.snapshot.txt");
        let text = table_text();
        assert_eq!(
            text, recorded,
            "the table changed; if that is intended, update ep_state.snapshot.txt to:\n{text}"
        );
    }

    #[test]
    fn no_step_has_two_outcomes_in_one_ep_state() {
        for (index, row) in TABLE.iter().enumerate() {
            let rest = &TABLE[index + 1..];
            let again = rest
                .iter()
                .any(|other| (other.0, other.1) == (row.0, row.1));
            assert!(!again, "{row:?}");
        }
    }

    #[test]
    fn ep_states_have_the_numbers_of_the_header() {
        for state in State::ALL {
            assert_eq!(State::from_number(state as i32), state);
        }
        assert_eq!(State::Connected as i32, 9);
        assert_eq!(State::Disconnected as i32, 11);
    }
}
