//! Links: how they are attached, assigned to queue pairs and detached, and which memory peers can still access over
//! them.

use crate::context::OrphanedRequests;
use crate::link_state::LinkState;
use crate::requester::{drop_datagram, send_queued};
use crate::send_queue::{Detail, WqeFlags};
use crate::{
    Engine, EngineError, ExposedMemory, LinkId, Origin, Peer, Process, Progress, QpId, QpState,
    Sge, Status,
};
use rkey_base::memory::Memory;
use rkey_core::LKey;
use rkey_link::{DownReason, Link};

impl<L: Link, M: Memory> Engine<L, M> {
    /// Attaches a link, in either role. Requests that arrive on it are served from the next [`Self::drive`] on.
    ///
    /// The process at the other end is known only by its device; it gets the full reason when its requests are denied.
    pub fn attach(&mut self, link: L) -> LinkId {
        let node = link.node();
        let process = Process {
            pid: node.pid,
            started: node.nonce,
            ..Process::default()
        };
        let origin = Origin {
            process,
            here: node == self.x.config.node,
            explain: true,
        };
        self.attach_from(link, origin)
    }

    /// Like [`Self::attach`], for a link to a known process.
    pub fn attach_from(&mut self, link: L, origin: Origin) -> LinkId {
        self.links.insert(|id| LinkState::new(id, link, origin))
    }

    /// Detaches a link. The oldest send of each reliable queue pair that uses it fails with [`Status::RetryExceeded`],
    /// and the later ones are flushed. No [`crate::Event::LinkDown`] is raised.
    pub fn detach(&mut self, link: LinkId, _reason: DownReason) -> Option<L> {
        self.take_last_news(link);
        let exposed = self.exposed_over(link);
        let mut link_state = self.links.remove(link)?;
        if !exposed.is_empty() {
            self.exposed.insert(link, exposed);
        }
        self.x.exposure.link_lost();
        // Revoke before the first completion: a program that polls the completion may reuse the memory.
        link_state.link.revoke_peer_access();
        self.x.warrants.revoke_of_link(link);
        for who in &link_state.meta.blocked {
            if let Some(qp) = self.qps.get_mut(*who) {
                qp.req.blocked = false;
                self.x.ready.push(who.0);
            }
        }
        self.forget_link(link);
        self.send_ready(&mut Progress::default());
        self.fail_users_of_overrun_cqs();
        Some(link_state.link)
    }

    /// The link of an [`crate::Event::LinkDown`], which the engine has released.
    pub fn take_detached(&mut self, link: LinkId) -> Option<L> {
        let index = self.detached.iter().position(|(id, _)| *id == link)?;
        Some(self.detached.swap_remove(index).1)
    }

    /// A link.
    pub fn link(&self, link: LinkId) -> Option<&L> {
        self.links.get(link).map(|link_state| &link_state.link)
    }

    /// A link, for the engine's owner (doorbells, control messages).
    pub fn link_mut(&mut self, link: LinkId) -> Option<&mut L> {
        self.links
            .get_mut(link)
            .map(|link_state| &mut link_state.link)
    }

    /// All links.
    pub fn links(&self) -> impl Iterator<Item = (LinkId, &L)> {
        self.links
            .iter()
            .map(|link_state| (link_state.meta.id, &link_state.link))
    }

    /// Sends requests of a connected queue pair over this link from now on: the response to
    /// [`crate::Event::LinkNeeded`]. Also records the peer's device, unless it is already known.
    ///
    /// # Errors
    /// Stale handles, or a queue pair that has no peer.
    pub fn connect_qp(&mut self, qp: QpId, link: LinkId) -> Result<(), EngineError> {
        let link_state = self.links.get(link).ok_or(EngineError::NoSuch("link"))?;
        let node = link_state.meta.node;
        let qp = self
            .qps
            .get_mut(qp)
            .ok_or(EngineError::NoSuch("queue pair"))?;
        let Some(peer) = qp.peer else {
            return Err(EngineError::NoSuch("peer: the queue pair is not connected"));
        };
        qp.peer = Some(Peer {
            node: Some(peer.node.unwrap_or(node)),
            ..peer
        });
        qp.out = Some(link);
        qp.req.link_requested = false;
        // The peer gets the requests only now.
        qp.req.seen = None;
        send_queued(&mut self.x, &mut self.links, qp);
        self.after_post(link);
        Ok(())
    }

    /// Sends datagrams to this queue pair number over this link from now on.
    pub fn connect_qpn(&mut self, qpn: u32, link: LinkId) {
        self.x.routes.insert(qpn, link);
        self.wake_datagrams(qpn, false);
        self.after_post(link);
    }

    /// Reports that no device currently has queue pair number `peer`. If sends of a connected queue pair wait for it, the
    /// oldest fails with [`Status::RetryExceeded`] and the later ones are flushed; datagrams to it are dropped
    /// silently.
    pub fn unreachable(&mut self, qp: QpId, peer: u32) {
        let Some(qp) = self.qps.get_mut(qp) else {
            return;
        };
        qp.req.link_requested = false;
        if qp.config.qp_type.is_datagram() {
            self.x.routes.remove(&peer);
            self.wake_datagrams(peer, true);
        } else if qp.out.is_none()
            && qp.wire.is_none()
            && qp.sq.head != qp.sq.tail
            && matches!(qp.state, QpState::Rts | QpState::Sqd)
        {
            self.x.give_up(qp, Status::RetryExceeded);
        }
        self.fail_users_of_overrun_cqs();
    }

