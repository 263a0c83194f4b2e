//! What the program's threads and the engine thread of one device have in common.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use rkey_base::lock::SpinLock;
use rkey_base::memory::ProcessMemory;
use rkey_base::process::ForkMark;
use rkey_core::{Denial, Protection};
use rkey_engine::{Engine, Exposure, LinkId};
use rkey_link::peer::Credentials;
use rkey_link::{AnyLink, Link, NodeId};

use crate::config::Config;
use crate::error::DeviceError;
use crate::event::AsyncEvent;
use crate::inspect::denials::Denials;
use crate::inspect::describe::Descriptions;
use crate::lifecycle::Lifecycle;
use crate::objects::channel::EventQueue;
use crate::objects::{Adverts, Counters, CqTable, QpTable};
use crate::peers::identity::Identities;
use crate::peers::names::Scope;
use crate::peers::process::DepartedPeers;
use crate::peers::qp_numbers::QpNumbers;
use crate::progress::reactor::Reactor;
use crate::progress::{ProgressState, ThreadRequests};
use crate::reclaim::lease::Leases;
use crate::reclaim::remote_copies::RemoteCopies;

/// The engine as this crate uses it.
pub(crate) type DeviceEngine = Engine<AnyLink, ProcessMemory>;

/// The state of a device. The engine thread and every handle hold it.
pub(crate) struct Shared {
    pub(crate) node: NodeId,
    pub(crate) config: Config,
    pub(crate) scope: Scope,
    pub(crate) protection: Arc<Protection>,
    /// Held for the length of engine calls only. The system calls under it are the bell that a link
    /// rings and, for payload by reference, the kernel's copy of one piece between two processes:
    /// memory that is backed by a slow file system makes that wait, and with it the device.
    pub(crate) engine: SpinLock<DeviceEngine>,
    /// What the engine says of memory that peers reach by themselves, without its lock.
    pub(crate) exposure: Arc<Exposure>,
    pub(crate) memory: ProcessMemory,
    pub(crate) progress: ProgressState,
    pub(crate) qp_numbers: QpNumbers,
    pub(crate) reactor: Reactor,
    /// The link to ourselves.
    pub(crate) loopback: OnceLock<LinkId>,
    pub(crate) thread_requests: ThreadRequests,
    pub(crate) adverts: Adverts,
    pub(crate) cqs: CqTable,
    pub(crate) qps: QpTable,
    pub(crate) events: EventQueue<AsyncEvent>,
    /// The last refused accesses, and the log of them.
    pub(crate) denials: Denials,
    /// What front ends tell of their endpoints.
    pub(crate) descriptions: Descriptions,
    pub(crate) leases: Leases,
    pub(crate) departed: DepartedPeers,
    pub(crate) identities: Identities,
    /// Peers that reach into our memory by themselves.
    pub(crate) remote_copies: RemoteCopies,
    pub(crate) counters: Counters,
    pub(crate) lifecycle: Lifecycle,
    /// How tests let the device fail.
    #[cfg(test)]
    pub(crate) trap: crate::progress::panic_tests::Trap,
}

impl Shared {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        node: NodeId,
        config: Config,
        protection: Arc<Protection>,
        engine: DeviceEngine,
        memory: ProcessMemory,
        progress: ProgressState,
        qp_numbers: QpNumbers,
        fork: ForkMark,
    ) -> Result<Self, DeviceError> {
        let denials = Denials::new(engine.reports(), config.report.as_deref());
        Ok(Self {
            node,
            scope: Scope::of(config.share),
            protection,
            exposure: Arc::clone(engine.exposure()),
            engine: SpinLock::new(engine),
            memory,
            progress,
            qp_numbers,
            reactor: Reactor::new()?,
            loopback: OnceLock::new(),
            thread_requests: ThreadRequests::new()?,
            adverts: Adverts::default(),
            cqs: CqTable::default(),
            qps: QpTable::default(),
            events: EventQueue::new(4096)?,
            denials,
            descriptions: Descriptions::default(),
            leases: Leases::default(),
            departed: DepartedPeers::default(),
            identities: Identities::new(node, config.explain),
            remote_copies: RemoteCopies::default(),
            counters: Counters::default(),
            lifecycle: Lifecycle::new(fork),
            config,
            #[cfg(test)]
            trap: crate::progress::panic_tests::Trap::default(),
        })
    }

    /// Whether the device may be used by this process, now.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    #[inline]
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        self.lifecycle.check()
    }

    /// Whether this process was forked from the one that opened the device.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.lifecycle.is_forked()
    }

    /// Whether an object that is dropped has to be taken out of the engine. Not in a forked child, where
    /// nothing may be touched, and not when the engine failed, where nothing can be trusted.
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_forked() && !self.has_failed()
    }

    /// Marks the device as failed: calls answer with an error from now on, whoever waits is woken, and the
    /// engine thread closes the links, so that peers see the end.
    pub(crate) fn fail(&self, why: String) {
        tracing::error!(%why, "the device failed");
        self.lifecycle.fail(why);
        self.cqs.wake_all();
        self.events.close();
        self.lifecycle.close_channels_and_listeners();
        self.leases.wake_all();
        self.thread_requests.ring();
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.lifecycle.has_failed()
    }

    /// Counts the key of a request that the engine has not denied itself. Says whether its sender may know why.
    pub(crate) fn count_denied(&self, link: LinkId, denial: &Denial) -> bool {
        let now = self.progress.refresh_clock();
        self.command(|engine| {
            engine.count_denied(link, denial, now);
            engine.origin(link).is_some_and(|origin| origin.explain)
        })
    }

    /// The devices that our links and queue pairs are connected to.
    fn nodes_in_use(&self) -> HashSet<NodeId> {
        let engine = self.engine.lock();
        let links = engine.links().map(|(_, link)| link.node());
        let peers = engine.snapshot().qps.into_iter().filter_map(|qp| qp.peer);
        links.chain(peers).collect()
    }

    /// Whether the device at the other end of a link may be the one that it says it is.
    pub(crate) fn is_credible(&self, node: NodeId, who: Credentials) -> bool {
        self.identities
            .is_credible(node, who, || self.nodes_in_use())
    }

    /// The same about a peer that was met by its address.
    ///
    /// # Errors
    /// [`DeviceError::Handshake`]: the device is another process's.
    pub(crate) fn check_identity(
        &self,
        node: NodeId,
        uid: u32,
        pid: Option<u32>,
    ) -> Result<(), DeviceError> {
        self.identities
            .check(node, uid, pid, || self.nodes_in_use())
    }

    pub(crate) fn stop(&self) {
        self.lifecycle.stop();
        self.thread_requests.ring();
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}
