//! Connections: the state of each, and the table of all by queue pair number.

mod left;
pub mod state;
mod table;

pub use left::Left;
pub use state::{Change, Event, State};
pub use table::Connections;
pub(crate) use table::NumberHasher;

use crate::address::Destination;
use crate::backlog::Backlog;
use crate::credit::{Credit, CreditUse};
use crate::limits::{RESERVE, SENDS};
use core::net::SocketAddr;

/// A connection. `Q` is the handle of its queue pair; `I` is what its host keeps for the peer.
#[derive(Debug)]
pub struct Connection<Q, I> {
    /// The queue pair; `None` once it is destroyed.
    pub qp: Option<Q>,
    /// The address of the peer.
    pub peer: SocketAddr,
    /// What the host keeps for the peer.
    pub identity: I,
    state: State,
    /// How many of the peer's messages no receive has taken yet, plus the FINs that we owe the peer.
    pub(crate) pending: u32,
    /// How many of the messages in `pending` are rendezvous messages, of which only the RTS has arrived.
    pub(crate) rendezvous: u32,
    /// Our credit: how much we may send.
    pub credit: Credit,
    /// The peer's use of its credit.
    pub window: CreditUse,
    /// How many posted requests have not completed.
    pub outstanding: u32,
    /// Answers and reads of payloads that wait for room.
    pub(crate) backlog: Backlog,
    /// Whether the peer's device chooses the keys of its regions.
    pub device_keys: bool,
    /// The destination of messages over the connection; `None` if the peer made the connection only to send.
    pub(crate) leads_to: Option<Destination>,
}

/// The next step of a connection's teardown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teardown {
    /// Wait, because the connection is in use or something still refers to it.
    Wait,
    /// Move the queue pair to the error state.
    End,
    /// Destroy the queue pair as soon as no peer accesses memory through it, and free the slot when all messages of the
    /// connection are read.
    Release,
}

impl<Q, I> Connection<Q, I> {
    /// A new connection that is being made.
    pub fn new(qp: Q, to: Destination, identity: I) -> Self {
        Self {
            qp: Some(qp),
            peer: to.address,
            identity,
            state: State::default(),
            pending: 0,
            rendezvous: 0,
            credit: Credit::default(),
            window: CreditUse::default(),
            outstanding: 0,
            backlog: Backlog::default(),
            device_keys: false,
            leads_to: Some(to),
        }
    }

    /// The state, which [`Connections::apply`] changes.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether the program can post this many more requests. The rest of the room is reserved for answers.
    #[inline]
    pub fn has_room(&self, requests: u32) -> bool {
        self.outstanding + requests + RESERVE <= SENDS
    }

    /// Whether an answer can be posted now: there is room, and no earlier answer is waiting.
    #[inline]
    pub fn takes_answers(&self) -> bool {
        self.outstanding < SENDS && self.backlog.is_empty()
    }

    /// Records that a posted request has completed. Returns whether requests wait for room.
    #[inline]
    pub fn request_completed(&mut self) -> bool {
        self.outstanding = self.outstanding.saturating_sub(1);
        !self.backlog.is_empty()
    }

    /// Whether a posted request has not completed or an answer still waits; `false` once the connection is lost.
    pub fn is_busy(&self) -> bool {
        !self.state.is_lost() && (self.outstanding > 0 || !self.backlog.is_empty())
    }

    /// The next step of the teardown. `referred` says whether an operation still refers to the connection.
    pub fn teardown(&self, referred: bool) -> Teardown {
        let at_rest = self.outstanding == 0 && self.backlog.is_empty() && !referred;
        if !self.state.awaits_teardown() || !at_rest {
            return Teardown::Wait;
        }
        // `End` flushes the queue pair. When the completion queue is empty afterwards, the queue pair can report nothing
        // more, so destroying it loses nothing.
        match self.qp.is_some() && !self.state.is_draining() {
            true => Teardown::End,
            false => Teardown::Release,
        }
    }
}
