//! Finds the device that owns a queue pair number, and connects to it.
//!
//! When a queue pair gets a peer, the engine requests a link ([`rkey_engine::Event::LinkNeeded`]). The device that owns the
//! peer's number listens on the socket of its block. That device may not exist yet: two programs that exchange numbers start in
//! any order. So discovery retries, with backoff, for a limited time, and only while a waiting queue pair is in a state that
//! allows it. A queue pair that already has the name of its peer's device does not wait. The peer's device existed when it sent
//! its numbers, so it has closed if its block is now free or belongs to another device.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use rkey_engine::{LinkId, QpId, QpState};
use rkey_link::{AnyLink, Link, NodeId, RemotePeer};

use crate::objects::event_queue::wait_readable;
use crate::peers::handshake::{Connector, HandshakeError, LocalNode, Step};
use crate::peers::links::Links;
use crate::peers::names::{self, Scope};
use crate::peers::unresponsive;
use crate::progress::reactor::Token;
use crate::shared::Shared;

/// The first and the longest pause between two attempts to reach a device.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
/// How long a device may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// How long discovery tries to reach the device of a connected queue pair's peer.
const PERSISTENCE: Duration = Duration::from_secs(60);
/// How long a datagram waits: first, if no device owns the destination's number; second, if a device owns it but has not
/// answered yet. Datagrams may be lost, but should not be lost just because the receiver's processor is busy.
const PERSISTENCE_DATAGRAM: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_secs(5));

/// The pause between two searches for a device of another scope: the kernel's list of sockets can be long.
const OWNER_LOOKUP_PAUSE: Duration = Duration::from_millis(500);

/// The known owners of blocks, and the attempts to reach owners that are not known yet.
pub(crate) struct Discovery {
    local: LocalNode,
    /// The link to the owner of each block that was reached.
    blocks: HashMap<u16, LinkId>,
    attempts: HashMap<u16, Attempt>,
    /// When the owner of a block was last searched for in other scopes, where this device is not allowed to connect.
    owner_lookup: Option<Instant>,
}

/// The attempt to reach the owner of one block.
struct Attempt {
    qps: Vec<WaitingQp>,
    state: AttemptState,
    pause: Duration,
    /// Whether the block is known to have an owner.
    exists: bool,
    /// The owner's process, once dialled, if it has a PID in our namespace.
    process: Option<u32>,
    /// Whether the owner was searched for in other scopes, and logged if found.
    owner_logged: bool,
}

/// A queue pair that needs a link to the device of its peer.
#[derive(Clone, Copy)]
pub(crate) struct WaitingQp {
    pub(crate) qp: QpId,
    pub(crate) peer: u32,
    pub(crate) since: Instant,
}

enum AttemptState {
    /// The time of the next attempt.
    Idle(Instant),
    /// The owner's socket is connected, and the owner must answer by this time.
    Dialled(Box<Connector>, Token, Instant),
}

impl Discovery {
    pub(crate) fn new(local: LocalNode) -> Self {
        Self {
            local,
            blocks: HashMap::new(),
            attempts: HashMap::new(),
            owner_lookup: None,
        }
    }

