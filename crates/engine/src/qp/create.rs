//! The engine's queue pairs: creating, querying and destroying them.

use crate::error::limit;
use crate::qp::pair::{Qp, Settings};
use crate::{Engine, EngineError, QpAttributes, QpConfig, QpId, QpInfo};
use rkey_base::memory::Memory;
use rkey_link::Link;

/// After this many calls of `publish`, any link has published a delayed acknowledgement.
const PUBLISHES: u32 = 32;

impl<L: Link, M: Memory> Engine<L, M> {
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
            self.release_domain(config.domain);
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
        self.x.warrants.revoke_of_qp(qp.id);
        self.forget_orphans();
        self.numbers.remove(qp.qpn);
        // The peer may be waiting for the last acknowledgement, which the link delays in order to combine it with
        // others.
        for link in [qp.inbound, qp.out].into_iter().flatten() {
            let Some(link_state) = self.links.get_mut(link) else {
                continue;
            };
            for _ in 0..PUBLISHES {
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
        self.release_domain(config.domain);
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
            selective,
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
                selective: Some(selective),
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
}
