//! The driver's links: the ones that pollers check, the loopback, and links to peers that misbehave.

use std::collections::HashSet;
use std::net::IpAddr;

use rkey_core::Denial;
use rkey_engine::{LinkId, QpId};
use rkey_link::{Link, LinkRole, NodeId};

use super::EngineDriver;

impl EngineDriver {
    /// Replaces the poll set after a link came up or went down. Only the engine thread calls this. Links with requests of peers
    /// come first, so that pollers find a message sooner than an acknowledgement.
    pub(crate) fn rebuild_poll_set(&self) {
        let mut list: Vec<_> = {
            let engine = self.engine.lock();
            let links = engine.links();
            let handles =
                links.filter_map(|(id, link)| Some((link.role(), (id, link.poll_handle()?))));
            handles.collect()
        };
        list.sort_by_key(|(role, _)| *role == LinkRole::Requester);
        let handles = list.into_iter().map(|(_, polled)| polled);
        self.schedule.poll_set.replace(handles.collect());
    }

    /// The device's link to itself, for a queue pair or group that will post over it.
    pub(crate) fn use_loopback(&self) -> LinkId {
        self.pending.use_loopback()
    }

    /// Asks the engine thread to detach links to peers that do not respond; `why` appears in the log.
    pub(crate) fn cut_links(&self, why: &str, links: &[LinkId]) {
        // This device always responds to itself, however long that takes, and has only one loopback in its lifetime.
        let others = links
            .iter()
            .copied()
            .filter(|link| *link != self.pending.loopback);
        let links: Vec<LinkId> = others.collect();
        if !links.is_empty() {
            tracing::warn!(?links, "a peer does not respond; cutting its link ({why})");
            self.requests.cut_links(&links);
        }
    }

    /// The devices that our links and queue pairs are connected to.
    pub(crate) fn nodes_in_use(&self) -> HashSet<NodeId> {
        let engine = self.engine.lock();
        let links = engine.links().map(|(_, link)| link.node());
        let peers = engine.snapshot().qps.into_iter().filter_map(|qp| qp.peer);
        links.chain(peers).collect()
    }

    /// Counts the key of a request that the device refused, not the engine. Returns whether the peer may learn the reason.
    pub(crate) fn count_denied(&self, link: LinkId, denial: &Denial) -> bool {
        let now = self.schedule.refresh_clock();
        self.command(|engine| {
            engine.count_denied(link, denial, now);
            engine.origin(link).is_some_and(|origin| origin.explain)
        })
    }

    /// Like [`EngineDriver::count_denied`], for a queue pair whose peer is on another host, which never learns the reason. Returns the
    /// host; `None` if the peer is on this one.
    pub(crate) fn count_denied_of_host(&self, qp: QpId, denial: &Denial) -> Option<IpAddr> {
        let now = self.schedule.refresh_clock();
        self.command(|engine| engine.count_denied_of_host(qp, denial, now))
    }
}
