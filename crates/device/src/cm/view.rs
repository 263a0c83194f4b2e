//! A snapshot of a connection manager for display: identifiers, listeners, their states, and which side waits for which.

use rkey_cm::address::{PortSpace, ServiceId};
use rkey_cm::manager::{ListenOn, ListenerInfo};
use rkey_cm::{ConnectionId, Info, ListenerId, State};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

use super::refusals::{Refusal, Side, type_name, type_name_of};

/// The maximum number of identifiers in an inspection.
pub const IDS: usize = 1024;

/// A snapshot of a process's connection manager. (A process can have several: one for each copy of the library, and one for each
/// device of the Rust API.)
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmView {
    /// The process's PID, as the kernel reports it.
    pub pid: u32,
    /// The process's user ID.
    pub uid: u32,
    /// The process's command line, shortened.
    pub command: String,
    /// The API that uses the connection manager: "librdmacm" or "Rust".
    pub api: String,
    /// Listeners, identifiers of the front end, and requests that the program has not fetched; at most the first 1,024.
    pub ids: Vec<IdView>,
    /// The total number of identifiers.
    pub id_count: usize,
    /// The number of connections that have ended but are still remembered.
    pub ended: usize,
    /// The number of connections that were refused since the manager started.
    pub refused: u64,
    /// The most recent refusals, oldest first. Other users do not see them.
    pub refusals: Vec<RefusalView>,
}

/// An identifier, listener or request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdView {
    /// The program's name for the identifier: the address of the `rdma_cm_id` in hexadecimal, or a number; "request" for a
    /// request that the program has not fetched.
    pub name: String,
    /// The type of its queue pair: "RC", "UC", "UD" or "XRC".
    pub qp_type: String,
    /// The port space: "TCP", "UDP", "IB" or "IPOIB".
    pub space: String,
    /// The state, as text.
    pub state: String,
    /// The local address and port.
    pub local: Option<String>,
    /// The peer's address and port.
    pub peer: Option<String>,
    /// The peer's PID, if known.
    pub peer_pid: Option<u32>,
    /// The number of its queue pair.
    pub queue_pair: Option<u32>,
    /// The number of the peer's queue pair.
    pub peer_queue_pair: Option<u32>,
    /// For a listener: how many requests are pending, and how many may be.
    pub backlog: Option<(usize, usize)>,
    /// How many events the program has not fetched.
    pub events: usize,
    /// Which side must act next, and how; `None` if the identifier waits for nothing.
    pub waits_for: Option<String>,
}

/// A refused connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalView {
    /// The refusal's number within the connection manager.
    pub number: u64,
    /// "asked": our program initiated the connection and was refused; "was-asked": a peer requested it and was refused here;
    /// "call": a call of our program was refused, and nothing was sent.
    pub side: String,
    /// The address and port of the initiator.
    pub from: Option<String>,
    /// The address and port that the request was for.
    pub to: Option<String>,
    /// The other process's PID, if known.
    pub peer_pid: Option<u32>,
    /// The reason's stable name: see `rkey explain --reasons --json`.
    pub reason: String,
    /// What happened, in a sentence.
    pub sentence: String,
    /// What the user can do about the refusal.
    pub advice: String,
}

impl From<&Refusal> for RefusalView {
    fn from(it: &Refusal) -> Self {
        let side = match it.side {
            Side::Active => "asked",
            Side::Passive => "was-asked",
            Side::Call => "call",
        };
        Self {
            number: it.number,
            side: side.to_owned(),
            from: it.from.map(|at| at.to_string()),
            to: it.to.map(|at| at.to_string()),
            peer_pid: it.pid,
            reason: it.why.name().to_owned(),
            sentence: it.sentence(),
            advice: it.why.advice().to_owned(),
        }
    }
}

