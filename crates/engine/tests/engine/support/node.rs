//! A device without a process, and its queue pairs.

use super::wire::WireEnd;
use rkey_base::memory::ArenaMemory;
use rkey_base::range::VaRange;
use rkey_core::{Access, DomainId, Limits, Protection, RKey, Region, RegionSpec, Secrets};
use rkey_engine::*;
use rkey_link::NodeId;
use std::sync::Arc;

/// A device: engine, memory and protection table.
pub(crate) struct Node {
    pub(crate) engine: Engine<WireEnd, Arc<ArenaMemory>>,
    pub(crate) memory: Arc<ArenaMemory>,
    pub(crate) protection: Arc<Protection>,
    pub(crate) domain: DomainId,
    pub(crate) node: NodeId,
    next_qpn: u32,
}

pub(crate) fn limits() -> Limits {
    Limits {
        key_slots: 4096,
        ..Limits::default()
    }
}

pub(crate) const ALL: Access = Access::all();

impl Node {
    pub(crate) fn new(pid: u32) -> Self {
        Self::with(pid, EngineConfig::default())
    }

    pub(crate) fn with(pid: u32, config: EngineConfig) -> Self {
        Self::with_memory(pid, config, 1 << 22)
    }

    pub(super) fn with_memory(pid: u32, config: EngineConfig, len: usize) -> Self {
        let node = NodeId {
            pid,
            nonce: u64::from(pid),
        };
        let memory = Arc::new(ArenaMemory::new(u64::from(pid) << 32, len));
        let seed = u64::from(pid) * 0x9e37_79b9;
        let protection = Arc::new(Protection::new(limits(), Secrets([seed, 2, 3, 4])));
        let domain = protection.create_domain().unwrap();
        let config = EngineConfig { node, ..config };
        let section = protection.section().unwrap();
        let engine = Engine::new(config, section, Arc::clone(&memory));
        Self {
            engine,
            memory,
            protection,
            domain,
            node,
            next_qpn: pid << 8,
        }
    }

    pub(crate) fn base(&self) -> u64 {
        self.memory.range().start()
    }

    /// Deregisters a region as a device does. Returns whether that finishes at once; it should, because no grant
    /// outlives a step of the engine.
    pub(crate) fn close(&mut self, region: &Region) -> bool {
        let mut deregistering = self.protection.deregister(region.id).unwrap();
        self.engine.drain_section(&mut deregistering);
        deregistering.finish().is_ok()
    }

    pub(crate) fn register(&self, offset: u64, len: u64, access: Access) -> Region {
        let range = VaRange::new(self.base() + offset, len).unwrap();
        self.protection
            .register(&RegionSpec::new(self.domain, &[range], access))
            .unwrap()
    }

    pub(crate) fn fill(&self, offset: u64, bytes: &[u8]) {
        self.memory.write(self.base() + offset, bytes);
    }

    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        self.memory.read(self.base() + offset, len)
    }

    pub(crate) fn sge(&self, region: &Region, offset: u64, len: u32) -> Sge {
        Sge {
            addr: self.base() + offset,
            len,
            key: region.local_key,
        }
    }

    pub(crate) fn target(&self, region: &Region, offset: u64) -> Target {
        Target {
            addr: self.base() + offset,
            key: region
                .requested
                .map_or(RKey::Device(region.key), RKey::Requested),
        }
    }

    /// A queue pair with its own completion queue.
    pub(crate) fn qp(&mut self, change: impl FnOnce(&mut QpConfig)) -> Qp {
        let cq = self.engine.create_cq(1024).unwrap();
        let mut config = QpConfig::new(self.domain, &cq.id());
        change(&mut config);
        let qpn = self.next_qpn;
        self.next_qpn += 1;
        let id = self.engine.create_qp(&config, qpn).unwrap();
        Qp { id, qpn, cq }
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.engine.poll_event()).collect()
    }

    pub(crate) fn state(&self, qp: &Qp) -> QpState {
        self.engine.query_qp(qp.id).unwrap().state
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Qp {
    pub(crate) id: QpId,
    pub(crate) qpn: u32,
    pub(crate) cq: Arc<CqShared>,
}

impl Qp {
    pub(crate) fn poll(&self) -> Vec<Completion> {
        let mut all = vec![Completion::default(); 256];
        let n = self.cq.pop(&mut all);
        all.truncate(n);
        all
    }
}
