//! The engine's receive queues for RSS: creating them, changing their state, and the queue pair that distributes frames over
//! them.

use crate::{
    Completion, CompletionOp, CqId, Engine, EngineError, QpId, QpState, QpType, Rss, SrqId, Status,
    WqState,
};
use rkey_base::memory::Memory;
use rkey_core::DomainId;
use rkey_link::Link;

impl<L: Link, M: Memory> Engine<L, M> {
    /// Creates a receive queue for RSS whose receives complete in `cq`. It starts in [`WqState::Reset`].
    ///
    /// # Errors
    /// Same as [`Engine::create_srq`]; there is no such completion queue.
    pub fn create_wq(
        &mut self,
        domain: DomainId,
        depth: u32,
        max_sge: u32,
        cq: CqId,
    ) -> Result<SrqId, EngineError> {
        let queue = self.place_serving(domain, depth, max_sge, None, cq)?;
        self.set_wq_state(queue, WqState::Reset)?;
        Ok(queue)
    }

    /// Changes the state of a receive queue.
    ///
    /// # Errors
    /// The handle is stale.
    pub fn set_wq_state(&mut self, queue: SrqId, state: WqState) -> Result<(), EngineError> {
        let none = EngineError::NoSuch("receive queue");
        let found = self.x.srqs.get_mut(queue).ok_or(none)?;
        found.ready = state == WqState::Ready;
        if state == WqState::Ready {
            return Ok(());
        }
        let (ids, cq) = (found.queue.drain(), found.serves.map(|(_, cq)| cq));
        for (id, cq) in ids.into_iter().filter_map(|id| Some((id, cq?))) {
            if state == WqState::Error {
                let entry = Completion {
                    id,
                    status: Status::Flushed,
                    opcode: CompletionOp::Recv,
                    qpn: queue.number(),
                    ..Completion::default()
                };
                self.x.push_recv_completion(cq, entry, true);
            }
        }
        self.fail_users_of_overrun_cqs();
        Ok(())
    }

    /// Makes a raw queue pair distribute its frames over receive queues, and moves it to Rtr. From then on, the queue pair
    /// takes a frame if the receive queue that the hash selects is ready.
    ///
    /// # Errors
    /// A stale handle; not a raw queue pair; the number of queues is not a power of two.
    pub fn set_rss(&mut self, qp: QpId, rss: Rss) -> Result<(), EngineError> {
        let serves = |id: &SrqId| self.x.srqs.get(*id).is_some_and(|q| q.serves.is_some());
        if !rss.queues.len().is_power_of_two() || !rss.queues.iter().all(serves) {
            return Err(EngineError::NoSuch("set of receive queues"));
        }
        let qp = self.qps.get_mut(qp);
        let qp = qp
            .filter(|qp| qp.config.qp_type == QpType::Raw)
            .ok_or(EngineError::NoSuch("raw queue pair"))?;
        qp.home = Some((qp.config.domain, qp.config.recv_cq));
        qp.rss = Some(Box::new(rss));
        qp.state = QpState::Rtr;
        Ok(())
    }
}