    /// Sends or drops the datagrams that wait for the link to a queue pair.
    fn wake_datagrams(&mut self, qpn: u32, lost: bool) {
        for index in 0..self.qps.bound() {
            let Some(qp) = self.qps.at_mut(index) else {
                continue;
            };
            if !qp.config.qp_type.is_datagram() {
                continue;
            }
            while qp.sq.next != qp.sq.tail
                && matches!(qp.sq.detail(qp.sq.next), Detail::Datagram(to) if to.qpn == qpn && !to.wire)
            {
                qp.req.link_requested = false;
                if !lost {
                    break;
                }
                drop_datagram(&mut self.x, qp);
            }
            send_queued(&mut self.x, &mut self.links, qp);
        }
        self.fail_users_of_overrun_cqs();
    }

    /// Flushes a link after a send outside `drive`, and fails the queue pairs of completion queues that overran.
    pub(crate) fn after_post(&mut self, link: LinkId) {
        if let Some(link_state) = self.links.get_mut(link) {
            link_state.link.end_burst();
        }
        self.fail_users_of_overrun_cqs();
    }

    /// Whether anything on a link is waiting to be taken. Cheap, and takes no lock.
    pub fn pending(&self) -> bool {
        self.links
            .iter()
            .any(|link_state| link_state.link.pending())
    }

    /// All links, for the engine's owner.
    pub fn links_mut(&mut self) -> impl Iterator<Item = (LinkId, &mut L)> {
        self.links
            .iter_mut()
            .map(|link_state| (link_state.meta.id, &mut link_state.link))
    }

    /// Whether a peer may still access the region with this local key, because a remote iovec named it and the peer has
    /// not acknowledged it. A timeout or a flush of the request here does not change that; only the peer's
    /// acknowledgement or the end of the link does.
    pub fn exposes(&self, key: LKey) -> bool {
        !self.links_exposing(key).is_empty()
    }

    /// With `no_remote_iovecs`, new requests do not name memory to peers; they carry their payload; and peers get no warrants. For
    /// requests already sent, see [`Self::has_remote_iovecs`].
    pub fn forbid_remote_iovecs(&mut self, no_remote_iovecs: bool) {
        self.x.checked.no_remote_iovecs = no_remote_iovecs;
    }

    /// Whether a peer may still access any of our memory; see [`Self::exposes`].
    pub fn has_remote_iovecs(&self) -> bool {
        !self.links_that_name(|_| true).is_empty()
    }

    /// The links over which a peer may still access the region; see [`Self::exposes`].
    pub fn links_exposing(&self, key: LKey) -> Vec<LinkId> {
        self.links_that_name(|sges| sges.iter().any(|sge| sge.key == key))
    }

    /// The links over which a peer may still access memory because of orphaned requests of the queue pair with this
    /// number (which may no longer exist).
    pub fn orphaned_links(&self, qpn: u32) -> Vec<LinkId> {
        let of_qp = |orphan: &&OrphanedRequests| orphan.qpn == qpn && self.is_alive(orphan);
        let mut links: Vec<LinkId> = self
            .x
            .orphans
            .iter()
            .filter(of_qp)
            .map(|g| g.link)
            .collect();
        links.sort_unstable();
        links.dedup();
        links
    }

    fn links_that_name(&self, names: impl Fn(&[Sge]) -> bool) -> Vec<LinkId> {
        if !self.x.exposure.is_memory_named() {
            return Vec::new();
        }
        let mut any = self.x.orphans.iter().any(|orphan| self.is_alive(orphan));
        let mut links = Vec::new();
        for qp in self.qps.iter() {
            for seq in qp.started() {
                if qp.sq.wqe(seq).flags.contains(WqeFlags::REMOTE_IOVEC) {
                    any = true;
                    if names(qp.sq.sges(seq)) {
                        links.extend(qp.out);
                    }
                }
            }
        }
        // If nothing is exposed, later calls return at once.
        self.x.exposure.set_named(any);
        let orphans = self
            .x
            .orphans
            .iter()
            .filter(|orphan| names(&orphan.sges) && self.is_alive(orphan));
        links.extend(orphans.map(|orphan| orphan.link));
        links.sort_unstable();
        links.dedup();
        links
    }

    /// Takes the list of memory whose addresses were sent over a detached link and not acknowledged.
    pub fn take_exposed(&mut self, link: LinkId) -> Vec<ExposedMemory> {
        self.exposed.remove(&link).unwrap_or_default()
    }

    fn exposed_over(&self, link: LinkId) -> Vec<ExposedMemory> {
        let mut exposed = Vec::new();
        let mut add = |qpn, sges: &[Sge]| {
            for sge in sges {
                let one = ExposedMemory { qpn, key: sge.key };
                if !exposed.contains(&one) {
                    exposed.push(one);
                }
            }
        };
        for qp in self.qps.iter().filter(|qp| qp.out == Some(link)) {
            for seq in qp.started() {
                if qp.sq.wqe(seq).flags.contains(WqeFlags::REMOTE_IOVEC) {
                    add(qp.qpn, qp.sq.sges(seq));
                }
            }
        }
        let of_link = |orphan: &&OrphanedRequests| orphan.link == link && self.is_alive(orphan);
        for orphan in self.x.orphans.iter().filter(of_link) {
            add(orphan.qpn, &orphan.sges);
        }
        exposed
    }

    /// Whether the peer has yet to acknowledge some of these requests.
    fn is_alive(&self, orphan: &OrphanedRequests) -> bool {
        self.links.get(orphan.link).is_some_and(|link_state| {
            link_state
                .meta
                .outstanding
                .iter()
                .any(|record| record.life == orphan.life && record.seq() < orphan.until)
        })
    }

    /// Removes the orphaned requests that peers have acknowledged or whose link no longer exists.
    pub(crate) fn forget_orphans(&mut self) {
        let mut orphans = std::mem::take(&mut self.x.orphans);
        orphans.retain(|orphan| self.is_alive(orphan));
        self.x.orphans = orphans;
    }
}
