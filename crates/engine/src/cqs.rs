//! The engine's completion queues: creating, changing and destroying them.

use crate::cq::{Clock, Cq};
use crate::error::limit;
use crate::qp::pair::Qp;
use crate::{AsyncEvent, CqId, CqShared, Engine, EngineError, Event, QpState};
use rkey_base::memory::Memory;
use rkey_link::Link;
use std::sync::Arc;

impl<L: Link, M: Memory> Engine<L, M> {
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