    /// When [`Discovery::tidy`] must be called at the latest.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.attempts
            .values()
            .map(|attempt| match attempt.state {
                AttemptState::Idle(at) | AttemptState::Dialled(_, _, at) => at,
            })
            .min()
    }

    /// The link to the owner of a block, if there is one.
    pub(crate) fn link_of(&self, links: &Links, block: u16) -> Option<LinkId> {
        let link = self.blocks.get(&block).copied();
        link.filter(|&link| links.has(link))
    }

    /// The process that owns a block and has not answered yet, if it has a PID in our namespace.
    pub(crate) fn dialled_process(&self, block: u16) -> Option<u32> {
        self.attempts.get(&block)?.process
    }

    /// Whether the owner of a block has answered an attempt to reach it, and this device has not read the answer yet.
    pub(crate) fn has_answer(&self, block: u16) -> bool {
        let Some(Attempt {
            state: AttemptState::Dialled(connector, ..),
            ..
        }) = self.attempts.get(&block)
        else {
            return false;
        };
        let is_readable = |socket| wait_readable(socket, Some(Instant::now())).unwrap_or(false);
        connector.socket().is_some_and(is_readable)
    }

    /// Whether an attempt to reach the owner of a block is in progress.
    pub(crate) fn looks_for(&self, block: u16) -> bool {
        self.attempts.contains_key(&block)
    }

    /// Starts the attempts that were requested since the last call, and continues those that are due. Returns whether one ended,
    /// with or without a link.
    pub(crate) fn tidy(&mut self, shared: &Shared, links: &mut Links, now: Instant) -> bool {
        let mut connected = false;
        let wanted = shared.driver.requests.take_links();
        for (qp, peer) in wanted {
            connected |= self.want(
                shared,
                links,
                WaitingQp {
                    qp,
                    peer,
                    since: now,
                },
            );
        }
        let due: Vec<u16> = self
            .attempts
            .iter()
            .filter(|(_, attempt)| match attempt.state {
                AttemptState::Idle(at) | AttemptState::Dialled(_, _, at) => at <= now,
            })
            .map(|(&block, _)| block)
            .collect();
        for block in due {
            connected |= self.resume(shared, block, now);
        }
        connected
    }

    /// Connects a queue pair to the owner of its peer's block, at once if there is a link, which makes the result `true`.
    pub(crate) fn want(&mut self, shared: &Shared, links: &Links, waiting: WaitingQp) -> bool {
        let block = names::block_of(waiting.peer);
        if let Some(&link) = self.blocks.get(&block) {
            if links.has(link) {
                connect(shared, waiting, link);
                return true;
            }
            self.blocks.remove(&block);
        }
        let attempt = self.attempts.entry(block).or_insert_with(|| Attempt {
            qps: Vec::new(),
            state: AttemptState::Idle(waiting.since),
            pause: PAUSES.0,
            exists: false,
            process: None,
            owner_logged: false,
        });
        attempt.qps.push(waiting);
        false
    }

    /// Continues an attempt whose timer expired: the pause is over, or the answer is overdue.
    fn resume(&mut self, shared: &Shared, block: u16, now: Instant) -> bool {
        let Some(attempt) = self.attempts.get_mut(&block) else {
            return false;
        };
        if let AttemptState::Dialled(connector, ..) = &attempt.state {
            tracing::debug!(block, "a device did not answer in time");
            if let Some(fd) = connector.socket() {
                shared.reactor.remove(fd);
            }
        }
        let exists = attempt.exists;
        attempt
            .qps
            .retain(|waiting| keeps_waiting(shared, *waiting, exists, now));
        let long = attempt.qps.is_empty() || attempt.pause >= PAUSES.1;
        if long && !exists && !std::mem::replace(&mut attempt.owner_logged, true) {
            log_owner_elsewhere(shared.scope, block, &mut self.owner_lookup, now);
        }
        if attempt.qps.is_empty() {
            self.attempts.remove(&block);
            return true; // requests may have waited for the attempt to end
        }
        let name = names::block_name(shared.scope, block);
        match Connector::start(name.as_bytes(), &self.local, b"") {
            Ok(connector) => {
                let token = shared.reactor.new_token();
                let watched = connector.socket().map(|fd| shared.reactor.add(fd, token));
                attempt.exists = true;
                attempt.process = connector.socket().and_then(unresponsive::listener);
                if matches!(watched, Some(Ok(()))) {
                    attempt.state =
                        AttemptState::Dialled(Box::new(connector), token, now + ANSWER_TIME);
                } else {
                    attempt.later(now);
                }
                false
            }
            Err(error) => self.failed(shared, block, &error, now),
        }
    }

    /// Handles an attempt's socket that has become readable.
    pub(crate) fn handle(&mut self, shared: &Shared, links: &mut Links, token: Token) -> bool {
        let found =
            self.attempts
                .iter_mut()
                .find_map(|(&block, attempt)| match &mut attempt.state {
                    AttemptState::Dialled(connector, t, _) if *t == token => {
                        Some((block, connector))
                    }
                    _ => None,
                });
        let Some((block, connector)) = found else {
            return false;
        };
        // Remove the socket first: afterwards it belongs to the link.
        if let Some(fd) = connector.socket() {
            shared.reactor.remove(fd);
        }
        match connector.advance() {
            Ok(Step::Pending) => {
                if let Some(fd) = connector.socket() {
                    let _ = shared.reactor.add(fd, token);
                }
                false
            }
            Ok(Step::Done(link)) => self.reached(shared, links, block, link.into()),
            Err(error) => self.failed(shared, block, &error, Instant::now()),
        }
    }

    /// Connects all queue pairs that wait for a device.
    fn reached(&mut self, shared: &Shared, links: &mut Links, block: u16, link: AnyLink) -> bool {
        let Some(RemotePeer { credentials, .. }) = link.peer() else {
            return false;
        };
        let in_use = || shared.driver.nodes_in_use();
        if !shared
            .identities
            .is_credible(link.node(), credentials, in_use)
        {
            let error = HandshakeError::NotAllowed(credentials.uid);
            return self.failed(shared, block, &error, Instant::now());
        }
        // One link to a device is enough, even if it owns several blocks.
        let id = links
            .link_to(link.node())
            .or_else(|| links.adopt(shared, link));
        let Some(attempt) = self.attempts.remove(&block) else {
            return false;
        };
        let Some(id) = id else { return false };
        self.blocks.insert(block, id);
        for waiting in attempt.qps {
            connect(shared, waiting, id);
        }
        true
    }

    /// Handles a failed attempt: schedules the next one if the device may still appear.
    fn failed(
        &mut self,
        shared: &Shared,
        block: u16,
        error: &HandshakeError,
        now: Instant,
    ) -> bool {
        let Some(attempt) = self.attempts.get_mut(&block) else {
            return false;
        };
        let is_temporary = match error {
            HandshakeError::Io(e) => {
                if e.kind() == ErrorKind::ConnectionRefused {
                    attempt.exists = false;
                    attempt.process = None;
                    attempt.give_up_known_devices(shared);
                }
                !matches!(
                    e.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::InvalidInput
                )
            }
            // The owner may have closed its device just before.
            HandshakeError::Closed => true,
            HandshakeError::NotAllowed(_)
            | HandshakeError::Version(_)
            | HandshakeError::Refused(_)
            | HandshakeError::Malformed(_) => false,
        };
        if is_temporary {
            attempt.later(now);
            return false;
        }
        tracing::warn!(block, %error, "cannot reach the device that owns a block of queue pair numbers");
        if let Some(attempt) = self.attempts.remove(&block) {
            for waiting in attempt.qps {
                shared
                    .driver
                    .command(|engine| engine.unreachable(waiting.qp, waiting.peer));
            }
        }
        true
    }

    /// Abandons all attempts.
    pub(crate) fn close(&mut self, shared: &Shared) {
        for (_, attempt) in self.attempts.drain() {
            if let AttemptState::Dialled(connector, ..) = &attempt.state
                && let Some(fd) = connector.socket()
            {
                shared.reactor.remove(fd);
            }
        }
    }
}

