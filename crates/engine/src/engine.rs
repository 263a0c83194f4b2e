//! The engine's interface for its owner: objects and events. Links are in `links.rs`, posting is in `post.rs`,
//! changing a queue pair in `qp/modify.rs`, and the work itself in `drive.rs`.

use crate::checked_memory::CheckedMemory;
use crate::context::{Context, Srq};
use crate::cq::{Clock, Cq};
use crate::exposure::{ExposedMemory, Exposure};
use crate::id::Table;
use crate::link_state::LinkState;
use crate::numbers::Numbers;
use crate::qp::pair::{Qp, Settings};
use crate::recv_queue::RecvQueue;
use crate::{
    AsyncEvent, CqId, CqShared, EngineError, Event, LinkId, QpAttributes, QpConfig, QpId, QpInfo,
    QpState, Reports, SrqId, XrcdId,
};
use rkey_base::memory::Memory;
use rkey_core::{CoreError, DomainId, Draining, Section};
use rkey_link::{Link, NodeId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// An engine's limits and identity.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// This device.
    pub node: NodeId,
    /// Maximum number of queue pairs.
    pub max_qps: u32,
    /// Maximum number of completion queues.
    pub max_cqs: u32,
    /// Maximum number of shared receive queues.
    pub max_srqs: u32,
    /// Maximum entries of a completion queue.
    pub max_cq_depth: u32,
    /// Maximum entries of a send, receive or shared receive queue.
    pub max_queue_depth: u32,
    /// Maximum scatter/gather entries of a work request.
    pub max_sge: u32,
    /// Maximum inline data of a work request, in bytes.
    pub max_inline: u32,
    /// Whether the engine asks the device ([`Event::PeerSilent`]) before it gives up on a silent peer.
    pub asks_about_silence: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            node: NodeId::default(),
            max_qps: 1 << 16,
            max_cqs: 1 << 16,
            max_srqs: 1 << 14,
            max_cq_depth: 1 << 22,
            max_queue_depth: 1 << 15,
            max_sge: 32,
            max_inline: 1024,
            asks_about_silence: false,
        }
    }
}

/// The result of a call of [`Engine::drive`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether something was done.
    pub did: bool,
    /// Whether there is more to do now: if so, call again.
    pub more: bool,
    /// Call again by this time (in the clock of `now_ns`), even if no link has work.
    pub next_deadline: Option<u64>,
}

/// After this many flushes, any link has published a delayed acknowledgement.
const FLUSHES: u32 = 32;

/// The transport engine of one device. A device uses [`rkey_link::AnyLink`] as `L`; most calls reach
/// [`rkey_link::shm::ShmLink`].
pub struct Engine<L: Link, M: Memory> {
    pub(crate) x: Context<M>,
    pub(crate) qps: Table<Qp>,
    pub(crate) numbers: Numbers,
    pub(crate) links: Table<LinkState<L>>,
    pub(crate) detached: Vec<(LinkId, L)>,
    /// Memory that was exposed over lost links, until the owner takes the list.
    pub(crate) exposed: HashMap<LinkId, Vec<ExposedMemory>>,
}

impl<L: Link, M: Memory> AsRef<Section> for Engine<L, M> {
    fn as_ref(&self) -> &Section {
        &self.x.checked.section
    }
}

fn limit(what: &'static str, given: u32, limit: u32) -> Result<(), EngineError> {
    if given > limit {
        return Err(EngineError::Limit {
            what,
            given: given.into(),
            limit: limit.into(),
        });
    }
    Ok(())
}

impl<L: Link, M: Memory> Engine<L, M> {
    /// A new engine, for the regions of the section's table.
    pub fn new(config: EngineConfig, section: Section, memory: M) -> Self {
        Self {
            x: Context::new(config, CheckedMemory::new(section, memory)),
            qps: Table::new(),
            numbers: Numbers::new(),
            links: Table::new(),
            detached: Vec::new(),
            exposed: HashMap::new(),
        }
    }

    /// The configuration with which the engine was created.
    pub fn config(&self) -> &EngineConfig {
        &self.x.config
    }

    /// Records that this engine is not accessing any region: no access outlives a call. A device that shares the engine
    /// takes and releases the engine's lock instead ([`rkey_core::SectionLock`]).
    pub fn drain_section(&mut self, draining: &mut impl Draining) {
        self.x.checked.section.drain_section(draining);
    }

    /// Takes report ids from a counter that other engines of this process share. Call it before the first report.
    pub fn share_report_ids(&mut self, ids: Arc<AtomicU32>) {
        self.x.reports = Arc::new(Reports::with_ids(ids));
    }

    /// The recent denials. Readable without the engine.
    pub fn reports(&self) -> Arc<Reports> {
        Arc::clone(&self.x.reports)
    }

