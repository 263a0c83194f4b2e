//! Peers that may be in the middle of reaching into our memory, also after their link has gone.
//!
//! A request by reference lets the peer copy to or from our memory with a system call of its own. A peer
//! can be stopped just before that call, for as long as somebody likes, and its link can be lost
//! meanwhile. So before memory is given back to the program, the permits of all links that are no longer
//! there are withdrawn, and their peers must have been seen outside of such a call, or stopped, or dead
//! ([`Reach`]).
//!
//! Until then some memory of a lost link is kept, too. The engine thread looks after it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_engine::{Exposure, LinkId};
use rkey_link::AnyLink;
use rkey_link::shm::{Reach, ShmLink};

use crate::naps::Naps;
use crate::shared::{DeviceEngine, Shared};

/// So long it may take before it is worth a word in the log.
const LONG: Duration = Duration::from_secs(1);

/// The reaches of all links by which we send requests, until they have come to rest.
#[derive(Debug, Default)]
pub(crate) struct Reaches {
    all: Mutex<HashMap<LinkId, Reach>>,
    count: AtomicUsize,
    /// How many links the engine had lost when no peer of theirs was left that is not at rest.
    settled: AtomicU64,
}

impl Reaches {
    /// A link has been attached. Called under the engine's lock, so that the engine never has a link
    /// that is not here.
    pub(crate) fn add(&self, id: LinkId, reach: Option<Reach>) {
        if let Some(reach) = reach {
            let mut all = self.all.lock();
            all.insert(id, reach);
            self.count.store(all.len(), Ordering::Release);
        }
    }

    /// Whether the engine has lost a link of which we do not know yet that its peer is at rest.
    /// Called under the engine's lock.
    #[inline]
    pub(crate) fn has_strays(&self, engine: &DeviceEngine) -> bool {
        let known = self.count.load(Ordering::Acquire);
        let strays = known > 0
            && engine
                .links()
                .filter(|(_, link)| is_requester(link))
                .count()
                != known;
        if !strays {
            let lost = engine.exposure().lost_links();
            self.settled.store(lost, Ordering::Release);
        }
        strays
    }

    /// Whether it is certain, without a look at the engine, that no peer reaches into memory that has been closed
    /// before its lock was passed.
    #[inline]
    pub(crate) fn are_over(&self, exposure: &Exposure) -> bool {
        !exposure.is_memory_named() && exposure.lost_links() == self.settled.load(Ordering::Acquire)
    }

    /// Forgets lost links whose peers are at rest; says whether all are. With `all`, also links that
    /// are still there count as lost.
    fn settle(&self, shared: &Shared, all_are_lost: bool) -> bool {
        // One lock after the other: links are added under both.
        let known: Vec<LinkId> = self.all.lock().keys().copied().collect();
        let strays: Vec<LinkId> = {
            let engine = shared.engine.lock();
            let lost = |id: &LinkId| all_are_lost || engine.link(*id).is_none();
            known.into_iter().filter(lost).collect()
        };
        let mut all = self.all.lock();
        let mut at_rest = true;
        for id in strays {
            let Some(reach) = all.get(&id) else { continue };
            reach.forbid();
            if !reach.is_at_rest() {
                at_rest = false;
            } else if !all_are_lost {
                all.remove(&id);
            }
        }
        self.count.store(all.len(), Ordering::Release);
        at_rest
    }
}

fn is_requester(link: &AnyLink) -> bool {
    matches!(link, AnyLink::Shm(link) if ShmLink::is_requester(link))
}

impl Shared {
    /// Forgets lost links whose peers are at rest; says whether all are. Until they are, each holds three
    /// descriptors and two mappings.
    pub(crate) fn settle_reaches(&self) -> bool {
        self.reaches.settle(self, false)
    }

    /// Waits until no peer of a lost link is in the middle of a call. On a device that failed, all
    /// links count as lost: nobody takes their answers any more.
    ///
    /// This ends when the kernel has ended the call. Nothing else is waited for: a peer that is stopped
    /// before its call cannot make it any more.
    #[cold]
    pub(crate) fn wait_for_strays(&self) {
        let started = Instant::now();
        let mut told = false;
        let mut naps = Naps::new();
        while !self.reaches.settle(self, self.has_failed()) {
            if started.elapsed() > LONG && !told {
                told = true;
                tracing::warn!(
                    "waiting for a peer that reaches into our memory by a call of the kernel"
                );
            }
            naps.take();
        }
    }
}
