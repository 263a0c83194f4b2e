//! Leases that this device grants: peers map its memory and copy directly.
//!
//! Memory that was allocated with `Device::allocate_shared` and registered can be leased. When a peer requests a lease, the
//! owner's engine thread checks the key exactly as it would check a request, and sends an offer and the descriptor of the
//! memory. From then on the peer itself makes each copy, until the owner deregisters the region: `revoke` then revokes the
//! lease and waits for copies in progress.
//!
//! Leases are granted for the keys of regions only. A posted request can rebind a window at any moment, and such a request
//! could not wait for a peer.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rkey_base::segment::Arena;
use rkey_core::{Accessor, Denial, Key, MemoryKind, Operation, Protection, RKey, Region, RegionId};
use rkey_engine::{LinkId, QpInfo};
use rkey_link::direct::{LeaseBoard, LeaseId, LeaseOffer};
use rkey_link::{Link, NodeId};

use super::lease_messages::{LeaseRequest, Message, encode};
use super::outbox::{LeaseAnswer, Outbox};
use crate::inspect::denials::Denials;
use crate::objects::QpTable;
use crate::progress::EngineDriver;
use crate::reclaim::segment::Segment;

/// The leases that peers have on this device's memory.
#[derive(Debug)]
pub(crate) struct Leases {
    protection: Arc<Protection>,
    qps: Arc<QpTable>,
    denials: Arc<Denials>,
    /// Locked after `granted` if both are needed.
    pub(super) segments: Mutex<HashMap<u32, Segment>>,
    /// The regions of memory that can be leased, each with its own keys (not those of its windows).
    pub(super) regions: Mutex<HashMap<RegionId, RegionKeys>>,
    /// Whether there ever was a region of memory that can be leased. If not, [`Leases::revoke`] takes no lock.
    pub(super) any_region: AtomicBool,
    pub(super) granted: Mutex<HashMap<RegionId, Vec<Granted>>>,
    /// Locked while memory is detached from peers.
    pub(super) detaching: Mutex<()>,
    /// Answers that wait to be sent.
    pub(super) outbox: Outbox,
}

/// The keys of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionKeys {
    key: Key,
    requested: Option<u64>,
}

impl RegionKeys {
    fn contain(&self, key: RKey) -> bool {
        match key {
            RKey::Device(key) => self.key == key,
            RKey::Requested(key) => self.requested == Some(key),
        }
    }
}

/// A lease that a peer has.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) board: LeaseBoard,
    pub(super) lease: LeaseId,
    pub(super) link: LinkId,
    /// The segment that it maps, and which bytes.
    pub(super) segment: u32,
    pub(super) bytes: Range<u64>,
    /// Whether the link has ended but a copy is in progress.
    pub(super) lost: bool,
}

impl Leases {
    /// An empty list.
    pub(super) fn new(
        protection: &Arc<Protection>,
        qps: &Arc<QpTable>,
        denials: &Arc<Denials>,
    ) -> Self {
        Self {
            protection: Arc::clone(protection),
            qps: Arc::clone(qps),
            denials: Arc::clone(denials),
            segments: Mutex::default(),
            regions: Mutex::default(),
            any_region: AtomicBool::new(false),
            granted: Mutex::default(),
            detaching: Mutex::default(),
            outbox: Outbox::default(),
        }
    }

    /// Adds memory that can be leased until it is freed.
    pub(crate) fn add_segment(&self, segment: u32, arena: &Arc<Arena>) {
        let mut segments = self.segments.lock();
        segments.retain(|_, segment| segment.arena.strong_count() > 0);
        segments.insert(segment, Segment::new(arena));
    }

    /// Adds a region of memory that can be leased.
    pub(crate) fn add_region(&self, region: &Region) {
        let keys = RegionKeys {
            key: region.key,
            requested: region.requested,
        };
        self.regions.lock().insert(region.id, keys);
        self.any_region.store(true, Ordering::Release);
    }

    /// Answers a request that came over a link.
    pub(super) fn answer(&self, driver: &EngineDriver, link: LinkId, request: &LeaseRequest) {
        let found = {
            let engine = driver.lock();
            engine.link(link).and_then(|link| {
                let peer = link.peer()?;
                let board = peer.lease_board()?.clone();
                Some((board, Arc::clone(&peer.line), link.node()))
            })
        };
        let Some((board, line, node)) = found else {
            return;
        };
        let (message, fd) = self.decide(driver, (link, &board, node), request);
        let bytes = encode(&message);
        // An answer that is dropped is like none: the requester's deadline ends.
        let _ = self.outbox.send(link, line, LeaseAnswer { bytes, fd });
    }

    fn decide(
        &self,
        driver: &EngineDriver,
        (link, board, node): (LinkId, &LeaseBoard, NodeId),
        request: &LeaseRequest,
    ) -> (Message, Option<OwnedFd>) {
        let id = request.id;
        let now = driver.schedule.refresh_clock();
        let result = if driver.lock().is_paused(link, now) {
            Err(LeaseError::Unavailable(
                "this process has tried too many keys; try again later",
            ))
        } else {
            self.qp_of(driver, node, request)
                .and_then(|qp| self.grant(&qp, (link, board), request))
        };
        match result {
            Ok((offer, fd)) => {
                let grant = offer.to_bytes();
                (Message::Granted { id, grant }, Some(fd))
            }
            Err(LeaseError::Denied(denial)) => {
                let may_explain = driver.count_denied(link, &denial);
                let qpns = (request.qpn, request.src_qpn);
                let (denial, report) = self.denials.deny_lease(node, qpns, *denial, may_explain);
                let denial = denial.to_vec();
                (Message::Denied { id, denial, report }, None)
            }
            Err(LeaseError::Unavailable(why)) => {
                let why = why.to_owned();
                (Message::Refused { id, why }, None)
            }
        }
    }

