//! Leases that this device requests: reading and writing a peer's memory without involving the peer.
//!
//! The program requests one with [`Qp::lease`]; the engine thread delivers the owner's answer to the waiting thread. A granted
//! lease is mapped, and this process itself makes each copy.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rkey_core::{Denial, RKey};
use rkey_engine::LinkId;
use rkey_link::direct::{DirectMap, LeaseClient, LeaseOffer};
use rkey_link::peer::ControlLine;
use rkey_link::{Link, NodeId};

use super::lease_messages::{LeaseRequest, Message, encode, number_of};
use crate::error::DeviceError;
use crate::lifecycle::{Lifecycle, WaitPoint};
use crate::objects::qp::Qp;
use crate::shared::Shared;

/// The pause before resending a request that found the owner's socket full.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// The owner's answer to a request for a lease.
#[derive(Debug)]
pub(super) enum Answer {
    Granted(LeaseOffer, OwnedFd),
    Denied(Denial, u32),
    Refused(String),
}

/// Requests for leases that have not been answered, and the threads that wait for the answers.
#[derive(Debug, Default)]
pub(crate) struct LeaseRequests {
    pending: Mutex<Pending>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct Pending {
    last: u64,
    by_id: HashMap<u64, PendingRequest>,
}

#[derive(Debug)]
struct PendingRequest {
    /// The link over which the answer must come.
    link: LinkId,
    answer: Option<Answer>,
}

impl LeaseRequests {
    /// Adds a request to the owner at the other end of a link, and returns its id.
    fn add(&self, link: LinkId) -> u64 {
        let mut pending = self.pending.lock();
        pending.last += 1;
        let id = pending.last;
        let answer = None;
        pending.by_id.insert(id, PendingRequest { link, answer });
        id
    }

    fn remove(&self, id: u64) {
        self.pending.lock().by_id.remove(&id);
    }

    /// Delivers an answer. Drops an answer that is late, has no request, or arrived over another link than the
    /// request's.
    pub(super) fn answer(&self, link: LinkId, id: u64, answer: Answer) {
        let mut pending = self.pending.lock();
        if let Some(request) = pending.by_id.get_mut(&id)
            && request.link == link
        {
            request.answer = Some(answer);
            self.answered.notify_all();
        }
    }

    /// Waits for the answer to a request.
    fn wait(
        &self,
        lifecycle: &Lifecycle,
        id: u64,
        timeout: Duration,
    ) -> Result<Answer, DeviceError> {
        let deadline = Instant::now() + timeout;
        let mut pending = self.pending.lock();
        loop {
            let request = pending.by_id.get_mut(&id);
            if let Some(answer) = request.and_then(|request| request.answer.take()) {
                return Ok(answer);
            }
            lifecycle.check()?;
            if Instant::now() >= deadline {
                return Err(DeviceError::TimedOut {
                    what: "the peer's answer to a lease request",
                    after: timeout,
                });
            }
            self.answered.wait_until(&mut pending, deadline);
        }
    }
}

impl WaitPoint for LeaseRequests {
    fn device_failed(&self) {
        let _pending = self.pending.lock();
        self.answered.notify_all();
    }
}

impl Qp {
    /// Requests a lease from the peer of this connected queue pair, on `len` bytes at `addr` of the memory that `key`
    /// names: for reading, or with `write` for reading, writing and atomics.
    ///
    /// The memory must come from the owner's [`Device::allocate_shared`](crate::Device::allocate_shared), and the key must be
    /// a region's. The lease ends when the owner deregisters the region; accesses return an error from then on. They are not
    /// ordered with requests of the queue pair: wait for the completions of those first.
    ///
    /// # Errors
    /// [`DeviceError::Denied`]: the key does not allow it. [`DeviceError::Refused`]: another reason prevents the lease.
    /// [`DeviceError::TimedOut`], [`DeviceError::NotConnected`].
    pub fn lease(
        &self,
        key: RKey,
        addr: u64,
        len: u64,
        write: bool,
        timeout: Duration,
    ) -> Result<DirectMap, DeviceError> {
        let shared = self.device().shared();
        let (qpn, node, (link, line, client)) = self.owner_link(timeout)?;
        let requests = &shared.reclaim.lease_requests;
        let id = requests.add(link);
        let (requested, number) = number_of(key);
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
        let deadline = Instant::now() + timeout;
        let answer = ask_by(&line, &encode(&ask), deadline).and_then(|()| {
            let left = deadline.saturating_duration_since(Instant::now());
            requests.wait(shared.lifecycle(), id, left)
        });
        requests.remove(id);
        match answer? {
            Answer::Granted(grant, fd) => Ok(client.open(&grant, fd)?),
            Answer::Refused(reason) => Err(DeviceError::Refused { reason }),
            Answer::Denied(denial, report) => {
                let origin = shared.driver.lock().origin(link);
                let is_here = origin.is_some_and(|origin| origin.here);
                let qpns = (self.qpn(), qpn);
                shared
                    .denials
                    .lease_was_denied(node, qpns, &denial, report, is_here);
                Err(DeviceError::Denied(Box::new(denial)))
            }
        }
    }

