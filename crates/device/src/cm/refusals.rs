//! Why connections were refused: the most recent refusals of this process, as either side.
//!
//! A message of the connection manager has room for a reason number only. This process often knows more: that the port belongs to
//! another user, that the peer's process has ended, that its own listener's backlog is full. `rkey explain` shows the list, and
//! the front ends use it in their errors.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;

use rkey_cm::ConnectionId;
use rkey_cm::manager::{Kind, NotAccepted, Refused};
use rkey_cm::wire::{Detail, RejectReason, SidrStatus, Transport};

/// The number of most recent refusals that are kept.
pub const KEPT: usize = 256;

/// Why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// No program listens at the address and port.
    NothingListens,
    /// No program uses the device of the other host.
    NoDevice,
    /// The port belongs to a program of this user, and users do not share their devices.
    OtherUser(u32),
    /// The port belongs to a program that shares its devices with other processes than ours does.
    OtherShare,
    /// The listener is for queue pairs of another type.
    QueuePairType,
    /// The listener's backlog, of this length, is full.
    Backlog(usize),
    /// The client's process has reached its limit of pending requests.
    TooManyRequests,
    /// No resources for another connection.
    NoRoom,
    /// The program refused, with this reason: 28, or 35 because of vendor options.
    Program(u16),
    /// The process at the other end has exited.
    PeerGone,
    /// The peer gave up the connection.
    GaveUp,
    /// The peer did not answer.
    NoAnswer,
    /// The private data does not fit into the message.
    PrivateData {
        /// The length of the private data, in bytes.
        given: usize,
        /// The maximum length, in bytes.
        most: usize,
    },
    /// An earlier connection uses the same queue pair or communication id.
    Stale,
    /// Another reason, by number.
    Other(u16),
}

impl Why {
    /// Examples: at least one of each variant.
    pub const EXAMPLES: [Self; 15] = [
        Self::NothingListens,
        Self::NoDevice,
        Self::OtherUser(1001),
        Self::OtherShare,
        Self::QueuePairType,
        Self::Backlog(8),
        Self::TooManyRequests,
        Self::NoRoom,
        Self::Program(RejectReason::CONSUMER.0),
        Self::PeerGone,
        Self::GaveUp,
        Self::NoAnswer,
        Self::PrivateData {
            given: 57,
            most: 56,
        },
        Self::Stale,
        Self::Other(RejectReason::MTU.0),
    ];

    /// The stable name of the reason, for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NothingListens => "nothing-listens",
            Self::NoDevice => "no-device",
            Self::OtherUser(_) => "other-user",
            Self::OtherShare => "other-share",
            Self::QueuePairType => "queue-pair-type",
            Self::Backlog(_) => "backlog",
            Self::TooManyRequests => "too-many-requests",
            Self::NoRoom => "no-room",
            Self::Program(_) => "program",
            Self::PeerGone => "peer-gone",
            Self::GaveUp => "gave-up",
            Self::NoAnswer => "no-answer",
            Self::PrivateData { .. } => "private-data",
            Self::Stale => "stale",
            Self::Other(_) => "other",
        }
    }

    /// What the user can do about the refusal.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::NothingListens => {
                "Start the server first, or check the address, port and port space: `rkey ls` lists all listeners."
            }
            Self::NoDevice => {
                "Start the server there, with RKEY_WIRE=auto, and let its host's firewall pass UDP port 4791."
            }
            Self::OtherUser(_) => {
                "If both users trust each other, set RKEY_SHARE=all for both programs."
            }
            Self::OtherShare => "Set RKEY_SHARE=all for both programs, or for neither.",
            Self::QueuePairType => {
                "Both programs must use the same type: RC, UC or UD; `rkey ls` shows the listener's."
            }
            Self::Backlog(_) => {
                "The server must handle requests faster, or listen with a longer backlog. The client retransmits its request."
            }
            Self::TooManyRequests => {
                "The server must accept or reject its pending requests. The client retransmits its request."
            }
            Self::NoRoom => "Close some connections: a process can have at most 32,768.",
            Self::Program(_) => "Check the peer's private data, which may say why.",
            Self::PeerGone => "Check why the other program exited before it answered.",
            Self::GaveUp => {
                "The other program stopped waiting or exited: accept its requests sooner."
            }
            Self::NoAnswer => {
                "The other program may be stopped, may not be fetching its events, or may have a full backlog: `rkey ls` shows which side is waiting."
            }
            Self::PrivateData { .. } => {
                "Pass less private data, and send the rest in a message after the connection is established."
            }
            Self::Stale => "Connect again with another queue pair.",
            Self::Other(_) => {
                "Look up the number among the reject reasons in the InfiniBand specification, volume 1, section 12.6.7.2."
            }
        }
    }

    /// Converts the reason in a message.
    #[must_use]
    pub fn of_reason(reason: RejectReason) -> Self {
        match reason {
            RejectReason::SERVICE_ID => Self::NothingListens,
            RejectReason::CONSUMER | RejectReason::VENDOR => Self::Program(reason.0),
            RejectReason::NO_RESOURCES => Self::NoRoom,
            RejectReason::TIMEOUT | RejectReason::COMMUNICATION_ID => Self::GaveUp,
            RejectReason::STALE => Self::Stale,
            other => Self::Other(other.0),
        }
    }

    fn of_detail(detail: Detail) -> Self {
        match detail {
            Detail::QueuePairType => Self::QueuePairType,
            Detail::PeerEnded => Self::PeerGone,
            Detail::NoDevice => Self::NoDevice,
        }
    }

    fn of_status(status: SidrStatus) -> Self {
        match status {
            SidrStatus::UNSUPPORTED => Self::NothingListens,
            SidrStatus::REJECT => Self::Program(RejectReason::CONSUMER.0),
            _ => Self::Other(RejectReason::NO_QUEUE_PAIR.0),
        }
    }

    /// Converts the manager's reason.
    #[must_use]
    pub fn of(why: NotAccepted) -> Self {
        match why {
            NotAccepted::Backlog { backlog } => Self::Backlog(backlog),
            NotAccepted::TooMany => Self::TooManyRequests,
            NotAccepted::Transport { .. } => Self::QueuePairType,
            NotAccepted::Program(reason) | NotAccepted::Here(reason) => Self::of_reason(reason),
            NotAccepted::Peer(_, Some(detail)) | NotAccepted::PeerDatagram(_, Some(detail)) => {
                Self::of_detail(detail)
            }
            NotAccepted::Peer(reason, None) => Self::of_reason(reason),
            NotAccepted::PeerDatagram(status, None) => Self::of_status(status),
            NotAccepted::NoAnswer => Self::NoAnswer,
        }
    }
}

