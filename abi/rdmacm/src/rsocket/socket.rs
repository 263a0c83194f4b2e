//! A stream socket and its state.

use super::cm::Id;
use super::connection::Connection;
use super::iomap::Iomaps;
use super::link::Link;
use super::options::Options;
use super::waiting::{Progress, Waiting};
use crate::hub::IdKey;
use parking_lot::Mutex;
use rkey_kit::Errno;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How far a stream socket has come.
#[derive(Debug)]
pub enum Phase {
    /// Nothing has happened, or it is bound.
    New,
    /// It listens.
    Listening(Listening),
    /// The peer has not answered yet. The queue pair is made once the path is known.
    Connecting(Option<Link>),
    /// Connected, or no longer.
    Open(Box<Connection>),
    /// It could not be connected.
    Refused(Errno),
    /// The program has closed it.
    Closed,
}

/// The connections that wait for `raccept`.
#[derive(Debug)]
pub struct Listening {
    /// Those that are connected.
    pub ready: VecDeque<Arc<Socket>>,
    /// Those that are being connected.
    pub begun: Vec<(IdKey, Arc<Socket>)>,
    /// How many may wait.
    pub limit: usize,
}

/// What the lock of a socket protects.
#[derive(Debug)]
pub struct State {
    /// Its identifier. It ends before the queue pair in `phase`, so it comes first.
    pub id: Option<Id>,
    /// How far it has come.
    pub phase: Phase,
    /// Its settings.
    pub options: Options,
    /// The listener of a connection that is not accepted yet.
    pub listener: Option<IdKey>,
    /// Whether a failed attempt was reported.
    pub is_reported: bool,
    /// The areas that this side has mapped.
    pub iomaps: Iomaps,
}

impl Progress for State {
    fn progress(&mut self) {
        if let Phase::Open(connection) = &mut self.phase {
            connection.progress();
            self.iomaps.announce(connection);
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
    /// `ENOTCONN`: there is none. The error of a failed attempt, once. `EBADF`: it is closed.
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

    /// Takes the identifier and then the queue pair, which are to be dropped in this order, without the lock.
    #[must_use]
    pub fn close(&mut self) -> (Option<Id>, Phase) {
        let phase = std::mem::replace(&mut self.phase, Phase::Closed);
        (self.id.take(), phase)
    }
}

/// A stream socket.
#[derive(Debug)]
pub struct Socket {
    /// Its descriptor.
    pub waiting: Waiting,
    /// The rest.
    pub state: Mutex<State>,
}

impl Socket {
    /// A socket with an identifier.
    ///
    /// # Errors
    /// No descriptor is available.
    pub fn new(id: Id, options: Options, nonblocking: bool) -> Result<Self, Errno> {
        Ok(Self {
            waiting: Waiting::new(nonblocking)?,
            state: Mutex::new(State {
                id: Some(id),
                phase: Phase::New,
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
    /// Those of [`Waiting::wait`].
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

    /// When a call gives up, by one of the socket's timeouts.
    #[must_use]
    pub fn deadline(&self, timeout: impl FnOnce(&Options) -> Option<Duration>) -> Option<Instant> {
        let timeout = timeout(&self.state.lock().options)?;
        rkey_device::time::now().checked_add(timeout)
    }
}
