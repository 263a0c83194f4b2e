//! A descriptor in an instance, and whether it is reported.

use super::super::datagram::Datagram;
use super::super::edges::Edges;
use super::super::polling::{Rearm, check_edges};
use super::super::socket::Socket;
use super::super::table::Any;
use std::ffi::{c_int, c_short};
use std::sync::{Arc, Weak};

/// The bits of `events` that are flags.
const FLAGS: u32 =
    (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLWAKEUP | libc::EPOLLEXCLUSIVE) as u32;

/// A socket that an instance watches, unless the program has closed it.
#[derive(Debug)]
pub(super) enum Watched {
    Stream(Weak<Socket>),
    Datagram(Weak<Datagram>),
}

impl Watched {
    pub(super) fn new(socket: &Any) -> Self {
        match socket {
            Any::Stream(socket) => Self::Stream(Arc::downgrade(socket)),
            Any::Datagram(socket) => Self::Datagram(Arc::downgrade(socket)),
        }
    }

    pub(super) fn is(&self, socket: &Any) -> bool {
        match (self, socket) {
            (Self::Stream(own), Any::Stream(other)) => own.as_ptr() == Arc::as_ptr(other),
            (Self::Datagram(own), Any::Datagram(other)) => own.as_ptr() == Arc::as_ptr(other),
            _ => false,
        }
    }
}

/// A descriptor in an instance.
#[derive(Debug)]
pub(super) struct Entry {
    /// The socket; `None` for an ordinary descriptor.
    pub(super) socket: Option<Watched>,
    /// `events` as the program passed it.
    events: u32,
    pub(super) data: u64,
    /// The events that were ready in the last check, and how often the socket had become ready, for `EPOLLET`.
    seen: (c_short, Edges),
    /// Whether the next call checks the socket, although its descriptor is not readable.
    pub(super) is_due: bool,
    /// Whether `EPOLLONESHOT` has disabled it.
    pub(super) is_disabled: bool,
}

impl Entry {
    pub(super) fn new(socket: Option<&Any>, events: u32, data: u64) -> Self {
        Self {
            socket: socket.map(Watched::new),
            events,
            data,
            seen: Default::default(),
            is_due: true,
            is_disabled: false,
        }
    }

    pub(super) fn has(&self, flag: c_int) -> bool {
        self.events & flag as u32 != 0
    }

    /// Whether the socket is to be checked although its descriptor is not readable.
    pub(super) fn is_due_socket(&self) -> bool {
        self.socket.is_some() && self.is_due && !self.is_disabled
    }

    /// The events that are to be reported.
    pub(super) fn ready(&mut self, socket: &Any) -> c_short {
        let wanted = (self.events & !FLAGS) as c_short;
        if self.has(libc::EPOLLET) {
            // Rearmed first, so that its descriptor becomes readable with the next edge.
            let (found, edges) = check_edges(socket, wanted, Rearm::First);
            let (reported, earlier) = std::mem::replace(&mut self.seen, (found, edges));
            let is_new = edges.are_new(earlier, wanted) || found & !reported != 0;
            self.is_due = false;
            return if is_new { found } else { 0 };
        }
        let (found, _) = check_edges(socket, wanted, Rearm::IfNothing);
        self.is_due = found != 0;
        found
    }
}
