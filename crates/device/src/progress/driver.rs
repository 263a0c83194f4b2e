//! The driver runs a device's engine, in whichever thread has work for it.
//!
//! Program threads call it to poll, to post and to run commands; the engine thread calls it when no program thread drives.
//! Each call locks the engine, runs it, unlocks it and then acts on the engine's events. This file has the driver and what all
//! calls share; polls, packets, sleep and links have their own files.

use std::time::Duration;

use rkey_base::lock::Guard;
use rkey_base::memory::ProcessMemory;
use rkey_core::{Draining, SectionLock};
use rkey_engine::{CqId, Inbox, LinkId, QpId};

use rkey_link::AnyLink;

use super::event_router::EventRouter;
use super::pending_work::PendingWork;
use super::poll_set::PollResult;
use super::polling::Polling;
use super::transmitter::Transmitter;
use super::{DeviceEngine, Mode, Schedule, ThreadRequests};
use crate::error::DeviceError;
use crate::lifecycle::Lifecycle;

/// The maximum number of fragments that one call of `drive` takes, so that posting threads get the lock.
const BUDGET: u32 = 256;

/// The engine, and everything that decides which thread drives it and when.
pub(crate) struct EngineDriver {
    /// Locked only during engine calls. The system calls under it are short, such as the doorbell, the timer, the check of
    /// a peer's process around each copy, the permit and the canary of a new warrant, and the truncation of the permit of a lost link or a
    /// revoked warrant. One kind of call takes longer: for a remote iovec or a push, the kernel copies up to 256 KiB (one step of the
    /// engine) between two processes. Memory of either process that is backed by a slow file system stalls a copy, and with it the
    /// device. A runtime copies its foreign memory under this lock, too.
    pub(super) engine: SectionLock<DeviceEngine>,
    pub(crate) schedule: Schedule,
    pub(super) polling: Polling,
    pub(super) pending: PendingWork,
    pub(crate) requests: ThreadRequests,
    pub(super) router: EventRouter,
    pub(crate) lifecycle: Lifecycle,
    pub(super) transmitter: Option<Transmitter>,
}

impl EngineDriver {
    /// A driver with the device's link to itself, whose engine thread checks every `tick` whether the program still polls.
    ///
    /// # Errors
    /// No descriptor is available.
    pub(crate) fn new(
        loopback: AnyLink,
        mut engine: DeviceEngine,
        tick: Duration,
        router: EventRouter,
        lifecycle: Lifecycle,
        transmitter: Option<Transmitter>,
    ) -> Result<Self, DeviceError> {
        let loopback = engine.attach(loopback);
        Ok(Self {
            engine: SectionLock::new(engine),
            schedule: Schedule::new(tick)?,
            polling: Polling::default(),
            pending: PendingWork::new(loopback),
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

    /// Runs a command on the engine.
    #[inline]
    pub(crate) fn command<T>(&self, run: impl FnOnce(&mut DeviceEngine) -> T) -> T {
        let mut engine = self.engine.lock();
        let alarm = PanicAlarm(self);
        let result = run(&mut engine);
        self.pending.after_command();
        let sends = engine.has_wire_output() && self.take_posted(&mut engine);
        std::mem::forget(alarm);
        self.unlock(engine, sends);
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
        self.pending.after_post();
        let sends = engine.has_wire_output() && self.take_posted(&mut engine);
        std::mem::forget(alarm);
        self.unlock(engine, sends);
        if asleep {
            self.after_post_asleep();
        }
        result
    }

    /// Drives once and acts on the events. Returns whether there was work.
    #[inline]
    pub(super) fn drive(&self, engine: Guard<'_, DeviceEngine>, now: u64) -> bool {
        self.drive_with(engine, now, None, None)
    }

    /// Like [`EngineDriver::drive`]. `only` is the only link that has something; if the engine also has work that no ring shows,
    /// it is driven as usual.
    #[inline]
    pub(super) fn drive_with(
        &self,
        mut engine: Guard<'_, DeviceEngine>,
        now: u64,
        only: Option<LinkId>,
        inbox: Option<(CqId, &mut dyn Inbox<ProcessMemory>)>,
    ) -> bool {
        let alarm = PanicAlarm(self);
        let (did, sends) = self.drive_locked(&mut engine, now, only, inbox);
        std::mem::forget(alarm);
        self.unlock(engine, sends);
        did
    }

    /// Drives once. Returns whether there was work, and whether there are packets to send. The caller has a [`PanicAlarm`].
    #[inline]
    pub(super) fn drive_locked(
        &self,
        engine: &mut DeviceEngine,
        now: u64,
        only: Option<LinkId>,
        inbox: Option<(CqId, &mut dyn Inbox<ProcessMemory>)>,
    ) -> (bool, bool) {
        // Work that no ring shows is recorded under the engine's lock.
        let only = only.filter(|_| !self.pending.exists());
        let progress = engine.drive_round(now, BUDGET, only, inbox);
        self.schedule.set_deadline(progress.next_deadline);
        self.pending.after_drive(&progress);
        let sends = self.take_packets(engine, now);
        (progress.did || progress.more, sends)
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

    /// Unlocks the engine, acts on its events, and sends packets if there are any.
    #[inline]
    pub(super) fn unlock(&self, engine: Guard<'_, DeviceEngine>, sends: bool) {
        if engine.has_events() {
            self.route_events(engine);
        } else {
            drop(engine);
        }
        if sends {
            self.send_packets();
        }
    }

    /// Takes the events of the engine, unlocks it and acts on them.
    #[cold]
    pub(super) fn route_events(&self, mut engine: Guard<'_, DeviceEngine>) {
        let mut events = Vec::new();
        while let Some(event) = engine.poll_event() {
            events.push(event);
        }
        drop(engine);
        self.router.route(self, events);
    }

    /// Whether the engine has a deadline that has passed.
    #[inline]
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.schedule.deadline().is_some_and(|at| at <= now)
    }

    /// Whether a ring has something, or the engine has work that no ring shows.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.pending.exists() || self.schedule.poll_set.check() != PollResult::Nothing
    }

    /// Handles the end of a connected queue pair's peer, which may have said why.
    pub(crate) fn peer_ended(&self, qp: QpId, qpn: u32, why: Option<u8>) {
        self.router.peer_ended(self, qp, qpn, why);
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

/// Marks the device as failed when a panic drops it.
pub(super) struct PanicAlarm<'a>(pub(super) &'a EngineDriver);

impl Drop for PanicAlarm<'_> {
    fn drop(&mut self) {
        self.0.fail("bug: the engine panicked".to_owned());
    }
}

#[cfg(test)]
pub(super) mod tests;
