//! Links to and from other devices, and whoever else knocks at our sockets.
//!
//! Everybody who connects to one of our sockets gets a second to say what he wants. Those who want a
//! link get one, those who want to look get an inspection, all others are dropped. What a client
//! sends is input from a stranger: the link crate has checked its form, this module its user.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rkey_engine::LinkId;
use rkey_link::peer::{Credentials, Event, Line, PeerProcess, RemotePeer};
use rkey_link::{AnyLink, DownReason, Link, LinkRole, NodeId};

use crate::inspect;
use crate::peers::half_open::{self, HalfOpen};
use crate::peers::handshake::{
    Acceptor, Greeting, HandshakeError, LinkRequest, LocalNode, Step, Stranger,
};
use crate::peers::link_limits::{LinkFiles, LinkLimits};
use crate::peers::process::{self, Departed};
use crate::progress::reactor::Token;
use crate::shared::Shared;

/// Packets of one control socket that are taken in one go.
const PATIENCE: usize = 64;
/// How often the engine is driven before a link goes: acknowledgements are held back for a while.
const LAST_DRIVES: u32 = 64;
/// Pauses between two looks at what is left of lost links. A process that is being killed closes its
/// sockets a moment before it has ended.
const RESIDUE_PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));
/// Refused clients are told of no more often than this.
const QUIET_TIME: Duration = Duration::from_secs(1);
/// How long we do not accept when descriptors are used up.
const PAUSE: Duration = Duration::from_millis(100);

/// The sockets of the engine thread.
pub(crate) struct LinkManager {
    local: LocalNode,
    half_open: HalfOpen<Client>,
    links: HashMap<LinkId, Watched>,
    tokens: HashMap<Token, LinkId>,
    next_token: u64,
    paused: Option<(Instant, Vec<u16>)>,
    /// Something is left of lost links: when to look after it again, and the pause after that.
    residue: Option<(Instant, Duration)>,
    /// When the program was last told that a client was refused.
    refused_at: Option<Instant>,
}

/// A client that has not said yet what it wants.
struct Client {
    acceptor: Acceptor,
    token: Token,
}

/// A link that is attached to the engine.
struct Watched {
    line: Arc<Line>,
    /// The process at the other end: its end shows here also when a child of it keeps the socket.
    process: Arc<PeerProcess>,
    who: Credentials,
    /// The name of its program.
    program: Option<String>,
    node: NodeId,
    requester: bool,
    _files: LinkFiles,
}

impl LinkManager {
    pub(crate) fn new(local: LocalNode) -> Self {
        Self {
            local,
            half_open: HalfOpen::new(),
            links: HashMap::new(),
            tokens: HashMap::new(),
            next_token: 0,
            paused: None,
            residue: None,
            refused_at: None,
        }
    }

    /// A token that nothing else has.
    pub(crate) fn new_token(&mut self) -> Token {
        self.next_token += 1;
        Token::other(self.next_token)
    }

    /// The link on which we can send requests to a device.
    pub(crate) fn link_to(&self, node: NodeId) -> Option<LinkId> {
        self.links
            .iter()
            .find(|(_, w)| w.requester && w.node == node)
            .map(|(&id, _)| id)
    }

    /// The process at the other end of a link, as far as we see it.
    pub(crate) fn process_of(&self, link: LinkId) -> Option<u32> {
        self.links.get(&link)?.who.pid
    }

