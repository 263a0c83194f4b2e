//! Peers that copy to and from our memory with system calls, also after their link was lost.
//!
//! A request with a remote iovec lets the peer copy to or from our memory with its own system call. A peer can be stopped just
//! before that call, for any length of time, and its link can be lost in the meantime. So before memory returns to the program,
//! the permits of all lost links are revoked, and each of their peers must have been seen outside such a call, stopped, or
//! dead ([`PeerAccess`]).
//!
//! Only memory whose addresses such a peer received in requests waits for it ([`CopyScope`]), and not forever: after
//! [`LIMIT`] the device gives up waiting and logs an error.
//!
//! A lost link keeps descriptors and mappings until its peer is known not to be in such a call. The engine thread releases them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_core::LKey;
use rkey_engine::{ExposedMemory, Exposure, LinkId, WarrantScope};
use rkey_link::peer::PeerAccess;
use rkey_link::{AnyLink, Link, LinkRole};

use crate::progress::{Backoff, DeviceEngine, EngineDriver};

/// How long the device waits for the peer of a lost link, or of a revoked warrant. A running peer is known to have left our memory after about 50 µs, or
/// after 250 ms of processor time if it violates the protocol. Only three kinds of peers take longer: those that get no
/// processor time, those whose side of the copy is memory that does not respond, and those whose threads we cannot see.
pub(super) const LIMIT: Duration = Duration::from_secs(2);

/// How long a check may take while other work waits, such as the engine thread's. A peer may have ten thousand threads.
pub(super) const CHECK_LIMIT: Duration = Duration::from_millis(2);

/// How long peers get to end their copies before memory is replaced under them.
const PAUSE_WITHIN: Duration = Duration::from_millis(200);

/// The memory that peers must no longer touch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CopyScope {
    /// All memory whose addresses a peer received.
    All,
    /// The region with this local key.
    Region(LKey),
    /// The memory that requests of the queue pair with this number named.
    Qp(u32),
}

impl CopyScope {
    fn covers(self, exposed: &ExposedMemory) -> bool {
        match self {
            Self::All => true,
            Self::Region(key) => exposed.key == key,
            Self::Qp(qpn) => exposed.qpn == qpn,
        }
    }
}

/// The [`PeerAccess`] of each link for our requests, until its peer is known not to be in a call.
#[derive(Debug, Default)]
pub(crate) struct RemoteCopies {
    all: Mutex<All>,
    count: AtomicUsize,
    /// How many links the engine had lost when all their peers were last known not to be in a call.
    checked: AtomicU64,
}

#[derive(Debug, Default)]
struct All {
    /// The engine's links, and those that it has lost since the last check.
    linked: HashMap<LinkId, PeerAccess>,
    /// Lost links whose peers may still be in a call.
    lost_peers: HashMap<LinkId, LostPeer>,
}

/// The peer of a lost link that may be in the middle of a call.
#[derive(Clone, Debug)]
struct LostPeer {
    peer_access: PeerAccess,
    /// The memory that the peer's call can touch. `None` means all memory whose addresses the peer ever received.
    exposed: Option<Vec<ExposedMemory>>,
    /// When the device gives up on the peer.
    until: Instant,
}

impl LostPeer {
    fn touches(&self, scope: CopyScope) -> bool {
        let exposed = self.exposed.as_ref();
        exposed.is_none_or(|exposed| exposed.iter().any(|one| scope.covers(one)))
    }
}

impl RemoteCopies {
    /// Adds an attached link. Called under the engine's lock, so that the engine never has a link that is missing here.
    pub(crate) fn add(&self, id: LinkId, peer_access: Option<PeerAccess>) {
        if let Some(peer_access) = peer_access {
            let mut all = self.all.lock();
            all.linked.insert(id, peer_access);
            self.update_count(&all);
        }
    }

    fn update_count(&self, all: &All) {
        let count = all.linked.len() + all.lost_peers.len();
        self.count.store(count, Ordering::Release);
    }

    /// Whether the engine has lost a link whose peer may still be in a call. Called under the engine's lock.
    #[inline]
    pub(crate) fn has_lost_peers(&self, engine: &DeviceEngine) -> bool {
        let known = self.count.load(Ordering::Acquire);
        let lost_peers = known > 0
            && engine
                .links()
                .filter(|(_, link)| is_requester(link))
                .count()
                != known;
        if !lost_peers {
            let lost = engine.exposure().lost_links();
            self.checked.store(lost, Ordering::Release);
        }
        lost_peers
    }

    /// Whether it is certain that no peer accesses memory that was deregistered before the caller took the engine's lock. On
    /// `false` the caller must check with the engine.
    #[inline]
    pub(crate) fn are_over(&self, exposure: &Exposure) -> bool {
        !exposure.is_memory_named() && exposure.lost_links() == self.checked.load(Ordering::Acquire)
    }

