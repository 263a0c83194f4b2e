//! The states of a queue pair, and the table of transitions that a program may request.
//!
//! The table is data: for each legal transition and each type of queue pair, the required and the optional attributes.
//! It is the table of the InfiniBand specification (10.3.1, 11.2.5.3) as in `ibv_modify_qp(3)` and the Linux kernel,
//! without the attributes that belong to a port (P_Key, port number, alternate path), which a front end checks itself.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum QpType {
    /// Reliable connection: all operations, in order, with errors reported.
    Rc,
    /// Unreliable connection: sends and writes; errors at the peer are not reported.
    Uc,
    /// The sending half of an extended reliable connection: each request names a shared receive queue at the peer.
    XrcSend,
    /// The receiving half of an extended reliable connection: executes each request for the shared receive queue that
    /// it names.
    XrcRecv,
    /// Unreliable datagram: sends to any queue pair, up to one MTU.
    Ud,
    /// Raw frames: sends to all raw queue pairs that have a flow for the frame.
    Raw,
}

impl QpType {
    /// All types.
    pub const ALL: [Self; 6] = [
        Self::Rc,
        Self::Uc,
        Self::Ud,
        Self::XrcSend,
        Self::XrcRecv,
        Self::Raw,
    ];

    /// Whether requests are acknowledged and errors reported.
    #[inline]
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }

    /// Whether queue pairs of this type have no peer: each message names its own destination.
    #[inline]
    #[must_use]
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Raw)
    }

    /// Whether the type is an ordinary connection between two queue pairs.
    #[inline]
    #[must_use]
    pub const fn is_plain_connection(self) -> bool {
        matches!(self, Self::Rc | Self::Uc)
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::XrcSend => "XRC send",
            Self::XrcRecv => "XRC receive",
            Self::Raw => "raw packet",
        })
    }
}

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum QpState {
    /// New or reset: accepts nothing.
    Reset,
    /// Accepts receives.
    Init,
    /// Ready to receive: executes the peer's requests.
    Rtr,
    /// Ready to send: executes everything.
    Rts,
    /// Send queue drained: like Rts, but does not start new sends.
    Sqd,
    /// Send queue error (unreliable types): sends are flushed, receives continue.
    Sqe,
    /// Everything is flushed.
    Error,
}

impl fmt::Display for QpState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Error => "ERR",
        })
    }
}

impl QpState {
    /// All states, in the order of their normal use.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Error,
    ];

    /// Whether receives may be posted (in the error state they are flushed).
    #[inline]
    pub const fn takes_receives(self) -> bool {
        !matches!(self, Self::Reset)
    }

    /// Whether sends may be posted (in the error states they are flushed).
    #[inline]
    pub const fn takes_sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Sqe | Self::Error)
    }

    /// Whether the peer's requests are executed.
    #[inline]
    pub const fn responds(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
}

bitflags! {
    /// Which attributes a modify call sets.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Attributes: u32 {
        /// Remote access that the queue pair allows.
        const ACCESS = 1;
        /// The connected queue pair.
        const PEER = 1 << 1;
        /// The path MTU.
        const PATH_MTU = 1 << 2;
        /// First number of messages sent.
        const SEND_MSN = 1 << 3;
        /// First number of messages received.
        const RECV_MSN = 1 << 4;
        /// Transport timeout.
        const TIMEOUT = 1 << 5;
        /// Transport retries.
        const RETRY_COUNT = 1 << 6;
        /// Receiver-not-ready retries.
        const RNR_RETRY = 1 << 7;
        /// RNR delay sent to the peer.
        const MIN_RNR_TIMER = 1 << 8;
        /// Reads and atomics outstanding as initiator.
        const MAX_READS_OUT = 1 << 9;
        /// Reads and atomics outstanding as target.
        const MAX_READS_IN = 1 << 10;
        /// Queue key of datagrams.
        const QKEY = 1 << 11;
    }
}

/// Attributes for one transition, per type.
#[derive(Clone, Copy, Debug)]
struct PerType {
    rc: Attributes,
    uc: Attributes,
    ud: Attributes,
}

/// One legal transition.
#[derive(Clone, Copy, Debug)]
struct Step {
    from: QpState,
    to: QpState,
    required: PerType,
    optional: PerType,
}

const NONE: Attributes = Attributes::empty();

const fn join<const N: usize>(parts: [Attributes; N]) -> Attributes {
    let mut all = NONE;
    let mut i = 0;
    while i < N {
        all = all.union(parts[i]);
        i += 1;
    }
    all
}

const fn per(rc: Attributes, uc: Attributes, ud: Attributes) -> PerType {
    PerType { rc, uc, ud }
}

const fn step(from: QpState, to: QpState, required: PerType, optional: PerType) -> Step {
    Step {
        from,
        to,
        required,
        optional,
    }
}

const NOTHING: PerType = per(NONE, NONE, NONE);

use Attributes as A;
use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};

/// What may change while a queue pair is in service.
const IN_SERVICE: PerType = per(join([A::ACCESS, A::MIN_RNR_TIMER]), A::ACCESS, A::QKEY);

