//! Who sends over a link, and whether its requests must wait because it has guessed keys: the engine's calls about
//! [`crate::guesses`].

use crate::{Engine, Guesser, LinkId, Origin, QpId};
use rkey_base::memory::Memory;
use rkey_core::Denial;
use rkey_link::Link;
use std::net::IpAddr;

impl<L: Link, M: Memory> Engine<L, M> {
    /// Counts the key of a request that arrived over `link` and was denied outside this engine. `now_ns` is a time of
    /// the clock that [`Engine::drive`] uses.
    pub fn count_denied(&mut self, link: LinkId, denial: &Denial, now_ns: u64) {
        if let Some(origin) = self.origin(link) {
            self.x.now = self.x.now.max(now_ns);
            self.x.count_guess(&origin, denial);
        }
    }

    /// Like [`Engine::count_denied`], for a request of the peer of a queue pair that is on another host. Returns the host; `None` if the
    /// peer is not on another host.
    pub fn count_denied_of_host(
        &mut self,
        qp: QpId,
        denial: &Denial,
        now_ns: u64,
    ) -> Option<IpAddr> {
        let origin = crate::wire::origin_of(self.qps.get(qp)?.wire_peer.as_ref()?);
        self.x.now = self.x.now.max(now_ns);
        self.x.count_guess(&origin, denial);
        origin.process.host
    }

    /// Whether requests of the process at the other end of a link must wait now, because it has named too many
    /// unknown keys. `now_ns` is a time of the clock that [`Engine::drive`] uses.
    pub fn is_paused(&self, link: LinkId, now_ns: u64) -> bool {
        self.links.get(link).is_some_and(|link_state| {
            let (origin, since) = (&link_state.meta.origin, link_state.meta.since);
            self.x.guesses.paused_until(origin, since, now_ns).is_some()
        })
    }

    /// The processes that have named unknown keys, most guesses first.
    pub fn guessers(&self) -> Vec<Guesser> {
        self.x.guesses.all(self.x.now)
    }

    /// The process at the other end of a link.
    pub fn origin(&self, link: LinkId) -> Option<Origin> {
        self.links
            .get(link)
            .map(|link_state| link_state.meta.origin)
    }

    /// The link on which requests of a queue pair's peer arrive, once there is one.
    pub fn inbound_link(&self, qp: QpId) -> Option<LinkId> {
        self.qps.get(qp)?.inbound
    }
}
