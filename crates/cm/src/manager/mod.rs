//! The connection manager of one device instance: many connections and listeners, driven by its host.
//!
//! The host passes in each management datagram that arrives at queue pair 1 ([`Manager::receive`]) and the program's
//! calls, and runs [`Manager::advance`] when the time of [`Manager::next_deadline`] has come. After each of them it takes
//! out messages ([`Manager::next_transmit`]) and events ([`Manager::next_event`]) until there are none.

mod calls;
mod config;
mod event;
mod events;
mod listeners;
mod receive;
mod refused;
mod requests;
mod step;
mod tables;

pub use calls::{Accept, Connect, DatagramAnswer, PathOptions, QueuePair, Resolve};
pub use config::{Config, Limits};
pub use event::{ConnectRequest, Counters, DatagramRequest, Error, Event, Transmit};
pub use listeners::{Kind, ListenOn, ListenerInfo};
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
    /// How many undecided requests each peer has, by its address and its number among the peers with this address.
    undecided: BTreeMap<(IpAddr, u64), usize>,
    /// Connections that are kept only to repeat an answer.
    lingering: usize,
    outgoing: VecDeque<Transmit>,
    events: Events,
    refused: RefusedRequests,
    counters: Counters,
}

impl Manager {
    /// A manager without connections.
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

    /// The next message to send.
    pub fn next_transmit(&mut self) -> Option<Transmit> {
        self.outgoing.pop_front()
    }

    /// The next event. Events come in the order in which they happened.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// When [`advance`](Self::advance) has something to do; `None` if no timer runs.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.timers.first().map(|(deadline, _)| *deadline)
    }

    /// The state of a connection; `None` if nothing is left of it.
    #[must_use]
    pub fn state(&self, id: ConnectionId) -> Option<State> {
        self.connections.get(&id).map(|it| it.state)
    }

    /// The peer's address; `None` if there is no such connection.
    #[must_use]
    pub fn peer(&self, id: ConnectionId) -> Option<IpAddr> {
        self.connections.get(&id).map(|it| it.peer)
    }

    /// All connections and requests, with their states and the peer's address, in the order in which they began.
    pub fn connections(&self) -> impl Iterator<Item = (ConnectionId, State, IpAddr)> {
        let all = self.connections.iter();
        all.map(|(id, it)| (*id, it.state, it.peer))
    }

    /// What is known of a connection; `None` if nothing is left of it.
    #[must_use]
    pub fn info(&self, id: ConnectionId) -> Option<Info> {
        self.connections.get(&id).map(Connection::info)
    }

    /// All listeners, in the order in which they were made.
    pub fn listeners(&self) -> impl Iterator<Item = (ListenerId, ListenerInfo)> {
        self.listeners.infos()
    }

    /// The next connection that was not made, oldest first: one that a peer asked for, or our program. It is for people, and
    /// comes before the event that tells the program. If the host does not take them, only the last ones are kept.
    pub fn next_refused(&mut self) -> Option<Refused> {
        self.refused.pop()
    }

    /// What it has counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How many things it remembers: 0 if nothing is left of any connection or listener.
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