/// The transitions that a program may request. Transitions to Reset and to Error are not listed: they are legal from every
/// state and take no attributes.
const TABLE: &[Step] = &[
    step(Reset, Init, per(A::ACCESS, A::ACCESS, A::QKEY), NOTHING),
    step(Init, Init, NOTHING, per(A::ACCESS, A::ACCESS, A::QKEY)),
    step(
        Init,
        Rtr,
        per(
            join([
                A::PEER,
                A::PATH_MTU,
                A::RECV_MSN,
                A::MAX_READS_IN,
                A::MIN_RNR_TIMER,
            ]),
            join([A::PEER, A::PATH_MTU, A::RECV_MSN]),
            NONE,
        ),
        per(A::ACCESS, A::ACCESS, join([A::QKEY, A::PATH_MTU])),
    ),
    step(
        Rtr,
        Rts,
        per(
            join([
                A::SEND_MSN,
                A::MAX_READS_OUT,
                A::RETRY_COUNT,
                A::RNR_RETRY,
                A::TIMEOUT,
            ]),
            A::SEND_MSN,
            A::SEND_MSN,
        ),
        IN_SERVICE,
    ),
    step(Rts, Rts, NOTHING, IN_SERVICE),
    step(Rts, Sqd, NOTHING, NOTHING),
    step(Sqd, Rts, NOTHING, IN_SERVICE),
    step(
        Sqd,
        Sqd,
        NOTHING,
        per(
            join([
                A::PEER,
                A::TIMEOUT,
                A::RETRY_COUNT,
                A::RNR_RETRY,
                A::MAX_READS_OUT,
                A::MAX_READS_IN,
                A::ACCESS,
                A::MIN_RNR_TIMER,
            ]),
            join([A::PEER, A::ACCESS]),
            A::QKEY,
        ),
    ),
    step(Sqe, Rts, NOTHING, per(NONE, A::ACCESS, A::QKEY)),
];

/// The attributes that a legal transition takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The attributes that must be given.
    pub required: Attributes,
    /// The attributes that may be given.
    pub optional: Attributes,
}

/// The rule for a transition, or `None` if the transition is not legal for this type.
pub fn rule(qp_type: QpType, from: QpState, to: QpState) -> Option<Rule> {
    if matches!(to, Reset | Error) {
        return Some(Rule {
            required: NONE,
            optional: NONE,
        });
    }
    if matches!(from, Sqe) && qp_type.is_reliable() {
        return None; // a reliable queue pair is never in this state
    }
    let pick = |per: &PerType| match qp_type {
        QpType::Rc => per.rc,
        QpType::Uc => per.uc,
        QpType::Ud => per.ud,
        QpType::Raw => NONE,
        // Each half has the attributes of its direction (IBA annex A14).
        QpType::XrcSend => per.rc.difference(A::MAX_READS_IN.union(A::MIN_RNR_TIMER)),
        QpType::XrcRecv => {
            per.rc
                .difference(join([A::MAX_READS_OUT, A::RETRY_COUNT, A::RNR_RETRY]))
        }
    };
    TABLE
        .iter()
        .find(|step| step.from == from && step.to == to)
        .map(|step| Rule {
            required: pick(&step.required),
            optional: pick(&step.optional),
        })
}

/// The whole table as text, for people and for the snapshot in the tests.
pub fn table_text() -> String {
    let mut text = String::new();
    for qp_type in QpType::ALL {
        for from in QpState::ALL {
            for to in QpState::ALL {
                if let Some(rule) = rule(qp_type, from, to) {
                    let line = format!(
                        "{:<7} {:<6} -> {:<6} required: {}; optional: {}",
                        format!("{qp_type:?}"),
                        format!("{from:?}"),
                        format!("{to:?}"),
                        words(rule.required),
                        words(rule.optional)
                    );
                    text.push_str(&line);
                    text.push('\n');
                }
            }
        }
    }
    text
}

/// The names of some attributes, for messages.
pub(crate) fn words(attributes: Attributes) -> String {
    if attributes.is_empty() {
        return "-".to_owned();
    }
    attributes
        .iter_names()
        .map(|(name, _)| name.to_lowercase())
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The snapshot has the whole table, so changing a rule takes two edits.
    #[test]
    fn the_transition_table_matches_its_snapshot() {
        let recorded = include_str!("state.snapshot.txt");
        assert_eq!(
            table_text(),
            recorded,
            "if this is wanted, record it again:\n{}",
            table_text()
        );
    }

    #[test]
    fn every_state_reaches_reset_and_error() {
        for qp_type in QpType::ALL {
            for from in QpState::ALL {
                assert!(rule(qp_type, from, Reset).is_some());
                assert!(rule(qp_type, from, Error).is_some());
                assert!(
                    rule(qp_type, from, Sqe).is_none(),
                    "only the device enters Sqe"
                );
            }
        }
    }

    #[test]
    fn posts_are_accepted_only_in_their_states() {
        assert!(!Reset.takes_receives() && Init.takes_receives() && Error.takes_receives());
        assert!(!Reset.takes_sends() && !Init.takes_sends() && !Rtr.takes_sends());
        assert!(Rts.takes_sends() && Error.takes_sends());
        assert!(!Init.responds() && Rtr.responds() && !Error.responds());
    }
}
