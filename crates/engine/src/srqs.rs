//! The engine's shared receive queues: creating, changing and destroying them.

use crate::context::Srq;
use crate::error::limit;
use crate::recv_queue::RecvQueue;
use crate::xrc::INDEX_BITS;
use crate::{AsyncEvent, CqId, Engine, EngineError, Event, SrqId, XrcdId};
use rkey_base::memory::Memory;
use rkey_core::DomainId;
use rkey_link::Link;

impl<L: Link, M: Memory> Engine<L, M> {
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

    /// Creates a shared receive queue for the extended reliable connections of an XRC domain. Its receives use keys
    /// of `domain` and complete in `cq`.
    ///
    /// # Errors
    /// Same as [`Engine::create_srq`]; there is no such completion queue.
    pub fn create_xrc_srq(
        &mut self,
        domain: DomainId,
        depth: u32,
        max_sge: u32,
        xrcd: XrcdId,
        cq: CqId,
    ) -> Result<SrqId, EngineError> {
        self.place_serving(domain, depth, max_sge, Some(xrcd), cq)
    }

    /// Creates a shared receive queue whose receives complete in `cq`.
    pub(crate) fn place_serving(
        &mut self,
        domain: DomainId,
        depth: u32,
        max_sge: u32,
        xrcd: Option<XrcdId>,
        cq: CqId,
    ) -> Result<SrqId, EngineError> {
        let none = EngineError::NoSuch("completion queue");
        self.x.cqs.get(cq).ok_or(none)?;
        let srq = self.place_srq(domain, depth, max_sge, Some((xrcd, cq)))?;
        if let Some(cq) = self.x.cqs.get_mut(cq) {
            cq.users += 1;
        }
        if srq.index >> INDEX_BITS != 0 {
            self.destroy_srq(srq)?;
            return Err(EngineError::Limit {
                what: "the number of shared receive queues",
                given: srq.index.into(),
                limit: 1 << INDEX_BITS,
            });
        }
        Ok(srq)
    }

    /// Takes the receives of this queue from queue pairs that have taken them; such queue pairs do not count as its
    /// users.
    pub(crate) fn forget_receives_of(&mut self, srq: SrqId) {
        for qp in self.qps.iter_mut() {
            if qp.config.srq == Some(srq) && qp.resp.recv.taken {
                qp.resp.recv.taken = false;
                // A pull into one of these receives stops.
                qp.life = self.x.life();
            }
        }
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
        self.release_domain(domain);
        Ok(())
    }
}
