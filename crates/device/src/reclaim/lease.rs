//! Direct leases: reading and writing a peer's memory without its help.
//!
//! Memory that was allocated with `Device::allocate_shared` and registered can be leased to a peer.
//! The peer's program asks with [`Qp::lease`]; the owner's engine thread checks the key exactly as it
//! would check a request, and answers with a grant and the descriptor of the memory, which the peer maps.
//! From then on each access is a copy by the peer itself, until the owner closes the region: the
//! lease is taken back (`revoke`), and a copy that is under way is waited for.
//!
//! Leases are given for the keys of regions only. A window may be bound elsewhere at any moment by a
//! posted request, which could not wait for a peer.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rkey_base::segment::Arena;
use rkey_core::{
    Accessor, Denial, Key, MemoryKind, Operation, Protection, Region, RegionId, WIRE_LEN, WireKey,
};
use rkey_engine::{LinkId, QpInfo};
use rkey_link::direct::{DirectMap, LeaseBoard, LeaseClient, LeaseId, LeaseOffer};
use rkey_link::peer::{Control, Line};
use rkey_link::{Link, NodeId};

use super::lease_messages::{LeaseRequest, Message, decode, encode};
use crate::error::DeviceError;
use crate::objects::qp::Qp;
use crate::reclaim::segment::Segment;
use crate::shared::Shared;

/// The answer to a request for a lease.
#[derive(Debug)]
enum Answer {
    Granted(LeaseOffer, OwnedFd),
    Denied(Denial, u32),
    Refused(String),
}

/// The leases of a device: those that it gave, and those that it asked for.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// Locked after `given`, if both are.
    pub(crate) segments: Mutex<HashMap<u32, Segment>>,
    /// The regions of such memory, by their own keys: a window of one has others.
    pub(crate) regions: Mutex<HashMap<RegionId, Leasable>>,
    /// Whether there ever was one, so that closing other regions need not look.
    pub(crate) any_region: AtomicBool,
    pub(crate) given: Mutex<HashMap<RegionId, Vec<Given>>>,
    /// Held by whoever takes memory away from under a peer.
    pub(crate) detaching: Mutex<()>,
    requests: Mutex<Requests>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct Requests {
    last: u64,
    pending: HashMap<u64, PendingRequest>,
}

/// A request for a lease that has not been answered.
#[derive(Debug)]
struct PendingRequest {
    /// The answer has to come over this link.
    link: LinkId,
    answer: Option<Answer>,
}

/// The keys of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leasable {
    key: Key,
    requested: Option<u64>,
}

impl Leasable {
    fn is_named_by(&self, key: WireKey) -> bool {
        match key {
            WireKey::Device(key) => self.key == key,
            WireKey::Requested(key) => self.requested == Some(key),
        }
    }
}

/// A lease that a peer has.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) board: LeaseBoard,
    pub(crate) lease: LeaseId,
    pub(crate) link: LinkId,
    /// Which bytes of which segment.
    pub(crate) segment: u32,
    pub(crate) bytes: Range<u64>,
    /// The link is gone; what is left is the end of a copy.
    pub(crate) lost: bool,
}

impl Leases {
    /// Memory that can be leased from now on, until it is freed.
    pub(crate) fn add_segment(&self, segment: u32, arena: &Arc<Arena>) {
        let mut segments = self.segments.lock();
        segments.retain(|_, segment| segment.arena.strong_count() > 0);
        segments.insert(segment, Segment::new(arena));
    }

    /// A region of such memory.
    pub(crate) fn add_region(&self, region: &Region) {
        let keys = Leasable {
            key: region.key,
            requested: region.requested,
        };
        self.regions.lock().insert(region.id, keys);
        self.any_region.store(true, Ordering::Release);
    }

    /// Wakes whoever waits for an answer, to look around.
    pub(crate) fn wake_all(&self) {
        let _requests = self.requests.lock();
        self.answered.notify_all();
    }

