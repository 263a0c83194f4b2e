//! The state that the program's threads and the connection manager's thread share: connections, listeners, and their events.

use rkey_cm::manager::{ConnectRequest, Event, Manager};
use rkey_cm::time::Nanos;
use rkey_cm::wire::{PrivateData, Rej, RejectReason, Rep};
use rkey_cm::{ConnectionId, ListenerId};
use rkey_device::cm::{Handler, OwnId};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// How a connection ended, or why it did not begin.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// The peer, or a manager on its behalf, refused.
    Refused(Box<PrivateData<{ Rej::DATA }>>),
    /// The peer did not answer.
    NoAnswer,
    /// The peer has disconnected, or we have.
    Disconnected,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Entry {
    name: u64,
    /// Our address and port, and the peer's.
    local: SocketAddr,
    peer: SocketAddr,
    /// The peer's answer to our request.
    pub(crate) answer: Option<Box<Rep>>,
    /// Whether the peer is ready, for a connection that the peer requested.
    pub(crate) is_established: bool,
    pub(crate) end: Option<End>,
}

/// A listener.
#[derive(Debug)]
struct Accepting {
    name: u64,
    address: SocketAddr,
    requests: VecDeque<Box<ConnectRequest>>,
}

/// All connections and listeners of a device.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    last_name: u64,
    pub(crate) connections: BTreeMap<ConnectionId, Entry>,
    listeners: BTreeMap<ListenerId, Accepting>,
}

impl Hub {
    fn new_name(&mut self) -> u64 {
        self.last_name += 1;
        self.last_name
    }

    /// Adds a connection.
    pub(crate) fn add(&mut self, id: ConnectionId, local: SocketAddr, peer: SocketAddr) {
        let entry = Entry {
            name: self.new_name(),
            local,
            peer,
            answer: None,
            is_established: false,
            end: None,
        };
        self.connections.insert(id, entry);
    }

    /// Adds a listener.
    pub(crate) fn listen(&mut self, id: ListenerId, address: SocketAddr) {
        let accepting = Accepting {
            name: self.new_name(),
            address,
            requests: VecDeque::new(),
        };
        self.listeners.insert(id, accepting);
    }

    /// Removes a listener, and returns the requests that the program has not taken.
    pub(crate) fn unlisten(&mut self, id: ListenerId) -> VecDeque<Box<ConnectRequest>> {
        let accepting = self.listeners.remove(&id);
        accepting.map(|it| it.requests).unwrap_or_default()
    }

    /// Takes the oldest request of a listener.
    pub(crate) fn next_request(&mut self, id: ListenerId) -> Option<Box<ConnectRequest>> {
        self.listeners.get_mut(&id)?.requests.pop_front()
    }

    /// Removes a request that its peer has withdrawn.
    fn withdraw(&mut self, id: ConnectionId) {
        for accepting in self.listeners.values_mut() {
            accepting.requests.retain(|it| it.connection != id);
        }
    }
}

impl Handler for Hub {
    fn event(&mut self, manager: &mut Manager, now: Nanos, event: Event) {
        let id = event.connection();
        let event = match event {
            Event::ConnectRequest(request) => {
                match self.listeners.get_mut(&request.listener) {
                    Some(accepting) => accepting.requests.push_back(request),
                    None => {
                        // The listener has just ended, so end the request.
                        let _ = manager.close(now, id);
                    }
                }
                return;
            }
            Event::DatagramRequest(_) => {
                let _ = manager.close(now, id);
                return;
            }
            event => event,
        };
        let Some(entry) = self.connections.get_mut(&id) else {
            if matches!(event, Event::Rejected { .. } | Event::Unreachable { .. }) {
                self.withdraw(id);
                // The request no longer counts against the backlog.
                let _ = manager.take_request(id);
            }
            return;
        };
        match event {
            Event::ConnectResponse { rep, .. } => entry.answer = Some(rep),
            Event::Established { .. } => entry.is_established = true,
            Event::Rejected { rej, .. } => entry.end = Some(End::Refused(Box::new(rej.data))),
            Event::Unreachable { .. } => entry.end = Some(End::NoAnswer),
            Event::Disconnected { .. } => {
                entry.end = Some(End::Disconnected);
                // Confirm the end of the connection. That has no effect if we requested it ourselves.
                let _ = manager.disconnect(now, id);
            }
            _ => {}
        }
    }

    fn api(&self) -> &'static str {
        "Rust"
    }

    fn ids(&self) -> Vec<OwnId> {
        let own = |name: u64| OwnId {
            name: name.to_string(),
            qp_type: "RC",
            space: "TCP",
            state: "ended",
            ..OwnId::default()
        };
        let listeners = self.listeners.iter().map(|(id, it)| OwnId {
            local: Some(it.address),
            listener: Some(*id),
            ..own(it.name)
        });
        let connections = self.connections.iter().map(|(id, it)| OwnId {
            local: Some(it.local),
            peer: Some(it.peer),
            connection: Some(*id),
            ..own(it.name)
        });
        listeners.chain(connections).collect()
    }
}

/// The reason code for refusals by the program.
pub(crate) const REFUSED: RejectReason = RejectReason::CONSUMER;
