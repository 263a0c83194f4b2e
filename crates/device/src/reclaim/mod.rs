//! Memory that peers access directly, and how the program gets it back.
//!
//! Peers access memory of this process without its engine in three ways: through a lease, which maps it; with a system call
//! that copies memory named by a remote iovec; and with a system call under a warrant. [`Reclaim`] ends all of them before
//! memory returns to the program.
//!
//! | module | what it is |
//! | --- | --- |
//! | `lease` | leases that peers have on our memory |
//! | `lease_requests` | leases that we request from peers |
//! | `lease_messages` | the messages between the two sides of a lease or a warrant |
//! | `outbox` | answers to peers whose socket had no room |
//! | `segment` | memory that can be leased |
//! | `revoke` | revokes leases |
//! | `remote_copies` | peers that copy by system calls, also after their link has ended |
//! | `ask_limit` | how often a peer may ask for a warrant |
//! | `warrants` | warrants that peers have on our memory, and we on theirs |
//! | `quiesce` | returns the memory that a queue pair's requests named |

mod ask_limit;
mod lease;
pub(crate) mod lease_messages;
mod lease_requests;
mod outbox;
mod quiesce;
mod remote_copies;
mod revoke;
mod segment;
mod warrants;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rkey_core::{DENIAL_LEN, Denial, Draining, LKey, Protection, Region};
use rkey_engine::{Exposure, LinkId, WarrantScope};
use rkey_link::Link;
use rkey_link::direct::LeaseOffer;
use rkey_link::peer::{Control, PeerAccess};

use crate::inspect::denials::Denials;
use crate::objects::QpTable;
use crate::progress::{Backoff, DeviceEngine, EngineDriver};
use ask_limit::AskLimit;
use lease::Leases;
use lease_messages::{Message, decode};
use lease_requests::{Answer, LeaseRequests};
use remote_copies::{CopyScope, RemoteCopies};

/// How long a peer that has received addresses of a region may take to respond once the region is being deregistered.
/// After that its link is cut.
const RESPONSE_LIMIT: Duration = Duration::from_secs(1);
/// Why a lease that a peer granted cannot be used.
const NO_DESCRIPTOR: &str =
    "its descriptor did not arrive; perhaps this process has no free one (RLIMIT_NOFILE)";

/// Takes memory back from peers that access it without this device's engine.
pub(crate) struct Reclaim {
    pub(crate) leases: Leases,
    pub(crate) lease_requests: Arc<LeaseRequests>,
    remote_copies: RemoteCopies,
    ask_limit: AskLimit,
    /// What the engine has exposed to peers, readable without its lock.
    exposure: Arc<Exposure>,
    /// How many descriptors warrants leave to the program.
    reserved_files: u32,
}

impl Reclaim {
    pub(crate) fn new(
        engine: &DeviceEngine,
        protection: &Arc<Protection>,
        qps: &Arc<QpTable>,
        denials: &Arc<Denials>,
        reserved_files: u32,
    ) -> Self {
        Self {
            leases: Leases::new(protection, qps, denials),
            lease_requests: Arc::default(),
            remote_copies: RemoteCopies::default(),
            ask_limit: AskLimit::default(),
            exposure: Arc::clone(engine.exposure()),
            reserved_files,
        }
    }

    /// Adds an attached link, whose peer may copy as `peer_access` allows. Called under the engine's lock, so that the engine
    /// never has a link that is missing here.
    pub(crate) fn add_link(&self, link: LinkId, peer_access: Option<PeerAccess>) {
        self.remote_copies.add(link, peer_access);
    }

    /// Ends the access of a lost link's peer to our memory. Returns whether some access remains, which [`Reclaim::recheck_lost_peers`] must
    /// check again.
    pub(crate) fn forget_link(&self, driver: &EngineDriver, link: LinkId) -> bool {
        self.leases.outbox.forget(link);
        self.ask_limit.forget(link);
        let copies = self
            .remote_copies
            .recheck_lost_peers(driver, CopyScope::All);
        let warrants = self.recheck_warrants(driver);
        self.leases.forget_link(link) || copies || warrants
    }

    /// Checks the peers of lost links again: their leases and their system calls. Returns whether any access remains.
    pub(crate) fn recheck_lost_peers(&self, driver: &EngineDriver) -> bool {
        let copies = self
            .remote_copies
            .recheck_lost_peers(driver, CopyScope::All);
        let warrants = self.recheck_warrants(driver);
        self.leases.recheck_lost_peers() || copies || warrants
    }

    /// Whether answers wait for room on a control socket, so that [`Reclaim::send_answers`] must be called soon.
    pub(crate) fn has_unsent_answers(&self) -> bool {
        self.leases.outbox.has_unsent()
    }

    /// Sends as many answers as there is room for. Returns whether others still wait.
    pub(crate) fn send_answers(&self) -> bool {
        self.leases.outbox.flush()
    }