    fn answer(&self, link: LinkId, id: u64, answer: Answer) {
        let mut requests = self.requests.lock();
        // Nobody waits for an answer that comes too late, or that nobody asked for, or that is
        // somebody else's to give.
        if let Some(request) = requests.pending.get_mut(&id)
            && request.link == link
        {
            request.answer = Some(answer);
            self.answered.notify_all();
        }
    }
}

impl Qp {
    /// Asks the peer of this connected queue pair for a lease of `len` bytes at `addr` of the memory
    /// that `key` names, for reading, or for reading and writing (and atomics).
    ///
    /// The memory has to be from the owner's [`Device::allocate_shared`](crate::Device::allocate_shared)
    /// and the key one of a region. The lease ends when the owner closes the region; accesses answer
    /// with an error from then on. They are not ordered with requests of the queue pair: wait for the
    /// completions of those first.
    ///
    /// # Errors
    /// [`DeviceError::Denied`]: the key does not allow it. [`DeviceError::Refused`]: no lease can be
    /// had of this memory. [`DeviceError::TimedOut`], [`DeviceError::NotConnected`].
    pub fn lease(
        &self,
        key: WireKey,
        addr: u64,
        len: u64,
        write: bool,
        timeout: Duration,
    ) -> Result<DirectMap, DeviceError> {
        let shared = self.device().shared();
        let (qpn, node, (link, line, client)) = self.owner_link(timeout)?;
        let id = {
            let mut requests = shared.leases.requests.lock();
            requests.last += 1;
            let id = requests.last;
            let answer = None;
            requests.pending.insert(id, PendingRequest { link, answer });
            id
        };
        let (requested, number) = match key {
            WireKey::Device(key) => (false, key.0.into()),
            WireKey::Requested(key) => (true, key),
        };
        let src_qpn = self.qpn();
        let ask = Message::Ask(LeaseRequest {
            id,
            qpn,
            src_qpn,
            requested,
            key: number,
            addr,
            len,
            write,
        });
        let sent = line
            .send_control(&encode(&ask), &[])
            .map_err(DeviceError::io("asking for a lease"));
        let answer = sent.and_then(|()| wait_for_answer(shared, id, timeout));
        shared.leases.requests.lock().pending.remove(&id);
        match answer? {
            Answer::Granted(grant, fd) => Ok(client.open(&grant, fd)?),
            Answer::Refused(reason) => Err(DeviceError::Refused { reason }),
            Answer::Denied(denial, report) => {
                shared.lease_was_denied(link, node, (self.qpn(), qpn), &denial, report);
                Err(DeviceError::Denied(Box::new(denial)))
            }
        }
    }
}