/// A front end's own record of one of its identifiers.
#[derive(Clone, Debug, Default)]
pub struct OwnId {
    /// See [`IdView::name`].
    pub name: String,
    /// See [`IdView::qp_type`].
    pub qp_type: &'static str,
    /// See [`IdView::space`].
    pub space: &'static str,
    /// The state, as text, if the identifier has neither a connection nor a listener.
    pub state: &'static str,
    /// The local address and port.
    pub local: Option<SocketAddr>,
    /// The peer's address and port.
    pub peer: Option<SocketAddr>,
    /// The connection of this identifier.
    pub connection: Option<ConnectionId>,
    /// The listener of this identifier.
    pub listener: Option<ListenerId>,
    /// How many events the program has not fetched.
    pub events: usize,
}

/// The other side of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Other {
    /// The PID of the other side.
    pub(super) pid: Option<u32>,
    /// Whether our request has not reached any process yet.
    pub(super) is_missing: bool,
}

/// Builds the view of an identifier.
pub(super) fn of_id(
    own: &OwnId,
    connection: Option<(&Info, Other)>,
    listener: Option<&ListenerInfo>,
) -> IdView {
    let text = |at: Option<SocketAddr>| at.map(|at| at.to_string());
    let view = IdView {
        name: own.name.clone(),
        qp_type: own.qp_type.to_owned(),
        space: own.space.to_owned(),
        state: own.state.to_owned(),
        local: text(own.local),
        peer: text(own.peer),
        events: own.events,
        ..IdView::default()
    };
    let fetches = (own.events > 0).then(|| format!("its program, to fetch {}", events(own.events)));
    match (connection, listener) {
        (Some((info, other)), _) => IdView {
            peer_pid: other.pid,
            queue_pair: info.qpn,
            peer_queue_pair: info.remote_qpn,
            state: state(info.state).to_owned(),
            waits_for: waits_for(info, other).or(fetches),
            ..view
        },
        (None, Some(it)) => IdView {
            state: "listening".to_owned(),
            backlog: Some((it.waiting, it.backlog)),
            waits_for: match it.waiting {
                0 => None,
                waiting => Some(format!(
                    "its program, to fetch {waiting} of at most {} requests",
                    it.backlog
                )),
            },
            ..view
        },
        (None, None) => IdView {
            waits_for: fetches,
            ..view
        },
    }
}

fn events(count: usize) -> String {
    match count {
        1 => "an event".to_owned(),
        count => format!("{count} events"),
    }
}

/// Builds the view of a request that does not have an identifier yet.
pub(super) fn of_request(info: &Info, other: Other) -> IdView {
    let own = OwnId {
        name: "request".to_owned(),
        qp_type: type_name_of(info.transport),
        space: space(info.service),
        local: Some(info.local),
        peer: Some(info.peer),
        ..OwnId::default()
    };
    IdView {
        waits_for: Some("its program, to fetch the request".to_owned()),
        ..of_id(&own, Some((info, other)), None)
    }
}

/// The view of a listener whose front end has no name for it.
pub(super) fn of_listener(info: &ListenerInfo) -> IdView {
    let port = info.service.port();
    let at = match info.on {
        ListenOn::Address(ip) => SocketAddr::new(ip, port),
        ListenOn::AnyV4 => ([0, 0, 0, 0], port).into(),
        ListenOn::Any | ListenOn::AnyV6 => ([0u16; 8], port).into(),
    };
    let own = OwnId {
        name: "listener".to_owned(),
        qp_type: type_name(info.kind),
        space: space(info.service),
        local: Some(at),
        ..OwnId::default()
    };
    of_id(&own, None, Some(info))
}

fn space(service: ServiceId) -> &'static str {
    let all = [
        (PortSpace::Tcp, "TCP"),
        (PortSpace::Udp, "UDP"),
        (PortSpace::Ib, "IB"),
    ];
    let found = all
        .into_iter()
        .find(|(space, _)| ServiceId::new(*space, service.port()) == service);
    found.map_or("?", |(_, name)| name)
}

