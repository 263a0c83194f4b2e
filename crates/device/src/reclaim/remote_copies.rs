//! Peers that may be in the middle of reaching into our memory, also after their link has gone.
//!
//! A request by reference lets the peer copy to or from our memory with a system call of its own. A peer
//! can be stopped just before that call, for as long as somebody likes, and its link can be lost
//! meanwhile. So before memory is given back to the program, the permits of all links that are no longer
//! there are withdrawn, and their peers must have been seen outside of such a call, or stopped, or dead
//! ([`Reach`]).
//!
//! Only memory that such a peer had been told of waits for it ([`Scope`]), and not for ever: a peer that
//! cannot be seen to be out of our memory after [`LIMIT`] is given up, with an error in the log.
//!
//! Until then some memory of a lost link is kept, too. The engine thread looks after it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_core::LocalKey;
use rkey_engine::{Exposure, LinkId, Told};
use rkey_link::AnyLink;
use rkey_link::shm::{Reach, ShmLink};

use crate::progress::Naps;
use crate::shared::{DeviceEngine, Shared};

/// How long the peer of a lost link is waited for. One that runs is known to be out of our memory after some
/// 50 µs, or after 250 ms of processor time if it lies about it; what takes longer is a peer that gets no processor, whose
/// side of the copy is memory that does not answer, or whose threads we cannot see.
const LIMIT: Duration = Duration::from_secs(2);

/// How long a look takes that others wait for, the engine thread among them: a peer may have ten thousand threads.
const GLANCE: Duration = Duration::from_millis(2);

/// Which memory must not be touched any more.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope {
    /// Any that a peer was told of.
    All,
    /// The region with this local key.
    Region(LocalKey),
    /// What requests of the queue pair with this number named.
    Qp(u32),
}

impl Scope {
    fn covers(self, told: &Told) -> bool {
        match self {
            Self::All => true,
            Self::Region(key) => told.key == key,
            Self::Qp(qpn) => told.qpn == qpn,
        }
    }
}

/// The reaches of all links by which we send requests, until they have come to rest.
#[derive(Debug, Default)]
pub(crate) struct Reaches {
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
    strays: HashMap<LinkId, Stray>,
}

/// The peer of a lost link that may be in the middle of a call.
#[derive(Clone, Debug)]
struct Stray {
    reach: Reach,
    /// What it can be writing to. `None`: all that it was ever told of.
    told: Option<Vec<Told>>,
    /// Then it is given up.
    until: Instant,
}

impl Stray {
    fn touches(&self, scope: Scope) -> bool {
        let told = self.told.as_ref();
        told.is_none_or(|told| told.iter().any(|one| scope.covers(one)))
    }
}

impl Reaches {
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
        let count = all.linked.len() + all.strays.len();
        self.count.store(count, Ordering::Release);
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

    /// Takes the permits of lost links back, and forgets those whose peers cannot be in a call.
    fn find_strays(&self, shared: &Shared) {
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
            let stray = Stray { reach, told, until };
            all.strays.insert(id, stray);
        }
        drop(engine);
        // A peer that was told of nothing, or had answered for all of it, is in no call.
        all.strays.retain(|_, stray| {
            stray.reach.forbid();
            stray.touches(Scope::All)
        });
        self.count_again(&all);
    }

    /// Forgets lost links whose peers are at rest, as far as they can touch memory of this scope; says whether
    /// all of these are. The looks take no longer than `patience` together, and not knowing it then is not at rest.
    fn settle(&self, shared: &Shared, scope: Scope, patience: Duration) -> bool {
        self.find_strays(shared);
        let strays: Vec<(LinkId, Stray)> = {
            let all = self.all.lock();
            let of_scope = all.strays.iter().filter(|(_, it)| it.touches(scope));
            of_scope.map(|(id, it)| (*id, it.clone())).collect()
        };
        // Not under the lock: a look at a peer of many threads takes its time, and others do not wait for it.
        let (mut over, mut at_rest) = (Vec::new(), true);
        let end = Instant::now() + patience;
        for (id, stray) in strays {
            let deadline = stray.until.min(end);
            if stray.reach.is_at_rest(deadline) {
                over.push((id, None));
            } else if Instant::now() >= stray.until {
                over.push((id, Some(stray)));
            } else {
                at_rest = false;
            }
        }
        if !over.is_empty() {
            let mut all = self.all.lock();
            for (id, given_up) in over {
                let known = all.strays.remove(&id).is_some();
                if let Some(stray) = given_up.filter(|_| known) {
                    tell_of_given_up(&stray);
                }
            }
            self.count_again(&all);
        }
        at_rest
    }
}

/// The peer may have been told of other regions as well, which are not closed.
#[cold]
fn tell_of_given_up(stray: &Stray) {
    let peer = crate::peers::process::name_of(stray.reach.peer_pid());
    let regions = stray.told.as_ref().map(Vec::len);
    tracing::error!(
        peer,
        named = regions,
        "a peer does not show that it has left our memory, {} s after it was cut off: it is not waited for any \
         longer, and a system call of its that began before may still write up to 256 KiB where requests had told it to",
        LIMIT.as_secs()
    );
}

fn is_requester(link: &AnyLink) -> bool {
    matches!(link, AnyLink::Shm(link) if ShmLink::is_requester(link))
}

impl Shared {
    /// Forgets lost links whose peers are at rest; says whether all are that can touch memory of this scope. Until
    /// they are, each holds three descriptors and two mappings.
    pub(crate) fn settle_reaches(&self, scope: Scope) -> bool {
        self.reaches.settle(self, scope, GLANCE)
    }

    /// Takes the permits of lost links back.
    pub(crate) fn withdraw_permits(&self) {
        self.reaches.find_strays(self);
    }

    /// Waits until no peer of a lost link is in the middle of a call that touches memory of this scope, or the peer
    /// has been given up. On a device that failed, all links count as lost: nobody takes their answers any more.
    #[cold]
    pub(crate) fn wait_for_strays(&self, scope: Scope) {
        let mut naps = Naps::new();
        while !self.reaches.settle(self, scope, LIMIT) {
            naps.take();
        }
    }
}
