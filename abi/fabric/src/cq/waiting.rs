//! What a program sleeps on that waits for a completion queue, and how it prepares for that.

use super::Cq;
use crate::errno::{FiError, Result};
use crate::wait::{Set, Signal, Timer};
use parking_lot::Mutex;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// How long a program sleeps that waits for something that wakes nobody.
const LOOK: Duration = Duration::from_millis(1);

/// What a program waits for: readable when the queue has entries or an endpoint has something to do.
pub(crate) struct Wait {
    pub(super) set: Set,
    pub(super) signal: Arc<Signal>,
    /// Makes it readable after a while, once that was needed. Held while somebody prepares to wait, so that he finds out
    /// whether it is needed after everybody whose word counts less.
    timer: Mutex<Option<Timer>>,
    /// Somebody asked for a thread to be woken that waits in a call.
    woken: AtomicBool,
    /// So many threads are in such calls.
    waiting: AtomicUsize,
}

/// What an endpoint says to who is about to wait for it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Armed {
    /// A call that met `FI_EAGAIN` may come again.
    pub(crate) comes_again: bool,
    /// It waits for something that wakes nobody.
    pub(crate) needs_looks: bool,
}

impl Wait {
    pub(super) fn new() -> Result<Self> {
        let wait = Self {
            set: Set::new()?,
            signal: Arc::new(Signal::new()?),
            timer: Mutex::default(),
            woken: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
        };
        wait.set.add(wait.signal.raw())?;
        Ok(wait)
    }

    /// Wakes a thread that waits in a call, or will.
    pub(super) fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.signal.raise();
    }

    /// A thread waits in a call, until the result is dropped.
    pub(super) fn begin(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Waiting(self)
    }

    /// Whether somebody asked for a thread to be woken: for who waits by descriptor. The one in a call is to hear of it;
    /// if there is none it is over with this.
    fn is_woken(&self) -> bool {
        match self.waiting.load(Ordering::Acquire) {
            0 => self.woken.swap(false, Ordering::AcqRel),
            _ => self.woken.load(Ordering::Acquire),
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.set.raw()
    }

    /// Wakes who waits after a while, or no longer does.
    fn look_now_and_then(&self, timer: &mut Option<Timer>, needed: bool) -> Result<()> {
        if needed && timer.is_none() {
            let new = Timer::new()?;
            self.set.add(new.raw())?;
            *timer = Some(new);
        }
        if let Some(timer) = timer {
            timer.set(needed.then_some(LOOK));
        }
        Ok(())
    }
}

/// A thread in a call that waits.
pub(super) struct Waiting<'a>(&'a Wait);

impl Waiting<'_> {
    /// Whether it was woken.
    pub(super) fn is_woken(&self) -> bool {
        self.0.woken.swap(false, Ordering::AcqRel)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Cq {
    /// Prepares to wait for the descriptor: `FI_EAGAIN` if there is something to look for first.
    pub(super) fn arm_descriptor(&self) -> Result<()> {
        let comes_again = self.arm()?;
        let woken = self.wait.as_ref().is_some_and(Wait::is_woken);
        match comes_again || woken {
            true => Err(FiError::AGAIN),
            false => Ok(()),
        }
    }

    /// Prepares to wait: `FI_EAGAIN` if there is something to read. Says whether there is something to come again for.
    pub(super) fn arm(&self) -> Result<bool> {
        let wait = self.wait.as_ref().ok_or(FiError::INVAL)?;
        let mut timer = wait.timer.lock();
        // Before everything else: whoever raises it from here on has something that is not looked for below.
        wait.signal.clear();
        if wait.woken.load(Ordering::Acquire) {
            // It may be for another thread.
            wait.signal.raise();
        }
        let mut all = Armed::default();
        for endpoint in &*self.endpoints.all() {
            let armed = endpoint.arm(self)?;
            all.comes_again |= armed.comes_again;
            all.needs_looks |= armed.needs_looks;
        }
        self.domain.work.run();
        if !self.is_empty() {
            // Others may wait for it as well.
            wait.signal.raise();
            return Err(FiError::AGAIN);
        }
        let needed = all.needs_looks || self.domain.work.needs_looks(&self.endpoints);
        wait.look_now_and_then(&mut timer, needed)?;
        Ok(all.comes_again)
    }
}
