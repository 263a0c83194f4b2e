//! The driver runs a device's engine, in whichever thread has work for it.
//!
//! Program threads call it to poll, to post and to run commands; the engine thread calls it when no program thread drives.
//! Each call locks the engine, runs it, unlocks it and then acts on the engine's events.

use crossbeam_utils::CachePadded;
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rkey_base::barrier;
use rkey_base::lock::Guard;
use rkey_base::memory::ProcessMemory;
use rkey_core::{Denial, Draining, SectionLock};
use rkey_engine::{CqId, Engine, Inbox, LinkId, QpId, WirePeer};
use rkey_link::loopback::Loopback;
use rkey_link::{AnyLink, Link, LinkRole, NodeId};

use super::event_router::EventRouter;
use super::idle::IdleTime;
use super::poll_set::PollResult;
use super::transmitter::Transmitter;
use super::{Mode, Schedule, ThreadRequests};
use crate::error::DeviceError;
use crate::lifecycle::Lifecycle;
use crate::wire::Arrived;

/// The engine, with this crate's types.
pub(crate) type DeviceEngine = Engine<AnyLink, ProcessMemory>;

/// The maximum number of fragments that one call of `drive` takes, so that posting threads get the lock.
const BUDGET: u32 = 256;
/// The maximum number of drives by a thread that is about to wait. The rest is left to the engine thread.
const IDLE_DRIVES: u32 = 32;
/// A poller reads the clock once in this many empty polls.
const POLLS_PER_CLOCK: u32 = 64;
/// A poller publishes delayed acknowledgements once in this many empty polls.
const POLLS_PER_ACK: u32 = 64;
/// After this many nanoseconds without work, a poller yields the processor each time it reads the clock: if there are more
/// pollers than processors, the peer that it waits for may need this processor.
const YIELD_AFTER: u64 = 5_000;

/// The engine, and everything that decides which thread drives it and when.
pub(crate) struct EngineDriver {
    /// Locked only during engine calls. The system calls under it are short, such as the doorbell, the timer, the check of
    /// a peer's process around each copy, and the truncation of a lost link's permit. One kind of call takes longer: for a
    /// remote iovec, the kernel copies up to 256 KiB (one step of the engine) between two processes. Memory that is backed by a
    /// slow file system stalls a copy, and with it the device. A runtime copies its foreign memory under this lock, too.
    engine: SectionLock<DeviceEngine>,
    pub(crate) schedule: Schedule,
    /// Counts empty polls. The engine thread only checks whether it changes, so lost updates do no harm.
    empty_polls: CachePadded<AtomicU32>,
    idle: IdleTime,
    /// Whether the next poller should yield the processor.
    should_yield: AtomicBool,
    /// When a poller last read the clock.
    polled_at: AtomicU64,
    /// Whether the engine has work that no ring shows.
    drive_again: AtomicBool,
    /// The device's link to itself. It is not in the poll set: posts over it set `drive_again`.
    loopback: LinkId,
    uses_loopback: AtomicBool,
    pub(crate) requests: ThreadRequests,
    router: EventRouter,
    pub(crate) lifecycle: Lifecycle,
    transmitter: Option<Transmitter>,
}

impl EngineDriver {
    /// A driver whose engine thread checks every `tick` whether the program still polls.
    ///
    /// # Errors
    /// No descriptor is available.
    pub(crate) fn new(
        node: NodeId,
        mut engine: DeviceEngine,
        tick: Duration,
        router: EventRouter,
        lifecycle: Lifecycle,
        transmitter: Option<Transmitter>,
    ) -> Result<Self, DeviceError> {
        let loopback = engine.attach(AnyLink::from(Loopback::new(node)));
        Ok(Self {
            engine: SectionLock::new(engine),
            schedule: Schedule::new(tick)?,
            empty_polls: CachePadded::default(),
            idle: IdleTime::default(),
            should_yield: AtomicBool::new(false),
            polled_at: AtomicU64::new(0),
            drive_again: AtomicBool::new(true),
            loopback,
            uses_loopback: AtomicBool::new(false),
            requests: ThreadRequests::new()?,
            router,
            lifecycle,
            transmitter,
        })
    }

