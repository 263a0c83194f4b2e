//! The engine as its owner sees it: commands, `drive` and `poll_event`.
#![allow(clippy::unimplemented, unused_variables, dead_code, missing_docs)]

use crate::*;
use rkey_base::memory::Memory;
use rkey_core::Protection;
use rkey_link::{DownReason, Link, NodeId};
use std::sync::Arc;

/// What an engine offers at most, and who it is.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// This device.
    pub node: NodeId,
    /// Queue pairs.
    pub max_qps: u32,
    /// Completion queues.
    pub max_cqs: u32,
    /// Shared receive queues.
    pub max_srqs: u32,
    /// Entries of a completion queue.
    pub max_cq_depth: u32,
    /// Entries of a send, receive or shared receive queue.
    pub max_queue_depth: u32,
    /// Scatter/gather elements of a work request.
    pub max_sge: u32,
    /// Bytes of inline data of a work request.
    pub max_inline: u32,
    /// The 40 bytes in front of every received datagram.
    pub grh: [u8; 40],
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
            grh: [0; 40],
        }
    }
}

/// What a call of [`Engine::drive`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Something was done.
    pub did: bool,
    /// There is more to do at once: call again.
    pub more: bool,
    /// Call again at this time (in the clock of `now_ns`) at the latest, even if no link asks for it.
    pub next_deadline: Option<u64>,
}

/// The transport engine of one device.
pub struct Engine<L: Link, M: Memory> {
    _p: std::marker::PhantomData<(L, M)>,
}

impl<L: Link, M: Memory> Engine<L, M> {
    pub fn new(config: EngineConfig, protection: Arc<Protection>, memory: M) -> Self {
        unimplemented!()
    }
    pub fn config(&self) -> &EngineConfig {
        unimplemented!()
    }
    pub fn create_cq(&mut self, depth: u32) -> Result<Arc<CqShared>, EngineError> {
        unimplemented!()
    }
    pub fn resize_cq(&mut self, cq: CqId, depth: u32) -> Result<(), EngineError> {
        unimplemented!()
    }
    /// Next (solicited) entry raises one [`Event::CqReady`]. Entries that are already there do not count.
    pub fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), EngineError> {
        unimplemented!()
    }
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), EngineError> {
        unimplemented!()
    }
    pub fn create_srq(
        &mut self,
        domain: rkey_core::DomainId,
        depth: u32,
        max_sge: u32,
    ) -> Result<SrqId, EngineError> {
        unimplemented!()
    }
    /// `limit` 0 disarms. [`Event::SrqLimit`] when fewer entries than this are left.
    pub fn modify_srq(
        &mut self,
        srq: SrqId,
        limit: Option<u32>,
        depth: Option<u32>,
    ) -> Result<(), EngineError> {
        unimplemented!()
    }
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), EngineError> {
        unimplemented!()
    }
    pub fn post_srq_recv(
        &mut self,
        srq: SrqId,
        request: &RecvRequest<'_>,
    ) -> Result<(), PostError> {
        unimplemented!()
    }
    pub fn create_qp(&mut self, config: &QpConfig, qpn: u32) -> Result<QpId, EngineError> {
        unimplemented!()
    }
    pub fn modify_qp(&mut self, qp: QpId, attributes: &QpAttributes) -> Result<(), ModifyError> {
        unimplemented!()
    }
    pub fn query_qp(&self, qp: QpId) -> Option<QpInfo> {
        unimplemented!()
    }
    pub fn destroy_qp(&mut self, qp: QpId) -> Result<(), EngineError> {
        unimplemented!()
    }
    pub fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), PostError> {
        unimplemented!()
    }
    pub fn post_recv(&mut self, qp: QpId, request: &RecvRequest<'_>) -> Result<(), PostError> {
        unimplemented!()
    }
    /// Adds a link (either role, or both for loopback). Inbound requests on it are served from the next `drive` on.
    pub fn attach(&mut self, link: L) -> LinkId {
        unimplemented!()
    }
    /// Takes a link out; what was outstanding on it fails (RetryExceeded). No [`Event::LinkDown`] is raised.
    pub fn detach(&mut self, link: LinkId, reason: DownReason) -> Option<L> {
        unimplemented!()
    }
    /// The link of an [`Event::LinkDown`].
    pub fn take_detached(&mut self, link: LinkId) -> Option<L> {
        unimplemented!()
    }
    pub fn link(&self, link: LinkId) -> Option<&L> {
        unimplemented!()
    }
    pub fn link_mut(&mut self, link: LinkId) -> Option<&mut L> {
        unimplemented!()
    }
    pub fn links(&self) -> impl Iterator<Item = (LinkId, &L)> {
        std::iter::empty()
    }
    /// Requests of a connected queue pair go over this link from now on (answer to [`Event::LinkNeeded`]).
    /// Also tells the queue pair who its peer is, if that was not known.
    pub fn connect_qp(&mut self, qp: QpId, link: LinkId) -> Result<(), EngineError> {
        unimplemented!()
    }
    /// Datagrams to this queue pair number go over this link from now on.
    pub fn connect_qpn(&mut self, qpn: u32, link: LinkId) {
        unimplemented!()
    }
    /// There is no device with queue pair number `peer` (for now): the sends that wait for a link fail (RetryExceeded);
    /// datagrams to it are dropped and complete, as on any network.
    pub fn unreachable(&mut self, qp: QpId, peer: u32) {
        unimplemented!()
    }
    /// Takes what links have to give, at most about `budget` pieces, and looks at the clock. `now_ns` never goes back.
    pub fn drive(&mut self, now_ns: u64, budget: u32) -> Progress {
        unimplemented!()
    }
    /// Whether a link has something to take (a peek).
    pub fn pending(&self) -> bool {
        unimplemented!()
    }
    pub fn poll_event(&mut self) -> Option<Event> {
        unimplemented!()
    }
    /// Whether a request that is outstanding names memory in this range by reference: a peer may still touch it.
    pub fn references(&self, range: rkey_base::range::VaRange) -> bool {
        unimplemented!()
    }
}
