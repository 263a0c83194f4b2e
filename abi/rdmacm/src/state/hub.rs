//! State that program threads share with the connection manager's thread: identifiers, event channels and pending events. The
//! connection manager's lock protects all of it.

use crate::lookup::address::is_ipv6_alone;
use crate::lookup::addrinfo::Info;
use crate::state::event_fd::EventFd;
use crate::state::member::{GroupKey, Member};
use crate::sys::*;
use ibverbs::sys::{QPT_UC, QPT_UD, QPT_XRC_RECV, QPT_XRC_SEND};
use rkey_cm::address::PortSpace;
use rkey_cm::manager::{ConnectRequest, DatagramRequest, PathOptions};
use rkey_cm::wire::{Ece as WireEce, Rej, Rep, SidrRep, Transport};
use rkey_cm::{ConnectionId, ListenerId};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// The key of an identifier; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdKey(u64);

/// The key of an event channel; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChannelKey(u64);

/// The state of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The identifier is new and has no address yet.
    Idle,
    /// The identifier has an address and a port.
    Bound,
    /// The peer's address is resolved.
    AddressResolved,
    /// The path to the peer is resolved.
    RouteResolved,
    /// The identifier listens.
    Listening,
    /// Active side: the request has been sent.
    Connecting,
    /// Passive side: the program has neither accepted nor rejected the request.
    Requested,
    /// Accepted or established.
    Connected,
    /// Refused, rejected, unreachable, or disconnected.
    Ended,
}

/// A request to a listener.
#[derive(Clone, Debug)]
pub enum Request {
    /// For a connection.
    Connection(Box<ConnectRequest>),
    /// For a datagram queue pair.
    Datagram(Box<DatagramRequest>),
}

impl Request {
    /// The connection.
    #[must_use]
    pub fn connection(&self) -> ConnectionId {
        match self {
            Self::Connection(it) => it.connection,
            Self::Datagram(it) => it.connection,
        }
    }
}

/// An event that the program has not fetched yet.
#[derive(Clone, Debug)]
pub enum PendingEvent {
    /// `RDMA_CM_EVENT_ADDR_RESOLVED`.
    AddressResolved,
    /// `RDMA_CM_EVENT_ADDR_ERROR`, with a negative error number.
    AddressError(i32),
    /// `RDMA_CM_EVENT_ROUTE_RESOLVED`.
    RouteResolved,
    /// `RDMA_CM_EVENT_CONNECT_REQUEST`.
    Request(Request),
    /// `RDMA_CM_EVENT_CONNECT_RESPONSE`; if the identifier has a queue pair, `ESTABLISHED` or `CONNECT_ERROR`.
    Response(Box<Rep>),
    /// `RDMA_CM_EVENT_ESTABLISHED` on the passive side.
    Established,
    /// `RDMA_CM_EVENT_ESTABLISHED` or `UNREACHABLE` of a datagram queue pair.
    Datagram(Box<SidrRep>),
    /// `RDMA_CM_EVENT_REJECTED`.
    Rejected(Box<Rej>),
    /// `RDMA_CM_EVENT_UNREACHABLE`.
    Unreachable,
    /// `RDMA_CM_EVENT_DISCONNECTED`, and when it was first postponed, if it was ([`crate::objects::unpolled`]).
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

impl PendingEvent {
    /// The membership in a multicast group that it concerns.
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
    /// The queue pair number.
    pub qpn: u32,
    /// The initial PSN, as in the REQ or REP.
    pub starting_psn: u32,
}

/// Options that the program set with `rdma_set_option(3)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The type of service.
    pub tos: u8,
    /// Whether the identifier may share its address and port with identifiers that also allow sharing.
    pub reuse_address: bool,
    /// Whether a listener on the IPv6 wildcard address excludes IPv4; `None` if the program has not set the option.
    pub one_family: Option<bool>,
    /// The local ACK timeout, if set.
    pub ack_timeout: Option<u8>,
}

/// An identifier.
#[derive(Debug)]
pub struct Entry {
    /// The address of the program's `struct rdma_cm_id`.
    pub handle: usize,
    /// The channel that gets its events.
    pub channel: ChannelKey,
    /// The number of its port space.
    pub space: i32,
    /// The type of its queue pair.
    pub qp_type: ibv_qp_type,
    /// The state of the identifier.
    pub phase: Phase,
    /// The address and port of the identifier.
    pub local: Option<SocketAddr>,
    /// Whether the identifier has claimed its port.
    pub claims: bool,
    /// The peer's address and port.
    pub peer: Option<SocketAddr>,
    /// The connection.
    pub connection: Option<ConnectionId>,
    /// The listener.
    pub listener: Option<ListenerId>,
    /// The path.
    pub path: PathOptions,
    /// The peer's queue pair, when it is known.
    pub remote: Option<Remote>,
    /// The initial PSN that we announce to the peer.
    pub starting_psn: u32,
    /// The maximum number of outstanding reads and atomics of the peer.
    pub responder_resources: u8,
    /// The maximum number of our own outstanding reads and atomics.
    pub initiator_depth: u8,
    /// The RNR retry count of its queue pair.
    pub rnr_retry: u8,
    /// The options.
    pub options: Options,
    /// The vendor options (ECE) that we send.
    pub ece: WireEce,
    /// The vendor options (ECE) that the peer sent.
    pub remote_ece: WireEce,
    /// The number of events that the program has fetched.
    pub fetched: u64,
    /// The number of events that it has acknowledged.
    pub acknowledged: u64,
    /// The memberships in multicast groups.
    pub groups: Vec<Member>,
    /// The result of the last `rdma_resolve_addrinfo`.
    pub found: Option<Info>,
    /// Whether the queue pair could not be moved to RTS. The program then gets no `RDMA_CM_EVENT_DISCONNECTED`.
    pub has_failed: bool,
}