impl Qp {
    /// The queue pair and device of the owner, and the way to ask it. Waits for the link, which is
    /// made when the queue pair is connected.
    fn owner_link(&self, timeout: Duration) -> Result<(u32, NodeId, OwnerLink), DeviceError> {
        let shared = self.device().shared();
        let until = Instant::now() + timeout;
        loop {
            let info = self.query()?;
            if let Some((qpn, node)) = info.attributes.peer.and_then(|p| Some((p.qpn, p.node?))) {
                if node == shared.node {
                    let reason = "the peer is this device itself: its memory is at hand".to_owned();
                    return Err(DeviceError::Refused { reason });
                }
                if let Some(way) = requester_link(shared, node) {
                    return Ok((qpn, node, way));
                }
            }
            if !info.state.responds() || Instant::now() >= until {
                return Err(DeviceError::NotConnected { qpn: self.qpn() });
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// A link and its control socket to ask over, and what opens the answer.
type OwnerLink = (LinkId, Arc<Line>, LeaseClient);

fn wait_for_answer(shared: &Shared, id: u64, timeout: Duration) -> Result<Answer, DeviceError> {
    let until = Instant::now() + timeout;
    let mut requests = shared.leases.requests.lock();
    loop {
        let request = requests.pending.get_mut(&id);
        if let Some(answer) = request.and_then(|request| request.answer.take()) {
            return Ok(answer);
        }
        shared.check()?;
        if Instant::now() >= until {
            return Err(DeviceError::TimedOut {
                what: "the answer about a lease",
                after: timeout,
            });
        }
        shared.leases.answered.wait_until(&mut requests, until);
    }
}

/// The link by which we ask a device.
fn requester_link(shared: &Shared, node: NodeId) -> Option<OwnerLink> {
    let engine = shared.engine.lock();
    let mut links = engine.links().filter(|(_, link)| link.node() == node);
    links.find_map(|(id, link)| {
        let peer = link.peer()?;
        Some((id, Arc::clone(&peer.line), peer.lease_client()?.clone()))
    })
}

impl Shared {
    /// A device at the other end of a link said something. Runs in the engine thread.
    pub(crate) fn on_control(&self, link: LinkId, control: Control) {
        let message = decode(&control.bytes);
        let mut fds = control.fds;
        match message {
            Some(Message::Ask(request)) => self.asked_for_lease(link, &request),
            Some(Message::Granted { id, grant }) => {
                let grant = LeaseOffer::from_bytes(&grant);
                if let (Ok(grant), Some(fd)) = (grant, fds.pop()) {
                    self.leases.answer(link, id, Answer::Granted(grant, fd));
                }
            }
            Some(Message::Denied { id, denial, report }) => {
                if let Ok(bytes) = <&[u8; WIRE_LEN]>::try_from(&denial[..]) {
                    let denial = Denial::from_wire(bytes);
                    self.leases.answer(link, id, Answer::Denied(denial, report));
                }
            }
            Some(Message::Refused { id, why }) => {
                let why = why.chars().take(200).filter(|c| !c.is_control()).collect();
                self.leases.answer(link, id, Answer::Refused(why));
            }
            None => tracing::debug!(?link, "a device said something unknown"),
        }
    }

    fn asked_for_lease(&self, link: LinkId, request: &LeaseRequest) {
        let id = request.id;
        let found = {
            let engine = self.engine.lock();
            engine.link(link).and_then(|link| {
                let peer = link.peer()?;
                Some((
                    peer.lease_board()?.clone(),
                    Arc::clone(&peer.line),
                    link.node(),
                ))
            })
        };
        let Some((board, line, node)) = found else {
            return;
        };
        let now = self.progress.refresh_clock();
        let result = if self.engine.lock().is_held_back(link, now) {
            Err(LeaseError::Unavailable(
                "this process has tried too many keys; ask later",
            ))
        } else {
            self.lease_for(link, &board, node, request)
        };
        let sent = match result {
            Ok((grant, fd)) => {
                let message = Message::Granted {
                    id,
                    grant: grant.to_bytes(),
                };
                line.send_control(&encode(&message), &[fd.as_fd()])
            }
            Err(LeaseError::Denied(denial)) => {
                let (shown, report) =
                    self.deny_lease(link, node, (request.qpn, request.src_qpn), *denial);
                let message = Message::Denied {
                    id,
                    denial: shown.to_vec(),
                    report,
                };
                line.send_control(&encode(&message), &[])
            }
            Err(LeaseError::Unavailable(why)) => line.send_control(
                &encode(&Message::Refused {
                    id,
                    why: why.to_owned(),
                }),
                &[],
            ),
        };
        if let Err(error) = sent {
            // The lease stays out until the region or the link goes; the peer asks again.
            tracing::debug!(%error, "an answer about a lease did not get through");
        }
    }

    /// Grants a lease if the queue pair that is named is connected to the asker's, and its key allows it.
    fn lease_for(
        &self,
        link: LinkId,
        board: &LeaseBoard,
        node: NodeId,
        request: &LeaseRequest,
    ) -> Result<(LeaseOffer, OwnedFd), LeaseError> {
        let &LeaseRequest { qpn, src_qpn, .. } = request;
        let qp = self.qps.find(qpn);
        let info = qp.and_then(|id| self.engine.lock().query_qp(id));
        let info = info.ok_or(LeaseError::Unavailable("there is no such queue pair"))?;
        let ours = info
            .attributes
            .peer
            .is_some_and(|p| p.qpn == src_qpn && p.node == Some(node));
        if !ours || !info.state.responds() {
            return Err(LeaseError::Unavailable(
                "the queue pair is not connected to yours",
            ));
        }
        self.leases
            .grant(&self.protection, &info, (link, board), request)
    }
}

impl Leases {
    /// Grants a lease over a link to the peer of a queue pair of ours, if its key allows it.
    fn grant(
        &self,
        protection: &Protection,
        qp: &QpInfo,
        (link, board): (LinkId, &LeaseBoard),
        request: &LeaseRequest,
    ) -> Result<(LeaseOffer, OwnedFd), LeaseError> {
        let &LeaseRequest {
            addr, len, write, ..
        } = request;
        let key = request.key();
        let who = Accessor {
            domain: qp.config.domain,
            qp: qp.qpn,
            peer: qp.config.peer,
        };
        let allowed = qp.attributes.access.unwrap_or_default();
        let wanted: &[Operation] = if write {
            &[Operation::Write, Operation::Read]
        } else {
            &[Operation::Read]
        };
        if wanted.iter().any(|w| !allowed.contains(w.needs())) {
            return Err(LeaseError::Unavailable(
                "the queue pair does not allow this",
            ));
        }
        // The list is locked over check and grant: a close that comes in between finds the lease.
        let mut given = self.given.lock();
        // Leases of a second right end with this function; the rights were there at one moment.
        let mut held = Vec::with_capacity(2);
        for &operation in wanted {
            held.push(
                protection
                    .check_remote(&who, key, addr, len, operation)
                    .map_err(LeaseError::Denied)?,
            );
        }
        let lease = held
            .first()
            .ok_or(LeaseError::Unavailable("nothing was asked for"))?;
        let region = lease
            .region()
            .ok_or(LeaseError::Unavailable("a lease needs at least one byte"))?;
        if !self
            .regions
            .lock()
            .get(&region)
            .is_some_and(|r| r.is_named_by(key))
        {
            return Err(LeaseError::Unavailable(
                "leases are for keys of regions of allocated memory",
            ));
        }
        let span = lease.single().ok_or(LeaseError::Unavailable(
            "the region is made of several pieces",
        ))?;
        let memory = protection.region_memory(region);
        let Ok(MemoryKind::Shared { segment, .. }) = memory else {
            return Err(LeaseError::Unavailable(
                "the memory is not from the device's allocator",
            ));
        };
        let (arena, detached) = {
            let segments = self.segments.lock();
            let found = segments.get(&segment);
            let found = found.and_then(|s| Some((s.arena.upgrade()?, s.detached.clone())));
            found.ok_or(LeaseError::Unavailable("the memory is gone"))?
        };
        // Where the span lies is computed from its address, whatever the registration said.
        let offset = span.start().checked_sub(arena.as_ptr() as u64);
        let offset = offset
            .filter(|o| {
                o.checked_add(span.len())
                    .is_some_and(|end| end <= arena.len() as u64)
            })
            .ok_or(LeaseError::Unavailable(
                "the region is not inside of the memory that it names",
            ))?;
        let bytes = offset..offset + span.len();
        if detached.iter().any(|away| overlap(away, &bytes)) {
            return Err(LeaseError::Unavailable(
                "the memory had to be taken away from a peer that had stopped: only requests reach it now",
            ));
        }
        let mut segments = self.segments.lock();
        if let Some(segment) = segments.get_mut(&segment) {
            segment
                .settle(&arena, link, write)
                .map_err(LeaseError::Unavailable)?;
        }
        drop(segments);
        let fd = arena
            .duplicate_fd()
            .map_err(|_| LeaseError::Unavailable("no descriptor is left"))?;
        let grant = board
            .grant(offset, span.len(), write)
            .ok_or(LeaseError::Unavailable("all leases of this link are out"))?;
        let entry = Given {
            board: board.clone(),
            lease: grant.id,
            link,
            segment,
            bytes,
            lost: false,
        };
        given.entry(region).or_default().push(entry);
        Ok((grant, fd))
    }
}

/// Whether two ranges have a byte in common.
pub(crate) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Why there is no lease.
enum LeaseError {
    /// The key does not allow it.
    Denied(Box<Denial>),
    /// The key allows it, but this memory cannot be leased.
    Unavailable(&'static str),
}
