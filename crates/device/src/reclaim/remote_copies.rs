//! Peers that may be in the middle of reaching into our memory, also after their link has gone.
//!
//! A request by reference lets the peer copy to or from our memory with a system call of its own. A peer
//! can be stopped just before that call, for as long as somebody likes, and its link can be lost
//! meanwhile. So before memory is given back to the program, the permits of all links that are no longer
//! there are withdrawn, and their peers must have been seen outside of such a call, or stopped, or dead
//! ([`Reach`]).
//!
//! Only memory that such a peer had been told of waits for it ([`CopyScope`]), and not for ever: a peer that
//! cannot be seen to be out of our memory after [`LIMIT`] is given up, with an error in the log.
//!
//! Until then some memory of a lost link is kept, too. The engine thread looks after it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_core::LocalKey;
use rkey_engine::{ExposedMemory, Exposure, LinkId};
use rkey_link::peer::Reach;
use rkey_link::{AnyLink, Link, LinkRole};

use crate::progress::Backoff;
use crate::shared::{DeviceEngine, Shared};

/// How long the peer of a lost link is waited for. One that runs is known to be out of our memory after some
/// 50 µs, or after 250 ms of processor time if it lies about it; what takes longer is a peer that gets no processor, whose
/// side of the copy is memory that does not answer, or whose threads we cannot see.
const LIMIT: Duration = Duration::from_secs(2);

/// How long a look takes that others wait for, the engine thread among them: a peer may have ten thousand threads.
const GLANCE: Duration = Duration::from_millis(2);

/// Which memory must not be touched any more.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CopyScope {
    /// Any that a peer was told of.
    All,
    /// The region with this local key.
    Region(LocalKey),
    /// What requests of the queue pair with this number named.
    Qp(u32),
}

impl CopyScope {
    fn covers(self, told: &ExposedMemory) -> bool {
        match self {
            Self::All => true,
            Self::Region(key) => told.key == key,
            Self::Qp(qpn) => told.qpn == qpn,
        }
    }
}

/// The reaches of all links by which we send requests, until they have come to rest.
#[derive(Debug, Default)]
pub(crate) struct RemoteCopies {
    all: Mutex<All>,
    count: AtomicUsize,
    /// How many links the engine had lost when no peer of theirs was left that is not at rest.
    settled: AtomicU64,
}

#[derive(Debug, Default)]
struct All {
    /// Of links that were there when we last looked.
    linked: HashMap<LinkId, Reach>,
    /// Of lost links whose peers may still be in a call.
    lost_peers: HashMap<LinkId, LostPeer>,
}

/// The peer of a lost link that may be in the middle of a call.
#[derive(Clone, Debug)]
struct LostPeer {
    reach: Reach,
    /// What it can be writing to. `None`: all that it was ever told of.
    told: Option<Vec<ExposedMemory>>,
    /// Then it is given up.
    until: Instant,
}

impl LostPeer {
    fn touches(&self, scope: CopyScope) -> bool {
        let told = self.told.as_ref();
        told.is_none_or(|told| told.iter().any(|one| scope.covers(one)))
    }
}

impl RemoteCopies {
    /// A link has been attached. Called under the engine's lock, so that the engine never has a link
    /// that is not here.
    pub(crate) fn add(&self, id: LinkId, reach: Option<Reach>) {
        if let Some(reach) = reach {
            let mut all = self.all.lock();
            all.linked.insert(id, reach);
            self.count_again(&all);
        }
    }

    fn count_again(&self, all: &All) {
        let count = all.linked.len() + all.lost_peers.len();
        self.count.store(count, Ordering::Release);
    }

