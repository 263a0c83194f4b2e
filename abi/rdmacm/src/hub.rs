//! What the threads of the program and the connection manager's thread share: identifiers, event channels, and the events that
//! wait in them. All of it is under the connection manager's lock.

use crate::addrinfo::Info;
use crate::bell::Bell;
use crate::multicast::Member;
use crate::sys::*;
use ibverbs::sys::{QPT_UC, QPT_UD, QPT_XRC_RECV, QPT_XRC_SEND};
use rkey_cm::address::PortSpace;
use rkey_cm::manager::{ConnectRequest, DatagramRequest, Event, PathOptions};
use rkey_cm::time::Nanos;
use rkey_cm::wire::{Ece as WireEce, Rej, Rep, SidrRep, Transport};
use rkey_cm::{ConnectionId, ListenerId, Manager};
use rkey_device::cm::{Handler, OwnId};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// Names an identifier; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdKey(u64);

/// Names an identifier's membership of a multicast group; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupKey(u64);

/// Names an event channel; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChannelKey(u64);

/// How far an identifier has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing has happened yet.
    Idle,
    /// It has an address and a port.
    Bound,
    /// It knows the peer's address.
    AddressResolved,
    /// It knows the path.
    RouteResolved,
    /// It listens.
    Listening,
    /// Active side: the request is sent.
    Connecting,
    /// Passive side: the program has neither accepted nor rejected.
    Requested,
    /// Accepted or established.
    Connected,
    /// Refused, rejected, unreachable, or disconnected.
    Ended,
}

/// A request to a listener.
#[derive(Clone, Debug)]
pub enum Asked {
    /// For a connection.
    Connection(Box<ConnectRequest>),
    /// For a datagram queue pair.
    Datagram(Box<DatagramRequest>),
}

impl Asked {
    /// The connection.
    #[must_use]
    pub fn connection(&self) -> ConnectionId {
        match self {
            Self::Connection(it) => it.connection,
            Self::Datagram(it) => it.connection,
        }
    }
}

/// What an event reports.
#[derive(Clone, Debug)]
pub enum What {
    /// `RDMA_CM_EVENT_ADDR_RESOLVED`.
    AddressResolved,
    /// `RDMA_CM_EVENT_ADDR_ERROR`, with its negative error number.
    AddressError(i32),
    /// `RDMA_CM_EVENT_ROUTE_RESOLVED`.
    RouteResolved,
    /// `RDMA_CM_EVENT_CONNECT_REQUEST`.
    Request(Asked),
    /// `RDMA_CM_EVENT_CONNECT_RESPONSE`; if the identifier has a queue pair, `ESTABLISHED` or `CONNECT_ERROR`.
    Response(Box<Rep>),
    /// `RDMA_CM_EVENT_ESTABLISHED` of the passive side.
    Established,
    /// `RDMA_CM_EVENT_ESTABLISHED` or `UNREACHABLE` of a datagram queue pair.
    Datagram(Box<SidrRep>),
    /// `RDMA_CM_EVENT_REJECTED`.
    Rejected(Box<Rej>),
    /// `RDMA_CM_EVENT_UNREACHABLE`.
    Unreachable,
    /// `RDMA_CM_EVENT_DISCONNECTED`, and since when it has waited for the program to poll ([`crate::unpolled`]).
    Disconnected(Option<Instant>),
    /// `RDMA_CM_EVENT_TIMEWAIT_EXIT`.
    TimeWaitExit,
    /// `RDMA_CM_EVENT_MULTICAST_JOIN`; `MULTICAST_ERROR` if the queue pair cannot be attached.
    Joined(GroupKey),
    /// `RDMA_CM_EVENT_ADDRINFO_RESOLVED`; if the status is not 0, `ADDRINFO_ERROR`.
    AddressInfo(i32),
    /// `RDMA_CM_EVENT_USER`: the program's own event, with its status and argument.
    User(i32, u64),
}

impl What {
    /// The multicast group that it is about.
    #[must_use]
    pub fn group(&self) -> Option<GroupKey> {
        match self {
            Self::Joined(group) => Some(*group),
            _ => None,
        }
    }
}