impl Entry {
    /// Creates an identifier.
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

    /// The port space, as messages encode it.
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

    /// The membership with this key.
    pub fn member(&mut self, group: GroupKey) -> Option<&mut Member> {
        self.groups.iter_mut().find(|member| member.key == group)
    }

    /// Whether it uses only the family of its address: as the program has set, or by default as sockets do.
    #[must_use]
    pub fn has_one_family(&self, address: SocketAddr) -> bool {
        let default = || address.is_ipv4() || is_ipv6_alone();
        self.options.one_family.unwrap_or_else(default)
    }

    /// Whether the queue pair of the identifier is for datagrams.
    #[must_use]
    pub fn is_datagram(&self) -> bool {
        self.qp_type == QPT_UD
    }
}

/// An event channel.
#[derive(Debug)]
pub struct Queue {
    /// Readable while events are pending.
    pub event_fd: Arc<EventFd>,
    /// The events.
    pub events: VecDeque<(IdKey, PendingEvent)>,
}

/// All identifiers and channels.
#[derive(Debug, Default)]
pub struct Hub {
    last_key: u64,
    /// The identifiers.
    pub entries: BTreeMap<IdKey, Entry>,
    pub(super) channels: BTreeMap<ChannelKey, Queue>,
    pub(super) connections: BTreeMap<ConnectionId, IdKey>,
    pub(super) listeners: BTreeMap<ListenerId, IdKey>,
}

impl Hub {
    fn new_key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    /// Adds a channel.
    pub fn add_channel(&mut self, event_fd: Arc<EventFd>) -> ChannelKey {
        let key = ChannelKey(self.new_key());
        let events = VecDeque::new();
        self.channels.insert(key, Queue { event_fd, events });
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

    /// Allocates a key for a membership.
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

    /// Sets the connection of an identifier.
    pub fn set_connection(&mut self, key: IdKey, connection: ConnectionId) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.connection = Some(connection);
            self.connections.insert(connection, key);
        }
    }

    /// Sets the listener of an identifier.
    pub fn set_listener(&mut self, key: IdKey, listener: ListenerId) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.listener = Some(listener);
            self.listeners.insert(listener, key);
        }
    }

    /// Adds an event to the channel of an identifier.
    pub fn push(&mut self, key: IdKey, pending: PendingEvent) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        if let Some(queue) = self.channels.get_mut(&entry.channel) {
            queue.events.push_back((key, pending));
            queue.event_fd.signal();
        }
    }

    /// Takes the next event of a channel, and counts it as fetched.
    pub fn pop(&mut self, channel: ChannelKey) -> Option<(IdKey, PendingEvent)> {
        let queue = self.channels.get_mut(&channel)?;
        let (key, pending) = queue.events.pop_front()?;
        match queue.events.is_empty() {
            true => queue.event_fd.drain(),
            false => queue.event_fd.signal(),
        }
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.fetched += 1;
            if let Some(member) = pending.group().and_then(|group| entry.member(group)) {
                member.fetched += 1;
            }
        }
        Some((key, pending))
    }

    /// Puts the event that was taken last back at the front of the queue.
    pub fn give_back(&mut self, channel: ChannelKey, key: IdKey, pending: PendingEvent) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.fetched -= 1;
        }
        if let Some(queue) = self.channels.get_mut(&channel) {
            queue.events.push_front((key, pending));
            queue.event_fd.signal();
        }
    }

    /// The identifier of each pending event.
    pub fn waiting_events(&self) -> impl Iterator<Item = IdKey> {
        let all = self.channels.values().flat_map(|queue| &queue.events);
        all.map(|(key, _)| *key)
    }

    /// Whether an identifier has pending events.
    #[must_use]
    pub fn has_events(&self, key: IdKey) -> bool {
        let entry = self.entries.get(&key);
        let queue = entry.and_then(|entry| self.channels.get(&entry.channel));
        queue.is_some_and(|queue| queue.events.iter().any(|(of, _)| *of == key))
    }

    /// Drops the pending events of an identifier.
    pub fn drop_events(&mut self, key: IdKey) {
        self.drop_matching(key, |_| true);
    }

    /// Drops the pending events of an identifier for which `matches` returns true.
    pub fn drop_matching(&mut self, key: IdKey, matches: impl Fn(&PendingEvent) -> bool) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        if let Some(queue) = self.channels.get_mut(&entry.channel) {
            queue
                .events
                .retain(|(of, pending)| *of != key || !matches(pending));
            if queue.events.is_empty() {
                queue.event_fd.drain();
            }
        }
    }

    /// Moves an identifier and its pending events to another channel.
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
                queue.event_fd.drain();
            }
            moved.extend(its);
        }
        for (key, pending) in moved {
            self.push(key, pending);
        }
    }
}