/// Formats the reason as a clause.
impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NothingListens => f.write_str("nothing listens at this address and port"),
            Self::NoDevice => {
                f.write_str("no RDMA device listens at this host (UDP port 4791 is closed)")
            }
            Self::OtherUser(uid) => write!(f, "the port belongs to user {uid}"),
            Self::OtherShare => {
                f.write_str("the port belongs to a program with a different RKEY_SHARE")
            }
            Self::QueuePairType => f.write_str("the listener is for queue pairs of another type"),
            Self::Backlog(length) => write!(f, "the listener's backlog of {length} is full"),
            Self::TooManyRequests => f.write_str("one process has too many pending requests"),
            Self::NoRoom => f.write_str("no resources for another connection"),
            Self::Program(reason) if reason == RejectReason::VENDOR.0 => {
                f.write_str("the program does not accept the vendor options (ECE)")
            }
            Self::Program(_) => f.write_str("the program rejected the connection"),
            Self::PeerGone => f.write_str("the process at the other end has exited"),
            Self::GaveUp => f.write_str("the other side gave up on the connection"),
            Self::NoAnswer => f.write_str("the peer did not answer"),
            Self::PrivateData { given, most } => write!(
                f,
                "{given} B of private data do not fit: the maximum is {most} B"
            ),
            Self::Stale => {
                f.write_str("an earlier connection still uses this communication id or queue pair")
            }
            Self::Other(number) => RejectReason(number).fmt(f),
        }
    }
}

/// The side on which a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Our program initiated the connection and was refused.
    Active,
    /// A peer requested the connection and was refused here.
    Passive,
    /// A call of our program was refused; nothing was sent.
    Call,
}

/// A connection that was refused.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The refusal's number within this connection manager, from 1.
    pub number: u64,
    /// The side on which the connection was refused.
    pub side: Side,
    /// The address and port of the initiator, as far as known.
    pub from: Option<SocketAddr>,
    /// The address and port that the request was for.
    pub to: Option<SocketAddr>,
    /// The requested type of queue pair and, if the other side has a different one, the other side's.
    pub types: Option<(&'static str, &'static str)>,
    /// The other process's PID, if known.
    pub pid: Option<u32>,
    /// The reason.
    pub why: Why,
    connection: Option<ConnectionId>,
}

impl Refusal {
    /// Describes the refusal in one sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let address = |it: Option<SocketAddr>| {
            let known = it.filter(|it| it.port() != 0);
            known.map_or_else(|| "an unknown address".to_owned(), |it| it.to_string())
        };
        let process = self.pid.map(|pid| format!(" (process {pid})"));
        let process = process.unwrap_or_default();
        let (from, to) = (address(self.from), address(self.to));
        let head = match self.side {
            Side::Active => format!("a connection to {to}{process}"),
            Side::Passive => format!("a request from {from}{process} to {to}"),
            Side::Call => format!("a call for {to}"),
        };
        let types = self.types.map(|(asked, offered)| {
            format!(": the request is for {asked}, the listener for {offered}")
        });
        format!(
            "{head} was refused: {}{}",
            self.why,
            types.unwrap_or_default()
        )
    }
}

/// The most recent refusals.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    list: VecDeque<Refusal>,
    total: u64,
    /// Refusals that are not in the log yet.
    new: Vec<String>,
}

