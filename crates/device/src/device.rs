//! The device: opening it, its limits, its events and its end.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rkey_base::memory::ProcessMemory;
use rkey_base::process::ForkMark;
use rkey_core::{Api, Protection, Secrets};
use rkey_engine::{AsyncEvent, DenialReport, Engine, EngineConfig, EngineError};
use rkey_link::NodeId;

use crate::config::{Config, DirectCopy, Share, WireKey};
use crate::error::DeviceError;
use crate::objects::async_queues::{AsyncQueue, new_queue};
use crate::peers::handshake::{LinkConfig, LocalNode, Policy};
use crate::peers::names::Scope;
use crate::progress::engine_thread::EngineThread;
use crate::progress::exit;
use crate::shared::Shared;
use crate::wire::Wire;

/// A software RDMA device of this process. Clones are the same device; it is closed when the last
/// clone and the last object made from it are dropped, and its peers notice that at once.
///
/// A process may open several devices, and several front ends may share one ([`Device::open_shared`]). After `fork`, the child
/// cannot use its parent's devices ([`crate::fork`]).
#[derive(Clone, Debug)]
pub struct Device(Arc<Opening>);

/// One front end's share of a device.
#[derive(Debug)]
struct Opening {
    shared: Arc<Shared>,
    config: Config,
    /// The events of its objects.
    events: Arc<AsyncQueue>,
    handle: Arc<Handle>,
}

/// The part that all openings hold. The engine thread holds only `shared`, so it ends when the last opening is dropped.
#[derive(Debug)]
pub(crate) struct Handle {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The openings that may not have been dropped yet, each with its API.
    openings: Mutex<Vec<(Api, Weak<Opening>)>>,
}

impl Device {
    /// Opens a device: claims queue pair numbers and starts the engine thread.
    ///
    /// # Errors
    /// The system refuses descriptors, memory or a thread.
    pub fn open(config: Config) -> Result<Self, DeviceError> {
        let random = random_words()?;
        let node = NodeId {
            pid: rustix::process::getpid()
                .as_raw_nonzero()
                .get()
                .unsigned_abs(),
            nonce: random[0],
        };
        let secrets = Secrets([random[1], random[2], random[3], random[4]]);
        let protection =
            Arc::new(Protection::new(config.limits, secrets).across_apis(config.cross_api));
        if config.ptracer_any {
            crate::inspect::copy_paths::allow_any_tracer();
        }
        let local = LocalNode::new(node, link_config(&config))
            .map_err(DeviceError::io("preparing the links"))?;
        let engine_config = EngineConfig {
            node,
            max_qps: config.max_qps,
            max_cqs: config.max_cqs,
            max_srqs: config.max_srqs,
            max_cq_depth: config.max_cq_depth,
            max_queue_depth: config.max_queue_depth,
            max_sge: config.max_sge,
            max_inline: config.max_inline,
            asks_about_silence: true,
        };
        let section = protection
            .section()
            .expect("a new table has no other section");
        let mut engine = Engine::new(engine_config, section, process_memory());
        engine.share_report_ids(crate::inspect::denials::ids());
        let fork = ForkMark::new().map_err(DeviceError::io("marking memory for forks"))?;
        let shared = Arc::new(Shared::new(
            node,
            config.clone(),
            protection,
            engine,
            process_memory(),
            fork,
        )?);
        let thread = EngineThread::start(Arc::clone(&shared), local)?;
        exit::watch(&shared);
        let events = Arc::clone(shared.events.first());
        let handle = Arc::new(Handle {
            shared,
            thread: Mutex::new(Some(thread)),
            openings: Mutex::default(),
        });
        Ok(Self::opening(&handle, config, events))
    }

    /// Adds an opening to an open device.
    ///
    /// # Errors
    /// No descriptor is available.
    pub(crate) fn join(handle: &Arc<Handle>, config: Config) -> Result<Self, DeviceError> {
        let events = new_queue()?;
        handle.shared.lifecycle().add_wait_point(&events);
        Ok(Self::opening(handle, config, events))
    }