    /// Revokes the permits of lost links, and forgets those whose peers cannot be in a call. On a device that failed, all
    /// links count as lost: it no longer takes responses.
    fn revoke_permits(&self, driver: &EngineDriver) {
        let all_are_lost = driver.has_failed();
        let mut engine = driver.lock();
        let mut all = self.all.lock();
        let lost = |id: &LinkId| all_are_lost || engine.link(*id).is_none();
        let lost: Vec<LinkId> = all.linked.keys().copied().filter(lost).collect();
        for id in lost {
            let Some(peer_access) = all.linked.remove(&id) else {
                continue;
            };
            let exposed = engine.take_exposed(id);
            let exposed = (!all_are_lost).then_some(exposed);
            let until = Instant::now() + LIMIT;
            let lost_peer = LostPeer {
                peer_access,
                exposed,
                until,
            };
            all.lost_peers.insert(id, lost_peer);
        }
        drop(engine);
        // A peer that received no addresses, or has responded to every request that carried addresses, cannot be in a
        // `process_vm_*` call.
        all.lost_peers.retain(|_, lost_peer| {
            lost_peer.peer_access.revoke();
            lost_peer.touches(CopyScope::All)
        });
        self.update_count(&all);
    }

    /// Forgets lost links whose peers are not in a call, or on which the device gives up. Returns whether any remaining peer can
    /// touch memory of this scope. The checks take `patience` at most; a peer that was not checked by then counts as being in a
    /// call.
    fn recheck_within(&self, driver: &EngineDriver, scope: CopyScope, patience: Duration) -> bool {
        self.revoke_permits(driver);
        let lost_peers: Vec<(LinkId, LostPeer)> = {
            let all = self.all.lock();
            let of_scope = all.lost_peers.iter().filter(|(_, it)| it.touches(scope));
            of_scope.map(|(id, it)| (*id, it.clone())).collect()
        };
        // Check the peers without the lock: checking a peer with many threads takes long.
        let (mut over, mut any_left) = (Vec::new(), false);
        let end = Instant::now() + patience;
        for (id, lost_peer) in lost_peers {
            let deadline = lost_peer.until.min(end);
            if lost_peer.peer_access.is_at_rest(deadline) {
                over.push((id, None));
            } else if Instant::now() >= lost_peer.until {
                over.push((id, Some(lost_peer)));
            } else {
                any_left = true;
            }
        }
        if !over.is_empty() {
            let mut all = self.all.lock();
            for (id, given_up) in over {
                let known = all.lost_peers.remove(&id).is_some();
                if let Some(lost_peer) = given_up.filter(|_| known) {
                    log_given_up(&lost_peer);
                }
            }
            self.update_count(&all);
        }
        any_left
    }

    /// Forgets lost links whose peers are not in a call. Returns whether any remaining peer can touch memory of this
    /// scope. A link that is not forgotten holds three descriptors and two mappings.
    pub(super) fn recheck_lost_peers(&self, driver: &EngineDriver, scope: CopyScope) -> bool {
        self.recheck_within(driver, scope, CHECK_LIMIT)
    }

    /// Waits until no peer of a lost link is in a call that touches memory of this scope, or the device has given up on the
    /// peer.
    #[cold]
    pub(super) fn wait(&self, driver: &EngineDriver, scope: CopyScope) {
        let mut backoff = Backoff::new();
        while self.recheck_within(driver, scope, LIMIT) {
            backoff.sleep();
        }
    }

    /// Runs `act` while no peer that responds copies to or from our memory with system calls: such a copy could use pages
    /// that `act` replaces.
    pub(super) fn pause<R>(&self, driver: &EngineDriver, act: impl FnOnce() -> R) -> R {
        if driver.has_failed() {
            return act();
        }
        self.revoke_permits(driver);
        driver.command(|engine| engine.forbid_remote_iovecs(true));
        // Those that are still valid in copies that take longer stay revoked, and their regions wait for them.
        let _ = super::warrants::wait_for_warrants(driver, WarrantScope::All, PAUSE_WITHIN);
        let deadline = Instant::now() + PAUSE_WITHIN;
        let mut backoff = Backoff::new();
        let result = loop {
            let engine = driver.lock();
            if !engine.has_remote_iovecs() || Instant::now() >= deadline || driver.has_failed() {
                break act();
            }
            drop(engine);
            driver.drive_now();
            backoff.sleep();
        };
        driver.command(|engine| engine.forbid_remote_iovecs(false));
        result
    }
}

/// Logs that the device no longer waits for a peer. Some of the memory whose addresses the peer knows may stay
/// registered.
#[cold]
fn log_given_up(lost_peer: &LostPeer) {
    let peer = crate::peers::process::name_of(lost_peer.peer_access.peer_pid());
    let regions = lost_peer.exposed.as_ref().map(Vec::len);
    tracing::error!(
        peer,
        named = regions,
        "giving up on a peer: {} s after its link was cut, it may still be in a system call that writes up to 256 KiB to \
         addresses that requests named",
        LIMIT.as_secs()
    );
}

fn is_requester(link: &AnyLink) -> bool {
    link.role() == LinkRole::Requester
}