/// The peer's queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remote {
    /// Its number.
    pub qpn: u32,
    /// The PSN that it wants to receive first.
    pub starting_psn: u32,
}

/// Settings of `rdma_set_option(3)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The type of service.
    pub tos: u8,
    /// Whether it may share its address and port with identifiers that allow it too.
    pub reuse_address: bool,
    /// Whether a listener at the IPv6 wildcard address excludes IPv4, if the program has set it.
    pub one_family: Option<bool>,
    /// The local ACK timeout, if it is set.
    pub ack_timeout: Option<u8>,
}

/// An identifier.
#[derive(Debug)]
pub struct Entry {
    /// The address of the program's structure.
    pub handle: usize,
    /// Where its events go.
    pub channel: ChannelKey,
    /// The number of its port space.
    pub space: i32,
    /// The type of its queue pair.
    pub qp_type: ibv_qp_type,
    /// How far it has come.
    pub phase: Phase,
    /// Its address and port.
    pub local: Option<SocketAddr>,
    /// Whether it has claimed its port.
    pub claims: bool,
    /// The peer's address and port.
    pub peer: Option<SocketAddr>,
    /// Its connection.
    pub connection: Option<ConnectionId>,
    /// Its listener.
    pub listener: Option<ListenerId>,
    /// The path.
    pub path: PathOptions,
    /// The peer's queue pair, once known.
    pub remote: Option<Remote>,
    /// The PSN that our queue pair wants to receive first.
    pub starting_psn: u32,
    /// How many reads and atomics our queue pair executes at once.
    pub responder_resources: u8,
    /// How many reads and atomics it begins at once.
    pub initiator_depth: u8,
    /// The RNR retry count of its queue pair.
    pub rnr_retry: u8,
    /// Its settings.
    pub options: Options,
    /// The vendor's options (ECE) that we send.
    pub ece: WireEce,
    /// The vendor's options (ECE) that the peer sent.
    pub remote_ece: WireEce,
    /// Events that the program has fetched.
    pub fetched: u64,
    /// Events that it has acknowledged.
    pub acknowledged: u64,
    /// Its memberships of multicast groups.
    pub groups: Vec<Member>,
    /// What the last `rdma_resolve_addrinfo` found.
    pub found: Option<Info>,
    /// Whether its queue pair could not be connected. The program then gets no `RDMA_CM_EVENT_DISCONNECTED`.
    pub has_failed: bool,
}

impl Entry {
    /// A new identifier.
    #[must_use]
    pub fn new(channel: ChannelKey, space: i32, qp_type: ibv_qp_type) -> Self {
        Self {
            handle: 0,
            channel,
            space,
            qp_type,
            phase: Phase::Idle,
            local: None,
            claims: false,
            peer: None,
            connection: None,
            listener: None,
            path: PathOptions::default(),
            remote: None,
            starting_psn: 0,
            responder_resources: 0,
            initiator_depth: 0,
            rnr_retry: 0,
            options: Options::default(),
            ece: WireEce::default(),
            remote_ece: WireEce::default(),
            fetched: 0,
            acknowledged: 0,
            groups: Vec::new(),
            found: None,
            has_failed: false,
        }
    }

    /// Its port space on the wire.
    #[must_use]
    pub fn port_space(&self) -> PortSpace {
        match self.space {
            PS_TCP => PortSpace::Tcp,
            PS_IB => PortSpace::Ib,
            _ => PortSpace::Udp,
        }
    }

    /// The transport of its queue pair.
    #[must_use]
    pub fn transport(&self) -> Transport {
        match self.qp_type {
            QPT_UC => Transport::Uc,
            QPT_XRC_SEND | QPT_XRC_RECV => Transport::Xrc,
            _ => Transport::Rc,
        }
    }

    /// Its membership with this name.
    pub fn member(&mut self, group: GroupKey) -> Option<&mut Member> {
        self.groups.iter_mut().find(|member| member.key == group)
    }

