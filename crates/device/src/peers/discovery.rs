//! Finding the device behind a queue pair number, and connecting to it.
//!
//! A queue pair that is given a peer makes the engine ask for a link ([`rkey_engine::Event::LinkNeeded`]).
//! The device that owns the number listens on the socket of its block. It may not be there yet: two
//! programs that exchange numbers come up in any order. So finding is tried again, at growing
//! distances, as long as a queue pair that waits is in a state to wait. A queue pair that was told
//! *which* device its peer is on does not wait for one: that device was there when it told its numbers,
//! so if nobody has its block any more, or another device has, it is gone.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use rkey_engine::{LinkId, QpId, QpState};
use rkey_link::{AnyLink, Link, NodeId, RemotePeer};

use crate::peers::handshake::{Connector, HandshakeError, LocalNode, Step};
use crate::peers::link_manager::LinkManager;
use crate::peers::multicast::{Search, Silent};
use crate::peers::names::{self, Scope};
use crate::peers::unresponsive;
use crate::progress::reactor::Token;
use crate::shared::Shared;

/// Pauses between two attempts to reach a device: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
/// How long the other side may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// How long a device is looked for that does not appear.
const PERSISTENCE: Duration = Duration::from_secs(60);
/// The same for a datagram: as long as nobody has the number, and when somebody has it who takes his
/// time to answer, because his processor is busy. A datagram may be lost, but not for that alone.
const PERSISTENCE_DATAGRAM: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_secs(5));

/// Two looks whether somebody else has a number are at least this far apart: the kernel's list can be long.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// What is known about where devices are.
pub(crate) struct Discovery {
    local: LocalNode,
    blocks: HashMap<u16, LinkId>,
    attempts: HashMap<u16, Attempt>,
    pub(crate) searches: Vec<Search>,
    pub(crate) silent: Silent,
    /// When we last looked whether somebody has a number whom we may not reach.
    looked_elsewhere: Option<Instant>,
}

/// The search for the owner of one block.
struct Attempt {
    waiting: Vec<WaitingQp>,
    state: State,
    pause: Duration,
    /// Somebody has the block, as far as we know.
    exists: bool,
    /// The program was told whose device has the block, or that question was asked in vain.
    told: bool,
}

/// A queue pair that needs a link to the device of its peer.
#[derive(Clone, Copy)]
pub(crate) struct WaitingQp {
    pub(crate) qp: QpId,
    pub(crate) peer: u32,
    pub(crate) since: Instant,
}

enum State {
    /// Try (again) at this time.
    Idle(Instant),
    /// The other side has been asked and has until this time to answer.
    Asked(Box<Connector>, Token, Instant),
}

impl Discovery {
    pub(crate) fn new(local: LocalNode) -> Self {
        Self {
            local,
            blocks: HashMap::new(),
            attempts: HashMap::new(),
            searches: Vec::new(),
            silent: Silent::default(),
            looked_elsewhere: None,
        }
    }