    /// Whether a link is still there.
    pub(crate) fn has(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// Handles a descriptor that is readable; says whether the engine should have a look.
    pub(crate) fn handle(&mut self, shared: &Shared, token: Token) -> bool {
        if let Some(block) = token.as_block() {
            return self.accept(shared, block);
        }
        if let Some(&link) = self.tokens.get(&token) {
            return self.hear(shared, link);
        }
        if let Some(index) = self.half_open.position(|client| client.token == token) {
            return self.greet(shared, index);
        }
        false
    }

    /// Takes new clients of a block's socket; says whether the engine should have a look.
    fn accept(&mut self, shared: &Shared, block: u16) -> bool {
        let mut look = false;
        // Those who come later wait until the next turn.
        for _ in 0..half_open::MAX {
            if self.half_open.is_full() {
                look |= self.make_room(shared);
            }
            match shared.qp_numbers.accept(block, &self.local) {
                Ok(None) => return look,
                Ok(Some(acceptor)) => self.admit(shared, acceptor),
                Err(HandshakeError::NotAllowed(uid)) => {
                    tracing::debug!(uid, "dropped a client of another user");
                }
                Err(error) => {
                    // No descriptors, most likely. Clients wait in the queue of the socket meanwhile.
                    tracing::warn!(%error, "clients have to wait");
                    shared
                        .qp_numbers
                        .with_socket(block, |fd| shared.reactor.remove(fd));
                    let paused = self
                        .paused
                        .get_or_insert((Instant::now() + PAUSE, Vec::new()));
                    paused.1.push(block);
                    return look;
                }
            }
        }
        look
    }

    /// Makes room for a new client: goes on with those that have said something, and drops one of the greediest if
    /// all are silent. Says whether the engine should have a look.
    fn make_room(&mut self, shared: &Shared) -> bool {
        let mut look = false;
        for index in (0..self.half_open.len()).rev() {
            look |= self.greet(shared, index);
        }
        if self.half_open.is_full()
            && let Some(index) = self.half_open.greediest()
        {
            tracing::debug!("too many clients say nothing; dropped one of the greediest");
            self.drop_half_open(shared, index);
        }
        look
    }

    fn admit(&mut self, shared: &Shared, acceptor: Acceptor) {
        let token = self.new_token();
        let Some(fd) = acceptor.socket() else { return };
        if let Err(error) = shared.reactor.add(fd, token) {
            tracing::warn!(%error, "dropped a client");
            return;
        }
        let who = acceptor.credentials();
        self.half_open.push(who, Client { acceptor, token });
    }

    fn drop_half_open(&mut self, shared: &Shared, index: usize) {
        let client = self.half_open.remove(index);
        if let Some(fd) = client.acceptor.socket() {
            shared.reactor.remove(fd);
        }
    }

    /// A client has said something.
    fn greet(&mut self, shared: &Shared, index: usize) -> bool {
        let acceptor = &mut self.half_open[index].acceptor;
        // Out of the set first: afterwards the socket belongs to what becomes of it.
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
            Ok(Step::Done(Greeting::Link(request))) => linked = self.accept_link(shared, request),
            Ok(Step::Done(Greeting::Other(stranger))) => answer(shared, stranger),
            Err(error @ HandshakeError::Version(_)) => {
                let who = self.half_open[index].acceptor.credentials();
                self.tell_of_refusal(who, &error.to_string());
            }
            Err(error) => tracing::debug!(%error, "dropped a client"),
        }
        self.half_open.remove(index);
        // The engine thread takes over for a moment, and so tells the new peer when it sleeps.
        linked
    }

    fn accept_link(&mut self, shared: &Shared, request: LinkRequest) -> bool {
        let who = request.credentials();
        let opened = self.links.values().filter(|link| !link.requester);
        let opened = opened.map(|link| link.who);
        let limits = LinkLimits::now(&shared.config);
        if let Err(why) = limits.admit(who, self.links.len(), opened) {
            self.tell_of_refusal(who, &why);
            request.refuse(&why);
            return false;
        }
        let in_use = || shared.driver.nodes_in_use();
        if !shared.identities.is_credible(request.node(), who, in_use) {
            tracing::warn!(node = %request.node(), "a process says that it is another process's device");
            request.refuse("this device is not of the process that says so");
            return false;
        }
        match request.accept() {
            Ok(link) => self.adopt(shared, link.into()).is_some(),
            Err(error) => {
                tracing::debug!(%error, "a link was not made");
                false
            }
        }
    }

    /// Logs that a client was refused, not more often than somebody wants to read who is flooded.
    fn tell_of_refusal(&mut self, who: Credentials, why: &str) {
        let now = Instant::now();
        if self.refused_at.is_some_and(|at| now - at < QUIET_TIME) {
            tracing::debug!(why, "refused a client");
            return;
        }
        self.refused_at = Some(now);
        let peer = process::name_of(who.pid);
        tracing::warn!(peer, uid = who.uid, "refused a client: {why}");
    }

    /// Gives a link to the engine and watches its socket. `None`: it cannot be watched, or leads to no
    /// other process, and is dropped.
    pub(crate) fn adopt(&mut self, shared: &Shared, link: AnyLink) -> Option<LinkId> {
        let RemotePeer {
            credentials: who,
            process,
            line,
            reach,
            ..
        } = link.peer()?;
        let (node, requester) = (link.node(), link.role() == LinkRole::Requester);
        let origin = shared.identities.origin_of(who);
        let id = shared.driver.command(|engine| {
            let id = engine.attach_from(link, origin);
            shared.reclaim.add_link(id, reach);
            id
        });
        shared.driver.rebuild_poll_set();
        let (token, process_token) = (self.new_token(), self.new_token());
        self.tokens.insert(token, id);
        let mut watched = shared.reactor.add(&*line, token);
        if let Some(process) = process.descriptor() {
            self.tokens.insert(process_token, id);
            watched = watched.and_then(|()| shared.reactor.add(process, process_token));
        }
        tracing::debug!(%node, requester, "a link is up");
        self.links.insert(
            id,
            Watched {
                line,
                process,
                program: who.pid.and_then(process::program),
                who,
                node,
                requester,
                _files: LinkFiles::of_link(requester),
            },
        );
        if let Err(error) = watched {
            tracing::warn!(%error, "a link cannot be watched");
            self.lose(shared, id, DownReason::Closed);
            return None;
        }
        Some(id)
    }