    fn opening(handle: &Arc<Handle>, config: Config, events: Arc<AsyncQueue>) -> Self {
        let opening = Arc::new(Opening {
            shared: Arc::clone(&handle.shared),
            config,
            events,
            handle: Arc::clone(handle),
        });
        let entry = (opening.config.api, Arc::downgrade(&opening));
        handle.openings.lock().push(entry);
        Self(opening)
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.0.handle
    }

    /// The queue that gets the events of this opening's objects.
    pub(crate) fn events(&self) -> &Arc<AsyncQueue> {
        &self.0.events
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        self.shared().lifecycle().check()
    }

    pub(crate) fn scope(&self) -> Scope {
        self.shared().scope
    }

    /// Checks the device that a peer names as its own against the process that the kernel reports.
    ///
    /// # Errors
    /// [`DeviceError::Handshake`]: the device is another process's.
    pub(crate) fn check_identity(
        &self,
        node: NodeId,
        uid: u32,
        pid: Option<u32>,
    ) -> Result<(), DeviceError> {
        let shared = self.shared();
        let in_use = || shared.driver.nodes_in_use();
        shared.identities.check(node, uid, pid, in_use)
    }

    /// Executes what has arrived, and acknowledges it to peers, as far as possible without waiting. A program that exits without closing
    /// its device acknowledges only what was executed before.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    pub fn drive_until_idle(&self) -> Result<(), DeviceError> {
        self.check()?;
        self.shared().driver.drive_until_idle();
        Ok(())
    }

    /// Logs a front end's own message about the refusal of one of its requests, subject to the rate limit for refusals. A
    /// watcher (`rkey run --explain`) gets the device's message instead.
    pub fn log_own_denial(&self, words: &str) {
        self.shared().denials.write_own(words);
    }

    /// Whether `other` is the same device.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.shared, &other.0.shared)
    }

    /// The name of this device for peers.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.shared().node
    }

    /// The wire to other hosts, if the configuration has one.
    #[must_use]
    pub fn wire(&self) -> Option<&Wire> {
        self.shared().wire.as_deref()
    }

    /// The key with which packets and handshakes of the wire are sealed.
    pub(crate) fn wire_key(&self) -> Option<&WireKey> {
        self.shared().config.wire.key.as_ref()
    }

    /// The configuration with which the device was opened.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The memory of this process, as the device accesses it: a fault is an error, never a signal.
    ///
    /// # Safety
    /// The caller passes only addresses that it may read (or write): its own memory, registered, not deregistered and not
    /// borrowed.
    #[must_use]
    #[allow(unsafe_code)]
    // UNSAFETY: access by address is only as safe as the addresses.
    pub unsafe fn memory(&self) -> &ProcessMemory {
        &self.shared().memory
    }

    /// The report that explains a completion with this vendor code. It exists before the completion can be polled, and is kept
    /// while it is one of the last [`crate::inspect::denials::KEPT`] reports.
    #[must_use]
    pub fn denial(&self, vendor: u32) -> Option<DenialReport> {
        if vendor == 0 || self.is_forked() {
            return None;
        }
        let found = self.shared().denials.reports().find(vendor)?;
        Some(DenialReport::clone(&found))
    }

    /// The most recent refused accesses, oldest first. The refusal of a peer's request is added before the peer learns of it.
    #[must_use]
    pub fn denials(&self) -> Vec<DenialReport> {
        if self.is_forked() {
            return Vec::new();
        }
        let all = self.shared().denials.reports().all();
        all.iter()
            .map(|report| DenialReport::clone(report))
            .collect()
    }

    /// Waits up to `timeout` (`None`: without limit) for the next asynchronous event.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], or waiting failed.
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>, DeviceError> {
        self.check()?;
        let event = self.events().next(timeout)?;
        self.check()?;
        Ok(event)
    }

    /// Waits for the next asynchronous event as [`Channel::next_event_or_signal`] does.
    ///
    /// [`Channel::next_event_or_signal`]: crate::Channel::next_event_or_signal
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`], [`DeviceError::Io`] with `EINTR`.
    pub fn next_event_or_signal(&self) -> Result<Option<AsyncEvent>, DeviceError> {
        self.check()?;
        let event = self.events().next_or_signal()?;
        self.check()?;
        Ok(event)
    }

    /// A descriptor that is readable exactly while there are asynchronous events.
    #[must_use]
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.events().fd()
    }

    /// Checks the requested sizes of one queue against the limits.
    pub(crate) fn check_queue(
        &self,
        what: &'static str,
        depth: u32,
        sges: u32,
    ) -> Result<(), DeviceError> {
        let config = self.config();
        for (what, wanted, limit, variable) in [
            (what, depth, config.max_queue_depth, "RKEY_MAX_QUEUE_DEPTH"),
            (
                "scatter/gather entries",
                sges,
                config.max_sge,
                "RKEY_MAX_SGE",
            ),
        ] {
            if wanted > limit {
                let (wanted, limit) = (wanted.into(), limit.into());
                return Err(DeviceError::TooLarge {
                    what,
                    wanted,
                    limit,
                    variable,
                });
            }
        }
        Ok(())
    }

    /// Converts an error from creating an object. If a table is full, the result names the variable that sets its limit.
    pub(crate) fn limit_of(
        &self,
        error: EngineError,
        objects: &'static str,
        variable: &'static str,
    ) -> DeviceError {
        match error {
            EngineError::Limit { what, limit, .. } if what.ends_with(objects) => {
                DeviceError::Limit {
                    what: objects,
                    limit,
                    variable,
                }
            }
            other => other.into(),
        }
    }
}

impl Handle {
    /// Whether this process can use the device.
    pub(crate) fn is_usable(&self) -> bool {
        self.shared.lifecycle().is_usable()
    }

    /// Whether a front end with this configuration may share the device.
    pub(crate) fn suits(&self, config: &Config) -> bool {
        let mut openings = self.openings.lock();
        openings.retain(|(_, opening)| opening.strong_count() > 0);
        let has_it = openings.iter().any(|&(api, _)| api == config.api);
        !has_it && self.shared.config.agrees_with(config)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let thread = self.thread.lock().take();
        if self.shared.lifecycle().is_forked() {
            // The thread exists only in the parent: this process has nothing to join or detach.
            std::mem::forget(thread);
            return;
        }
        self.shared.driver.stop();
        let Some(thread) = thread else { return };
        // The engine thread never holds a handle, but one of the program's callbacks that runs in it might.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!("bug: the engine thread panicked");
        }
        self.shared.leave_wire();
        self.shared.flush_capture();
    }
}

/// The configuration of this device's links.
pub(crate) fn link_config(config: &Config) -> LinkConfig {
    LinkConfig {
        // The ring needs a power of two.
        payload_ring: config.ring_bytes.next_power_of_two(),
        remote_iovec: config.direct_copy == DirectCopy::Auto,
        remote_iovec_min: config.remote_iovec_min,
        warrants: config.push,
        policy: match config.share {
            Share::User => Policy::SameUser,
            Share::All => Policy::Any,
        },
        ..LinkConfig::default()
    }
}

/// Access to the memory of this process.
#[allow(unsafe_code)]
// UNSAFETY: the one place where the device gains access to user memory.
pub(crate) fn process_memory() -> ProcessMemory {
    // SAFETY: the device passes only addresses of spans that a grant of the protection table covers, and the caller of
    // `Device::register` promises that registered memory may be accessed.
    unsafe { ProcessMemory::new() }
}

fn random_words() -> Result<[u64; 5], DeviceError> {
    let mut words = [0; 5];
    for word in &mut words {
        *word = getrandom::u64()
            .map_err(|e| DeviceError::io("getting random numbers")(std::io::Error::other(e)))?;
    }
    Ok(words)
}