    /// Whether it uses only the family of its address: by the option, or as the system's sockets do.
    #[must_use]
    pub fn has_one_family(&self, address: SocketAddr) -> bool {
        let default = || address.is_ipv4() || crate::ports::is_ipv6_alone();
        self.options.one_family.unwrap_or_else(default)
    }

    /// Whether its queue pair is for datagrams.
    #[must_use]
    pub fn is_datagram(&self) -> bool {
        self.qp_type == QPT_UD
    }
}

/// An event channel.
#[derive(Debug)]
pub struct Queue {
    /// Readable while events wait.
    pub bell: Arc<Bell>,
    /// The events.
    pub events: VecDeque<(IdKey, What)>,
}

/// All identifiers and channels.
#[derive(Debug, Default)]
pub struct Hub {
    last_key: u64,
    /// The identifiers.
    pub entries: BTreeMap<IdKey, Entry>,
    channels: BTreeMap<ChannelKey, Queue>,
    connections: BTreeMap<ConnectionId, IdKey>,
    listeners: BTreeMap<ListenerId, IdKey>,
}

impl Hub {
    fn new_key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    /// Adds a channel.
    pub fn add_channel(&mut self, bell: Arc<Bell>) -> ChannelKey {
        let key = ChannelKey(self.new_key());
        let events = VecDeque::new();
        self.channels.insert(key, Queue { bell, events });
        key
    }

    /// Removes a channel and its events.
    pub fn remove_channel(&mut self, key: ChannelKey) {
        self.channels.remove(&key);
    }

    /// Adds an identifier.
    pub fn add(&mut self, entry: Entry) -> IdKey {
        let key = IdKey(self.new_key());
        self.entries.insert(key, entry);
        key
    }

    /// A name for a new membership.
    pub fn new_group(&mut self) -> GroupKey {
        GroupKey(self.new_key())
    }

