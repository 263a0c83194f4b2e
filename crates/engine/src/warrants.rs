//! Warrants for this engine's memory: each lets the peer of a queue pair write to one region itself, without this engine.
//!
//! A peer asks for a warrant when its writes wait long for this engine ([`crate::Event::WarrantWanted`] at its end). The checks are
//! those of a write, and a warrant covers one plain region under the region's own key: a window could be rebound by a posted
//! request, which could not wait for the peer.
//!
//! Everything that ends the right revokes the warrant first, under the engine's lock: the end of the queue pair or its link, an
//! error, a change of its peer or its rights. For regions the owner does it ([`Engine::revoke_warrants`]), after the table
//! refuses the key. From then on no copy of the peer begins. A copy that has begun may last for some microseconds; the owner
//! waits for it before it returns the memory. So a revoked warrant stays in the list until the peer is at rest.

use crate::exposure::Exposure;
use crate::{Engine, LinkId, QpId, QpType};
use rkey_base::memory::Memory;
use rkey_core::{Access, Operation, PlainRegion, RKey, RegionId};
use rkey_link::peer::{OwnWarrant, RemotePeer};
use rkey_link::{Link, LinkRole};
use std::sync::Arc;

/// The maximum number of warrants of one queue pair. A further one replaces the oldest.
pub(crate) const WARRANTS_PER_QP: usize = 4;
/// The maximum number of warrants of one link, and of a device. Each holds a descriptor.
const WARRANTS_MAX: (usize, usize) = (16, 64);

/// What a peer asks a warrant for: a write that it has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarrantRequest {
    /// The queue pair whose memory the write names.
    pub qpn: u32,
    /// The peer's queue pair.
    pub src_qpn: u32,
    /// The key.
    pub key: RKey,
    /// The address of the first byte.
    pub addr: u64,
    /// The length in bytes.
    pub len: u64,
}

/// Warrants to revoke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarrantScope {
    /// Those for a region.
    Region(RegionId),
    /// Those of a queue pair, which may no longer exist.
    Qp(QpId),
    /// Those that have already been revoked.
    Revoked,
    /// All.
    All,
}

/// A warrant in the list.
struct Issued {
    warrant: OwnWarrant,
    link: LinkId,
    qp: QpId,
    region: RegionId,
    revoked: bool,
}

/// The warrants that peers have, or had until a moment ago.
pub(crate) struct Warrants {
    list: Vec<Issued>,
    exposure: Arc<Exposure>,
}

impl Warrants {
    pub(crate) fn new(exposure: &Arc<Exposure>) -> Self {
        Self {
            list: Vec::new(),
            exposure: Arc::clone(exposure),
        }
    }

    /// Revokes the warrants of a queue pair.
    #[inline]
    pub(crate) fn revoke_of_qp(&mut self, qp: QpId) {
        if !self.list.is_empty() {
            self.revoke(|issued| issued.qp == qp);
        }
    }

    /// Revokes the warrants of a link.
    pub(crate) fn revoke_of_link(&mut self, link: LinkId) {
        self.revoke(|issued| issued.link == link);
    }

    /// How many warrants the peer at the other end of a link has.
    pub(crate) fn of_link(&self, link: LinkId) -> u32 {
        let of_link = |issued: &&Issued| issued.link == link && !issued.revoked;
        self.list.iter().filter(of_link).count() as u32
    }

    #[cold]
    fn revoke(&mut self, which: impl Fn(&Issued) -> bool) {
        for issued in &mut self.list {
            if !issued.revoked && which(issued) {
                issued.warrant.revoke();
                issued.revoked = true;
            }
        }
    }

    /// Removes revoked warrants whose peers are not copying.
    fn forget_idle(&mut self) {
        self.list
            .retain(|issued| !issued.revoked || !issued.warrant.is_idle());
        let regions = self.list.iter().map(|issued| issued.region);
        self.exposure.set_warranted(regions);
    }

    /// The position of the warrant that a new one of this queue pair for this region replaces.
    fn replaced(&self, qp: QpId, region: RegionId) -> Option<usize> {
        let of_qp = |issued: &Issued| !issued.revoked && issued.qp == qp;
        let list = || self.list.iter().enumerate().filter(|it| of_qp(it.1));
        let same = list().find(|(_, issued)| issued.region == region);
        let oldest = || list().next().filter(|_| list().count() >= WARRANTS_PER_QP);
        same.or_else(oldest).map(|(index, _)| index)
    }

