//! The connection manager of a device instance: many connections and listeners, driven by their host.
//!
//! The host passes in the program's calls and each management datagram that arrives at queue pair 1 ([`Manager::receive`]),
//! and calls [`Manager::advance`] when [`Manager::next_deadline`] has passed. After each call it removes messages
//! ([`Manager::next_transmit`]) and events ([`Manager::next_event`]) until none are left.

mod calls;
mod config;
mod datagrams;
mod event;
mod events;
mod listeners;
mod options;
mod receive;
mod refused;
mod requests;
mod step;
mod tables;

pub use config::{Config, Limits};
pub use datagrams::{DatagramAnswer, Resolve};
pub use event::{ConnectRequest, Counters, DatagramRequest, Error, Event, Transmit};
pub use listeners::{Kind, ListenOn, ListenerInfo};
pub use options::{Accept, Connect, PathOptions, QueuePair};
pub use refused::{NotAccepted, Refused};

use crate::connection::{Connection, ConnectionId, Info, ListenerId, State};
use crate::ids::Ids;
use crate::time::Nanos;
use core::net::IpAddr;
use events::Events;
use listeners::Listeners;
use refused::RefusedRequests;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tables::Tables;

/// The connection manager: see the [module](self).
#[derive(Debug)]
pub struct Manager {
    config: Config,
    ids: Ids,
    /// The number of the next connection or listener.
    next_id: u64,
    connections: BTreeMap<ConnectionId, Connection>,
    tables: Tables,
    listeners: Listeners,
    timers: BTreeSet<(Nanos, ConnectionId)>,
    /// The number of undecided requests of each peer, by address and by party at this address.
    undecided: BTreeMap<(IpAddr, u64), usize>,
    /// The number of connections that are kept only to retransmit an answer.
    lingering: usize,
    outgoing: VecDeque<Transmit>,
    events: Events,
    refused: RefusedRequests,
    counters: Counters,
}

impl Manager {
    /// Creates a manager without connections.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            ids: Ids::new(config.ids, config.secret),
            config,
            next_id: 0,
            connections: BTreeMap::new(),
            tables: Tables::default(),
            listeners: Listeners::default(),
            timers: BTreeSet::new(),
            undecided: BTreeMap::new(),
            lingering: 0,
            outgoing: VecDeque::new(),
            events: Events::default(),
            refused: RefusedRequests::default(),
            counters: Counters::default(),
        }
    }

    /// Removes the next message to send.
    pub fn next_transmit(&mut self) -> Option<Transmit> {
        self.outgoing.pop_front()
    }

    /// Removes the next event. Events come in the order in which they happened.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// When to call [`advance`](Self::advance) next; `None` if no timer runs.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.timers.first().map(|(deadline, _)| *deadline)
    }

    /// The state of a connection; `None` if it no longer exists.
    #[must_use]
    pub fn state(&self, id: ConnectionId) -> Option<State> {
        self.connections.get(&id).map(|it| it.state)
    }

    /// The peer's address; `None` if there is no such connection.
    #[must_use]
    pub fn peer(&self, id: ConnectionId) -> Option<IpAddr> {
        self.connections.get(&id).map(|it| it.peer)
    }

    /// All connections and requests with their states and the peer's address, oldest first.
    pub fn connections(&self) -> impl Iterator<Item = (ConnectionId, State, IpAddr)> {
        let all = self.connections.iter();
        all.map(|(id, it)| (*id, it.state, it.peer))
    }

    /// A description of a connection; `None` if it no longer exists.
    #[must_use]
    pub fn info(&self, id: ConnectionId) -> Option<Info> {
        self.connections.get(&id).map(Connection::info)
    }

    /// All listeners, oldest first.
    pub fn listeners(&self) -> impl Iterator<Item = (ListenerId, ListenerInfo)> {
        self.listeners.infos()
    }

    /// Removes the oldest record of a connection that was not established, whether a peer or our program requested it. The
    /// records are for display, and come before the event for the program. If the host does not fetch them, only the most
    /// recent ones are kept.
    pub fn next_refused(&mut self) -> Option<Refused> {
        self.refused.pop()
    }

    /// The manager's counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How many objects the manager remembers: 0 when no connection or listener is left.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.connections.len()
            + self.tables.len()
            + self.listeners.len()
            + self.timers.len()
            + self.undecided.len()
            + self.lingering
            + self.outgoing.len()
            + self.events.len()
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}