/// Logs that a device of another scope, where this device is not allowed to connect, owns a block.
fn log_owner_elsewhere(scope: Scope, block: u16, looked_at: &mut Option<Instant>, now: Instant) {
    if looked_at.is_some_and(|at| now.saturating_duration_since(at) < OWNER_LOOKUP_PAUSE) {
        return;
    }
    *looked_at = Some(now);
    for owner in names::other_owners(scope, block).unwrap_or_default() {
        let first = u32::from(block) << 8;
        let whose = match owner {
            Scope::User(uid) => format!("a program that shares its devices only with user {uid}"),
            Scope::Any => "a program that shares its devices with all users".to_owned(),
        };
        tracing::warn!(
            "queue pairs {first:#x} to {:#x} belong to {whose}: to reach each other, both sides need RKEY_SHARE=all",
            first | (names::BLOCK_SIZE - 1)
        );
    }
}

impl Attempt {
    /// Abandons the queue pairs whose peer's device is known: no device has its block now, so that device has closed.
    fn give_up_known_devices(&mut self, shared: &Shared) {
        let is_known = |waiting: &mut WaitingQp| node_of_peer(shared, waiting.qp).is_some();
        let gone: Vec<WaitingQp> = self.qps.extract_if(.., is_known).collect();
        for waiting in gone {
            peer_was_never_reached(shared, waiting.qp, waiting.peer);
        }
    }