    /// Whether the limits allow one more warrant of this link, after this one has been replaced.
    fn has_room(&self, link: LinkId, replaced: Option<usize>) -> bool {
        let of_link = self.list.iter().filter(|issued| issued.link == link);
        let left = usize::from(replaced.is_some());
        of_link.count() < WARRANTS_MAX.0 + left && self.list.len() < WARRANTS_MAX.1 + left
    }

    fn add(&mut self, issued: Issued, replaced: Option<usize>) {
        if let Some(old) = replaced.and_then(|index| self.list.get_mut(index)) {
            old.warrant.revoke();
            old.revoked = true;
        }
        self.list.push(issued);
        self.forget_idle();
    }
}

impl<L: Link, M: Memory> Engine<L, M> {
    /// Issues a warrant to the peer at the other end of a link, and returns the warrant and the region that it is for. `None` if
    /// the peer must go on to request its writes: they need checks that only this engine can make, its process is paused, or a
    /// limit is reached. `now_ns` is a time of the clock that [`Engine::drive`] uses.
    pub fn issue_warrant(
        &mut self,
        link: LinkId,
        request: &WarrantRequest,
        now_ns: u64,
    ) -> Option<(OwnWarrant, PlainRegion)> {
        if self.is_paused(link, now_ns) || self.x.checked.no_remote_iovecs {
            return None;
        }
        let link_state = self.links.get(link)?;
        let peer = link_state.link.peer()?;
        let issuer = peer.warrant_issuer()?;
        if link_state.meta.role != LinkRole::Responder || link_state.meta.down.is_some() {
            return None;
        }
        let qp = self.qps.at(self.numbers.get(request.qpn)?)?;
        let is_connected = qp.inbound == Some(link)
            && qp.resp.established
            && qp.peer.is_some_and(|peer| peer.qpn == request.src_qpn);
        let allows = qp.config.qp_type == QpType::Rc
            && qp.state.responds()
            && qp.settings.access.contains(Access::REMOTE_WRITE);
        if !is_connected || !allows {
            return None;
        }
        let (who, qp) = (qp.accessor(), qp.id);
        let WarrantRequest { key, addr, len, .. } = *request;
        let section = &self.x.checked.section;
        let whole = section.whole_region(&who, key, addr, len, Operation::Write);
        let region = match whole {
            Ok(region) => region?,
            Err(denial) => {
                // Like a request that names the key.
                self.count_denied(link, &denial, now_ns);
                return None;
            }
        };
        self.x.warrants.forget_idle();
        let replaced = self.x.warrants.replaced(qp, region.region);
        if !self.x.warrants.has_room(link, replaced) {
            return None;
        }
        let warrant = issuer.issue().ok()?;
        let issued = Issued {
            warrant: warrant.clone(),
            link,
            qp,
            region: region.region,
            revoked: false,
        };
        self.x.warrants.add(issued, replaced);
        Some((warrant, region))
    }

    /// Revokes warrants. Returns those of this scope, revoked now or before, with which a peer may still be copying, and their
    /// links, which may no longer exist.
    pub fn revoke_warrants(&mut self, scope: WarrantScope) -> Vec<(LinkId, OwnWarrant)> {
        let covers = |issued: &Issued| match scope {
            WarrantScope::Region(region) => issued.region == region,
            WarrantScope::Qp(qp) => issued.qp == qp,
            WarrantScope::Revoked => issued.revoked,
            WarrantScope::All => true,
        };
        let warrants = &mut self.x.warrants;
        warrants.revoke(covers);
        warrants.forget_idle();
        let rest = warrants.list.iter().filter(|issued| covers(issued));
        rest.map(|issued| (issued.link, issued.warrant.clone()))
            .collect()
    }

    /// Revokes and forgets a warrant that the peer did not get.
    pub fn withdraw_warrant(&mut self, warrant: &OwnWarrant) {
        let warrants = &mut self.x.warrants;
        warrants.revoke(|issued| issued.warrant.is_same(warrant));
        warrants.forget_idle();
    }

    /// Forgets a revoked warrant whose peer is not copying, or cannot be waited for.
    pub fn forget_warrant(&mut self, warrant: &OwnWarrant) {
        let warrants = &mut self.x.warrants;
        warrants
            .list
            .retain(|issued| !issued.revoked || !issued.warrant.is_same(warrant));
        warrants.forget_idle();
    }
}

/// Whether this side can take warrants from the peer of a link.
pub(crate) fn takes_warrants(peer: Option<&RemotePeer>) -> bool {
    peer.is_some_and(|peer| peer.warrant_taker().is_some())
}