    /// The queue pair that a request names, if it is connected to the requesting one.
    fn qp_of(
        &self,
        driver: &EngineDriver,
        node: NodeId,
        request: &LeaseRequest,
    ) -> Result<QpInfo, LeaseError> {
        let qp = self.qps.find(request.qpn);
        let info = qp.and_then(|id| driver.lock().query_qp(id));
        let info = info.ok_or(LeaseError::Unavailable("the queue pair does not exist"))?;
        let connected = info
            .attributes
            .peer
            .is_some_and(|peer| peer.qpn == request.src_qpn && peer.node == Some(node));
        if !connected || !info.state.responds() {
            return Err(LeaseError::Unavailable(
                "the queue pair is not connected to the requesting one",
            ));
        }
        Ok(info)
    }

    /// Grants a lease to the peer of a queue pair, if the key in the request allows it.
    fn grant(
        &self,
        qp: &QpInfo,
        (link, board): (LinkId, &LeaseBoard),
        request: &LeaseRequest,
    ) -> Result<(LeaseOffer, OwnedFd), LeaseError> {
        let wanted: &[Operation] = if request.write {
            &[Operation::Write, Operation::Read]
        } else {
            &[Operation::Read]
        };
        let allowed = qp.attributes.access.unwrap_or_default();
        if wanted.iter().any(|w| !allowed.contains(w.needs())) {
            return Err(LeaseError::Unavailable(
                "the queue pair does not allow the requested access",
            ));
        }
        // Locked until the lease is in the list, so that a concurrent deregistration finds it.
        let mut granted = self.granted.lock();
        let target = self.check(qp, wanted, request)?;
        if let Some(segment) = self.segments.lock().get_mut(&target.segment) {
            segment
                .fix_sharing(&target.arena, link, request.write)
                .map_err(LeaseError::Unavailable)?;
        }
        let fd = target
            .arena
            .duplicate_fd()
            .map_err(|_| LeaseError::Unavailable("the owner has no file descriptor left"))?;
        let len = target.bytes.end - target.bytes.start;
        let offer =
            board
                .grant(target.bytes.start, len, request.write)
                .ok_or(LeaseError::Unavailable(
                    "all leases of this link are in use",
                ))?;
        granted.entry(target.region).or_default().push(Granted {
            board: board.clone(),
            lease: offer.id,
            link,
            segment: target.segment,
            bytes: target.bytes,
            lost: false,
        });
        Ok((offer, fd))
    }

    /// Checks the key for all wanted operations, and finds the memory.
    fn check(
        &self,
        qp: &QpInfo,
        wanted: &[Operation],
        request: &LeaseRequest,
    ) -> Result<Target, LeaseError> {
        let (key, addr, len) = (request.key(), request.addr, request.len);
        let who = Accessor {
            domain: qp.config.domain,
            qp: qp.qpn,
            peer: qp.config.peer,
        };
        // Hold all grants until the end: all rights are then valid at the same moment.
        let mut grants = Vec::with_capacity(2);
        for &operation in wanted {
            let grant = self
                .protection
                .check_remote(&who, key, addr, len, operation);
            grants.push(grant.map_err(LeaseError::Denied)?);
        }
        let grant = grants
            .first()
            .ok_or(LeaseError::Unavailable("the request names no operation"))?;
        let region = grant
            .region()
            .ok_or(LeaseError::Unavailable("a lease needs at least one byte"))?;
        let keys = self.regions.lock().get(&region).copied();
        if !keys.is_some_and(|keys| keys.contain(key)) {
            return Err(LeaseError::Unavailable(
                "a lease needs the key of a region in memory from the device's allocator",
            ));
        }
        let span = grant
            .single()
            .ok_or(LeaseError::Unavailable("the region has several segments"))?;
        let memory = self.protection.region_memory(region);
        let Ok(MemoryKind::Shared { segment, .. }) = memory else {
            return Err(LeaseError::Unavailable(
                "the memory is not from the device's allocator",
            ));
        };
        let (arena, detached) = {
            let segments = self.segments.lock();
            let found = segments.get(&segment);
            let found = found.and_then(|s| Some((s.arena.upgrade()?, s.detached.clone())));
            found.ok_or(LeaseError::Unavailable("the memory has been freed"))?
        };
        // The offset comes from the address, not from what the registration claimed.
        let offset = span.start().checked_sub(arena.as_ptr() as u64);
        let offset = offset
            .filter(|o| {
                o.checked_add(span.len())
                    .is_some_and(|end| end <= arena.len() as u64)
            })
            .ok_or(LeaseError::Unavailable(
                "the region's address range is not inside the allocation that it was registered with",
            ))?;
        let bytes = offset..offset + span.len();
        if detached.iter().any(|away| overlap(away, &bytes)) {
            return Err(LeaseError::Unavailable(
                "the memory was detached from a stopped peer and can no longer be leased: use reads and writes",
            ));
        }
        Ok(Target {
            region,
            segment,
            arena,
            bytes,
        })
    }
}

/// The memory of a lease.
struct Target {
    region: RegionId,
    segment: u32,
    arena: Arc<Arena>,
    /// The leased bytes of the segment.
    bytes: Range<u64>,
}

/// Whether two ranges have a byte in common.
pub(super) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Why a lease was not granted.
enum LeaseError {
    /// The key does not allow it.
    Denied(Box<Denial>),
    /// Another reason prevents the lease: for example, this memory cannot be leased.
    Unavailable(&'static str),
}