    fn later(&mut self, now: Instant) {
        self.state = AttemptState::Idle(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSES.1);
    }
}

/// Whether a queue pair keeps waiting for its peer. A queue pair that has waited too long fails.
fn keeps_waiting(shared: &Shared, waiting: WaitingQp, exists: bool, now: Instant) -> bool {
    let Some(info) = shared.driver.command(|engine| engine.query_qp(waiting.qp)) else {
        return false;
    };
    let waited = now.saturating_duration_since(waiting.since);
    let datagram = info.config.qp_type.is_datagram();
    let patience = match (datagram, exists) {
        (false, _) => PERSISTENCE,
        (true, false) => PERSISTENCE_DATAGRAM.0,
        (true, true) => PERSISTENCE_DATAGRAM.1,
    };
    if waited > patience {
        shared
            .driver
            .command(|engine| engine.unreachable(waiting.qp, waiting.peer));
        return false;
    }
    let state_waits = matches!(info.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
    let same_peer = datagram || info.attributes.peer.is_some_and(|p| p.qpn == waiting.peer);
    state_waits && same_peer
}

/// The device of a queue pair's peer, if it is in the queue pair's attributes.
fn node_of_peer(shared: &Shared, qp: QpId) -> Option<NodeId> {
    let info = shared.driver.command(|engine| engine.query_qp(qp))?;
    info.attributes.peer?.node
}

/// Connects a queue pair to its link, unless it has been destroyed in the meantime, or the link leads to a device other than its
/// peer's.
fn connect(shared: &Shared, waiting: WaitingQp, link: LinkId) {
    let known = node_of_peer(shared, waiting.qp);
    let is_other = shared.driver.command(|engine| {
        let Some(qp) = engine.query_qp(waiting.qp) else {
            return false;
        };
        if qp.config.qp_type.is_datagram() {
            engine.connect_qpn(waiting.peer, link);
            return false;
        }
        let found = engine.link(link).map(Link::node);
        if known.is_some() && found.is_some() && known != found {
            return true;
        }
        if let Err(error) = engine.connect_qp(waiting.qp, link) {
            tracing::debug!(qp = ?waiting.qp, %error, "cannot connect a queue pair to its link");
        }
        false
    });
    if is_other {
        tracing::debug!(qp = ?waiting.qp, peer = waiting.peer, "the peer's queue pair number now belongs to another device");
        peer_was_never_reached(shared, waiting.qp, waiting.peer);
    }
}

/// The device of a queue pair's peer closed before there was a link to it: outstanding requests fail, and the program gets the
/// event that the end of a link would cause.
fn peer_was_never_reached(shared: &Shared, qp: QpId, peer: u32) {
    let info = shared.driver.command(|engine| {
        engine.unreachable(qp, peer);
        engine.query_qp(qp)
    });
    let Some(info) = info else { return };
    let node = info.attributes.peer.and_then(|peer| peer.node);
    if let Some(peer) = node.and_then(|node| shared.identities.exited(node))
        && shared.departed.add(peer.clone())
    {
        tracing::info!("the peer {peer} has exited");
    }
    shared.driver.peer_ended(qp, info.qpn, None);
}