    /// When [`Discovery::tidy`] has something to do at the latest.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.attempts
            .values()
            .map(|attempt| match attempt.state {
                State::Idle(at) | State::Asked(_, _, at) => at,
            })
            .chain(self.search_deadline())
            .min()
    }

    /// The link to the owner of a block, if there is one.
    pub(crate) fn link_of(&self, link_manager: &LinkManager, block: u16) -> Option<LinkId> {
        let link = self.blocks.get(&block).copied();
        link.filter(|&link| link_manager.has(link))
    }

    /// The process that has a block and has been asked for a link, as far as we see it.
    pub(crate) fn asked(&self, block: u16) -> Option<u32> {
        match &self.attempts.get(&block)?.state {
            State::Asked(connector, ..) => unresponsive::listener(connector.socket()?),
            State::Idle(_) => None,
        }
    }

    /// Whether somebody is trying to reach the owner of a block.
    pub(crate) fn looks_for(&self, block: u16) -> bool {
        self.attempts.contains_key(&block)
    }

    /// Takes new wishes and goes on with old ones. Says whether a search has ended, one way or the other.
    pub(crate) fn tidy(
        &mut self,
        shared: &Shared,
        link_manager: &mut LinkManager,
        now: Instant,
    ) -> bool {
        let mut connected = false;
        let wanted = shared.driver.requests.take_links();
        for (qp, peer) in wanted {
            connected |= self.want(
                shared,
                link_manager,
                WaitingQp {
                    qp,
                    peer,
                    since: now,
                },
            );
        }
        let wanted = shared.driver.requests.take_groups();
        for (qp, group) in wanted {
            self.look_for_group(shared, link_manager, qp, group, now);
        }
        let due: Vec<u16> = self
            .attempts
            .iter()
            .filter(|(_, attempt)| match attempt.state {
                State::Idle(at) | State::Asked(_, _, at) => at <= now,
            })
            .map(|(&block, _)| block)
            .collect();
        for block in due {
            connected |= self.go_on(shared, link_manager, block, now);
        }
        connected | self.end_searches(shared, link_manager, now)
    }

    pub(crate) fn want(
        &mut self,
        shared: &Shared,
        link_manager: &LinkManager,
        waiting: WaitingQp,
    ) -> bool {
        let block = names::block_of(waiting.peer);
        if let Some(&link) = self.blocks.get(&block) {
            if link_manager.has(link) {
                connect(shared, waiting, link);
                return true;
            }
            self.blocks.remove(&block);
        }
        let attempt = self.attempts.entry(block).or_insert_with(|| Attempt {
            waiting: Vec::new(),
            state: State::Idle(waiting.since),
            pause: PAUSES.0,
            exists: false,
            told: false,
        });
        attempt.waiting.push(waiting);
        false
    }

    /// The time of an attempt has come: to try again, or to give up on an answer.
    fn go_on(
        &mut self,
        shared: &Shared,
        link_manager: &mut LinkManager,
        block: u16,
        now: Instant,
    ) -> bool {
        let Some(attempt) = self.attempts.get_mut(&block) else {
            return false;
        };
        if let State::Asked(connector, ..) = &attempt.state {
            tracing::debug!(block, "a device does not answer");
            if let Some(fd) = connector.socket() {
                shared.reactor.remove(fd);
            }
        }
        let exists = attempt.exists;
        attempt
            .waiting
            .retain(|waiting| still_waits(shared, *waiting, exists, now));
        let long = attempt.waiting.is_empty() || attempt.pause >= PAUSES.1;
        if long && !exists && !std::mem::replace(&mut attempt.told, true) {
            tell_whose(shared.scope, block, &mut self.looked_elsewhere, now);
        }
        if attempt.waiting.is_empty() {
            self.attempts.remove(&block);
            return true; // requests may have waited for the end of the search
        }
        let name = names::block_name(shared.scope, block);
        match Connector::start(name.as_bytes(), &self.local, b"") {
            Ok(connector) => {
                let token = link_manager.new_token();
                let watched = connector.socket().map(|fd| shared.reactor.add(fd, token));
                attempt.exists = true;
                if matches!(watched, Some(Ok(()))) {
                    attempt.state = State::Asked(Box::new(connector), token, now + ANSWER_TIME);
                } else {
                    attempt.later(now);
                }
                false
            }
            Err(error) => self.failed(shared, block, &error, now),
        }
    }

    /// The socket of an attempt is readable.
    pub(crate) fn handle(
        &mut self,
        shared: &Shared,
        link_manager: &mut LinkManager,
        token: Token,
    ) -> bool {
        let found =
            self.attempts
                .iter_mut()
                .find_map(|(&block, attempt)| match &mut attempt.state {
                    State::Asked(connector, t, _) if *t == token => Some((block, connector)),
                    _ => None,
                });
        let Some((block, connector)) = found else {
            return false;
        };
        // Out of the set first: afterwards the socket belongs to the link.
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
            Ok(Step::Done(link)) => self.reached(shared, link_manager, block, link.into()),
            Err(error) => self.failed(shared, block, &error, Instant::now()),
        }
    }

    /// A device has been reached: all who waited for it are connected.
    fn reached(
        &mut self,
        shared: &Shared,
        link_manager: &mut LinkManager,
        block: u16,
        link: AnyLink,
    ) -> bool {
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
        // One link for each device is enough, also if it owns several blocks.
        let id = link_manager
            .link_to(link.node())
            .or_else(|| link_manager.adopt(shared, link));
        let Some(attempt) = self.attempts.remove(&block) else {
            return false;
        };
        let Some(id) = id else { return false };
        self.blocks.insert(block, id);
        for waiting in attempt.waiting {
            connect(shared, waiting, id);
        }
        true
    }

    /// An attempt failed: try again later if the device may still appear.
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
        let passing = match error {
            HandshakeError::Io(e) => {
                if e.kind() == ErrorKind::ConnectionRefused {
                    attempt.exists = false;
                    attempt.give_up_known_devices(shared);
                }
                !matches!(
                    e.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::InvalidInput
                )
            }
            // It may have been closed the moment before.
            HandshakeError::Closed => true,
            HandshakeError::NotAllowed(_)
            | HandshakeError::Version(_)
            | HandshakeError::Refused(_)
            | HandshakeError::Malformed(_) => false,
        };
        if passing {
            attempt.later(now);
            return false;
        }
        tracing::warn!(block, %error, "a device cannot be reached");
        if let Some(attempt) = self.attempts.remove(&block) {
            for waiting in attempt.waiting {
                shared
                    .driver
                    .command(|engine| engine.unreachable(waiting.qp, waiting.peer));
            }
        }
        true
    }

    /// Gives up everything.
    pub(crate) fn close(&mut self, shared: &Shared) {
        for (_, attempt) in self.attempts.drain() {
            if let State::Asked(connector, ..) = &attempt.state
                && let Some(fd) = connector.socket()
            {
                shared.reactor.remove(fd);
            }
        }
    }
}