    /// Whether peers may be able to access memory without this engine.
    pub fn exposure(&self) -> &Arc<Exposure> {
        &self.x.exposure
    }

    /// Creates a completion queue.
    ///
    /// # Errors
    /// [`EngineError::Zero`], [`EngineError::Limit`].
    pub fn create_cq(&mut self, depth: u32) -> Result<Arc<CqShared>, EngineError> {
        self.place_cq(depth, None)
    }

    /// Creates a completion queue whose entries have the time at which they were added.
    ///
    /// # Errors
    /// Same as [`Self::create_cq`].
    pub fn create_stamped_cq(
        &mut self,
        depth: u32,
        clock: Clock,
    ) -> Result<Arc<CqShared>, EngineError> {
        self.place_cq(depth, Some(clock))
    }

    fn place_cq(&mut self, depth: u32, clock: Option<Clock>) -> Result<Arc<CqShared>, EngineError> {
        self.check_cq_depth(depth)?;
        limit(
            "the number of completion queues",
            self.x.cqs.len() as u32 + 1,
            self.x.config.max_cqs,
        )?;
        let id: CqId = self.x.cqs.insert(|id| Cq::new(id, depth, clock));
        self.x
            .cqs
            .get(id)
            .map(|cq| Arc::clone(&cq.shared))
            .ok_or(EngineError::NoSuch("completion queue"))
    }

    fn check_cq_depth(&self, depth: u32) -> Result<(), EngineError> {
        if depth == 0 {
            return Err(EngineError::Zero("the depth of a completion queue"));
        }
        limit(
            "the depth of the completion queue",
            depth,
            self.x.config.max_cq_depth,
        )
    }

    /// Changes the depth of a completion queue and keeps its entries.
    ///
    /// # Errors
    /// [`EngineError::CqHolds`] if it holds more than `depth` entries; limits.
    pub fn resize_cq(&mut self, cq: CqId, depth: u32) -> Result<(), EngineError> {
        self.check_cq_depth(depth)?;
        let cq = self
            .x
            .cqs
            .get_mut(cq)
            .ok_or(EngineError::NoSuch("completion queue"))?;
        cq.resize(depth).map_err(|_| EngineError::CqHolds {
            held: cq.shared.len() as u32,
            asked: depth,
        })
    }

    /// The number of sends that are posted and not complete, over all queue pairs in Rts whose sends complete in this
    /// queue.
    pub fn outstanding(&self, cq: CqId) -> u32 {
        let sending = |qp: &&Qp| qp.config.send_cq == cq && qp.state == QpState::Rts;
        self.qps.iter().filter(sending).map(|qp| qp.sq.len()).sum()
    }