    /// Removes an identifier, and its connection and listener from the lookup tables.
    pub fn remove(&mut self, key: IdKey) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        entry.connection.map(|id| self.connections.remove(&id));
        entry.listener.map(|id| self.listeners.remove(&id));
        Some(entry)
    }

    /// Gives an identifier its connection.
    pub fn set_connection(&mut self, key: IdKey, connection: ConnectionId) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.connection = Some(connection);
            self.connections.insert(connection, key);
        }
    }

    /// Gives an identifier its listener.
    pub fn set_listener(&mut self, key: IdKey, listener: ListenerId) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.listener = Some(listener);
            self.listeners.insert(listener, key);
        }
    }

    /// Adds an event to the channel of an identifier.
    pub fn push(&mut self, key: IdKey, what: What) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        if let Some(queue) = self.channels.get_mut(&entry.channel) {
            queue.events.push_back((key, what));
            queue.bell.signal();
        }
    }

    /// Takes the next event of a channel. It counts as fetched.
    pub fn pop(&mut self, channel: ChannelKey) -> Option<(IdKey, What)> {
        let queue = self.channels.get_mut(&channel)?;
        let (key, what) = queue.events.pop_front()?;
        match queue.events.is_empty() {
            true => queue.bell.drain(),
            false => queue.bell.signal(),
        }
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.fetched += 1;
            if let Some(member) = what.group().and_then(|group| entry.member(group)) {
                member.fetched += 1;
            }
        }
        Some((key, what))
    }

    /// Gives back the event that was taken last. It is the next one again.
    pub fn give_back(&mut self, channel: ChannelKey, key: IdKey, what: What) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.fetched -= 1;
        }
        if let Some(queue) = self.channels.get_mut(&channel) {
            queue.events.push_front((key, what));
            queue.bell.signal();
        }
    }

    /// The identifiers of all waiting events.
    pub fn waiting_events(&self) -> impl Iterator<Item = IdKey> {
        let all = self.channels.values().flat_map(|queue| &queue.events);
        all.map(|(key, _)| *key)
    }

    /// Whether events of an identifier wait.
    #[must_use]
    pub fn has_events(&self, key: IdKey) -> bool {
        let entry = self.entries.get(&key);
        let queue = entry.and_then(|entry| self.channels.get(&entry.channel));
        queue.is_some_and(|queue| queue.events.iter().any(|(of, _)| *of == key))
    }

    /// Drops the waiting events of an identifier.
    pub fn drop_events(&mut self, key: IdKey) {
        self.drop_those(key, |_| true);
    }

    /// Drops the waiting events of an identifier for which `is_it` holds.
    pub fn drop_those(&mut self, key: IdKey, is_it: impl Fn(&What) -> bool) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        if let Some(queue) = self.channels.get_mut(&entry.channel) {
            queue.events.retain(|(of, what)| *of != key || !is_it(what));
            if queue.events.is_empty() {
                queue.bell.drain();
            }
        }
    }

    /// Moves an identifier and its waiting events to another channel.
    pub fn migrate(&mut self, key: IdKey, to: ChannelKey) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let from = std::mem::replace(&mut entry.channel, to);
        if from == to {
            return;
        }
        let mut moved = Vec::new();
        if let Some(queue) = self.channels.get_mut(&from) {
            let all = std::mem::take(&mut queue.events);
            let (its, others): (VecDeque<_>, VecDeque<_>) =
                all.into_iter().partition(|(of, _)| *of == key);
            queue.events = others;
            if queue.events.is_empty() {
                queue.bell.drain();
            }
            moved.extend(its);
        }
        for (key, what) in moved {
            self.push(key, what);
        }
    }

    /// What an event of the connection manager means for an identifier.
    fn note(&mut self, key: IdKey, event: Event) -> Option<What> {
        let entry = self.entries.get_mut(&key)?;
        // If the peer gives up before the program accepts, the program learns of it only when `rdma_accept` fails.
        if entry.phase == Phase::Requested {
            return None;
        }
        Some(match event {
            Event::ConnectResponse { rep, ece, .. } => {
                let qpn = rep.queue_pair(entry.transport());
                let starting_psn = rep.starting_psn;
                entry.remote = Some(Remote { qpn, starting_psn });
                entry.remote_ece = ece;
                What::Response(rep)
            }
            Event::Established { .. } => {
                entry.phase = Phase::Connected;
                What::Established
            }
            Event::Rejected { rej, options, .. } => {
                entry.phase = Phase::Ended;
                entry.remote_ece.options = options;
                What::Rejected(rej)
            }
            Event::Unreachable { .. } => {
                entry.phase = Phase::Ended;
                What::Unreachable
            }
            Event::Disconnected { .. } => {
                entry.phase = Phase::Ended;
                match entry.has_failed {
                    true => return None,
                    false => What::Disconnected(None),
                }
            }
            Event::TimeWaitExit { .. } => What::TimeWaitExit,
            Event::DatagramResponse { rep, .. } => {
                entry.phase = match rep.checked_status() {
                    rkey_cm::wire::SidrStatus::VALID => Phase::Connected,
                    _ => Phase::Ended,
                };
                What::Datagram(rep)
            }
            Event::ConnectRequest(_) | Event::DatagramRequest(_) => return None,
        })
    }
}

impl Handler for Hub {
    fn api(&self) -> &'static str {
        "librdmacm"
    }

    fn ids(&self) -> Vec<OwnId> {
        crate::view::ids(self)
    }

    fn failed(&mut self) {
        for queue in self.channels.values() {
            queue.bell.signal();
        }
    }

    fn event(&mut self, manager: &mut Manager, now: Nanos, event: Event) {
        let (listener, asked) = match event {
            Event::ConnectRequest(it) => (it.listener, Asked::Connection(it)),
            Event::DatagramRequest(it) => (it.listener, Asked::Datagram(it)),
            event => {
                if let Some(&key) = self.connections.get(&event.connection())
                    && let Some(what) = self.note(key, event)
                {
                    self.push(key, what);
                }
                return;
            }
        };
        match self.listeners.get(&listener) {
            Some(&key) => self.push(key, What::Request(asked)),
            None => {
                // The program has destroyed the listener.
                let _ = manager.close(now, asked.connection());
            }
        }
    }
}
