//! The state machine of a queue pair whose peer is on another host.

use super::WirePeer;
use rkey_roce::transport::{Connection, Counters, DatagramQueuePair, Event, RemoteRange};

/// State of the message that is arriving.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    /// The most recent write, and how many of its bytes have been stored.
    pub(super) write: Option<(RemoteRange, u32)>,
    /// The report about the receive that is being filled; 0 if there is none.
    pub(super) report: u32,
}

/// Replaces requester and responder for a queue pair whose peer is on another host.
pub(crate) struct Wire {
    pub(super) machine: Machine,
    /// Whether the queue pair is in the list of those that may have a packet to send.
    pub(super) has_turn: bool,
    /// The number of packets that the queue pair has sent in the current turn.
    pub(super) sent: u32,
    /// When the running timer expires.
    pub(super) timer: Option<u64>,
    /// When an earlier timer than the running one was set last: when the latter expires. It need not be set again.
    pub(super) later: Option<u64>,
    /// When the queue pair's first packet arrived.
    pub(super) since: Option<u64>,
    pub(super) arriving: Arriving,
}

/// The state machine of a queue pair with a peer on another host: connected or datagram.
pub(super) enum Machine {
    Connection(Box<Connection>),
    Datagrams(Box<DatagramQueuePair<WirePeer>>),
}

impl Wire {
    pub(super) fn new(machine: Machine) -> Self {
        Self {
            machine,
            has_turn: false,
            sent: 0,
            timer: None,
            later: None,
            since: None,
            arriving: Arriving::default(),
        }
    }

    /// The queue pair enters the error state, and has ended all its work itself. A pending refusal is
    /// still sent.
    pub(crate) fn flush(&mut self) {
        match &mut self.machine {
            Machine::Connection(connection) => connection.flush(),
            Machine::Datagrams(datagrams) => datagrams.flush(),
        }
        while self.next_event().is_some() {}
    }

    pub(super) fn next_event(&mut self) -> Option<Event> {
        match &mut self.machine {
            Machine::Connection(connection) => connection.next_event(),
            Machine::Datagrams(datagrams) => datagrams.next_event(),
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        match &self.machine {
            Machine::Connection(connection) => connection.counters(),
            Machine::Datagrams(datagrams) => datagrams.counters(),
        }
    }

    /// Whether the queue pair may have a packet to send, as far as its machine knows: datagrams wait in the send queue.
    pub(super) fn may_transmit(&self) -> bool {
        match &self.machine {
            Machine::Connection(connection) => connection.may_transmit(),
            Machine::Datagrams(_) => true,
        }
    }

    /// Whether a packet that has arrived before earlier ones has its turn.
    pub(super) fn may_receive_kept(&self) -> bool {
        match &self.machine {
            Machine::Connection(connection) => connection.may_receive_kept(),
            Machine::Datagrams(_) => false,
        }
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        match &self.machine {
            Machine::Connection(connection) => connection.next_deadline(),
            Machine::Datagrams(_) => None,
        }
    }
}
