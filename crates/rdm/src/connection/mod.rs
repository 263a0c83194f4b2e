//! Connections: what an endpoint knows of each, and all of them by queue pair number.

pub mod state;
mod table;

pub use state::{Change, Event, State};
pub use table::Connections;

use crate::backlog::Backlog;
use crate::credit::{Credit, Window};
use crate::limits::{RESERVE, SENDS};
use core::net::SocketAddr;

/// A connection. `Q` is the handle of its queue pair, `I` what else its host keeps for the peer.
#[derive(Debug)]
pub struct Connection<Q, I> {
    /// Its queue pair, until that is taken apart.
    pub qp: Option<Q>,
    /// The address of the peer.
    pub peer: SocketAddr,
    /// What the host keeps for the peer.
    pub identity: I,
    state: State,
    /// Messages from the peer that no receive has taken yet, and FINs that are owed to it.
    pub pending: u32,
    /// Those of them of which only the RTS has arrived.
    pub rendezvous: u32,
    /// What we may send.
    pub credit: Credit,
    /// What the peer has sent.
    pub window: Window,
    /// Requests that were posted and not completed.
    pub outstanding: u32,
    /// Answers that found no room.
    pub backlog: Backlog,
    /// Keys of regions there are chosen by the device.
    pub device_keys: bool,
}

/// What taking a connection apart needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teardown {
    /// Nothing yet: it is in use, or something still refers to it.
    Wait,
    /// Its queue pair is put into the error state.
    End,
    /// Its queue pair goes as soon as no peer touches memory through it, and its place when all is read.
    Release,
}

impl<Q, I> Connection<Q, I> {
    /// A connection that is being made.
    pub fn new(qp: Q, peer: SocketAddr, identity: I) -> Self {
        Self {
            qp: Some(qp),
            peer,
            identity,
            state: State::default(),
            pending: 0,
            rendezvous: 0,
            credit: Credit::default(),
            window: Window::default(),
            outstanding: 0,
            backlog: Backlog::default(),
            device_keys: false,
        }
    }

    /// Its state, which [`Connections::apply`] changes.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether the program can post this many more requests. The remaining places are reserved for answers.
    #[inline]
    pub fn has_room(&self, requests: u32) -> bool {
        self.outstanding + requests + RESERVE <= SENDS
    }

    /// Whether an answer can be posted now: there is room, and none waits that came before.
    #[inline]
    pub fn takes_answers(&self) -> bool {
        self.outstanding < SENDS && self.backlog.is_empty()
    }

    /// Whether something that was posted has not arrived yet.
    pub fn is_busy(&self) -> bool {
        !self.state.is_lost() && (self.outstanding > 0 || !self.backlog.is_empty())
    }

    /// What taking it apart needs next. `referred` says whether an operation still refers to it.
    pub fn teardown(&self, referred: bool) -> Teardown {
        let at_rest = self.outstanding == 0 && self.backlog.is_empty() && !referred;
        if !self.state.awaits_teardown() || !at_rest {
            return Teardown::Wait;
        }
        // Nothing comes from the next look on after the end: then the queue pair can go, and loses nothing.
        match self.qp.is_some() && !self.state.is_draining() {
            true => Teardown::End,
            false => Teardown::Release,
        }
    }
}