/// The name of a connection's state.
fn state(state: State) -> &'static str {
    match state {
        State::Idle => "new",
        State::ReqSent | State::ReqDelayed => "connecting",
        State::RepReceived => "accepted by the peer",
        State::ReqReceived | State::SidrReceived => "requested",
        State::RepSent | State::RepDelayed => "accepted",
        State::Established => "connected",
        State::DreqSent | State::DreqReceived => "disconnecting",
        State::TimeWait | State::Closed => "ended",
        State::Refused => "refused",
        State::SidrSent => "resolving",
        State::SidrAnswered => "answered",
    }
}

/// The side that a connection waits for, and what that side must do; `None` if the connection waits for nothing.
fn waits_for(info: &Info, other: Other) -> Option<String> {
    let peer = || match other.pid {
        Some(pid) => format!("process {pid}"),
        None => info.peer.to_string(),
    };
    Some(match info.state {
        State::ReqSent | State::SidrSent if other.is_missing => {
            format!("a program to listen at {}", info.peer)
        }
        State::ReqSent | State::ReqDelayed => format!("{}, to accept or reject", peer()),
        State::SidrSent => format!("{}, to answer", peer()),
        State::RepReceived => {
            "its program, to fetch the answer and bring up its queue pair".to_owned()
        }
        State::ReqReceived | State::SidrReceived => "its program, to accept or reject".to_owned(),
        State::RepSent | State::RepDelayed => format!("{}, to bring up its queue pair", peer()),
        State::DreqSent => format!("{}, to confirm the disconnection", peer()),
        State::DreqReceived => "its program, to disconnect".to_owned(),
        State::Idle
        | State::Established
        | State::TimeWait
        | State::Refused
        | State::SidrAnswered
        | State::Closed => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rkey_cm::manager::Kind;
    use rkey_cm::wire::Transport;

    fn info(state: State) -> Info {
        Info {
            state,
            transport: Some(Transport::Rc),
            service: ServiceId::new(PortSpace::Tcp, 7471),
            is_active: true,
            local: "127.0.0.1:40000".parse().unwrap(),
            peer: "127.0.0.1:7471".parse().unwrap(),
            party: 0,
            remote_id: None,
            qpn: Some(0x11),
            remote_qpn: None,
            left: 3,
            is_closed: false,
        }
    }

    #[test]
    fn the_view_of_a_connection_names_the_side_that_must_act() {
        let view = |state, pid, is_missing| {
            let other = Other { pid, is_missing };
            of_id(&OwnId::default(), Some((&info(state), other)), None).waits_for
        };
        let waits = |state, pid| view(state, pid, false).unwrap();
        assert_eq!(
            waits(State::ReqSent, Some(77)),
            "process 77, to accept or reject"
        );
        assert_eq!(
            waits(State::DreqSent, None),
            "127.0.0.1:7471, to confirm the disconnection"
        );
        assert_eq!(
            view(State::ReqSent, None, true).unwrap(),
            "a program to listen at 127.0.0.1:7471"
        );
        assert_eq!(view(State::Established, Some(77), false), None);
    }

    #[test]
    fn unfetched_requests_and_events_are_shown_as_waiting_for_the_program() {
        let listener = ListenerInfo {
            service: ServiceId::new(PortSpace::Ib, 9),
            on: ListenOn::AnyV4,
            kind: Kind::Datagram,
            backlog: 8,
            waiting: 2,
        };
        let view = of_listener(&listener);
        assert_eq!((view.qp_type.as_str(), view.space.as_str()), ("UD", "IB"));
        assert_eq!(view.local.as_deref(), Some("0.0.0.0:9"));
        assert_eq!(
            view.waits_for.as_deref(),
            Some("its program, to fetch 2 of at most 8 requests")
        );
        let own = OwnId {
            events: 1,
            ..OwnId::default()
        };
        let waits = of_id(&own, None, None).waits_for;
        assert_eq!(waits.as_deref(), Some("its program, to fetch an event"));
    }
}