    /// Whether the engine has lost a link of which we do not know yet that its peer is at rest.
    /// Called under the engine's lock.
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
            self.settled.store(lost, Ordering::Release);
        }
        lost_peers
    }

    /// Whether it is certain, without a look at the engine, that no peer reaches into memory that has been closed
    /// before its lock was passed.
    #[inline]
    pub(crate) fn are_over(&self, exposure: &Exposure) -> bool {
        !exposure.is_memory_named() && exposure.lost_links() == self.settled.load(Ordering::Acquire)
    }

    /// Takes the permits of lost links back, and forgets those whose peers cannot be in a call.
    fn collect_lost_links(&self, shared: &Shared) {
        let all_are_lost = shared.has_failed();
        let mut engine = shared.engine.lock();
        let mut all = self.all.lock();
        let lost = |id: &LinkId| all_are_lost || engine.link(*id).is_none();
        let lost: Vec<LinkId> = all.linked.keys().copied().filter(lost).collect();
        for id in lost {
            let Some(reach) = all.linked.remove(&id) else {
                continue;
            };
            let told = engine.take_told(id);
            let told = (!all_are_lost).then_some(told);
            let until = Instant::now() + LIMIT;
            let lost_peer = LostPeer { reach, told, until };
            all.lost_peers.insert(id, lost_peer);
        }
        drop(engine);
        // A peer that was told of nothing, or had answered for all of it, is in no call.
        all.lost_peers.retain(|_, lost_peer| {
            lost_peer.reach.forbid();
            lost_peer.touches(CopyScope::All)
        });
        self.count_again(&all);
    }

    /// Forgets lost links whose peers are at rest, as far as they can touch memory of this scope; says whether
    /// all of these are. The looks take no longer than `patience` together, and not knowing it then is not at rest.
    fn settle(&self, shared: &Shared, scope: CopyScope, patience: Duration) -> bool {
        self.collect_lost_links(shared);
        let lost_peers: Vec<(LinkId, LostPeer)> = {
            let all = self.all.lock();
            let of_scope = all.lost_peers.iter().filter(|(_, it)| it.touches(scope));
            of_scope.map(|(id, it)| (*id, it.clone())).collect()
        };
        // Not under the lock: a look at a peer of many threads takes its time, and others do not wait for it.
        let (mut over, mut at_rest) = (Vec::new(), true);
        let end = Instant::now() + patience;
        for (id, lost_peer) in lost_peers {
            let deadline = lost_peer.until.min(end);
            if lost_peer.reach.is_at_rest(deadline) {
                over.push((id, None));
            } else if Instant::now() >= lost_peer.until {
                over.push((id, Some(lost_peer)));
            } else {
                at_rest = false;
            }
        }
        if !over.is_empty() {
            let mut all = self.all.lock();
            for (id, given_up) in over {
                let known = all.lost_peers.remove(&id).is_some();
                if let Some(lost_peer) = given_up.filter(|_| known) {
                    tell_of_given_up(&lost_peer);
                }
            }
            self.count_again(&all);
        }
        at_rest
    }
}

/// The peer may have been told of other regions as well, which are not closed.
#[cold]
fn tell_of_given_up(lost_peer: &LostPeer) {
    let peer = crate::peers::process::name_of(lost_peer.reach.peer_pid());
    let regions = lost_peer.told.as_ref().map(Vec::len);
    tracing::error!(
        peer,
        named = regions,
        "a peer does not show that it has left our memory, {} s after it was cut off: it is not waited for any \
         longer, and a system call of its that began before may still write up to 256 KiB where requests had told it to",
        LIMIT.as_secs()
    );
}

fn is_requester(link: &AnyLink) -> bool {
    link.role() == LinkRole::Requester
}

impl Shared {
    /// Forgets lost links whose peers are at rest; says whether all are that can touch memory of this scope. Until
    /// they are, each holds three descriptors and two mappings.
    pub(crate) fn settle_remote_copies(&self, scope: CopyScope) -> bool {
        self.remote_copies.settle(self, scope, GLANCE)
    }

    /// Takes the permits of lost links back.
    pub(crate) fn withdraw_permits(&self) {
        self.remote_copies.collect_lost_links(self);
    }

    /// Waits until no peer of a lost link is in the middle of a call that touches memory of this scope, or the peer
    /// has been given up. On a device that failed, all links count as lost: nobody takes their answers any more.
    #[cold]
    pub(crate) fn wait_for_lost_peers(&self, scope: CopyScope) {
        let mut backoff = Backoff::new();
        while !self.remote_copies.settle(self, scope, LIMIT) {
            backoff.sleep();
        }
    }
}