    /// Locks the engine for reading. Changes go through [`EngineDriver::command`] or [`EngineDriver::post`].
    pub(crate) fn lock(&self) -> Guard<'_, DeviceEngine> {
        self.engine.lock()
    }

    /// Waits until the engine holds no grant from before this call, by taking the engine's lock once if another thread holds it.
    /// Later checks by the engine find that the region has ended.
    #[inline]
    pub(crate) fn drain_section(&self, draining: &mut impl Draining) {
        self.engine.drain_section(draining);
    }

    /// Checks for work for a poller that found its completion queue empty.
    #[inline]
    pub(crate) fn poll(&self) {
        self.poll_with(None);
        self.rest();
    }

    /// Like [`EngineDriver::poll`], for a front end that takes the messages of a completion queue from an inbox. Does not yield
    /// the processor.
    #[inline]
    pub(crate) fn poll_with(&self, inbox: Option<(CqId, &mut dyn Inbox<ProcessMemory>)>) {
        let polls = self.empty_polls().wrapping_add(1);
        self.empty_polls.store(polls, Ordering::Relaxed);
        let result = self.schedule.poll_set.check();
        if result == PollResult::Arrived || self.drive_again.load(Ordering::Relaxed) {
            if let Some(engine) = self.engine.try_lock()
                && self.drive_with(engine, self.schedule.coarse_now(), inbox)
            {
                self.idle.found();
            }
        } else if result == PollResult::Owed && polls.is_multiple_of(POLLS_PER_ACK) {
            self.publish_acknowledgements();
        }
        if polls.is_multiple_of(POLLS_PER_CLOCK) && self.poll_slowly() {
            self.should_yield.store(true, Ordering::Relaxed);
        }
    }

    /// Yields the processor if pollers have found nothing for a while. The caller must hold no lock that other threads
    /// need.
    #[inline]
    pub(crate) fn rest(&self) {
        if self.should_yield.load(Ordering::Relaxed) {
            self.should_yield.store(false, Ordering::Relaxed);
            std::thread::yield_now();
        }
    }

    /// Publishes delayed acknowledgements that no response has carried.
    #[cold]
    fn publish_acknowledgements(&self) {
        if let Some(mut engine) = self.engine.try_lock() {
            for (_, link) in engine.links_mut() {
                link.publish();
            }
        }
    }

    /// The slow part of a poll: the clock, deadlines, peers that may be asleep. Returns whether the poller should yield.
    #[cold]
    fn poll_slowly(&self) -> bool {
        let now = self.schedule.refresh_clock();
        self.polled_at.store(now, Ordering::Relaxed);
        let Some(engine) = self.engine.try_lock() else {
            // The lock's holder may need this processor.
            return true;
        };
        if self.schedule.mode() == Mode::Asleep {
            self.schedule.lend(&engine);
        }
        let idle = self.idle.at(now);
        if idle.kick_peers {
            kick_peers(&engine);
        }
        // Driving also updates the deadline, for requests that were posted since the last drive.
        let did = self.drive(engine, now);
        idle.ns > YIELD_AFTER && !did
    }

    /// Drives once and acts on the events. Returns whether there was work.
    #[inline]
    pub(super) fn drive(&self, engine: Guard<'_, DeviceEngine>, now: u64) -> bool {
        self.drive_with(engine, now, None)
    }

    #[inline]
    fn drive_with(
        &self,
        mut engine: Guard<'_, DeviceEngine>,
        now: u64,
        inbox: Option<(CqId, &mut dyn Inbox<ProcessMemory>)>,
    ) -> bool {
        let alarm = PanicAlarm(self);
        let progress = match inbox {
            Some((cq, inbox)) => engine.drive_with(now, BUDGET, cq, inbox),
            None => engine.drive(now, BUDGET),
        };
        self.schedule.set_deadline(progress.next_deadline);
        // Pollers publish delayed acknowledgements without driving.
        let drive_again =
            progress.more || (progress.did && self.uses_loopback.load(Ordering::Relaxed));
        if self.drive_again.load(Ordering::Relaxed) != drive_again {
            self.drive_again.store(drive_again, Ordering::Relaxed);
        }
        let sends = self.take_packets(&mut engine, now);
        std::mem::forget(alarm);
        if engine.has_events() {
            self.route_events(engine);
        } else {
            drop(engine);
        }
        if sends {
            self.send_packets();
        }
        progress.did || progress.more
    }

    /// Takes the engine's packets for other hosts, and returns whether there are any.
    #[inline]
    fn take_packets(&self, engine: &mut DeviceEngine, now: u64) -> bool {
        engine.has_wire_output() && self.take_some_packets(engine, now)
    }

    #[cold]
    fn take_some_packets(&self, engine: &mut DeviceEngine, now: u64) -> bool {
        if let Some(transmitter) = &self.transmitter {
            transmitter.take(engine, now);
            // Sending packets sets timers.
            let next_deadline = engine.drive(now, 0).next_deadline;
            self.schedule.set_deadline(next_deadline);
        }
        self.transmitter.is_some()
    }

    /// Sends the packets that have been taken, and those that the engine has by then. The caller must not hold the engine's lock.
    #[cold]
    fn send_packets(&self) {
        if let Some(transmitter) = &self.transmitter {
            if transmitter.send(|| self.take_more_packets()) {
                self.requests.send_packets();
            }
            let engine = self.engine.lock();
            if engine.has_events() {
                self.route_events(engine);
            }
        }
    }

    fn take_more_packets(&self) {
        let mut engine = self.engine.lock();
        let now = self.schedule.refresh_clock();
        let alarm = PanicAlarm(self);
        self.take_packets(&mut engine, now);
        std::mem::forget(alarm);
    }

    /// Sends the packets that other threads have left to the engine thread.
    pub(super) fn send_left_packets(&self) {
        if self.requests.take_packets() {
            self.take_more_packets();
            self.send_packets();
        }
    }

    /// Returns once the packets for other hosts that have been taken are sent. Called when a queue pair is destroyed, because
    /// the program may exit next, while its peer waits for the last acknowledgement.
    pub(crate) fn flush_packets(&self) {
        if self.transmitter.as_ref().is_some_and(Transmitter::flush) {
            self.requests.send_packets();
        }
    }

    /// Delivers packets from other hosts to the engine, and sends its responses.
    pub(crate) fn receive_packets(&self, packets: &[Arrived<'_>]) {
        let now = self.schedule.refresh_clock();
        let mut engine = self.engine.lock();
        let alarm = PanicAlarm(self);
        for it in packets {
            let from = WirePeer {
                local: it.local,
                remote: it.remote,
            };
            engine.wire_receive(now, from, &it.packet);
        }
        std::mem::forget(alarm);
        // Driving also sets the deadline.
        self.drive(engine, now);
        let engine = self.engine.lock();
        if self.schedule.mode() == Mode::Asleep {
            self.schedule.fire_by_deadline(&engine);
        }
    }

    /// Drives once, with the real time. Returns whether there was work.
    ///
    /// Use this result, not the state of the rings, to decide whether a thread may sleep: a ring may hold a request that
    /// cannot be executed before its peer has taken earlier responses.
    pub(crate) fn drive_now(&self) -> bool {
        let now = self.schedule.refresh_clock();
        self.drive(self.engine.lock(), now)
    }

    /// Like [`EngineDriver::drive_now`], for the engine thread, which does not wait for the lock. `now` is the time.
    pub(super) fn try_drive(&self, now: u64) -> bool {
        self.engine
            .try_lock()
            .is_some_and(|engine| self.drive(engine, now))
    }

    /// Takes the events of the engine, unlocks it and acts on them.
    #[cold]
    fn route_events(&self, mut engine: Guard<'_, DeviceEngine>) {
        let mut events = Vec::new();
        while let Some(event) = engine.poll_event() {
            events.push(event);
        }
        drop(engine);
        self.router.route(self, events);
    }

    /// Runs a command on the engine.
    #[inline]
    pub(crate) fn command<T>(&self, run: impl FnOnce(&mut DeviceEngine) -> T) -> T {
        let mut engine = self.engine.lock();
        let alarm = PanicAlarm(self);
        let result = run(&mut engine);
        // The command may have created work that no ring shows.
        self.drive_again.store(true, Ordering::Relaxed);
        let sends = engine.has_wire_output() && self.take_posted(&mut engine);
        std::mem::forget(alarm);
        if engine.has_events() {
            self.route_events(engine);
        } else {
            drop(engine);
        }
        if sends {
            self.send_packets();
        }
        result
    }

    /// Runs a post, or a change of a queue pair's state (which may send what is queued), and makes sure that some thread
    /// drives the engine afterwards.
    #[inline]
    pub(crate) fn post<T>(&self, run: impl FnOnce(&mut DeviceEngine) -> T) -> T {
        let mut engine = self.engine.lock();
        let alarm = PanicAlarm(self);
        let asleep = self.schedule.mode() == Mode::Asleep;
        if asleep {
            self.before_post_asleep(&mut engine);
        }
        let result = run(&mut engine);
        if self.uses_loopback.load(Ordering::Relaxed) {
            self.drive_again.store(true, Ordering::Relaxed);
        }
        let sends = engine.has_wire_output() && self.take_posted(&mut engine);
        std::mem::forget(alarm);
        if engine.has_events() {
            self.route_events(engine);
        } else {
            drop(engine);
        }
        if sends {
            self.send_packets();
        }
        if asleep {
            self.after_post_asleep();
        }
        result
    }

    /// Takes the packets of a post or a command. Their timers start now.
    #[cold]
    fn take_posted(&self, engine: &mut DeviceEngine) -> bool {
        self.take_packets(engine, self.schedule.refresh_clock())
    }

    /// Called before a post while no thread drives: updates the engine's time, because the timeouts of the post start now.
    /// Lends the engine to the program, which will most likely poll next, unless it has armed a completion queue and so is about to
    /// wait.
    #[cold]
    fn before_post_asleep(&self, engine: &mut DeviceEngine) {
        engine.drive(self.schedule.refresh_clock(), 0);
        if !self.router.is_any_cq_armed() {
            self.schedule.lend(engine);
        }
    }

    /// Called after a post by a program that is about to wait: does the work that is ready, and leaves the rest to the
    /// doorbell and the timer.
    #[cold]
    fn after_post_asleep(&self) {
        if self.schedule.mode() == Mode::Asleep {
            self.drive_until_idle();
        }
    }

    /// Drives until there is no work at the moment, but not for long, and leaves the rest and later work to the engine thread.
    pub(crate) fn drive_until_idle(&self) {
        let mut busy = true;
        for _ in 0..IDLE_DRIVES {
            busy = self.drive_now();
            if !busy {
                break;
            }
        }
        self.schedule.fire_by_deadline(&self.engine.lock());
        if busy {
            self.requests.wake_engine_thread();
        }
    }

    /// Ends the program's driving before the calling thread waits. From then on peers ring the doorbell, which wakes the
    /// engine thread.
    pub(crate) fn hand_over(&self) {
        let engine = self.engine.lock();
        match self.schedule.mode() {
            Mode::Thread => return,
            Mode::Program => self.schedule.fall_asleep(&engine),
            Mode::Asleep => {}
        }
        drop(engine);
        barrier::heavy();
        self.drive_until_idle();
    }

    /// Puts the engine to sleep after the engine thread found no work. Returns whether the engine thread may wait; it must not
    /// if work arrived at the last moment.
    pub(super) fn fall_asleep(&self) -> bool {
        let engine = self.engine.lock();
        kick_peers(&engine);
        self.schedule.fall_asleep(&engine);
        drop(engine);
        barrier::heavy();
        if !self.drive_now() {
            self.schedule.fire_by_deadline(&self.engine.lock());
            return true;
        }
        let engine = self.engine.lock();
        // The program may have taken over the engine by polling in the meantime.
        if self.schedule.mode() == Mode::Asleep {
            self.schedule.take_over(&engine);
            return false;
        }
        true
    }

    /// Makes the engine thread drive.
    pub(super) fn take_over(&self) {
        self.schedule.take_over(&self.engine.lock());
    }

    /// Leaves the engine to a program that polls. The engine thread checks again `after` this many nanoseconds (`None`: one
    /// tick).
    pub(super) fn give_way(&self, after: Option<u64>) {
        self.schedule.give_way(&self.engine.lock(), after);
    }

    /// Handles the expired timer.
    pub(super) fn acknowledge_timer(&self) {
        let _engine = self.engine.lock();
        self.schedule.timer().acknowledge();
    }

    /// The timer's descriptor.
    pub(super) fn timer(&self) -> impl AsFd {
        self.schedule.timer()
    }

    /// The number of empty polls, which wraps around.
    #[inline]
    pub(super) fn empty_polls(&self) -> u32 {
        self.empty_polls.load(Ordering::Relaxed)
    }

    /// When a poller last read the clock.
    pub(super) fn polled_at(&self) -> u64 {
        self.polled_at.load(Ordering::Relaxed)
    }

    /// Whether the engine has a deadline that has passed.
    #[inline]
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.schedule.deadline().is_some_and(|at| at <= now)
    }

    /// Whether a ring has something, or the engine has work that no ring shows.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.drive_again.load(Ordering::Relaxed)
            || self.schedule.poll_set.check() != PollResult::Nothing
    }

    /// Replaces the poll set after a link came up or went down. Only the engine thread calls this. Links with requests of peers
    /// come first, so that pollers find a message sooner than an acknowledgement.
    pub(crate) fn rebuild_poll_set(&self) {
        let mut list: Vec<_> = {
            let engine = self.engine.lock();
            let links = engine.links();
            let handles = links.filter_map(|(_, link)| Some((link.role(), link.poll_handle()?)));
            handles.collect()
        };
        list.sort_by_key(|(role, _)| *role == LinkRole::Requester);
        let handles = list.into_iter().map(|(_, handle)| handle);
        self.schedule.poll_set.replace(handles.collect());
    }

    /// The device's link to itself, for a queue pair or group that will post over it.
    pub(crate) fn use_loopback(&self) -> LinkId {
        self.uses_loopback.store(true, Ordering::Relaxed);
        self.loopback
    }

    /// Asks the engine thread to detach links to peers that do not respond; `why` appears in the log.
    pub(crate) fn cut_links(&self, why: &str, links: &[LinkId]) {
        // This device always responds to itself, however long that takes, and has only one loopback in its lifetime.
        let others = links.iter().copied().filter(|link| *link != self.loopback);
        let links: Vec<LinkId> = others.collect();
        if !links.is_empty() {
            tracing::warn!(?links, "a peer does not respond; cutting its link ({why})");
            self.requests.cut_links(&links);
        }
    }

    /// Handles the end of a connected queue pair's peer.
    pub(crate) fn peer_ended(&self, qp: QpId, qpn: u32) {
        self.router.peer_ended(self, qp, qpn);
    }

    /// Counts the key of a request that the device refused, not the engine. Returns whether the peer may learn the reason.
    pub(crate) fn count_denied(&self, link: LinkId, denial: &Denial) -> bool {
        let now = self.schedule.refresh_clock();
        self.command(|engine| {
            engine.count_denied(link, denial, now);
            engine.origin(link).is_some_and(|origin| origin.explain)
        })
    }

    /// The devices that our links and queue pairs are connected to.
    pub(crate) fn nodes_in_use(&self) -> HashSet<NodeId> {
        let engine = self.engine.lock();
        let links = engine.links().map(|(_, link)| link.node());
        let peers = engine.snapshot().qps.into_iter().filter_map(|qp| qp.peer);
        links.chain(peers).collect()
    }

    /// Marks the device as failed: calls return an error from now on, waiting threads wake up, and the engine thread closes
    /// the links, so that peers notice.
    pub(crate) fn fail(&self, why: String) {
        tracing::error!(%why, "the device failed");
        self.lifecycle.fail(why);
        self.requests.wake_engine_thread();
    }

    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.lifecycle.has_failed()
    }

    /// Called when the last handle was dropped: the engine thread ends.
    pub(crate) fn stop(&self) {
        self.lifecycle.stop();
        self.requests.wake_engine_thread();
    }
}

/// Wakes peers that have not acknowledged our requests, regardless of their sleep words: their programs may have stopped polling
/// without updating them.
fn kick_peers(engine: &DeviceEngine) {
    for (_, link) in engine.links() {
        if link.has_unacked() {
            link.kick();
        }
    }
}

/// Marks the device as failed when a panic drops it.
struct PanicAlarm<'a>(&'a EngineDriver);

impl Drop for PanicAlarm<'_> {
    fn drop(&mut self) {
        self.0.fail("bug: the engine panicked".to_owned());
    }
}

#[cfg(test)]
pub(super) mod tests;
