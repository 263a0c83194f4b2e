//! A stream socket and its state.

use super::cm::Id;
use super::connection::Connection;
use super::edges::Edges;
use super::iomap::Iomaps;
use super::link::Link;
use super::options::Options;
use super::waiting::{Progress, Waiting};
use crate::state::hub::IdKey;
use parking_lot::Mutex;
use rkey_kit::Errno;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The state of a stream socket.
#[derive(Debug)]
pub enum Phase {
    /// New, or bound.
    New,
    /// The socket listens.
    Listening(Listening),
    /// The peer has not answered yet. The queue pair exists once the path is resolved.
    Connecting(Option<Link>),
    /// Connected, or disconnected since.
    Open(Box<Connection>),
    /// The attempt to connect failed.
    Refused(Errno),
    /// The program has closed it.
    Closed,
}

/// The connections that wait for `raccept`.
#[derive(Debug)]
pub struct Listening {
    /// Established connections.
    pub ready: VecDeque<Arc<Socket>>,
    /// Connections that are not established yet.
    pub pending: Vec<(IdKey, Arc<Socket>)>,
    /// The backlog: the limit for both together.
    pub limit: usize,
}

/// What the lock of a socket protects.
#[derive(Debug)]
pub struct State {
    /// The identifier. Declared before `phase`, so that it is dropped before the queue pair.
    pub id: Option<Id>,
    /// The state of the socket. Changed by [`enter`](State::enter).
    pub phase: Phase,
    /// How often it became ready.
    pub edges: Edges,
    /// The options.
    pub options: Options,
    /// The listener, until the program accepts the connection.
    pub listener: Option<IdKey>,
    /// Whether the program has been told that the attempt to connect failed.
    pub is_reported: bool,
    /// The areas that this side has mapped.
    pub iomaps: Iomaps,
}

impl Progress for State {
    fn progress(&mut self) {
        if let Phase::Open(connection) = &mut self.phase {
            let before = connection.stream();
            let (waiting, reads) = (before.waiting(), before.is_readable());
            let (accepts, ended) = (before.accepts_data(), before.has_ended());
            connection.progress();
            self.iomaps.send_records(connection);
            let now = connection.stream();
            if now.waiting() > waiting || now.is_readable() != reads {
                self.edges.readable();
            }
            if now.accepts_data() && !accepts {
                self.edges.writable();
            }
            if now.has_ended() != ended {
                self.edges.phase();
            }
        }
    }

    fn rearm(&mut self) {
        match &self.phase {
            Phase::Open(connection) => connection.link().rearm(),
            Phase::Connecting(Some(link)) => link.rearm(),
            _ => {}
        }
    }
}

impl State {
    /// The connection.
    ///
    /// # Errors
    /// `ENOTCONN`: the socket is not connected. The error of a failed attempt to connect, once. `EBADF`: the socket is closed.
    pub fn connection(&mut self) -> Result<&mut Connection, Errno> {
        match &mut self.phase {
            Phase::Open(connection) => Ok(connection),
            Phase::Closed => Err(Errno::BADF),
            Phase::Refused(error) if !self.is_reported => {
                self.is_reported = true;
                Err(*error)
            }
            _ => Err(Errno::from_raw(libc::ENOTCONN)),
        }
    }

    /// Changes the phase.
    pub fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.edges.phase();
    }

    /// Takes the identifier and the queue pair. The caller must drop them in this order.
    #[must_use]
    pub fn close(&mut self) -> (Option<Id>, Phase) {
        let phase = std::mem::replace(&mut self.phase, Phase::Closed);
        self.edges.phase();
        (self.id.take(), phase)
    }
}

/// A stream socket.
#[derive(Debug)]
pub struct Socket {
    /// The descriptor of the socket.
    pub waiting: Waiting,
    /// Everything else.
    pub state: Mutex<State>,
}

impl Socket {
    /// Creates a socket with an identifier.
    ///
    /// # Errors
    /// No descriptor is available.
    pub fn new(id: Id, options: Options, nonblocking: bool) -> Result<Self, Errno> {
        Ok(Self {
            waiting: Waiting::new(nonblocking)?,
            state: Mutex::new(State {
                id: Some(id),
                phase: Phase::New,
                edges: Edges::default(),
                options,
                listener: None,
                is_reported: false,
                iomaps: Iomaps::default(),
            }),
        })
    }

    /// Waits until `ready` returns something.
    ///
    /// # Errors
    /// The errors of [`Waiting::wait`].
    pub fn wait<R>(
        &self,
        blocks: bool,
        deadline: Option<Instant>,
        ready: impl FnMut(&mut State) -> Option<Result<R, Errno>>,
    ) -> Result<R, Errno> {
        self.waiting.wait(&self.state, blocks, deadline, ready)
    }

    /// Whether a call with these flags blocks.
    #[must_use]
    pub fn blocks(&self, flags: c_int) -> bool {
        !self.waiting.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0
    }

    /// The deadline for a call that begins now, by one of the socket's timeouts.
    #[must_use]
    pub fn deadline(&self, timeout: impl FnOnce(&Options) -> Option<Duration>) -> Option<Instant> {
        let timeout = timeout(&self.state.lock().options)?;
        rkey_device::time::now().checked_add(timeout)
    }
}
