//! Waiting for a completion queue: the descriptor on which a program sleeps, and how a thread prepares to sleep.

use super::Cq;
use crate::attached::Armed;
use crate::errno::{FiError, Result};
use crate::wait::{Set, Signal, Timer};
use parking_lot::Mutex;
use rkey_device::SpinForecast;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// How long a program sleeps before it checks again for events that wake no thread.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// What a program waits on: readable when the queue has entries or an endpoint has work.
pub(crate) struct Wait {
    pub(super) set: Set,
    pub(super) signal: Arc<Signal>,
    /// Makes the set readable after [`POLL_INTERVAL`], while that is needed. Locked while a thread prepares to wait, so the last
    /// thread to prepare decides whether it is needed.
    timer: Mutex<Option<Timer>>,
    /// `fi_cq_signal` requested a wake-up, and no thread has taken the request yet.
    woken: AtomicBool,
    /// The number of threads that wait in a call.
    waiting: AtomicUsize,
    /// How long these threads wait.
    pub(super) spin: SpinForecast,
}

impl Wait {
    pub(super) fn new() -> Result<Self> {
        let wait = Self {
            set: Set::new()?,
            signal: Arc::new(Signal::new()?),
            timer: Mutex::default(),
            woken: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            spin: SpinForecast::default(),
        };
        wait.set.add(wait.signal.raw())?;
        Ok(wait)
    }

    /// Wakes a thread that waits in a call, or the next thread that would wait.
    pub(super) fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.signal.raise();
    }

    /// Registers a thread that waits in a call, until the result is dropped.
    pub(super) fn begin(&self) -> WaitGuard<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        WaitGuard(self)
    }

    /// For threads that wait on the descriptor: whether `fi_cq_signal` has requested a wake-up. Clears the request, unless a thread that
    /// waits in `fi_cq_sread` should get it.
    fn is_woken(&self) -> bool {
        match self.waiting.load(Ordering::Acquire) {
            0 => self.woken.swap(false, Ordering::AcqRel),
            _ => self.woken.load(Ordering::Acquire),
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.set.raw()
    }

    /// Starts or stops waking the waiting thread after [`POLL_INTERVAL`].
    fn poll_periodically(&self, timer: &mut Option<Timer>, needed: bool) -> Result<()> {
        if needed && timer.is_none() {
            let new = Timer::new()?;
            self.set.add(new.raw())?;
            *timer = Some(new);
        }
        if let Some(timer) = timer {
            timer.set(needed.then_some(POLL_INTERVAL));
        }
        Ok(())
    }
}

/// Counts a thread as waiting while it is in a call that waits.
pub(super) struct WaitGuard<'a>(&'a Wait);

impl WaitGuard<'_> {
    /// Takes the wake-up that `fi_cq_signal` requested. Returns whether there was one.
    pub(super) fn is_woken(&self) -> bool {
        self.0.woken.swap(false, Ordering::AcqRel)
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Cq {
    /// Prepares to wait on the descriptor. Returns `FI_EAGAIN` if there is something to read or to do first.
    pub(super) fn arm_descriptor(&self) -> Result<()> {
        let may_retry = self.arm()?;
        let woken = self.wait.as_ref().is_some_and(Wait::is_woken);
        match may_retry || woken {
            true => Err(FiError::AGAIN),
            false => Ok(()),
        }
    }

    /// Prepares to wait, or fails with `FI_EAGAIN` if there is something to read. Returns whether a call that got `FI_EAGAIN` may
    /// be repeated.
    pub(super) fn arm(&self) -> Result<bool> {
        let wait = self.wait.as_ref().ok_or(FiError::INVAL)?;
        let mut timer = wait.timer.lock();
        // Clear the signal before the checks below: they may miss an event that is raised from now on, but that event leaves the
        // signal set.
        wait.signal.clear();
        if wait.woken.load(Ordering::Acquire) {
            // The signal may be for another thread.
            wait.signal.raise();
        }
        let mut all = Armed::default();
        for endpoint in &*self.endpoints.all() {
            let armed = endpoint.arm(self.id())?;
            all.may_retry |= armed.may_retry;
            all.needs_polling |= armed.needs_polling;
        }
        self.domain.work.run();
        if !self.is_empty() {
            // Other threads may wait for the same entry.
            wait.signal.raise();
            return Err(FiError::AGAIN);
        }
        let needed = all.needs_polling || self.domain.work.needs_polling(&self.endpoints);
        wait.poll_periodically(&mut timer, needed)?;
        Ok(all.may_retry)
    }
}
