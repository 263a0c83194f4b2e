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
//!
//! The number of warrants is limited. At the limit, a new one replaces one that has not been used for a while (`warrant_room`); its peer
//! finds that out at its next write, which it sends through the ring. A warrant with which the peer is copying counts as in use.

use crate::exposure::Exposure;
use crate::guesses::Guesses;
use crate::warrant_room::{self, Holder, Room};
use crate::{Engine, LinkId, Origin, QpId, QpType};
use rkey_base::memory::Memory;
use rkey_core::{Access, Operation, PlainRegion, RKey, RegionId};
use rkey_link::peer::{OwnWarrant, RemotePeer};
use rkey_link::{Link, LinkRole};
use std::any::Any;
use std::sync::Arc;

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
    holder: Holder,
    region: RegionId,
    origin: Origin,
    /// When its link was first served.
    since: u64,
    /// How the owner counts it.
    _counted: Box<dyn Any + Send>,
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
            self.revoke(|issued| issued.holder.qp == qp);
        }
    }

    /// Revokes the warrants of a link.
    pub(crate) fn revoke_of_link(&mut self, link: LinkId) {
        self.revoke(|issued| issued.holder.link == link);
    }

    /// Revokes the warrants of processes that must wait because of guessed keys. They would otherwise go on to write.
    pub(crate) fn revoke_of_paused(&mut self, guesses: &Guesses, now: u64) {
        self.revoke(|it| guesses.paused_until(&it.origin, it.since, now).is_some());
        self.forget_idle();
    }

    /// How many warrants the peer at the other end of a link has.
    pub(crate) fn of_link(&self, link: LinkId) -> u32 {
        let holders = self.list.iter().map(|issued| issued.holder);
        let of_link = holders.filter(|holder| holder.link == link && !holder.revoked);
        of_link.count() as u32
    }

    #[cold]
    fn revoke(&mut self, which: impl Fn(&Issued) -> bool) {
        for issued in &mut self.list {
            if !issued.holder.revoked && which(issued) {
                issued.warrant.revoke();
                issued.holder.revoked = true;
            }
        }
    }

    /// Removes revoked warrants whose peers are not copying.
    fn forget_idle(&mut self) {
        self.list
            .retain(|issued| !issued.holder.revoked || !issued.warrant.is_idle());
        let regions = self.list.iter().map(|issued| issued.region);
        self.exposure.set_warranted(regions);
    }

    /// How to make room for one more warrant, for this region.
    fn room(&self, new: &Holder, region: RegionId) -> Room {
        let holders: Vec<Holder> = self.list.iter().map(|issued| issued.holder).collect();
        let is_same =
            |it: &Issued| it.holder.qp == new.qp && it.region == region && !it.holder.revoked;
        let same = self.list.iter().position(is_same);
        warrant_room::room(&holders, new, same, |index| {
            let issued = self.list.get(index);
            issued.map_or(std::time::Duration::ZERO, |it| it.warrant.unused_for())
        })
    }

    fn add(&mut self, issued: Issued, replaced: Option<usize>) {
        if let Some(old) = replaced.and_then(|index| self.list.get_mut(index)) {
            old.warrant.revoke();
            old.holder.revoked = true;
        }
        self.list.push(issued);
        self.forget_idle();
    }
}

impl<L: Link, M: Memory> Engine<L, M> {
    /// Issues a warrant to the peer at the other end of a link, and returns the warrant and the region that it is for. `None` if
    /// the peer must go on to request its writes: they need checks that only this engine can make, its process is paused, or a
    /// limit is reached. `now_ns` is a time of the clock that [`Engine::drive`] uses. `counted` is dropped when the warrant no longer
    /// takes a descriptor.
    pub fn issue_warrant(
        &mut self,
        link: LinkId,
        request: &WarrantRequest,
        now_ns: u64,
        counted: Box<dyn Any + Send>,
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
        let (origin, since) = (link_state.meta.origin, link_state.meta.since);
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
        let holder = Holder {
            link,
            qp,
            process: origin.process,
            revoked: false,
        };
        let replaced = match self.x.warrants.room(&holder, region.region) {
            Room::Free => None,
            Room::Replaces(index) => Some(index),
            Room::None => return None,
        };
        let warrant = issuer.issue().ok()?;
        let issued = Issued {
            warrant: warrant.clone(),
            holder,
            region: region.region,
            origin,
            since,
            _counted: counted,
        };
        self.x.warrants.add(issued, replaced);
        Some((warrant, region))
    }

    /// Revokes warrants. Returns those of this scope, revoked now or before, with which a peer may still be copying, and their
    /// links, which may no longer exist.
    pub fn revoke_warrants(&mut self, scope: WarrantScope) -> Vec<(LinkId, OwnWarrant)> {
        let covers = |issued: &Issued| match scope {
            WarrantScope::Region(region) => issued.region == region,
            WarrantScope::Qp(qp) => issued.holder.qp == qp,
            WarrantScope::Revoked => issued.holder.revoked,
            WarrantScope::All => true,
        };
        let warrants = &mut self.x.warrants;
        warrants.revoke(covers);
        warrants.forget_idle();
        let rest = warrants.list.iter().filter(|issued| covers(issued));
        rest.map(|issued| (issued.holder.link, issued.warrant.clone()))
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
            .retain(|issued| !issued.holder.revoked || !issued.warrant.is_same(warrant));
        warrants.forget_idle();
    }
}

/// Whether this side can take warrants from the peer of a link.
pub(crate) fn takes_warrants(peer: Option<&RemotePeer>) -> bool {
    peer.is_some_and(|peer| peer.warrant_taker().is_some())
}
