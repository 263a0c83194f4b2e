//! The links to and from other devices.
//!
//! [`Links`] attaches a new link to the engine, watches its control socket and the process at its other end, and detaches it
//! when either ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rkey_engine::LinkId;
use rkey_link::peer::{ControlLine, Credentials, Event, PeerProcess, RemotePeer};
use rkey_link::{AnyLink, DownReason, Link, LinkRole, NodeId};

use crate::peers::link_limits::LinkFiles;
use crate::peers::process::{self, Departed};
use crate::progress::reactor::Token;
use crate::shared::Shared;

/// The maximum number of packets of one control socket to handle in one iteration.
const PACKETS_PER_TURN: usize = 64;
/// The maximum number of drives before a link is detached: the peer's last messages may still be in the ring, and our
/// acknowledgements may be delayed.
const DRAIN_DRIVES_MAX: u32 = 64;
/// The first and the longest pause between two checks of what lost links leave behind. A process that is being killed closes
/// its sockets shortly before it ends.
const RESIDUE_PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));
/// The first and the longest pause before resending answers that found no room.
const UNSENT_PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// The links of a device, as the engine thread watches them.
#[derive(Default)]
pub(crate) struct Links {
    links: HashMap<LinkId, Watched>,
    tokens: HashMap<Token, LinkId>,
    /// If lost links have left something behind: when to check it again, and the pause after that.
    residue: Option<(Instant, Duration)>,
    /// If answers wait for room on control sockets: when to try again, and the pause after that.
    unsent: Option<(Instant, Duration)>,
}

/// A link that is attached to the engine.
struct Watched {
    line: Arc<ControlLine>,
    /// The process at the other end. We notice its end even if one of its children keeps the socket.
    process: Arc<PeerProcess>,
    who: Credentials,
    /// The name of the peer's program.
    program: Option<String>,
    node: NodeId,
    requester: bool,
    _files: LinkFiles,
}

impl Links {
    /// How many links there are.
    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }

    /// The processes that have opened links to this device, once for each link.
    pub(crate) fn accepted_from(&self) -> impl Iterator<Item = Credentials> + Clone {
        let accepted = self.links.values().filter(|link| !link.requester);
        accepted.map(|link| link.who)
    }

    /// The link for our requests to a device.
    pub(crate) fn link_to(&self, node: NodeId) -> Option<LinkId> {
        self.links
            .iter()
            .find(|(_, w)| w.requester && w.node == node)
            .map(|(&id, _)| id)
    }

    /// The process at the other end of a link, if it has a PID in our namespace.
    pub(crate) fn process_of(&self, link: LinkId) -> Option<u32> {
        self.links.get(&link)?.who.pid
    }

    /// Whether a link is still up.
    pub(crate) fn has(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// Handles a readable descriptor, if it is a link's. Returns whether the engine thread should drive.
    pub(crate) fn handle(&mut self, shared: &Shared, token: Token) -> bool {
        match self.tokens.get(&token) {
            Some(&link) => self.read_socket(shared, link),
            None => false,
        }
    }

    /// Attaches a link to the engine and watches its socket. `None` if the link does not lead to another process, or
    /// cannot be watched and was dropped.
    pub(crate) fn adopt(&mut self, shared: &Shared, link: AnyLink) -> Option<LinkId> {
        let RemotePeer {
            credentials: who,
            process,
            line,
            peer_access,
            ..
        } = link.peer()?;
        let (node, requester) = (link.node(), link.role() == LinkRole::Requester);
        let link = shared.observed(link);
        let origin = shared.identities.origin_of(who);
        let id = shared.driver.command(|engine| {
            let id = engine.attach_from(link, origin);
            shared.reclaim.add_link(id, peer_access);
            id
        });
        shared.driver.rebuild_poll_set();
        let (token, process_token) = (shared.reactor.new_token(), shared.reactor.new_token());
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
            tracing::warn!(%node, %error, "cannot watch the link to a device; dropping the link");
            self.lose(shared, id, DownReason::Closed);
            return None;
        }
        Some(id)
    }

    /// Handles what arrived on a control socket, and the end of the process at its other end. Returns whether the engine thread
    /// should drive.
    fn read_socket(&mut self, shared: &Shared, link: LinkId) -> bool {
        let Some(watched) = self.links.get(&link) else {
            return false;
        };
        let line = Arc::clone(&watched.line);
        let (node, pid) = (watched.node, watched.who.pid);
        let gone = watched.process.is_dead();
        let mut rung = false;
        for _ in 0..PACKETS_PER_TURN {
            match line.next_event() {
                None => break,
                Some(Event::Wake) => rung = true,
                Some(Event::Control(control)) => {
                    shared.reclaim.on_control(&shared.driver, link, control);
                    if self.unsent.is_none() && shared.reclaim.has_unsent_answers() {
                        self.unsent = Some((Instant::now() + UNSENT_PAUSES.0, UNSENT_PAUSES.0));
                    }
                    rung = true;
                }
                Some(Event::Gone) => {
                    self.lose(shared, link, DownReason::PeerGone);
                    return true;
                }
                Some(Event::Malformed(malformed)) => {
                    tracing::warn!(%node, ?pid, %malformed, "the peer violated the protocol; closing its link");
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

    /// Detaches a link from the engine: outstanding requests fail, and the memory of the link is released.
    pub(crate) fn lose(&mut self, shared: &Shared, id: LinkId, reason: DownReason) {
        // Takes what the peer sent before the link went down, and acknowledges executed requests to a live peer. Each
        // iteration takes the engine's lock separately, and the number of iterations is limited, because other links may never
        // run out of work.
        for _ in 0..DRAIN_DRIVES_MAX {
            if shared.driver.has_failed() || !shared.driver.drive_now() {
                break;
            }
        }
        self.log_exit(shared, id);
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

    /// Records a peer that has exited, for the log and for inspections.
    fn log_exit(&self, shared: &Shared, id: LinkId) {
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
                "the peer {peer} exited before it responded to requests of this process"
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

    /// Removes links that the engine or other threads have abandoned, rechecks what lost links leave behind, and resends answers.
    pub(crate) fn tidy(&mut self, shared: &Shared, now: Instant) {
        let lost = shared.driver.requests.take_broken();
        for id in lost {
            self.log_exit(shared, id);
            // The link is dropped after the engine's lock is released, because unmapping takes long.
            let _link = shared.driver.command(|engine| engine.take_detached(id));
            self.forget(shared, id);
        }
        let cut = shared.driver.requests.take_cut();
        for id in cut {
            self.lose(shared, id, DownReason::Closed);
        }
        if let Some((_, pause)) = self.residue.take_if(|(at, _)| *at <= now)
            && shared.reclaim.recheck_lost_peers(&shared.driver)
        {
            let pause = (pause * 2).min(RESIDUE_PAUSES.1);
            self.residue = Some((now + pause, pause));
        }
        if let Some((_, pause)) = self.unsent.take_if(|(at, _)| *at <= now)
            && shared.reclaim.send_answers()
        {
            let pause = (pause * 2).min(UNSENT_PAUSES.1);
            self.unsent = Some((now + pause, pause));
        }
    }

    /// When [`Links::tidy`] must be called at the latest.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [self.residue, self.unsent].into_iter().flatten();
        deadlines.map(|(at, _)| at).min()
    }

    /// Closes all links, so that peers notice.
    pub(crate) fn close(&mut self, shared: &Shared) {
        if shared.driver.has_failed() {
            // A failed engine must not release its links.
            self.links.values().for_each(|watched| watched.line.close());
        }
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for link in links {
            self.lose(shared, link, DownReason::Closed);
        }
    }
}
