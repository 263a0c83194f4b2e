//! The engine and its events. Its owner's other calls are in `cqs.rs`, `srqs.rs` and `qp/create.rs` for the queues,
//! `qp/modify.rs` for changing a queue pair, `links.rs` for links and `post.rs` for posting; the work itself is in `drive.rs`.

use crate::checked_memory::CheckedMemory;
use crate::context::Context;
use crate::exposure::{ExposedMemory, Exposure};
use crate::id::Table;
use crate::link_state::LinkState;
use crate::numbers::Numbers;
use crate::qp::pair::Qp;
use crate::{EngineConfig, EngineError, Event, LinkId, Reports};
use rkey_base::memory::Memory;
use rkey_core::{CoreError, DomainId, Draining, Section};
use rkey_link::Link;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

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

    /// Counts an object in its domain.
    pub(crate) fn hold_domain(&self, domain: DomainId) -> Result<(), EngineError> {
        let held = self.x.checked.protection.hold_domain(domain);
        held.map_err(|_: CoreError| EngineError::NoSuch("protection domain"))
    }

    /// Releases one [`Self::hold_domain`].
    pub(crate) fn release_domain(&self, domain: DomainId) {
        // The domain was held when the object was created, so it is still open.
        let _ = self.x.checked.protection.release_domain(domain);
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
}