    /// Makes the next entry (or only the next solicited one or error) raise one [`Event::CqReady`]. Entries already in
    /// the queue do not count: poll once more after arming.
    ///
    /// # Errors
    /// The handle is stale.
    pub fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), EngineError> {
        let cq = self
            .x
            .cqs
            .get_mut(cq)
            .ok_or(EngineError::NoSuch("completion queue"))?;
        cq.arm(solicited_only);
        Ok(())
    }

    /// Makes the next solicited entry, or the next entry with an error, raise one [`Event::CqSeen`], regardless of what the
    /// queue is armed for.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn watch_cq(&mut self, cq: CqId) -> Result<(), EngineError> {
        let cq = self
            .x
            .cqs
            .get_mut(cq)
            .ok_or(EngineError::NoSuch("completion queue"))?;
        cq.watch();
        Ok(())
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while queue pairs, or receive queues that complete in it, use it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), EngineError> {
        let users = self
            .x
            .cqs
            .get(cq)
            .ok_or(EngineError::NoSuch("completion queue"))?
            .users;
        if users > 0 {
            return Err(EngineError::Busy {
                what: "completion queue",
                users,
            });
        }
        self.x.cqs.remove(cq);
        Ok(())
    }

    /// Creates a shared receive queue. Its receives use keys of `domain`.
    ///
    /// # Errors
    /// Limits; the domain is not open.
    pub fn create_srq(
        &mut self,
        domain: DomainId,
        depth: u32,
        max_sge: u32,
    ) -> Result<SrqId, EngineError> {
        self.place_srq(domain, depth, max_sge, None)
    }

    /// Creates a shared receive queue, with or without its own completion queue.
    pub(crate) fn place_srq(
        &mut self,
        domain: DomainId,
        depth: u32,
        max_sge: u32,
        serves: Option<(Option<XrcdId>, CqId)>,
    ) -> Result<SrqId, EngineError> {
        if depth == 0 {
            return Err(EngineError::Zero("the depth of a shared receive queue"));
        }
        let config = &self.x.config;
        limit(
            "the depth of the shared receive queue",
            depth,
            config.max_queue_depth,
        )?;
        limit(
            "the number of scatter/gather entries",
            max_sge,
            config.max_sge,
        )?;
        limit(
            "the number of shared receive queues",
            self.x.srqs.len() as u32 + 1,
            config.max_srqs,
        )?;
        self.hold_domain(domain)?;
        let queue = RecvQueue::new(depth, max_sge);
        Ok(self.x.srqs.insert(|id| Srq {
            id,
            domain,
            queue,
            max_sge,
            limit: 0,
            users: 0,
            serves,
            ready: true,
        }))
    }

    fn hold_domain(&self, domain: DomainId) -> Result<(), EngineError> {
        let held = self.x.checked.protection.hold_domain(domain);
        held.map_err(|_: CoreError| EngineError::NoSuch("protection domain"))
    }

    fn release(&self, domain: DomainId) {
        // The domain was held when the object was created, so it is still open.
        let _ = self.x.checked.protection.release_domain(domain);
    }

    /// Changes a shared receive queue. [`AsyncEvent::SrqLimit`] is raised once when fewer than `limit` receives are
    /// left; a limit of 0 disarms it.
    ///
    /// # Errors
    /// A depth below the number of posted receives, or a limit above the depth.
    pub fn modify_srq(
        &mut self,
        srq: SrqId,
        new_limit: Option<u32>,
        depth: Option<u32>,
    ) -> Result<(), EngineError> {
        let max_depth = self.x.config.max_queue_depth;
        let srq = self
            .x
            .srqs
            .get_mut(srq)
            .ok_or(EngineError::NoSuch("shared receive queue"))?;
        if let Some(depth) = depth {
            limit("the depth of the shared receive queue", depth, max_depth)?;
            limit("the number of posted receives", srq.queue.len(), depth)?;
        }
        let depth_then = depth.unwrap_or(srq.queue.limit());
        if let Some(new_limit) = new_limit {
            limit(
                "the limit of the shared receive queue",
                new_limit,
                depth_then,
            )?;
            srq.limit = new_limit;
            if srq.queue.len() < new_limit {
                srq.limit = 0;
                self.x
                    .events
                    .push_back(Event::Async(AsyncEvent::SrqLimit(srq.id)));
            }
        }
        if let Some(depth) = depth {
            let queue = std::mem::replace(&mut srq.queue, RecvQueue::new(1, 0));
            srq.queue = queue.resized(depth);
        }
        Ok(())
    }

    /// Depth, limit and posted receives of a shared receive queue.
    pub fn query_srq(&self, srq: SrqId) -> Option<(u32, u32, u32)> {
        let srq = self.x.srqs.get(srq)?;
        Some((srq.queue.limit(), srq.limit, srq.queue.len()))
    }

    /// Destroys a shared receive queue; the receives in it end without a completion.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while queue pairs use it.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), EngineError> {
        let found = self
            .x
            .srqs
            .get(srq)
            .ok_or(EngineError::NoSuch("shared receive queue"))?;
        let (users, domain, serves) = (found.users, found.domain, found.serves);
        if users > 0 {
            return Err(EngineError::Busy {
                what: "shared receive queue",
                users,
            });
        }
        self.x.srqs.remove(srq);
        if serves.is_some() {
            self.forget_receives_of(srq);
        }
        if let Some(cq) = serves.and_then(|(_, cq)| self.x.cqs.get_mut(cq)) {
            cq.users = cq.users.saturating_sub(1);
        }
        self.release(domain);
        Ok(())
    }

    /// Creates a queue pair with a number that the device has chosen.
    ///
    /// # Errors
    /// Limits, stale handles, or the number is taken.
    pub fn create_qp(&mut self, config: &QpConfig, qpn: u32) -> Result<QpId, EngineError> {
        let most = &self.x.config;
        limit(
            "the number of queue pairs",
            self.qps.len() as u32 + 1,
            most.max_qps,
        )?;
        limit(
            "the depth of the send queue",
            config.max_send,
            most.max_queue_depth,
        )?;
        limit(
            "the depth of the receive queue",
            config.max_recv,
            most.max_queue_depth,
        )?;
        limit(
            "the number of scatter/gather entries of a send",
            config.max_send_sge,
            most.max_sge,
        )?;
        limit(
            "the number of scatter/gather entries of a receive",
            config.max_recv_sge,
            most.max_sge,
        )?;
        limit(
            "the length of inline data",
            config.max_inline,
            most.max_inline,
        )?;
        let queues = [config.send_cq, config.recv_cq];
        if queues.iter().any(|cq| self.x.cqs.get(*cq).is_none()) {
            return Err(EngineError::NoSuch("completion queue"));
        }
        if config.srq.is_some_and(|srq| self.x.srqs.get(srq).is_none()) {
            return Err(EngineError::NoSuch("shared receive queue"));
        }
        if qpn >> 24 != 0 || self.numbers.get(qpn).is_some() {
            return Err(EngineError::Number(qpn));
        }
        self.hold_domain(config.domain)?;
        let life = self.x.life();
        let id: QpId = self.qps.insert(|id| Qp::new(id, qpn, *config, life));
        if !self.numbers.insert(qpn, id.index) {
            self.qps.remove(id);
            self.release(config.domain);
            return Err(EngineError::Number(qpn));
        }
        self.count_users(config, 1);
        Ok(id)
    }

    fn count_users(&mut self, config: &QpConfig, by: i32) {
        for cq in [config.send_cq, config.recv_cq] {
            if let Some(cq) = self.x.cqs.get_mut(cq) {
                cq.users = cq.users.saturating_add_signed(by);
            }
        }
        if let Some(srq) = config.srq.and_then(|srq| self.x.srqs.get_mut(srq)) {
            srq.users = srq.users.saturating_add_signed(by);
        }
    }

    /// Destroys a queue pair. Posted work ends without a completion, and its unpolled completions are removed.
    ///
    /// # Errors
    /// The handle is stale.
    pub fn destroy_qp(&mut self, qp: QpId) -> Result<(), EngineError> {
        let Some(qp) = self.qps.remove(qp) else {
            return Err(EngineError::NoSuch("queue pair"));
        };
        for seq in qp.sq.head..qp.sq.tail {
            self.x.forfeit(&qp, seq);
        }
        self.x.leave_orphans(&qp, qp.started());
        self.forget_orphans();
        self.numbers.remove(qp.qpn);
        // The peer may be waiting for the last acknowledgement, which the link delays in order to combine it with
        // others.
        for link in [qp.inbound, qp.out].into_iter().flatten() {
            let Some(link_state) = self.links.get_mut(link) else {
                continue;
            };
            for _ in 0..FLUSHES {
                if link_state.link.pending() {
                    link_state.link.end_burst();
                }
            }
        }
        self.x.forget_completions(&qp);
        self.x.members.retain(|_, members| {
            members.retain(|member| *member != qp.id);
            !members.is_empty()
        });
        let config = qp.created();
        self.count_users(&config, -1);
        self.x.checked.protection.forget_endpoint(qp.qpn);
        self.release(config.domain);
        Ok(())
    }

    /// The state of a queue pair.
    pub fn query_qp(&self, qp: QpId) -> Option<QpInfo> {
        let qp = self.qps.get(qp)?;
        let Settings {
            access,
            timeout,
            retry_count,
            rnr_retry,
            min_rnr_timer,
            max_reads_out,
            max_reads_in,
            path_mtu,
            qkey,
        } = qp.settings;
        Some(QpInfo {
            qpn: qp.qpn,
            config: qp.created(),
            state: qp.state,
            draining: qp.draining,
            attributes: QpAttributes {
                state: Some(qp.state),
                access: Some(access),
                peer: qp.peer,
                wire: qp.wire_peer,
                send_msn: Some(qp.req.msn),
                recv_msn: Some(qp.resp.msn),
                timeout: Some(timeout),
                retry_count: Some(retry_count),
                rnr_retry: Some(rnr_retry),
                min_rnr_timer: Some(min_rnr_timer),
                max_reads_out: Some(max_reads_out),
                max_reads_in: Some(max_reads_in),
                path_mtu: Some(path_mtu),
                qkey: Some(qkey),
            },
            sends: qp.sq.len(),
            receives: qp.rq.len() + u32::from(qp.resp.recv.taken),
        })
    }

    /// All queue pairs.
    pub fn qps(&self) -> impl Iterator<Item = QpId> {
        self.qps.iter().map(|qp| qp.id)
    }

    /// Whether an event is waiting to be polled.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.x.events.is_empty()
    }

    /// The next event, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.x.poll_event()
    }

    /// Moves the queue pairs of completion queues that overran to the error state.
    #[inline]
    pub(crate) fn fail_users_of_overrun_cqs(&mut self) {
        while let Some(cq) = self.x.overrun_cqs.pop() {
            self.fail_users(cq);
        }
    }

    #[cold]
    fn fail_users(&mut self, cq: CqId) {
        for index in 0..self.qps.bound() {
            let Some(qp) = self.qps.at_mut(index) else {
                continue;
            };
            let uses = qp.config.send_cq == cq || qp.config.recv_cq == cq;
            if uses && !matches!(qp.state, QpState::Reset | QpState::Error) {
                self.x.events.push_back(Event::Async(AsyncEvent::QpFatal {
                    qp: qp.id,
                    qpn: qp.qpn,
                }));
                self.x.enter_error(qp);
            }
        }
    }
}
