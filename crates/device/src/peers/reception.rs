//! The reception handles clients that connect to our sockets, until they have a link or are dropped.
//!
//! A client that requests neither a link nor an inspection within a second is dropped. What a client sends is untrusted
//! input: the link crate checks its form, and the reception checks the client's identity and its share of our descriptors.

use std::time::{Duration, Instant};

use rkey_link::peer::Credentials;

use crate::inspect;
use crate::peers::half_open::{self, HalfOpen};
use crate::peers::handshake::{
    Acceptor, Greeting, HandshakeError, LinkRequest, LocalNode, OtherConnection, Step,
};
use crate::peers::link_limits::{LinkLimits, Party};
use crate::peers::links::Links;
use crate::peers::process;
use crate::progress::reactor::Token;
use crate::shared::Shared;

/// The minimum time between two log lines about refused clients.
const LOG_PAUSE: Duration = Duration::from_secs(1);
/// How long to accept no clients on a socket where accepting failed, most likely because the descriptors are used up.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts clients, and establishes links for those that request one.
pub(crate) struct Reception {
    local: LocalNode,
    half_open: HalfOpen<Client>,
    /// Blocks whose sockets accept no clients, and until when.
    paused: Option<(Instant, Vec<u16>)>,
    /// When a refused client was last logged.
    refused_at: Option<Instant>,
}

/// A client that has not sent its request yet.
struct Client {
    acceptor: Acceptor,
    token: Token,
}

impl Reception {
    pub(crate) fn new(local: LocalNode) -> Self {
        Self {
            local,
            half_open: HalfOpen::new(),
            paused: None,
            refused_at: None,
        }
    }

    /// Handles a readable descriptor, if it belongs to the reception. Returns whether a link came up.
    pub(crate) fn handle(&mut self, shared: &Shared, links: &mut Links, token: Token) -> bool {
        if let Some(block) = token.as_block() {
            return self.accept(shared, links, block);
        }
        match self.half_open.position(|client| client.token == token) {
            Some(index) => self.greet(shared, links, index),
            None => false,
        }
    }

    /// Accepts the clients of a block's socket. Returns whether a link came up.
    fn accept(&mut self, shared: &Shared, links: &mut Links, block: u16) -> bool {
        let mut linked = false;
        // Later clients wait until the next iteration.
        for _ in 0..half_open::MAX {
            if self.half_open.is_full() {
                linked |= self.make_room(shared, links);
            }
            match shared.qp_numbers.accept(block, &self.local) {
                Ok(None) => return linked,
                Ok(Some(acceptor)) => self.admit(shared, acceptor),
                Err(HandshakeError::NotAllowed(uid)) => {
                    tracing::debug!(
                        uid,
                        "refused a client of another user: to allow it, set RKEY_SHARE=all on both sides"
                    );
                }
                Err(error) => {
                    // Most likely no descriptor is available. Until accepting resumes, clients wait in the socket's backlog.
                    tracing::warn!(block, %error, "cannot accept a client; will retry shortly");
                    shared
                        .qp_numbers
                        .with_socket(block, |fd| shared.reactor.remove(fd));
                    let paused = self
                        .paused
                        .get_or_insert((Instant::now() + ACCEPT_PAUSE, Vec::new()));
                    paused.1.push(block);
                    return linked;
                }
            }
        }
        linked
    }

    /// Makes room for a new client: handles the clients that have sent something, and if all are silent, drops one of the
    /// party that has the most. Returns whether a link came up.
    fn make_room(&mut self, shared: &Shared, links: &mut Links) -> bool {
        let mut linked = false;
        for index in (0..self.half_open.len()).rev() {
            linked |= self.greet(shared, links, index);
        }
        if self.half_open.is_full()
            && let Some(index) = self.half_open.greediest()
        {
            let who = self.half_open[index].acceptor.credentials();
            tracing::debug!(
                pid = ?who.pid,
                uid = who.uid,
                "too many silent clients: closed a connection of the process or user that has the most"
            );
            self.drop_half_open(shared, index);
        }
        linked
    }

    fn admit(&mut self, shared: &Shared, acceptor: Acceptor) {
        let token = shared.reactor.new_token();
        let who = acceptor.credentials();
        let Some(fd) = acceptor.socket() else { return };
        if let Err(error) = shared.reactor.add(fd, token) {
            tracing::warn!(pid = ?who.pid, uid = who.uid, %error, "cannot watch a client's socket; closing it");
            return;
        }
        self.half_open
            .push(Party::of(who), Client { acceptor, token });
    }