    /// The queue pair and device of the owner, and the link to it. Waits for the link, which is made once the queue pair is
    /// connected.
    fn owner_link(&self, timeout: Duration) -> Result<(u32, NodeId, OwnerLink), DeviceError> {
        let shared = self.device().shared();
        let deadline = Instant::now() + timeout;
        loop {
            let info = self.query()?;
            if info.attributes.wire.is_some() {
                let reason = "the peer is on another host".to_owned();
                return Err(DeviceError::Refused { reason });
            }
            if let Some((qpn, node)) = info.attributes.peer.and_then(|p| Some((p.qpn, p.node?))) {
                if node == shared.node {
                    let reason =
                        "the peer is this device itself: use its memory directly".to_owned();
                    return Err(DeviceError::Refused { reason });
                }
                if let Some(link) = requester_link(shared, node) {
                    return Ok((qpn, node, link));
                }
            }
            if !info.state.responds() || Instant::now() >= deadline {
                return Err(DeviceError::NotConnected { qpn: self.qpn() });
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Sends a request, waiting for room: a peer that is short of processor time leaves its socket full for a while.
fn ask_by(line: &ControlLine, ask: &[u8], deadline: Instant) -> Result<(), DeviceError> {
    loop {
        match line.send_control(ask, &[]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                std::thread::sleep(FULL_PAUSE);
            }
            sent => return sent.map_err(DeviceError::io("requesting a lease")),
        }
    }
}

/// A link to the owner: its id, its control socket, and the client that maps granted leases.
type OwnerLink = (LinkId, Arc<ControlLine>, LeaseClient);

/// The link on which this device sends requests to another one.
fn requester_link(shared: &Shared, node: NodeId) -> Option<OwnerLink> {
    let engine = shared.driver.lock();
    let mut links = engine.links().filter(|(_, link)| link.node() == node);
    links.find_map(|(id, link)| {
        let peer = link.peer()?;
        Some((id, Arc::clone(&peer.line), peer.lease_client()?.clone()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rkey_base::process::ForkMark;

    const LONG: Duration = Duration::from_secs(60);

    fn life() -> Lifecycle {
        Lifecycle::new(ForkMark::new().unwrap())
    }

    fn refused(reason: &str) -> Answer {
        Answer::Refused(reason.to_owned())
    }

    #[test]
    fn only_the_link_of_a_request_can_answer_it() {
        let requests = LeaseRequests::default();
        let (link, other) = (LinkId::from((1, 1)), LinkId::from((2, 1)));
        let id = requests.add(link);
        requests.answer(other, id, refused("another peer"));
        requests.answer(link, id + 1, refused("no request"));
        requests.answer(link, id, refused("yes"));
        let answer = requests.wait(&life(), id, LONG).unwrap();
        assert!(matches!(answer, Answer::Refused(reason) if reason == "yes"));
        requests.remove(id);
        requests.answer(link, id, refused("too late"));
        assert!(requests.pending.lock().by_id.is_empty());
    }

    #[test]
    fn waiting_ends_at_the_timeout_or_when_the_device_fails() {
        let requests = Arc::new(LeaseRequests::default());
        let id = requests.add(LinkId::from((1, 1)));
        let life = life();
        life.add_wait_point(&requests);
        let timed_out = requests.wait(&life, id, Duration::ZERO).unwrap_err();
        assert!(matches!(timed_out, DeviceError::TimedOut { .. }));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| requests.wait(&life, id, LONG));
            life.fail("a test".to_owned());
            let error = waiter.join().unwrap().unwrap_err();
            assert!(matches!(error, DeviceError::Failed(_)));
        });
    }
}