    /// Handles a message of the device at the other end of a link. Runs in the engine thread.
    pub(crate) fn on_control(&self, driver: &EngineDriver, link: LinkId, control: Control) {
        let message = decode(&control.bytes);
        let mut fds = control.fds;
        match message {
            Some(Message::Ask(request)) => self.leases.answer(driver, link, &request),
            Some(Message::Granted { id, grant }) => {
                if let Ok(offer) = LeaseOffer::from_bytes(&grant) {
                    let answer = match fds.pop() {
                        Some(fd) => Answer::Granted(offer, fd),
                        None => Answer::Refused(NO_DESCRIPTOR.to_owned()),
                    };
                    self.lease_requests.answer(link, id, answer);
                }
            }
            Some(Message::Denied { id, denial, report }) => {
                if let Ok(bytes) = <&[u8; DENIAL_LEN]>::try_from(&denial[..]) {
                    let answer = Answer::Denied(Denial::decode(bytes), report);
                    self.lease_requests.answer(link, id, answer);
                }
            }
            Some(Message::Refused { id, why }) => {
                let why = why.chars().take(200).filter(|c| !c.is_control()).collect();
                self.lease_requests.answer(link, id, Answer::Refused(why));
            }
            Some(Message::AskWarrant(ask)) => self.issue_warrant(driver, link, &ask),
            Some(Message::Warrant(issued)) => {
                if let Some(fd) = fds.pop() {
                    Self::take_warrant(driver, link, &issued, fd);
                }
            }
            None => tracing::debug!(?link, "ignored an unknown message from a peer"),
        }
    }

    /// Whether deregistering a region without leases would return at once: no outstanding request of ours names it, and
    /// no peer of a lost link can touch it. Leases are not checked: deregistering a region that has some may still wait.
    pub(crate) fn is_region_quiet(&self, driver: &EngineDriver, key: LKey) -> bool {
        let exposed = driver.lock().exposes(key);
        !exposed && self.has_no_lost_peers(driver, CopyScope::Region(key))
    }

    /// Waits until no peer touches the memory of a region whose keys are already refused. `leasable` means that the region may have
    /// leases.
    #[inline]
    pub(crate) fn wait_for_region(
        &self,
        driver: &EngineDriver,
        region: Region,
        leasable: bool,
        draining: &mut impl Draining,
    ) {
        driver.drain_section(draining);
        let copies = !self.remote_copies.are_over(&self.exposure)
            || self.exposure.may_be_warranted(region.id);
        if leasable || copies || driver.has_failed() {
            self.wait_for_peers(driver, region, leasable);
        }
    }

    #[cold]
    fn wait_for_peers(&self, driver: &EngineDriver, region: Region, leasable: bool) {
        let (exposed, lost_peers) = {
            let engine = driver.lock();
            let lost_peers = self.remote_copies.has_lost_peers(&engine);
            (engine.exposes(region.local_key), lost_peers)
        };
        self.end_warrants(driver, WarrantScope::Region(region.id));
        if leasable {
            self.leases.revoke(driver, &self.remote_copies, region.id);
        }
        if exposed {
            wait_for_responses(driver, region.local_key);
        }
        if exposed || lost_peers || driver.has_failed() {
            let scope = CopyScope::Region(region.local_key);
            self.remote_copies.wait(driver, scope);
        }
    }

    /// Whether no peer can still touch memory because of orphaned requests of a queue pair.
    pub(crate) fn is_qp_quiet(&self, driver: &EngineDriver, qpn: u32) -> bool {
        links_with_orphans(driver, qpn).is_empty()
            && self.has_no_lost_peers(driver, CopyScope::Qp(qpn))
    }

    /// Cuts the links over which a peer may still touch memory because of orphaned requests of a queue pair.
    pub(crate) fn cut_off_qp(&self, driver: &EngineDriver, qpn: u32) {
        driver.cut_links("a queue pair failed", &links_with_orphans(driver, qpn));
    }

    /// Waits until no peer touches memory because of orphaned requests of a queue pair. Cuts the links of peers that do not
    /// respond by `deadline`.
    pub(crate) fn wait_for_qp(&self, driver: &EngineDriver, qpn: u32, deadline: Instant) {
        let (mut backoff, mut cut) = (Backoff::new(), Vec::new());
        loop {
            let links = links_with_orphans(driver, qpn);
            if links.is_empty() {
                break;
            }
            if Instant::now() >= deadline && links != cut {
                driver.cut_links("a queue pair is being destroyed", &links);
                cut = links;
            }
            driver.drive_now();
            backoff.sleep();
        }
        let scope = CopyScope::Qp(qpn);
        if !self.has_no_lost_peers(driver, scope) {
            self.remote_copies.wait(driver, scope);
        }
    }

    /// Whether no peer of a lost link is in a call that touches memory of this scope.
    fn has_no_lost_peers(&self, driver: &EngineDriver, scope: CopyScope) -> bool {
        let lost_peers = self.remote_copies.has_lost_peers(&driver.lock());
        !(lost_peers && self.remote_copies.recheck_lost_peers(driver, scope))
    }
}

/// Waits until peers have responded to all our requests that named a region. Cuts their links after a while.
#[cold]
fn wait_for_responses(driver: &EngineDriver, key: LKey) {
    let started = Instant::now();
    let mut backoff = Backoff::new();
    while !driver.has_failed() && driver.lock().exposes(key) {
        if started.elapsed() > RESPONSE_LIMIT {
            let links = unacknowledged_links(&driver.lock(), key);
            driver.cut_links("a region is being deregistered", &links);
        }
        driver.drive_now();
        backoff.sleep();
    }
}

/// The links over which a peer has not acknowledged a request that named a region.
fn unacknowledged_links(engine: &DeviceEngine, key: LKey) -> Vec<LinkId> {
    let mut links = engine.links_exposing(key);
    links.retain(|id| engine.link(*id).is_some_and(Link::has_unacked));
    links
}

/// The links with outstanding orphaned requests of a queue pair.
fn links_with_orphans(driver: &EngineDriver, qpn: u32) -> Vec<LinkId> {
    if driver.has_failed() {
        // All links count as lost.
        return Vec::new();
    }
    driver.lock().orphaned_links(qpn)
}