    /// A control socket has something to say, or the process at its end has ended.
    fn hear(&mut self, shared: &Shared, link: LinkId) -> bool {
        let Some(watched) = self.links.get(&link) else {
            return false;
        };
        let line = Arc::clone(&watched.line);
        let gone = watched.process.is_dead();
        let mut rung = false;
        for _ in 0..PATIENCE {
            match line.next_event() {
                None => break,
                Some(Event::Wake) => rung = true,
                Some(Event::Control(control)) => {
                    shared.reclaim.on_control(&shared.driver, link, control);
                    rung = true;
                }
                Some(Event::Gone) => {
                    self.lose(shared, link, DownReason::PeerGone);
                    return true;
                }
                Some(Event::Malformed(malformed)) => {
                    tracing::warn!(%malformed, "peer violated the protocol; closing the link");
                    self.lose(shared, link, DownReason::Malformed(malformed));
                    return true;
                }
            }
        }
        if gone {
            self.lose(shared, link, DownReason::PeerGone);
            return true;
        }
        rung
    }

    /// A link is of no use any more: what is outstanding on it fails, and its memory goes.
    pub(crate) fn lose(&mut self, shared: &Shared, id: LinkId, reason: DownReason) {
        // What the peer had sent before it went is still worth taking, and a peer that is there is told
        // what has been executed. The lock is given back in between: other links may be busy for ever.
        for _ in 0..LAST_DRIVES {
            if shared.driver.has_failed() || !shared.driver.drive_now() {
                break;
            }
        }
        self.tell_of_exit(shared, id);
        let link = shared.driver.command(|engine| {
            engine
                .detach(id, reason)
                .or_else(|| engine.take_detached(id))
        });
        self.forget(shared, id);
        if link.is_some() {
            tracing::debug!(?id, %reason, "a link is down");
        }
    }

    /// Names a peer that has exited: in the log, and for who looks at the device.
    fn tell_of_exit(&self, shared: &Shared, id: LinkId) {
        let Some(watched) = self.links.get(&id) else {
            return;
        };
        let Watched { who, node, .. } = watched;
        if !watched.process.is_dead() && !who.pid.is_some_and(process::is_exiting) {
            return;
        }
        let waits = |link: &AnyLink| link.role() == LinkRole::Requester && link.has_unacked();
        let unanswered = shared
            .driver
            .command(|engine| engine.link(id).is_some_and(waits));
        let peer = Departed {
            node: *node,
            pid: who.pid,
            program: watched.program.clone(),
        };
        let news = shared.departed.add(peer.clone());
        if unanswered {
            tracing::warn!(
                "the peer {peer} has exited before it answered requests of this process"
            );
        } else if news {
            tracing::info!("the peer {peer} has exited");
        }
    }

    fn forget(&mut self, shared: &Shared, id: LinkId) {
        if shared.reclaim.forget_link(&shared.driver, id) {
            let pause = RESIDUE_PAUSES.0;
            self.residue = Some((Instant::now() + pause, pause));
        }
        shared.driver.rebuild_poll_set();
        if let Some(watched) = self.links.remove(&id) {
            shared.reactor.remove(&*watched.line);
            if let Some(process) = watched.process.descriptor() {
                shared.reactor.remove(process);
            }
        }
        self.tokens.retain(|_, link| *link != id);
    }

    /// What has to be done because time passes, or because the engine asked for it.
    pub(crate) fn tidy(&mut self, shared: &Shared, now: Instant) {
        let lost = shared.driver.requests.take_broken();
        for id in lost {
            self.tell_of_exit(shared, id);
            // Dropped here, after the lock is given back: unmapping takes its time.
            let _link = shared.driver.command(|engine| engine.take_detached(id));
            self.forget(shared, id);
        }
        let cut = shared.driver.requests.take_cut();
        for id in cut {
            self.lose(shared, id, DownReason::Closed);
        }
        if let Some((_, pause)) = self.residue.take_if(|(at, _)| *at <= now) {
            if shared.reclaim.settle(&shared.driver) {
                let pause = (pause * 2).min(RESIDUE_PAUSES.1);
                self.residue = Some((now + pause, pause));
            }
        }
        while let Some(index) = self.half_open.overdue(now) {
            tracing::debug!("dropped a client that said nothing");
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

    /// When [`LinkManager::tidy`] has something to do at the latest.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let half_open = self.half_open.next_deadline().into_iter();
        half_open
            .chain(self.paused.as_ref().map(|(until, _)| *until))
            .chain(self.residue.map(|(at, _)| at))
            .min()
    }

    /// Closes all links, so that peers see it.
    pub(crate) fn close(&mut self, shared: &Shared) {
        while !self.half_open.is_empty() {
            self.drop_half_open(shared, 0);
        }
        if shared.driver.has_failed() {
            // The engine cannot be relied on to let go of its links.
            self.links.values().for_each(|watched| watched.line.close());
        }
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for link in links {
            self.lose(shared, link, DownReason::Closed);
        }
    }
}

/// Answers a client that does not want a link.
fn answer(shared: &Shared, stranger: Stranger) {
    let result = match stranger.first() {
        inspect::QUESTION => inspect::answer(shared, &stranger),
        _ => {
            tracing::debug!("dropped a client that wants something unknown");
            return;
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "an inspection was not answered");
    }
}