/// Tells the program when a device of somebody whom it may not reach has a block that it looks for.
fn tell_whose(scope: Scope, block: u16, looked: &mut Option<Instant>, now: Instant) {
    if looked.is_some_and(|at| now.saturating_duration_since(at) < LOOK_PAUSE) {
        return;
    }
    *looked = Some(now);
    for owner in names::other_owners(scope, block).unwrap_or_default() {
        let first = u32::from(block) << 8;
        let whose = match owner {
            Scope::User(uid) => format!("a program of user {uid}, shared with that user only,"),
            Scope::Any => "a program that is shared with all users".to_owned(),
        };
        tracing::warn!(
            "no device that may be reached has queue pairs {first:#x} to {:#x}, but {whose} has: both sides need RKEY_SHARE=all to reach each other",
            first | (names::BLOCK_SIZE - 1)
        );
    }
}

impl Attempt {
    /// Nobody has the block: the devices that had it, and told us so, are gone.
    fn give_up_known_devices(&mut self, shared: &Shared) {
        let known = |waiting: &mut WaitingQp| node_of_peer(shared, waiting.qp).is_some();
        let gone: Vec<WaitingQp> = self.waiting.extract_if(.., known).collect();
        for waiting in gone {
            peer_was_never_reached(shared, waiting.qp, waiting.peer);
        }
    }

    fn later(&mut self, now: Instant) {
        self.state = State::Idle(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSES.1);
    }
}

/// Whether a queue pair is in a state to wait for its peer; if it has waited too long, it is told.
fn still_waits(shared: &Shared, waiting: WaitingQp, exists: bool, now: Instant) -> bool {
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

/// The device that a queue pair's peer is on, if the queue pair was told.
fn node_of_peer(shared: &Shared, qp: QpId) -> Option<NodeId> {
    let info = shared.driver.command(|engine| engine.query_qp(qp))?;
    info.attributes.peer?.node
}

/// Tells the engine the link of a queue pair. One that is gone in the meantime does not mind.
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
            tracing::debug!(%error, "a queue pair that waited for its link is gone");
        }
        false
    });
    if is_other {
        tracing::debug!(qpn = waiting.peer, "another device has the number now");
        peer_was_never_reached(shared, waiting.qp, waiting.peer);
    }
}

/// The device of a connected queue pair ended before there was a link to it: outstanding requests fail, and the program gets
/// the event that the end of a link would cause.
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
    shared.driver.peer_is_gone(qp, info.qpn);
}