impl Refusals {
    pub(super) fn list(&self) -> impl Iterator<Item = &Refusal> {
        self.list.iter()
    }

    /// The number of refusals since the start.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The most recent refusal of a connection.
    pub(super) fn of(&self, connection: ConnectionId) -> Option<Why> {
        let mut latest = self.list.iter().rev();
        let found = latest.find(|it| it.connection == Some(connection))?;
        Some(found.why)
    }

    /// Adds a connection that was not established. `why` is the reason as far as this process knows it.
    pub(super) fn add_refused(&mut self, refused: &Refused, pid: Option<u32>, why: Why) {
        let types = match refused.why {
            NotAccepted::Transport { asked, offered } => {
                Some((type_name(asked), type_name(offered)))
            }
            _ => None,
        };
        let (side, from, to) = match refused.is_active {
            true => (Side::Active, refused.local, refused.peer),
            false => (Side::Passive, refused.peer, refused.local),
        };
        self.add(Refusal {
            number: 0,
            side,
            from: Some(from),
            to: Some(to),
            types,
            pid,
            why,
            connection: refused.connection,
        });
    }

    /// Adds a call that the front end refused.
    pub(super) fn add_call(&mut self, to: Option<SocketAddr>, why: Why) {
        self.add(Refusal {
            number: 0,
            side: Side::Call,
            from: None,
            to,
            types: None,
            pid: None,
            why,
            connection: None,
        });
    }

    fn add(&mut self, refusal: Refusal) {
        self.total += 1;
        if self.list.len() == KEPT {
            self.list.pop_front();
        }
        let refusal = Refusal {
            number: self.total,
            ..refusal
        };
        if self.new.len() < KEPT {
            self.new
                .push(format!("{}. {}", refusal.sentence(), refusal.why.advice()));
        }
        self.list.push_back(refusal);
    }

    /// Removes and returns the new refusals as text.
    pub(super) fn take_new(&mut self) -> Vec<String> {
        std::mem::take(&mut self.new)
    }
}

/// The queue pair type of a service.
pub(super) fn type_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Connected(transport) => type_name_of(Some(transport)),
        Kind::Datagram => type_name_of(None),
    }
}

/// The queue pair type of a connection.
pub(super) fn type_name_of(transport: Option<Transport>) -> &'static str {
    match transport {
        Some(Transport::Rc) => "RC",
        Some(Transport::Uc) => "UC",
        Some(Transport::Xrc) => "XRC",
        None => "UD",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn refused(why: NotAccepted) -> Refused {
        Refused {
            connection: None,
            is_active: false,
            local: "10.0.0.2:7471".parse().unwrap(),
            peer: "10.0.0.1:40000".parse().unwrap(),
            service: rkey_cm::address::ServiceId(0),
            party: 1,
            remote_id: None,
            why,
        }
    }

    #[test]
    fn each_reason_has_a_unique_name_a_sentence_and_advice() {
        let names: BTreeSet<_> = Why::EXAMPLES.iter().map(|it| it.name()).collect();
        assert_eq!(names.len(), Why::EXAMPLES.len());
        let texts: BTreeSet<_> = Why::EXAMPLES.iter().map(Why::to_string).collect();
        assert_eq!(texts.len(), Why::EXAMPLES.len());
        assert!(Why::EXAMPLES.iter().all(|it| it.advice().ends_with('.')));
    }

    #[test]
    fn a_refusal_names_both_sides_and_both_queue_pair_types() {
        let mut all = Refusals::default();
        let (asked, offered) = (Kind::Connected(Transport::Uc), Kind::Datagram);
        let refused = refused(NotAccepted::Transport { asked, offered });
        all.add_refused(&refused, Some(77), Why::of(refused.why));
        assert_eq!(
            all.list().next().unwrap().sentence(),
            "a request from 10.0.0.1:40000 (process 77) to 10.0.0.2:7471 was refused: the listener is for queue pairs of \
             another type: the request is for UC, the listener for UD"
        );
        all.add_call(
            None,
            Why::PrivateData {
                given: 200,
                most: 196,
            },
        );
        let call = all.list().last().unwrap();
        assert!(call.sentence().contains("200 B of private data"));
        assert_eq!(call.number, 2);
        assert_eq!(all.take_new().len(), 2);
        assert!(all.take_new().is_empty());
    }

    /// An untrusted process can cause an unlimited number of refusals.
    #[test]
    fn only_the_most_recent_refusals_are_kept() {
        let mut all = Refusals::default();
        for _ in 0..3 * KEPT {
            let refused = refused(NotAccepted::TooMany);
            all.add_refused(&refused, None, Why::of(refused.why));
        }
        assert_eq!((all.list().count(), all.total()), (KEPT, 3 * KEPT as u64));
        assert_eq!(all.list().next().unwrap().number, 2 * KEPT as u64 + 1);
        assert_eq!(all.take_new().len(), KEPT);
    }
}
