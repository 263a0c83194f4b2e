//! The state that the program's threads and the engine thread of a device share.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rkey_base::memory::ProcessMemory;
use rkey_base::process::ForkMark;
use rkey_core::Protection;
use rkey_link::loopback::Loopback;
use rkey_link::{AnyLink, NodeId};

use crate::capture::{Capture, LinkCapture};
use crate::config::Config;
use crate::error::DeviceError;
use crate::inspect::cache_view::Caches;
use crate::inspect::denials::Denials;
use crate::inspect::describe::Descriptions;
use crate::lifecycle::Lifecycle;
use crate::objects::async_queues::AsyncQueues;
use crate::objects::{AccessCounters, Adverts, CqTable, QpTable};
use crate::peers::identity::Identities;
use crate::peers::names::Scope;
use crate::peers::process::DepartedPeers;
use crate::peers::qp_numbers::QpNumbers;
use crate::peers::streams::Streams;
use crate::progress::reactor::{Reactor, Token};
use crate::progress::{DeviceEngine, EngineDriver, EventRouter, Transmitter};
use crate::reclaim::Reclaim;
use crate::wire::{Arrived, Receiver, Wire};

/// The parts of a device. The engine thread and every handle hold them.
pub(crate) struct Shared {
    pub(crate) node: NodeId,
    pub(crate) config: Config,
    pub(crate) scope: Scope,
    pub(crate) protection: Arc<Protection>,
    pub(crate) memory: ProcessMemory,
    /// Owns the engine and drives it.
    pub(crate) driver: EngineDriver,
    /// Takes back memory that peers access directly.
    pub(crate) reclaim: Reclaim,
    pub(crate) reactor: Reactor,
    pub(crate) qp_numbers: Arc<QpNumbers>,
    pub(crate) adverts: Adverts,
    pub(crate) cqs: Arc<CqTable>,
    pub(crate) qps: Arc<QpTable>,
    pub(crate) events: Arc<AsyncQueues>,
    pub(crate) denials: Arc<Denials>,
    pub(crate) counters: Arc<AccessCounters>,
    pub(crate) departed: DepartedPeers,
    pub(crate) identities: Identities,
    pub(crate) descriptions: Descriptions,
    pub(crate) caches: Caches,
    /// The connections that end with peers on other hosts.
    pub(crate) streams: Streams,
    /// The wire to other hosts.
    pub(crate) wire: Option<Arc<Wire>>,
    /// The capture of the links to processes of this host.
    capture: Option<LinkCapture>,
    /// How tests make the device fail.
    #[cfg(test)]
    pub(crate) trap: crate::progress::panic_tests::Trap,
}

impl Shared {
    pub(crate) fn new(
        node: NodeId,
        config: Config,
        protection: Arc<Protection>,
        engine: DeviceEngine,
        memory: ProcessMemory,
        fork: ForkMark,
    ) -> Result<Self, DeviceError> {
        let scope = Scope::of(config.share);
        let cqs = Arc::<CqTable>::default();
        let qps = Arc::<QpTable>::default();
        let denials = Denials::new(engine.reports(), config.report.as_deref(), &qps);
        let counters = Arc::<AccessCounters>::default();
        let qp_numbers = Arc::new(QpNumbers::new(scope));
        let events = Arc::new(AsyncQueues::new()?);
        let reclaim = Reclaim::new(&engine, &protection, &qps, &denials, config.reserved_files);
        let wire = Wire::of_process(&config.wire);
        let transmitter = wire.clone().map(Transmitter::new);
        let lifecycle = Lifecycle::new(fork);
        lifecycle.add_wait_point(&cqs);
        lifecycle.add_wait_point(events.first());
        lifecycle.add_wait_point(&reclaim.lease_requests);
        let router = EventRouter {
            cqs: Arc::clone(&cqs),
            qps: Arc::clone(&qps),
            qp_numbers: Arc::clone(&qp_numbers),
            events: Arc::clone(&events),
            denials: Arc::clone(&denials),
            counters: Arc::clone(&counters),
        };
        let capture = config.wire.capture.as_deref();
        let capture = capture
            .and_then(Capture::of_process)
            .map(|capture| LinkCapture::new(capture, &qps, node));
        let loopback = observed(Loopback::new(node).into(), capture.as_ref());
        Ok(Self {
            node,
            scope,
            protection,
            memory,
            driver: EngineDriver::new(
                loopback,
                engine,
                config.tick,
                router,
                lifecycle,
                transmitter,
            )?,
            reclaim,
            reactor: Reactor::new()?,
            qp_numbers,
            adverts: Adverts::default(),
            cqs,
            qps,
            events,
            denials,
            counters,
            departed: DepartedPeers::default(),
            identities: Identities::new(node, config.explain),
            descriptions: Descriptions::default(),
            caches: Caches::default(),
            streams: Streams::default(),
            wire,
            capture,
            config,
            #[cfg(test)]
            trap: crate::progress::panic_tests::Trap::default(),
        })
    }

    /// The link, captured if links are captured.
    pub(crate) fn observed(&self, link: AnyLink) -> AnyLink {
        observed(link, self.capture.as_ref())
    }

    /// Waits, for a limited time, until everything that was captured is in the file.
    pub(crate) fn flush_capture(&self) {
        if let Some(capture) = &self.capture {
            capture.flush();
        }
    }

    /// Watches the socket of a new block of queue pair numbers, and receives packets for the block.
    pub(crate) fn add_block(&self, block: u16, socket: BorrowedFd<'_>) -> Result<(), DeviceError> {
        self.reactor.add(socket, Token::block(block))?;
        if let Some(wire) = &self.wire {
            wire.claim_block(block)?;
        }
        Ok(())
    }

    /// Releases all blocks of queue pair numbers.
    pub(crate) fn close_blocks(&self) {
        if let Some(wire) = &self.wire {
            let blocks = self.qp_numbers.numbers();
            blocks
                .into_iter()
                .for_each(|block| wire.release_block(block));
        }
        self.qp_numbers.close(|fd| self.reactor.remove(fd));
    }

    /// Receives no more packets from other hosts. On return, the wire's thread has no reference to the device.
    pub(crate) fn leave_wire(&self) {
        if let Some(wire) = &self.wire {
            wire.remove_receiver(self);
        }
    }

    /// The state of the device as a whole.
    #[inline]
    pub(crate) fn lifecycle(&self) -> &Lifecycle {
        &self.driver.lifecycle
    }
}

impl Receiver for Shared {
    fn owns(&self, block: u16) -> bool {
        self.qp_numbers.owns(block)
    }

    fn receive(&self, packets: &[Arrived<'_>], in_poll: bool) {
        if self.lifecycle().is_usable() {
            self.driver.receive_packets(packets, in_poll);
        }
    }

    fn send_held(&self) {
        self.driver.send_all_held_packets();
    }

    fn failed(&self, why: &str) {
        self.driver.fail(why.to_owned());
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

fn observed(link: AnyLink, capture: Option<&LinkCapture>) -> AnyLink {
    match capture {
        Some(capture) => capture.observe(link),
        None => link,
    }
}
