//! The sockets that the connection manager's thread watches, and what each belongs to.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rkey_cm::address::ServiceId;

use super::carrier::Name;
use super::presence::Route;
use crate::progress::reactor::{Reactor, Token};

/// What a watched descriptor belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Watched {
    Block,
    Port(ServiceId),
    Sender,
    Receiver(Name),
    Presence(Route),
}

/// The watched sockets.
pub(super) struct Watches {
    reactor: Arc<Reactor>,
    by_token: BTreeMap<Token, Watched>,
}

impl Watches {
    pub(super) fn new(reactor: Arc<Reactor>) -> Self {
        Self {
            reactor,
            by_token: BTreeMap::new(),
        }
    }

    /// Watches a socket, and returns its token.
    pub(super) fn add(&mut self, socket: &OwnedFd, belongs_to: Watched) -> io::Result<Token> {
        let token = self.reactor.new_token();
        self.reactor.add(socket, token).map_err(io::Error::other)?;
        self.by_token.insert(token, belongs_to);
        Ok(token)
    }

    /// Ends watching a socket.
    pub(super) fn remove(&mut self, socket: &OwnedFd, token: Token) {
        self.reactor.remove(socket);
        self.by_token.remove(&token);
    }

    /// What a token's socket belongs to.
    pub(super) fn get(&self, token: Token) -> Option<Watched> {
        self.by_token.get(&token).copied()
    }

    /// Ignores a socket for a while.
    pub(super) fn pause(&self, socket: &OwnedFd) {
        self.reactor.remove(socket);
    }

    /// Watches a paused socket again, under its token. Returns whether that succeeded.
    pub(super) fn resume(&self, socket: &OwnedFd, token: Token) -> bool {
        self.reactor.remove(socket);
        self.reactor.add(socket, token).is_ok()
    }
}
