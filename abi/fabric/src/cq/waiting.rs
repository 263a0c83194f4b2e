//! What a program sleeps on that waits for a completion queue, and how it prepares for that.

use super::Cq;
use crate::errno::{FiError, Result};
use crate::wait::{Set, Signal, Timer};
use parking_lot::Mutex;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
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
    /// Somebody asked for the queue to be woken.
    pub(super) woken: AtomicBool,
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
        };
        wait.set.add(wait.signal.raw())?;
        Ok(wait)
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

impl Cq {
    /// Prepares to wait: `FI_EAGAIN` if there is something to read. Says whether there is something to come again for.
    pub(super) fn arm(&self) -> Result<bool> {
        let wait = self.wait.as_ref().ok_or(FiError::INVAL)?;
        let mut timer = wait.timer.lock();
        // Before everything else: whoever raises it from here on has something that is not looked for below.
        wait.signal.clear();
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