    fn drop_half_open(&mut self, shared: &Shared, index: usize) {
        let client = self.half_open.remove(index);
        if let Some(fd) = client.acceptor.socket() {
            shared.reactor.remove(fd);
        }
    }

    /// Handles a client's packet. Returns whether a link came up.
    fn greet(&mut self, shared: &Shared, links: &mut Links, index: usize) -> bool {
        let acceptor = &mut self.half_open[index].acceptor;
        // Remove the socket from the reactor first: the next step may consume it.
        if let Some(fd) = acceptor.socket() {
            shared.reactor.remove(fd);
        }
        let step = acceptor.advance();
        let mut linked = false;
        match step {
            Ok(Step::Pending) => {
                let client = &self.half_open[index];
                if let Some(fd) = client.acceptor.socket() {
                    let _ = shared.reactor.add(fd, client.token);
                }
                return false;
            }
            Ok(Step::Done(Greeting::Link(request))) => {
                linked = self.accept_link(shared, links, request)
            }
            Ok(Step::Done(Greeting::Other(connection))) => answer(shared, connection),
            Err(error @ HandshakeError::Version(_)) => {
                let who = self.half_open[index].acceptor.credentials();
                self.log_refusal(who, &error.to_string());
            }
            Err(error) => {
                let who = self.half_open[index].acceptor.credentials();
                tracing::debug!(pid = ?who.pid, uid = who.uid, %error, "closed the connection to a client");
            }
        }
        self.half_open.remove(index);
        // The engine thread takes over briefly, and then writes the new link's sleep word.
        linked
    }

    fn accept_link(&mut self, shared: &Shared, links: &mut Links, request: LinkRequest) -> bool {
        let who = request.credentials();
        let limits = LinkLimits::now(&shared.config);
        if let Err(why) = limits.admit(who, links.len(), links.accepted_from()) {
            self.log_refusal(who, &why);
            request.refuse(&why);
            return false;
        }
        let in_use = || shared.driver.nodes_in_use();
        if !shared.identities.is_credible(request.node(), who, in_use) {
            tracing::warn!(
                node = %request.node(),
                pid = ?who.pid,
                uid = who.uid,
                "refused the link of a process that claims another process's device"
            );
            request.refuse("this device belongs to another process");
            return false;
        }
        match request.accept() {
            Ok(link) => links.adopt(shared, link.into()).is_some(),
            Err(error) => {
                tracing::debug!(pid = ?who.pid, uid = who.uid, %error, "cannot accept a link");
                false
            }
        }
    }

    /// Logs that a client was refused, unless one was logged just before.
    fn log_refusal(&mut self, who: Credentials, why: &str) {
        let now = Instant::now();
        if self.refused_at.is_some_and(|at| now - at < LOG_PAUSE) {
            tracing::debug!(pid = ?who.pid, uid = who.uid, why, "refused a client");
            return;
        }
        self.refused_at = Some(now);
        let peer = process::name_of(who.pid);
        tracing::warn!(peer, uid = who.uid, "refused a client: {why}");
    }

    /// Drops silent clients, and resumes accepting after a pause.
    pub(crate) fn tidy(&mut self, shared: &Shared, now: Instant) {
        while let Some(index) = self.half_open.overdue(now) {
            let who = self.half_open[index].acceptor.credentials();
            tracing::debug!(pid = ?who.pid, uid = who.uid, "closed the connection to a silent client");
            self.drop_half_open(shared, index);
        }
        if let Some((_, blocks)) = self.paused.take_if(|(until, _)| *until <= now) {
            for block in blocks {
                shared.qp_numbers.with_socket(block, |fd| {
                    let _ = shared.reactor.add(fd, Token::block(block));
                });
            }
        }
    }

    /// When [`Reception::tidy`] must be called at the latest.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let half_open = self.half_open.next_deadline().into_iter();
        half_open
            .chain(self.paused.as_ref().map(|(until, _)| *until))
            .min()
    }

    /// Drops all clients.
    pub(crate) fn close(&mut self, shared: &Shared) {
        while !self.half_open.is_empty() {
            self.drop_half_open(shared, 0);
        }
    }
}

/// Answers a client that does not request a link.
fn answer(shared: &Shared, connection: OtherConnection) {
    let Credentials { pid, uid, .. } = connection.credentials();
    let result = match connection.first() {
        inspect::REQUEST => inspect::answer(shared, &connection),
        _ => {
            tracing::debug!(
                ?pid,
                uid,
                "closed the connection to a client that sent an unknown request"
            );
            return;
        }
    };
    if let Err(error) = result {
        tracing::debug!(?pid, uid, %error, "cannot answer a request to inspect the device");
    }
}
